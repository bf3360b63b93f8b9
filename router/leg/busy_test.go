package leg

import (
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/sim/engine"
)

// rehearse sends a prompt of the given number of blocks, of which nothing is cached.
func rehearse(t *testing.T, d *Dispatcher, blocks int) Rehearsal {
	t.Helper()
	keys := make([]uint64, blocks)
	for i := range keys {
		keys[i] = d.o.Random()
	}
	r, err := d.Rehearse(Piece{Keys: keys}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// refused says whether a request is refused because every node is busy.
func refused(t *testing.T, d *Dispatcher, q Question) bool {
	t.Helper()
	l := d.Leg(asked(t, d, chat(100)), q, nil)
	defer l.giveBack()
	_, err := l.first()
	if err != nil && err != d.overload {
		t.Fatal(err)
	}
	return err != nil
}

// TestPrefillThresholds checks that a node is busy while the prompts that wait at it exceed the
// threshold in tokens, or as a share of a batch.
func TestPrefillThresholds(t *testing.T) {
	const blocks = 100
	for name, limits := range map[string]busy.Thresholds{
		"tokens":   {PrefillTokens: new(blocks*prefix.BlockTokens - 1)},
		"fraction": {PrefillFraction: new(0.5)},
	} {
		t.Run(name, func(t *testing.T) {
			backends := twoNodes()
			for i := range backends {
				backends[i].MaxBatchedTokens = 2*blocks*prefix.BlockTokens - 1
			}
			d := still(t, Options{}, backends...)
			d.busy = new(busy.Settings)
			d.busy.SetModels(map[string]busy.Thresholds{"sim": limits})
			first := rehearse(t, d, blocks)
			if left := filtered(t, d, Question{}); len(left) != 1 || left[first.Node().ID] != "busy" {
				t.Errorf("%v is left out", left)
			}
			if refused(t, d, Question{}) || !refused(t, d, pinnedTo(first.Node().ID)) {
				t.Error("a request goes to the busy node, or not to the other")
			}
			second := rehearse(t, d, blocks)
			if second.Node() == first.Node() || !refused(t, d, Question{}) {
				t.Error("a request goes to a busy node")
			}
			if !counted(d, "busy", 4) {
				t.Error("not counted so")
			}
			second.Begun(time.Now())
			if refused(t, d, Question{}) {
				t.Error("the prompt is computed, and the node is still busy")
			}
			first.Finish(reported(0, 0), time.Now())
			second.Finish(reported(0, 0), time.Now())
		})
	}
}

// TestFractionOfAnUnknownBatch checks that the share of an unknown number makes no node busy.
func TestFractionOfAnUnknownBatch(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	d.busy = new(busy.Settings)
	d.busy.SetPolicy(busy.Thresholds{PrefillFraction: new(0.0)})
	r := rehearse(t, d, 100)
	if left := filtered(t, d, Question{}); len(left) != 0 {
		t.Errorf("%v is left out", left)
	}
	r.Finish(reported(0, 0), time.Now())
}

// TestBusyIsNoLastResort checks that a node with server errors gets no request in place of a busy
// one, and that no attempt is given up for a busy node.
func TestBusyIsNoLastResort(t *testing.T) {
	d := still(t, Options{OverloadStatus: 529}, twoNodes()...)
	d.busy = new(busy.Settings)
	d.busy.SetPolicy(busy.Thresholds{PrefillTokens: new(int)})
	r := rehearse(t, d, 10)
	for _, n := range d.fleet.Load().Nodes {
		for n != r.Node() && n.Health.State() != health.Open {
			n.Health.Report(health.ServerError)
		}
	}
	if !refused(t, d, Question{}) || d.overload.Status != 529 {
		t.Error("an unwell node gets a request that a busy node does not")
	}
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	defer l.giveBack()
	if err := l.resolve(); err != nil || l.others(time.Now()) {
		t.Errorf("another node could take it: %v", err)
	}
	r.Begun(time.Now())
	if !l.others(time.Now()) {
		t.Error("no other node could take it, and none is busy")
	}
	r.Finish(reported(0, 0), time.Now())
}

// TestTheLatchOutlivesASnapshot checks that a node keeps its latch when the fleet changes.
func TestTheLatchOutlivesASnapshot(t *testing.T) {
	d := start(t, 1)
	member := func() *member { return d.current().models["sim"].pools[Answer].members[0] }
	before := member()
	url := d.fleet.Load().Nodes[0].Info().Address
	if err := d.fleet.Reload(t.Context(), []fleet.Backend{{URL: url, Role: "decode"}}); err != nil {
		t.Fatal(err)
	}
	if after := member(); after == before || after.latch != before.latch || after.latch == nil {
		t.Errorf("%p, then %p", before.latch, after.latch)
	}
}

// TestAnExplanationLeavesTheLatch checks that an explanation neither sets nor clears the latch of a
// node whose blocks have crossed their threshold.
func TestAnExplanationLeavesTheLatch(t *testing.T) {
	d := follow(t)
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	d.busy = new(busy.Settings)
	d.busy.SetPolicy(busy.Thresholds{DecodeBlocks: new(0.5)})
	explained := func(free int, out bool) {
		t.Helper()
		d.put("a", e.URL(), fmt.Sprintf(`"ready":true,"heartbeat_s":300,"free_blocks":%d,"total_blocks":100`, free))
		waitFor(t, func() bool {
			n := d.fleet.Load().Node("a")
			if n == nil || d.fleet.Load().Model([]byte("sim")) == nil {
				return false
			}
			blocks, _ := n.Load().FreeBlocks.Get()
			return int(blocks) == free
		})
		if left := filtered(t, d.Dispatcher, Question{}); (left["a"] == "busy") != out {
			t.Errorf("with %d free blocks %v is left out", free, left)
		}
	}
	picked := func(out bool) {
		t.Helper()
		if refused(t, d.Dispatcher, Question{}) != out {
			t.Errorf("refused: %v", !out)
		}
	}
	explained(49, true)
	explained(50, false) // at the threshold, and no pick has seen more
	picked(false)
	explained(49, true)
	picked(true)
	explained(50, true)
	explained(51, false)
	explained(50, true) // no pick has seen less
	picked(true)
}

// TestAnOldReportMakesNoIdleNodeBusy checks that the blocks in a report do not count once this
// router's requests have ended, if the report has no requests of others. Without requests the
// engine's word counts.
func TestAnOldReportMakesNoIdleNodeBusy(t *testing.T) {
	for _, c := range []struct {
		told           int // requests in the report, with one of this router
		running, ended bool
	}{
		{told: 1, running: true, ended: false}, {told: 2, running: true, ended: true}, {told: 0, running: true, ended: true},
	} {
		d := follow(t)
		e, err := engine.New(engine.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		d.busy = new(busy.Settings)
		d.busy.SetPolicy(busy.Thresholds{DecodeBlocks: new(0.0)})
		told := func(free int) {
			t.Helper()
			d.put("a", e.URL(), fmt.Sprintf(`"ready":true,"heartbeat_s":300,"free_blocks":%d,"total_blocks":100,"in_flight":%d`,
				free, c.told))
			waitFor(t, func() bool {
				n := d.fleet.Load().Node("a")
				if n == nil || d.fleet.Load().Model([]byte("sim")) == nil {
					return false
				}
				blocks, _ := n.Load().FreeBlocks.Get()
				return int(blocks) == free
			})
		}
		told(100)
		n := d.fleet.Load().Node("a")
		n.AcquireAlways()
		told(90)
		if left := filtered(t, d.Dispatcher, Question{}); (left["a"] == "busy") != c.running {
			t.Errorf("%+v: %v is left out while a request runs", c, left)
		}
		n.Release()
		if left := filtered(t, d.Dispatcher, Question{}); (left["a"] == "busy") != c.ended {
			t.Errorf("%+v: %v is left out afterwards", c, left)
		}
	}
}

// TestBusyDoesNotAllocate picks with thresholds of all kinds.
func TestBusyDoesNotAllocate(t *testing.T) {
	d := start(t, 2)
	d.busy = new(busy.Settings)
	d.busy.SetPolicy(busy.Thresholds{DecodeBlocks: new(1.0), PrefillTokens: new(int(1e9)), PrefillFraction: new(1.0)})
	r, l := request.New(), newLeg()
	if least := allocations(t, d, r, l, chat(200)); least != 0 {
		t.Errorf("%v allocations", least)
	}
}
