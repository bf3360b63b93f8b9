package kv

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/ctl/cache"
	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/feed"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// lines is output that is read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// wait waits for a JSON line that is as wanted, behind the first skip lines, and returns the number
// of lines up to it.
func (l *lines) wait(t *testing.T, skip int, is func(h *happening) bool) int {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		all := strings.SplitAfter(text, "\n")
		for i, line := range all {
			var h happening
			if i >= skip && strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &h) == nil && is(&h) {
				return i + 1
			}
		}
		if time.Since(start) > time.Minute { // only a fault takes so long
			t.Fatalf("not among the lines after %d:\n%s", skip, text)
		}
	}
}

// follows runs kv follow until the returned function is called, which returns the error.
func follows(t *testing.T, out io.Writer, sock string, args ...string) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	root := ctltest.Root(Command, out, io.Discard, func(string) string { return "" })
	root.SetArgs(append([]string{"kv", "follow", "--sock", sock}, args...))
	root.SetContext(ctx)
	ended := make(chan error, 1)
	go func() { ended <- root.Execute() }()
	return func() error {
		cancel()
		return <-ended
	}
}

// chain returns the digests of a prompt.
func chain(seed string, blocks int) []block.Digest {
	d, out := block.Seed(seed, "", ""), make([]block.Digest, blocks)
	for i := range out {
		d = block.Next(d, &[block.Tokens]uint32{uint32(i)})
		out[i] = d
	}
	return out
}

