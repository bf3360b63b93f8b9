package leg

import (
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/request"
)

// slowPrefill is a policy in which 1600 tokens take 100 ms, and 300 ms more behind 800 cached ones.
const slowPrefill = `{"prefill_load_model":{"mode":"modelled","table":[
	{"tokens":1600,"cached_tokens":0,"ms":100},
	{"tokens":1600,"cached_tokens":800,"ms":400}]}}`

// pendingAt returns the blocks that wait for their computation at the only node, as an explanation
// at now has them.
func pendingAt(t *testing.T, d *Dispatcher, now time.Time) int {
	t.Helper()
	e, err := d.explain(asked(t, d, chat(100)), Question{}, now)
	if err != nil || len(e.Candidates) != 1 {
		t.Fatalf("%+v, %v", e, err)
	}
	return e.Candidates[0].Pending
}

// TestModelledPrefillFalls checks that prefill at a node falls as its oldest prompt should be
// computed, and that the next prompt is computed once the oldest has begun to be answered.
func TestModelledPrefillFalls(t *testing.T) {
	keys := make([]uint64, 100)
	for i := range keys {
		keys[i] = uint64(i+1) << 40
	}
	half := func(*fleet.Node) int32 { return 50 }
	for name, c := range map[string]struct {
		doc  string
		want [5]int // blocks
	}{
		"modelled": {slowPrefill, [5]int{150, 100, 50, 25, 0}},
		"none":     {`{}`, [5]int{150, 150, 50, 50, 50}},
	} {
		d := still(t, Options{}, twoNodes()[0])
		decide(t, d, c.doc)
		start := time.Now()
		at := func(ms time.Duration) time.Time { return start.Add(ms * time.Millisecond) }
		first, err := d.Rehearse(Piece{Keys: keys}, start)
		if err != nil {
			t.Fatal(err)
		}
		second, err := d.Rehearse(Piece{Keys: keys, Known: half}, start) // computes 800 tokens behind 800 in 200 ms
		if err != nil {
			t.Fatal(err)
		}
		got := [5]int{pendingAt(t, d, start), pendingAt(t, d, at(50))}
		first.Begun(at(60))
		got[2], got[3], got[4] = pendingAt(t, d, at(60)), pendingAt(t, d, at(160)), pendingAt(t, d, at(300))
		if got != c.want {
			t.Errorf("%s: %d blocks wait, want %d", name, got, c.want)
		}
		first.Finish(reported(1600, 0), at(400))
		second.Finish(reported(1600, 800), at(400))
		if left := pendingAt(t, d, at(500)); left != 0 {
			t.Errorf("%s: %d blocks are left", name, left)
		}
	}
}

// TestPrefillOfOneModelIsModelled checks that each model has its own table.
func TestPrefillOfOneModelIsModelled(t *testing.T) {
	d := stillFor(t, slowPrefill, twoNodes()[0])
	keys, start := []uint64{1 << 40, 2 << 40}, time.Now()
	r, err := d.Rehearse(Piece{Keys: keys}, start)
	if err != nil {
		t.Fatal(err)
	}
	if got := pendingAt(t, d, start.Add(time.Millisecond)); got != 1 {
		t.Errorf("%d of 2 blocks wait after half of their time", got)
	}
	r.Finish(reported(32, 0), start)
}

func TestModelledPrefillDoesNotAllocate(t *testing.T) {
	d := start(t, 2)
	decide(t, d, slowPrefill)
	r, l := request.New(), newLeg()
	if least := allocations(t, d, r, l, chat(200)); least != 0 {
		t.Errorf("%v allocations", least)
	}
}
