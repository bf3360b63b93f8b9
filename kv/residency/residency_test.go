package residency

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// TestPositions adds the blocks of a chain in any order and checks their positions.
func TestPositions(t *testing.T) {
	space, chain := spaceOf("m"), chainOf("p", 100)
	for name, order := range map[string]func(i int) int{
		"in order":  func(i int) int { return i },
		"backwards": func(i int) int { return len(chain) - 1 - i },
		"scattered": func(i int) int { return i * 37 % len(chain) },
	} {
		t.Run(name, func(t *testing.T) {
			x := New(Options{})
			for i := range chain {
				x.Apply(change(space, chain, order(i), Host, true))
			}
			var m mirror
			w := x.Watch(WatchOptions{})
			defer w.Close()
			m.drain(t, w)
			if len(m.all()) != len(chain) {
				t.Fatalf("%d blocks", len(m.all()))
			}
			for i, d := range chain {
				b := m.all()[at{"", space, block.LayerAll, block.NameOf(&d)}]
				if int(b.Position) != i+1 || b.Leader != prefixOf(chain[i-i%GroupBlocks]) {
					t.Errorf("block %d is told to be %d, with leader %x", i, b.Position-1, b.Leader)
				}
				if i > 0 && b.Parent != prefixOf(chain[i-1]) {
					t.Errorf("block %d has parent %x", i, b.Parent)
				}
			}
			if st := x.Stats(); st.Waiting != 0 || x.own.waiting != nil || len(x.chains.ready) != 0 {
				t.Errorf("somebody waits still: %+v", st)
			}
		})
	}
}

// TestPositionFromEngine stores a block without its parent. The block must get the position that an
// engine reports.
func TestPositionFromEngine(t *testing.T) {
	space, chain := spaceOf("m"), chainOf("p", 40)
	for name, before := range map[string]bool{"report first": true, "block first": false} {
		x := New(Options{})
		c := change(space, chain, 20, Host, true)
		c.Parent = block.Digest{}
		if !before {
			x.Apply(c)
		}
		r := &Report{Engine: "e", Epoch: 1, Fresh: true,
			Events: []Event{{Kind: Stored, Namespace: space, Tier: Device, Digests: chain}}}
		if err := x.Report(r); err != nil {
			t.Fatal(err)
		}
		if before {
			x.Apply(c)
		}
		var m mirror
		w := x.Watch(WatchOptions{})
		m.drain(t, w)
		w.Close()
		if b := m.all()[at{"", space, block.LayerAll, block.NameOf(&chain[20])}]; b.Position != 21 ||
			b.Leader != prefixOf(chain[16]) {
			t.Errorf("%s: told to be block %d", name, b.Position-1)
		}
	}
}

func TestReportsInOrder(t *testing.T) {
	x := New(Options{MaxEngines: 1})
	space, chain := spaceOf("m"), chainOf("p", 4)
	stored := []Event{{Kind: Stored, Namespace: space, Tier: Device, Digests: chain}}
	for i, c := range []struct {
		r      Report
		want   error
		blocks int64
	}{
		{Report{Engine: "e", Epoch: 5, Number: 1}, ErrGap, 0},
		{Report{Engine: "e", Epoch: 5, Number: 9, Fresh: true, Events: stored}, nil, 4},
		{Report{Engine: "e", Epoch: 5, Number: 9, Events: []Event{{Kind: Cleared}}}, nil, 4}, // once more
		{Report{Engine: "e", Epoch: 5, Number: 11}, ErrGap, 4},
		{Report{Engine: "e", Epoch: 4, Number: 10, Fresh: true}, ErrStale, 4},
		{Report{Engine: "e", Epoch: 6, Number: 10}, ErrGap, 4},
		{Report{Engine: "f", Epoch: 6, Number: 1, Fresh: true}, ErrEngines, 4},
		{Report{Engine: "e", Epoch: 5, Number: 10, Events: []Event{{Kind: Removed, Namespace: space, Tier: Device, Digests: chain[2:]}}}, nil, 2},
		{Report{Engine: "e", Epoch: 5, Number: 11, Events: append(stored, Event{Kind: Cleared}, stored[0])}, nil, 4},
		{Report{Engine: "e", Epoch: 6, Number: 1, Fresh: true}, nil, 0},
		{Report{Engine: "e", Epoch: 6, Number: 2, Events: stored}, nil, 4},
		{Report{Engine: "e", Epoch: 6, Gone: true}, nil, 0},
	} {
		if err := x.Report(&c.r); !errors.Is(err, c.want) {
			t.Errorf("%d: %v, want %v", i, err, c.want)
		}
		if st := x.Stats(); st.Blocks != c.blocks {
			t.Errorf("%d: %d blocks, want %d", i, st.Blocks, c.blocks)
		}
	}
}

