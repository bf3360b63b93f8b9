package residency

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// TestUsage checks that an engine's blocks are counted by adapter and medium, and that pins follow
// the reports.
func TestUsage(t *testing.T) {
	x := New(Options{})
	space, base, lora := spaceOf("m"), chainOf("p", 10), chainOf("lora", 4)
	stored := func(tier Tiers, pinned bool, adapter string, digests []block.Digest) Event {
		return Event{Kind: Stored, Namespace: space, Tier: tier, Pinned: pinned, Adapter: adapter, Digests: digests}
	}
	number := uint64(0)
	say := func(events ...Event) {
		t.Helper()
		number++
		must(t, x.Report(&Report{Engine: "e", Epoch: 1, Number: number, Fresh: number == 1, Events: events}))
	}
	want := func(rows ...EngineUsage) {
		t.Helper()
		if got := x.Usage(10); fmt.Sprint(got) != fmt.Sprint(rows) {
			t.Errorf("%+v, want %+v", got, rows)
		}
	}
	say(stored(Device, false, "", base), stored(Host, false, "", base[:3]), stored(Device, true, "a", lora))
	want(EngineUsage{"e", space, "", UsageCounts{Blocks: 10, Device: 10, Host: 3}}, EngineUsage{"e", space, "a",
		UsageCounts{Blocks: 4, Device: 4, Pinned: 4}})
	say(stored(Device, false, "a", lora[:1]), stored(Device, true, "", base[:2]), Event{Kind: Removed, Namespace: space,
		Tier: Device, Digests: base[:1]})
	want(EngineUsage{"e", space, "", UsageCounts{Blocks: 10, Device: 9, Host: 3, Pinned: 1}}, EngineUsage{"e", space,
		"a", UsageCounts{Blocks: 4, Device: 4, Pinned: 3}})
	if st := x.Stats(); st.Pinned != 4 {
		t.Errorf("%d are pinned", st.Pinned)
	}
	out := make([]Tiers, 3)
	x.Held(block.IDOf(space), block.LayerAll, base[:3], out)
	if out[0] != Host || out[1] != Device|Host|Pinned || out[2] != Device|Host {
		t.Errorf("%b", out)
	}
	say(Event{Kind: Removed, Namespace: space, Tier: Device, Digests: lora}, Event{Kind: Removed, Namespace: space,
		Tier: Device | Host, Digests: base})
	want()
	say(stored(Device, true, "", base))
	must(t, x.Report(&Report{Engine: "e", Epoch: 1, Gone: true}))
	if st := x.Stats(); st.Pinned != 0 || st.Blocks != 0 {
		t.Errorf("%+v", st)
	}
}

// TestPinnedStay checks that at the limit a pinned block replaces an unpinned one. No block
// replaces a pinned one.
func TestPinnedStay(t *testing.T) {
	x := New(Options{MaxBlocks: 8})
	space, plain, pinned := spaceOf("m"), chainOf("p", 8), chainOf("q", 12)
	must(t, x.Report(&Report{Engine: "e", Epoch: 1, Fresh: true, Events: []Event{
		{Kind: Stored, Namespace: space, Tier: Device, Digests: plain},
		{Kind: Stored, Namespace: space, Tier: Device, Pinned: true, Digests: pinned},
		{Kind: Stored, Namespace: space, Tier: Device, Digests: plain},
	}}))
	if st := x.Stats(); st.Blocks != 8 || st.Pinned != 8 || st.Displaced != 8 || st.Overflow != 4+8 {
		t.Errorf("%+v", st)
	}
	var m mirror
	w := x.Watch(WatchOptions{})
	defer w.Close()
	m.drain(t, w)
	for k, b := range m.all() {
		if b.Tiers != Device|Pinned {
			t.Errorf("%v is in %b", k, b.Tiers)
		}
	}
}

func TestManyAdapters(t *testing.T) {
	x := New(Options{})
	space := spaceOf("m")
	for i := range 2 * maxAdapters {
		must(t, x.Report(&Report{Engine: "e", Epoch: 1, Number: uint64(i), Fresh: i == 0, Events: []Event{
			{Kind: Stored, Namespace: space, Tier: Device, Adapter: fmt.Sprint(i), Digests: chainOf(fmt.Sprint(i), 1)},
		}}))
	}
	if u := x.Usage(1000); len(u) != maxAdapters || u[0].Adapter != OtherAdapters || u[0].Blocks != maxAdapters+1 {
		t.Errorf("%d rows, %+v", len(u), u[0])
	}
	long := Event{Kind: Stored, Namespace: space, Tier: Device, Adapter: strings.Repeat("a", MaxAdapterName+1)}
	if err := x.Report(&Report{Engine: "e", Epoch: 2, Fresh: true, Events: []Event{long}}); err == nil {
		t.Error("a long name was taken")
	}
}
