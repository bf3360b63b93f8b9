package ssd

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// TestBitFlips flips bits in segments. Every later read is right or a miss.
func TestBitFlips(t *testing.T) {
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	var right, missing, corrupt, flips int
	for round := range rounds(10, 400) {
		sim, rows := newSimFS(), vfs.NewMem()
		o := simOptions(sim, rows)
		if round%2 == 0 {
			o.Key = bytes.Repeat([]byte{byte(round)}, 32)
		}
		tier := open(t, o)
		const n = 100
		size := func(i int) int { return i * 97 }
		for i := range n {
			write(t, tier, i, 1, size(i), i%9 == 0)
		}
		for range 3 {
			for range rng.IntN(40) {
				if sim.flip(rng) {
					flips++
				}
			}
			if rng.IntN(2) == 0 {
				mustClose(t, tier)
				for range rng.IntN(10) {
					sim.flip(rng)
				}
				if round%3 == 0 {
					if _, err := Verify(ctx, VerifyOptions{Dir: o.Dir, Key: o.Key, fs: sim}); err != nil &&
						!errors.Is(err, ErrMark) {
						t.Logf("verify: %v", err)
					}
				}
				tier = open(t, o)
			}
			for i := range n {
				dst := alignedBytes(roundUp(size(i)))[:size(i)]
				_, err := tier.Read(ctx, keyAddr(i), dst)
				switch {
				case errors.Is(err, ErrMiss):
					missing++
				case errors.Is(err, ErrCorrupt):
					corrupt++
				case err != nil:
					t.Fatal(err)
				case !bytes.Equal(dst, content(i, 1, size(i))):
					t.Fatalf("block %d holds wrong bytes", i)
				default:
					right++
				}
			}
		}
		mustClose(t, tier)
	}
	t.Logf("%d flips: %d reads right, %d found damage, %d misses", flips, right, corrupt, missing)
	if corrupt == 0 || right == 0 {
		t.Error("nothing was tested")
	}
}

// faults are failures that come at random while armed.
type faults struct {
	mu    sync.Mutex
	rng   *rand.Rand
	armed atomic.Bool
	err   error
	some  int // one of this many operations fails
	reads bool
}

func (f *faults) trip(op string) error {
	if !f.armed.Load() || op == "read" && !f.reads {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rng.IntN(f.some) > 0 {
		return nil
	}
	return f.err
}

// MaybeError makes the rows fail like the segments.
func (f *faults) MaybeError(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpCreate, errorfs.OpFilePreallocate:
		return f.trip("write")
	}
	return nil
}

func (f *faults) String() string { return "faults" }

// still checks n blocks. On a full filesystem the oldest may be gone.
func still(t *testing.T, tier *Tier, n int, fault error) {
	t.Helper()
	for i := range n {
		if _, there := tier.Find(keyAddr(i)); there || !errors.Is(fault, syscall.ENOSPC) {
			holds(t, tier, i, 1, 5000)
		}
	}
}