// TestFollow: kv follow tells of a real daemon's blocks as they come and go, and goes on when the
// daemon is back after an end.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	place := func(c *kvcached.Config) {
		c.Daemon.Data, c.Daemon.Sock = dir, filepath.Join(dir, "kv.sock")
		c.Daemon.SSD = 0
	}
	sock, payload := filepath.Join(dir, "kv.sock"), filepath.Join(dir, "payload")
	if err := os.WriteFile(payload, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	space := func(model string) string {
		return block.Namespace{Model: model, Revision: "r", DType: "bf16", Layout: "l", Tokens: 48, TP: 1,
			PP: 1}.String()
	}
	digests := chain("m", 6)
	// object is what kv put takes for the object of three blocks from a block on.
	object := func(model string, from int) string {
		text := block.Text(space(model), block.Addr{Digest: digests[from+2], Layer: block.LayerAll}) + ":"
		if from > 0 {
			text += hex.EncodeToString(digests[from-1][:])
		}
		return text + ":" + hex.EncodeToString(append(digests[from][:8:8], digests[from+1][:8]...))
	}
	do := func(args ...string) {
		t.Helper()
		if out, err := ctl(t, map[string]string{cache.Variable: sock}, append([]string{"kv"}, args...)...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	var out lines
	var end func() error
	at := 0
	outer := t
	t.Run("first", func(t *testing.T) {
		ctltest.StartCache(t, place)
		do("put", object("m", 0), payload)
		end = follows(outer, &out, sock, "--model", "m", "-o", "json")
		at = out.wait(t, 0, func(h *happening) bool {
			return h.Event == snapshotEvent && h.Blocks == 3 && h.Tokens == 48 && h.ByTier["ram"] == 3
		})
		do("put", object("other", 0), payload)
		do("put", object("m", 3), payload)
		next := out.wait(t, at, func(h *happening) bool {
			return h.Event == cameEvent && h.Tiers == "ram" && h.Tokens == 48 && h.First != nil && *h.First == 48 &&
				h.Block == hex.EncodeToString(digests[5][:8]) && h.Model == "m" && h.Engine == "" &&
				h.Namespace == space("m")
		})
		if next != at+1 {
			t.Errorf("line %d; the other model's blocks are told, too:\n%s", next, &out.text)
		}
		do("rm", "--model", "m")
		at = out.wait(t, next, func(h *happening) bool {
			return h.Event == leftEvent && h.Tiers == "ram" && h.Blocks == 3 && *h.First == 0
		})
	})
	at = out.wait(t, at, func(h *happening) bool { return h.Event == gapEvent && h.Why != "" })
	ctltest.StartCache(t, place)
	out.wait(t, at, func(h *happening) bool { return h.Event == snapshotEvent && h.Blocks == 0 })
	if err := end(); err != nil {
		t.Error(err)
	}
	if out, err := ctl(t, nil, "kv", "follow", "--sock", sock, "--for", "50ms"); err != nil {
		t.Error(err)
	} else {
		ctltest.Want(t, out, "TIME", "there are 0 tokens in 0 blocks")
	}
}

// TestFollowMistakes: flags that make no sense, and a daemon that was never there, are errors.
func TestFollowMistakes(t *testing.T) {
	for args, text := range map[string]string{"--for -1s": "--for -1s: must be above 0",
		"--for 0s": "must be above 0", "--model=": "--model is empty", "--sock /nowhere/kv.sock": "no cache daemon"} {
		if _, err := ctl(t, nil, append([]string{"kv", "follow"}, strings.Fields(args)...)...); err == nil ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// count adds a happening to the blocks by tier.
func count(told map[string]int, h *happening) {
	by := h.Blocks
	switch h.Event {
	case snapshotEvent:
		clear(told)
		maps.Copy(told, h.ByTier)
	case goneEvent:
		told["device"] -= by
	case leftEvent:
		by = -by
		fallthrough
	case cameEvent:
		for tier := range strings.SplitSeq(h.Tiers, "+") {
			told[tier] += by
		}
	}
}

// host is an index of a host's blocks that changes at random.
type host struct {
	*residency.Index
	t       *testing.T
	rng     *rand.Rand
	space   string
	digests []block.Digest
	own     []residency.Tiers // what the daemon has
}

func (h *host) change() {
	i := h.rng.IntN(len(h.digests))
	c := &residency.Change{Addr: block.Addr{Digest: h.digests[i], Model: block.IDOf(h.space), Layer: block.LayerAll},
		Namespace: h.space, Tier: []residency.Tiers{residency.Host, residency.Disk}[h.rng.IntN(2)],
		Present: h.rng.IntN(2) == 0}
	if i > 0 && h.rng.IntN(2) == 0 {
		c.Parent = h.digests[i-1]
	}
	if h.own[i] &^= c.Tier; c.Present {
		h.own[i] |= c.Tier
	}
	h.Apply(c)
}

// restart makes an engine begin anew, with the first five blocks.
func (h *host) restart(epoch int) {
	if err := h.Report(&residency.Report{Engine: "gpu1", Epoch: uint64(epoch), Fresh: true,
		Events: []residency.Event{{Kind: residency.Stored, Namespace: h.space, Tier: residency.Device,
			Digests: h.digests[:5], Pinned: true}}}); err != nil {
		h.t.Fatal(err)
	}
}

// blocks counts the blocks by tier.
func (h *host) blocks() map[string]int {
	all := map[string]int{"device": 5}
	for _, is := range h.own {
		if is&residency.Host != 0 {
			all["ram"]++
		}
		if is&residency.Disk != 0 {
			all["ssd"]++
		}
	}
	return all
}

// TestSightIsTheIndex: what came and left adds up to what the index has, engines included, also
// after a gap.
func TestSightIsTheIndex(t *testing.T) {
	h := &host{Index: residency.New(residency.Options{Ring: 64}), t: t, rng: rand.New(rand.NewPCG(1, 2)),
		digests: chain("m", 40), own: make([]residency.Tiers, 40), space: block.Namespace{Model: "m", Revision: "r",
			DType: "bf16", Layout: "l", Tokens: 16, TP: 1, PP: 1}.String()}
	r := feed.NewReader(h.Index, &pb.WatchRequest{})
	defer r.Close()
	s, told, gaps, last := newSight(""), map[string]int{}, 0, uint64(0)
	for round := range 300 {
		changes := h.rng.IntN(12)
		if round%100 == 99 { // more than the ring
			changes = 1000
		}
		for range changes {
			h.change()
		}
		h.restart(round)
		for s.reading || last < h.Stats().Changes {
			m, err := r.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			last = m.Last
			list, err := s.take(m)
			if err != nil {
				t.Fatal(err)
			}
			for i := range list {
				if list[i].Event == gapEvent {
					gaps++
				}
				count(told, &list[i])
			}
		}
		want := h.blocks()
		for _, tier := range []string{"ram", "ssd", "device"} {
			if told[tier] != want[tier] {
				t.Fatalf("round %d: %s: %d are told, %d are there; %d gaps", round, tier, told[tier], want[tier], gaps)
			}
		}
	}
	if gaps == 0 {
		t.Error("there was no gap")
	}
}

// TestATerminalGetsSums: a terminal gets a bounded number of lines a second, and none is lost.
func TestATerminalGetsSums(t *testing.T) {
	var out strings.Builder
	p := &printer{out: &out, sums: true}
	now := time.Unix(1000, 0)
	for i := range 1000 {
		h := &happening{Event: cameEvent, Tiers: "ram", Tokens: 16, Blocks: 1, Model: fmt.Sprint("m", i%40)}
		if err := p.print(now.Add(time.Duration(i)*time.Microsecond), h); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != linesPerSecond {
		t.Errorf("%d lines:\n%s", n, &out)
	}
	later := happening{Event: leftEvent, Tiers: "ssd", Tokens: 32, Model: "m"}
	if err := p.print(now.Add(time.Second), &later); err != nil {
		t.Fatal(err)
	}
	total, summed := 0, 0
	for line := range strings.Lines(out.String()) {
		fields := strings.Fields(line)
		var tokens int
		if _, err := fmt.Sscan(fields[3], &tokens); err != nil {
			t.Fatal(err)
		}
		if fields[1] == "+" {
			total += tokens
		}
		if fields[5] == "summed" {
			summed++
		}
	}
	if total != 16000 || summed != mostSums+1 || !strings.Contains(out.String(), others) {
		t.Errorf("%d tokens, %d sums:\n%s", total, summed, &out)
	}
}