func TestReportRefused(t *testing.T) {
	x := New(Options{})
	good := Event{Kind: Stored, Namespace: spaceOf("m"), Tier: Device, Digests: chainOf("p", 1)}
	with := func(change func(*Event)) []Event {
		e := good
		change(&e)
		return []Event{good, e}
	}
	for name, r := range map[string]Report{
		"no engine":   {},
		"long engine": {Engine: strings.Repeat("e", MaxEngineName+1)},
		"gone":        {Engine: "e", Gone: true, Events: []Event{good}},
		"kind":        {Engine: "e", Events: with(func(e *Event) { e.Kind = 9 })},
		"no medium":   {Engine: "e", Events: with(func(e *Event) { e.Tier = 0 })},
		"medium":      {Engine: "e", Events: with(func(e *Event) { e.Tier = markGone })},
		"namespace":   {Engine: "e", Events: with(func(e *Event) { e.Namespace = "x" })},
		"keys":        {Engine: "e", Events: with(func(e *Event) { e.Namespace = "key1;resp.0;" })},
	} {
		r.Fresh, r.Epoch = true, 1
		if err := x.Report(&r); !errors.Is(err, ErrReport) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st := x.Stats(); st.Blocks != 0 || st.Engines != 0 {
		t.Errorf("something was taken in: %+v", st)
	}
}

// TestRestartIsOneEvent checks that one event removes all blocks of an engine for watchers.
func TestRestartIsOneEvent(t *testing.T) {
	x := New(Options{})
	space := spaceOf("m")
	first := &Report{Engine: "e", Epoch: 1, Fresh: true,
		Events: []Event{{Kind: Stored, Namespace: space, Tier: Device, Digests: chainOf("p", 5000)}}}
	if err := x.Report(first); err != nil {
		t.Fatal(err)
	}
	var m mirror
	w := x.Watch(WatchOptions{})
	defer w.Close()
	m.drain(t, w)
	if len(m.all()) != 5000 || !m.synced {
		t.Fatalf("%d blocks", len(m.all()))
	}
	before := m.due
	if err := x.Report(&Report{Engine: "e", Epoch: 2, Fresh: true}); err != nil {
		t.Fatal(err)
	}
	m.drain(t, w)
	if len(m.all()) != 0 || m.due-before != 2 || m.resets != 1 {
		t.Errorf("%d blocks are left after %d events and %d resets", len(m.all()), m.due-before, m.resets)
	}
}

// TestSlowWatcherAlone checks that only the watcher that falls behind gets a new snapshot.
func TestSlowWatcherAlone(t *testing.T) {
	x := New(Options{Ring: 64})
	space, chain := spaceOf("m"), chainOf("p", 500)
	slow, quick := x.Watch(WatchOptions{}), x.Watch(WatchOptions{})
	defer slow.Close()
	defer quick.Close()
	var a, b mirror
	a.drain(t, slow)
	b.drain(t, quick)
	for i := range chain {
		x.Apply(change(space, chain, i, Host, true))
		b.drain(t, quick)
	}
	a.drain(t, slow)
	if a.resets != 2 || b.resets != 1 || len(a.all()) != 500 || len(b.all()) != 500 {
		t.Errorf("slow: %d resets, %d blocks; quick: %d, %d", a.resets, len(a.all()), b.resets, len(b.all()))
	}
	if st := x.Stats(); st.Resyncs != 1 || st.Watchers != 2 {
		t.Errorf("%+v", st)
	}
}

func TestBounds(t *testing.T) {
	x := New(Options{MaxBlocks: 3})
	space, chain := spaceOf("m"), chainOf("p", 5)
	for i := range chain {
		x.Apply(change(space, chain, i, Host, true))
	}
	x.Apply(&Change{Namespace: "key1;resp.0;", Tier: Host, Present: true})
	if st := x.Stats(); st.Blocks != 3 || st.Overflow != 2 {
		t.Errorf("%+v", st)
	}
	x.Apply(change(space, chain, 0, Host, false))
	x.Apply(change(space, chain, 4, Host, true))
	if st := x.Stats(); st.Blocks != 3 || st.Waiting != 1 {
		t.Errorf("%+v", st)
	}
}

// TestNamespacesComeAndGo checks that numbers are reused once the ring has passed.
func TestNamespacesComeAndGo(t *testing.T) {
	x := New(Options{Ring: 4})
	chain := chainOf("p", 1)
	for i := range 1000 {
		space := spaceOf(strings.Repeat("m", 1+i%100) + string(rune('a'+i%26)))
		x.Apply(change(space, chain, 0, Host, true))
		x.Apply(change(space, chain, 0, Host, false))
	}
	if n := len(x.namespaces.list); n > 8 {
		t.Errorf("%d numbers", n)
	}
}

func TestHeld(t *testing.T) {
	x := New(Options{})
	space, chain := spaceOf("m"), chainOf("p", 300)
	x.Apply(change(space, chain, 0, Host, true))
	out := make([]Tiers, len(chain))
	x.Held(block.IDOf(space), block.LayerAll, chain, out)
	if out[0] != 0 {
		t.Error("our own tiers are counted as an engine's")
	}
	for _, e := range []Report{
		{Engine: "e", Events: []Event{{Kind: Stored, Namespace: space, Tier: Device, Digests: chain[:200]}}},
		{Engine: "f", Events: []Event{{Kind: Stored, Namespace: space, Tier: Shared, Digests: chain[199:]}}},
	} {
		e.Fresh = true
		if err := x.Report(&e); err != nil {
			t.Fatal(err)
		}
	}
	x.Held(block.IDOf(space), block.LayerAll, chain, out)
	if out[0] != Device || out[199] != Device|Shared || out[299] != Shared {
		t.Errorf("%v", out)
	}
}

func TestWaitsAndExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := New(Options{})
		w := x.Watch(WatchOptions{})
		defer w.Close()
		var m mirror
		m.drain(t, w)
		done := make(chan struct{})
		go func() {
			defer close(done)
			var b Batch
			m.read(t, w, &b)
		}()
		synctest.Wait()
		if err := x.Report(&Report{Engine: "e", Epoch: 1, Fresh: true}); err != nil {
			t.Fatal(err)
		}
		<-done
		if len(m.holders) != 2 {
			t.Errorf("holders %v", m.holders)
		}
		if n := x.Expire(time.Minute); n != 0 {
			t.Errorf("%d expired", n)
		}
		time.Sleep(2 * time.Minute)
		if n := x.Expire(time.Minute); n != 1 {
			t.Errorf("%d expired", n)
		}
		m.drain(t, w)
		if len(m.holders) != 1 {
			t.Errorf("holders %v", m.holders)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Next(ctx, new(Batch)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestApplyAllocates(t *testing.T) {
	x := New(Options{Ring: 1024})
	space, chain := spaceOf("m"), chainOf("p", 100)
	changes := make([]*Change, 0, 200)
	for i := range chain {
		changes = append(changes, change(space, chain, i, Host, true))
	}
	for i := range chain {
		changes = append(changes, change(space, chain, i, Host, false))
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		x.Apply(changes[i%len(changes)])
		i++
	}); n != 0 {
		t.Errorf("%v allocations per change", n)
	}
}

// TestReportAllocates reports a block that an engine stores and drops, as engines do for each step
// of an answer.
func TestReportAllocates(t *testing.T) {
	x := New(Options{Ring: 1024})
	report := reports(t, x)
	if n := testing.AllocsPerRun(1000, report); n != 0 {
		t.Errorf("%v allocations per report", n)
	}
}

// TestCheckedNamespaces reports of more namespaces than are remembered, each twice, and of a wrong
// one in between.
func TestCheckedNamespaces(t *testing.T) {
	x, number := New(Options{}), uint64(0)
	send := func(space string) error {
		number++
		err := x.Report(&Report{Engine: "e", Epoch: 1, Number: number, Fresh: number == 1, Events: []Event{{
			Kind: Stored, Namespace: space, Tier: Device, Digests: chainOf(space, 1)}}})
		if err != nil {
			number--
		}
		return err
	}
	for rank := range uint32(2 * maxChecked) {
		space := block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 16, TP: 2 * maxChecked,
			TPRank: rank, PP: 1}.String()
		for range 2 {
			if err := send(space); err != nil {
				t.Fatal(err)
			}
			for _, wrong := range []string{space + ";", block.Namespace{Space: "s3.b"}.String()} {
				if err := send(wrong); !errors.Is(err, ErrReport) {
					t.Fatalf("%s: %v", wrong, err)
				}
			}
		}
		if len(x.checked) > maxChecked {
			t.Fatalf("%d namespaces are remembered", len(x.checked))
		}
	}
	if st := x.Stats(); st.Blocks != 2*maxChecked || st.Namespaces != 2*maxChecked {
		t.Errorf("%+v", st)
	}
}

// reports returns a function that reports a block stored if it is not, and removed otherwise.
func reports(t testing.TB, x *Index) func() {
	chain := chainOf("p", 2)
	r := Report{Engine: "e", Epoch: 1, Number: 1, Fresh: true, Events: []Event{{
		Kind: Stored, Namespace: spaceOf("m"), Tier: Device, Digests: chain[:1]}}}
	if err := x.Report(&r); err != nil {
		t.Fatal(err)
	}
	r.Fresh, r.Events[0].Parent, r.Events[0].Digests = false, chain[0], chain[1:]
	return func() {
		r.Number++
		r.Events[0].Kind = Stored
		if r.Number%2 == 1 {
			r.Events[0].Kind = Removed
		}
		if err := x.Report(&r); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkReport measures a report of one block, the usual one of an engine that decodes.
func BenchmarkReport(b *testing.B) {
	report := reports(b, New(Options{}))
	b.ReportAllocs()
	for b.Loop() {
		report()
	}
}

// BenchmarkApply measures the store's callback for blocks that come and go among a million.
func BenchmarkApply(b *testing.B) {
	x := New(Options{})
	space := spaceOf("m")
	var changes []Change
	for i := range 1000 {
		chain := chainOf(string(rune('A'+i)), 1000)
		for j := range chain {
			changes = append(changes, *change(space, chain, j, Host, true))
		}
	}
	for i := range changes {
		x.Apply(&changes[i])
	}
	st := x.Stats()
	for name, step := range map[string]int{"scattered": 7919, "in order": 1} {
		b.Run(name, func(b *testing.B) {
			for i := range b.N {
				c := &changes[i/2*step%len(changes)]
				c.Present = i%2 == 1
				x.Apply(c)
			}
			b.ReportMetric(float64(st.Bytes-x.ring.bytes()-chainBytes)/float64(st.Blocks), "bytes/block")
		})
	}
}