// TestFaults makes the disk fail in each way. Reads go on, and a failed write leaves no half block.
func TestFaults(t *testing.T) {
	seed := seedOf(t)
	for name, c := range map[string]struct {
		err   error
		rows  bool
		reads bool
		some  int
	}{
		"full": {syscall.ENOSPC, false, false, 1}, "read-only": {syscall.EROFS, false, false, 1}, "I/O": {syscall.EIO, false, true, 3},
		"rows full": {syscall.ENOSPC, true, false, 1}, "rows read-only": {syscall.EROFS, true, false, 1}, "rows I/O": {syscall.EIO, true, false, 5},
	} {
		t.Run(name, func(t *testing.T) {
			f := &faults{rng: rand.New(rand.NewPCG(seed, 7)), err: c.err, some: c.some, reads: c.reads}
			sim := newSimFS()
			mem := vfs.NewMem()
			var rows vfs.FS = mem
			if c.rows {
				rows = errorfs.Wrap(mem, f)
			}
			sim.fault = f.trip
			o := simOptions(sim, rows)
			o.segmentSize = 256 << 10
			o.rowShare -= 12 << 20 // failed segments must not fill the disk, which would evict blocks
			tier := open(t, o)
			const n = 40
			for i := range n {
				write(t, tier, i, 1, 5000, i%5 == 0)
			}
			f.armed.Store(true)
			failed := 0
			for i := range n {
				if err := tier.Write(ctx, record(n+i), content(n+i, 1, 9000), i%2 == 0); err != nil {
					failed++
				}
				_, _ = tier.Delete(ctx, keyAddr(n+i))
			}
			read := 0
			for i := range n {
				dst := make([]byte, 5000)
				_, err := tier.Read(ctx, keyAddr(i), dst)
				switch {
				case err == nil && !bytes.Equal(dst, content(i, 1, 5000)):
					t.Fatal("wrong bytes")
				case err == nil:
					read++
				case errors.Is(err, ErrMiss) && errors.Is(c.err, syscall.ENOSPC):
				case !errors.Is(err, ErrIO) || !c.reads:
					t.Fatalf("block %d: %v", i, err)
				}
			}
			f.armed.Store(false)
			still(t, tier, n, c.err)
			s := tier.Stats()
			t.Logf("%d writes failed, %d blocks read; %d full, %d read-only, %d other, %d failed reads", failed, read,
				s.NoSpaceErrors, s.ReadOnly, s.WriteErrors, s.ReadErrors)
			if failed == 0 || s.NoSpaceErrors+s.ReadOnly+s.WriteErrors == 0 {
				t.Errorf("nothing failed")
			}
			_ = tier.Close()
			o.rowFS = mem
			var err error
			if tier, err = Open(ctx, o); err != nil {
				t.Fatal("the directory does not open afterwards:", err)
			}
			still(t, tier, n, c.err)
			mustClose(t, tier)
		})
	}
}

func FuzzHeader(f *testing.F) {
	b := alignedBytes(page)
	h := header{size: 9, Record: record(1)}
	h.encode(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var h header
		if h.decode(b) != nil {
			return
		}
		again := alignedBytes(page)
		h.encode(again)
		var back header
		if err := back.decode(again); err != nil || back.Addr != h.Addr || back.seq != h.seq || back.size != h.size {
			t.Fatal("a header does not come back:", err)
		}
	})
}

func FuzzFooter(f *testing.F) {
	salt := [16]byte{1}
	b := alignedBytes(2 * page)
	encodeFooter(b, 3, salt, 7, []tableEntry{{addr: keyAddr(1), seq: 1, page: 1, size: 5000}})
	f.Add(b, uint32(9))
	f.Fuzz(func(t *testing.T, b []byte, pages uint32) {
		if len(b) < page {
			return
		}
		first, n, sum, err := decodeLast(b[len(b)-page:], 3, salt, pages)
		if err != nil {
			return
		}
		table, err := decodeTable(b, n, sum, first)
		if err == nil && len(table) != n {
			t.Fatal(len(table), "records, not", n)
		}
	})
}

func FuzzRow(f *testing.F) {
	h := header{size: 9, Record: record(1), place: place{1, 2}}
	r := rowOf(&h)
	f.Add(r.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, back row
		if r.decode(b) != nil {
			return
		}
		if err := back.decode(r.encode()); err != nil || back.place != r.place || back.seq != r.seq {
			t.Fatal("a row does not come back:", err)
		}
	})
}

// TestCutOff cuts a segment short between two runs. The next start drops the blocks behind the cut
// and keeps those before it.
func TestCutOff(t *testing.T) {
	dir := t.TempDir()
	o := Options{Dir: dir, Cap: 64 << 20, Logger: quiet}
	tier := open(t, o)
	const n, size = 20, 64 << 10
	for i := range n {
		write(t, tier, i, 1, size, true)
	}
	mustClose(t, tier)
	names, err := filepath.Glob(filepath.Join(dir, segmentPrefix+"*"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	if err := os.Truncate(names[0], n*size/2); err != nil {
		t.Fatal(err)
	}
	tier = open(t, o)
	<-tier.Ready()
	if s := tier.Stats(); s.Records == 0 || s.Records >= n || s.Torn != uint64(n-s.Records) {
		t.Errorf("%d blocks, %d torn", s.Records, s.Torn)
	}
	holds(t, tier, 0, 1, size)
	if _, there := tier.Find(keyAddr(n - 1)); there {
		t.Error("a block behind the cut is there")
	}
	mustClose(t, tier)
}
