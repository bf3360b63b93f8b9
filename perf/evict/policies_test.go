package evict

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/accesses"
)

// play uses keys named by letters, and returns the letters with hits in capitals.
func play(p single, keys string) string {
	out := []byte(keys)
	for i := range out {
		if p.access(uint32(out[i] - 'a')) {
			out[i] -= 'a' - 'A'
		}
	}
	return string(out)
}

// order returns the keys of a list from the front.
func order(l *lists, list uint8) string {
	out := ""
	head := uint32(l.keys) + uint32(list)
	for at := l.links[head].next; at != head; at = l.links[at].next {
		out += string(rune('a' + at))
	}
	return out
}

func TestLRUEvictsTheLeastRecent(t *testing.T) {
	p := newLRU(3, 26)
	if got := play(p, "abcadba"); got != "abcAdbA" {
		t.Errorf("%s", got)
	}
	if got := order(p.lists, 0); got != "abd" {
		t.Errorf("order %s", got)
	}
}

// TestSieveAsPublished is the example in the paper's figure: the hand spares visited keys in place,
// and stays where it has evicted.
func TestSieveAsPublished(t *testing.T) {
	p := newSieve(7, 26)
	play(p, "abcdefgabg") // queue from the newest key: gfedcba; visited: a, b, g
	if got := play(p, "h"); got != "h" || order(p.lists, 0) != "hgfedba" {
		t.Fatalf("h evicts c: %s", order(p.lists, 0))
	}
	if play(p, "a"); order(p.lists, 0) != "hgfedba" {
		t.Errorf("a hit moves nothing: %s", order(p.lists, 0))
	}
	if play(p, "d"); !p.visited['d'-'a'] {
		t.Error("d is not marked")
	}
	if play(p, "i"); order(p.lists, 0) != "ihgfdba" {
		t.Errorf("i evicts e, the hand going on from c's place past d: %s", order(p.lists, 0))
	}
	if play(p, "j"); order(p.lists, 0) != "jihgdba" {
		t.Errorf("j evicts f: %s", order(p.lists, 0))
	}
}

func TestS3FIFOQuicklyDemotes(t *testing.T) {
	p := newS3FIFO(10, 26) // small queue of 1
	play(p, "abcdefghij")
	if play(p, "aaj"); order(p.lists, s3Small) != "jihgfedcba" {
		t.Fatalf("hits move nothing: %s", order(p.lists, s3Small))
	}
	play(p, "k") // a was used twice and moves on; b was not and leaves
	if order(p.lists, s3Main) != "a" || order(p.lists, s3Ghost) != "b" {
		t.Errorf("main %s, ghost %s", order(p.lists, s3Main), order(p.lists, s3Ghost))
	}
	play(p, "b") // its name is remembered, so it goes directly to the main queue
	if order(p.lists, s3Main) != "ba" || order(p.lists, s3Ghost) != "c" || p.len() != 10 {
		t.Errorf("main %s, ghost %s, %d", order(p.lists, s3Main), order(p.lists, s3Ghost), p.len())
	}
	if got := play(p, "j"); got != "J" || p.uses['j'-'a'] != 2 {
		t.Errorf("%s, uses %d", got, p.uses['j'-'a'])
	}
}

// TestS3FIFOReinserts: a used key of the main queue is reinserted once for each use, at most 3
// times.
func TestS3FIFOReinserts(t *testing.T) {
	p := newS3FIFO(10, 26)
	p.push(s3Main, 0)
	p.push(s3Main, 1)
	p.uses[0] = 1
	p.evictMain()
	if order(p.lists, s3Main) != "a" || p.uses[0] != 0 {
		t.Errorf("main %s, uses %d", order(p.lists, s3Main), p.uses[0])
	}
	for range 9 {
		p.access(0)
	}
	if p.uses[0] != 3 {
		t.Errorf("uses %d", p.uses[0])
	}
}

// TestARCAsPublished follows the cases of the paper's figure 4.
func TestARCAsPublished(t *testing.T) {
	p := newARC(4, 26)
	state := func() string {
		return fmt.Sprintf("%s %s %s %s %d", order(p.lists, arcRecent), order(p.lists, arcFrequent),
			order(p.lists, arcRecentLeft), order(p.lists, arcFrequentLeft), p.target)
	}
	for _, step := range []struct{ keys, want string }{
		{"abcd", "dcba    0"},
		{"ab", "dc ba   0"},     // case I: the second use makes a key frequent
		{"e", "ed ba c  0"},     // case IV: recent is above its target
		{"c", "e cba d  1"},     // case II: a remembered name of recent raises the target
		{"f", "fe cb d a 1"},    // recent is at its target, so frequent loses its last key, a
		{"a", "f acb ed  0"},    // case III: a remembered name of frequent lowers the target; recent gives way
		{"x", "x acb fed  0"},   // |recent and its names| < 4
		{"y", "y acb xfe  0"},   // = 4: a name is forgotten
		{"x", "y xac fe b 1"},   // at the target: b leaves
		{"acx", "y xca fe b 1"}, // hits are ordered by use
		{"z", "zy xc fe ab 1"},  // a leaves
		{"w", "wz xc yf ab 1"},  // above the target again; e is forgotten
		{"b", "w bxc zyf a 0"},  // case III
	} {
		if play(p, step.keys); state() != step.want {
			t.Errorf("after %s: %s, want %s", step.keys, state(), step.want)
		}
	}
}

func TestTinyLFUAdmitsOnlyTheMoreFrequent(t *testing.T) {
	p := newTinyLFU(4, 26) // window of 1, main part of 3 with 2 protected
	play(p, "aabbcc")
	play(p, "d") // the window pushes c into free room
	if got := order(p.lists, lfuWindow); got != "d" {
		t.Fatalf("window %s", got)
	}
	play(p, "e") // d was used once, the last key of probation twice, so d is dropped
	if p.has('d'-'a') || !p.has('c'-'a') {
		t.Errorf("d %v, c %v", p.has('d'-'a'), p.has('c'-'a'))
	}
	play(p, "eeef") // e was used four times
	if !p.has('e'-'a') || p.len() > 4 {
		t.Errorf("e %v, %d", p.has('e'-'a'), p.len())
	}
}

func TestSketchCountsAndForgets(t *testing.T) {
	s := newSketch(100)
	for range 20 {
		s.add(7)
	}
	if s.count(7) != 15 || s.count(8) != 0 {
		t.Errorf("%d, %d", s.count(7), s.count(8))
	}
	for i := range uint32(1000) {
		s.add(100 + i)
	}
	if s.count(7) >= 15 {
		t.Error("nothing was halved")
	}
}

// request uses the keys named by letters.
func request(p Policy, keys string) string {
	ids := make([]uint32, len(keys))
	for i := range ids {
		ids[i] = uint32(keys[i] - 'a')
	}
	leading, hits := p.Request(ids)
	return fmt.Sprintf("%d/%d", leading, hits)
}

func TestLeafLRUShortensFromTheEnd(t *testing.T) {
	p := newLeafLRU(6, 26)
	request(p, "abcd")
	if got := order(p.lists, 0); got != "abcd" {
		t.Fatalf("the first block is used last: %s", got)
	}
	request(p, "xyz") // they take the place of d, not of a
	if got := order(p.lists, 0); got != "xyzabc" {
		t.Errorf("order %s", got)
	}
	if got := request(p, "abcd"); got != "3/3" {
		t.Errorf("%s of the first prompt", got)
	}
	if plain := (&inOrder{newLRU(6, 26)}); request(plain, "abcd")+request(plain, "xyz")+request(plain,
		"abcd") != "0/00/00/0" {
		t.Error("plain LRU keeps the end, and so nothing")
	}
}

func TestLeafLRUKeepsParents(t *testing.T) {
	p := newLeafLRU(4, 26)
	request(p, "abc")
	request(p, "b") // out of order: b is now more recent than its parent a
	request(p, "x")
	request(p, "y")
	if got := order(p.lists, 0); got != "yxba" {
		t.Errorf("c left, a stays for b: %s", got)
	}
	if got := request(newLeafLRU(2, 26), "abcdef"); got != "0/0" {
		t.Errorf("%s", got)
	}
}

func TestLeafARCProtectsASecondUse(t *testing.T) {
	for want, p := range map[string]Policy{"0/0": newLeafLRU(6, 26), "1/1": newLeafARC(6, 26)} {
		request(p, "ab")
		request(p, "ab")
		for _, once := range []string{"cd", "ef", "gh", "ij", "kl"} {
			request(p, once)
		}
		if got := request(p, "ab"); got != want {
			t.Errorf("%T: %s of what was used twice", p, got)
		}
	}
}

// TestBounds: no policy exceeds its capacity or hits a key that it does not hold. The same seed
// gives the same result.
func TestBounds(t *testing.T) {
	const seed = 7
	for _, m := range Makers() {
		for _, capacity := range []int{1, 2, 3, 10, 97, 1000} {
			r := rand.New(rand.NewPCG(seed, 0))
			p := m.New(capacity, 500)
			for range 2000 {
				first := uint32(r.ExpFloat64() * 60)
				var keys []uint32
				for k := first; k < min(first+uint32(r.IntN(12))+1, 500); k++ {
					keys = append(keys, k)
				}
				if len(keys) == 0 {
					continue
				}
				if r.IntN(4) == 0 {
					p.Store(keys)
				} else if leading, hits := p.Request(keys); leading > hits || hits > len(keys) {
					t.Fatalf("%s: %d leading of %d", m.Name, leading, hits)
				}
				if p.Len() > capacity {
					t.Fatalf("%s holds %d of %d, seed %d", m.Name, p.Len(), capacity, seed)
				}
			}
			if capacity == 1000 && p.Len() == 0 {
				t.Errorf("%s holds nothing", m.Name)
			}
		}
	}
}

func TestPutIsNoUse(t *testing.T) {
	for _, m := range Makers() {
		tr, err := accesses.Read(strings.NewReader(`{"hash_ids":[1,2],"op":"put","bytes":64}
{"hash_ids":[1,2,3]}

{"timestamp":7,"hash_ids":[3],"input_length":9}
`))
		if err != nil {
			t.Fatal(err)
		}
		r := Replay(tr, m, 1)
		if m.Name != "w-tinylfu" && (r.Accesses != 4 || r.Prefix != 0.75 || r.Raw != 0.75) || tr.BlockBytes() != 32 ||
			tr.Distinct() != 3 || tr.Requests() != 3 {
			t.Errorf("%s: %+v", m.Name, r)
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	for _, m := range Makers() {
		b.Run(m.Name, func(b *testing.B) {
			p := m.New(1000, 4096)
			keys := make([]uint32, 16)
			for i := 0; b.Loop(); i++ {
				for k := range keys {
					keys[k] = uint32(i*37+k) & 4095
				}
				p.Request(keys)
			}
		})
	}
}
