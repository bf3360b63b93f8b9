package leg

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/books"
)

// loaded raises the requests in flight of all nodes to n, but of those whose places are idle.
func loaded(d *Dispatcher, n int, idle ...int) {
	for i, m := range d.current().models["sim"].pools[Answer].members {
		for m.rank.InFlight() < int32(n) && !slices.Contains(idle, i) {
			m.rank.AcquireAlways()
		}
	}
}

// TestSample checks which nodes of a large fleet a pick looks at: those that hold the prompt, those
// with the least to do, and the session's node.
func TestSample(t *testing.T) {
	d := dispatcherOf(t, 512)
	decide(t, d, predicted)
	d.sessions = affinity.NewSessions(100, sessionLifetime)
	remember(t, d, chat(3000), 3) // at the first three places
	members := d.current().models["sim"].pools[Answer].members
	idle := []int{100, 200, 300, 400, 500}
	loaded(d, 4, append(idle, 350)...)
	members[350].rank.AcquireAlways()
	r := asked(t, d, chat(3000))
	r.Session = []byte("s")
	now := time.Now()
	for range 20 {
		l := wanted(t, d, r)
		if err := l.admit(); err != nil {
			t.Fatal(err)
		}
		l.look()
		l.identify()
		d.sessions.Answered(l.picks.session, members[77].rank.IDHash, now)
		at, err := l.choose(now)
		if err != nil {
			t.Fatal(err)
		}
		able := l.picks.able
		for _, want := range append(idle, 0, 1, 2, 77, 350) {
			if !slices.Contains(able, int32(want)) {
				t.Errorf("place %d is not looked at", want)
			}
		}
		if len(able) > 2*sampleMost+1 || len(able) != len(l.picks.cands) || len(able) != len(l.picks.times) ||
			at == 77 ||
			!slices.IsSorted(able) {
			t.Errorf("%d nodes are looked at, %d is chosen", len(able), at)
		}
		if l.picks.found.has(unsampled) {
			t.Error("the sample counts as a filter")
		}
		l.giveBack()
	}
	if !counted(d, "sample", 0) {
		t.Error("a metric counts the nodes outside of the sample")
	}
	r.Session = nil
	e, fail := d.Explain(r, Question{})
	if fail != nil || len(e.Candidates) != 512 {
		t.Fatalf("%v", fail)
	}
	for i := range e.Candidates {
		if c := &e.Candidates[i]; !c.Eligible || c.Filter != "" || c.Expected == nil || c.Expected.Total <= 0 {
			t.Fatalf("%+v", c)
		}
	}
	seen := map[int]bool{}
	loaded(d, 4)
	for range 50 { // among equal nodes all have a chance
		l := wanted(t, d, asked(t, d, fmt.Appendf(nil,
			`{"model":"sim","messages":[{"role":"user","content":"%d"}]}`, d.o.Random())))
		at, err := l.first()
		if err != nil {
			t.Fatal(err)
		}
		seen[at] = true
		l.giveBack()
	}
	if len(seen) < 30 {
		t.Errorf("%d of 512 equal nodes have got 50 requests", len(seen))
	}
}

// TestOthersCountInASample checks that the reported requests of other routers and clients count
// among the nodes with the least to do, at a node and at a rank. So does their waiting prefill.
func TestOthersCountInASample(t *testing.T) {
	now := time.Now()
	for _, ranks := range []int{1, 2} {
		for name, waiting := range map[string]bool{"requests": false, "waiting prefill": true} {
			d, told := joined(t, 60, ranks, now)
			decide(t, d, predicted)
			members := d.current().models["sim"].pools[Answer].members
			for i, m := range members {
				var e books.Entry // its prompt is the mean of the rank's
				m.rank.Book.Open(&e, books.Cost{Prefill: 500}, now)
				e.Close(now)
				requests, queued := 1, 0
				if busy := i/ranks%2 == 0; busy && waiting {
					queued = 1
				} else if busy {
					requests = 2
				}
				h := told[m.node.ID]
				h.Load.InFlight = load.Known(float64(ranks * requests))
				h.Load.QueueDepth = load.Known(float64(ranks * queued))
				d.fleet.Beat(now, h)
			}
			l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
			if _, err := l.first(); err != nil || len(l.picks.able) != sampleMost {
				t.Fatalf("%v, %d nodes are looked at", err, len(l.picks.able))
			}
			for _, at := range l.picks.able {
				if int(at)/ranks%2 == 0 {
					t.Errorf("%d ranks, %s: a node with more of others is looked at: %v", ranks, name, l.picks.able)
					break
				}
			}
			l.giveBack()
		}
	}
}

// TestSuspectsAreNotSampled checks that a minority of suspects, which have the least to do, is not
// in a sample, and that a majority may be.
func TestSuspectsAreNotSampled(t *testing.T) {
	d := dispatcherOf(t, 60)
	decide(t, d, predicted)
	for suspects, want := range map[int]bool{0: true, 20: false, 30: false, 31: true} {
		l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		l.drop(l.spare())
		l.picks.able = l.picks.able[:0]
		for at := range l.pool.members {
			l.picks.able = append(l.picks.able, int32(at))
		}
		loaded(d, 4, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}...)
		l.thin(suspects, func(at int32) bool { return int(at) < suspects }, time.Now())
		if len(l.picks.able) != sampleMost || (l.picks.able[0] == 0) != want {
			t.Errorf("%d suspects: %v are looked at", suspects, l.picks.able)
		}
		l.giveBack()
	}
}

// TestSmallFleetsAreNotSampled checks that up to sampleAbove nodes all are looked at.
func TestSmallFleetsAreNotSampled(t *testing.T) {
	for _, n := range []int{sampleAbove, sampleAbove + 1} {
		for _, mode := range []string{"predicted", "score"} {
			d := dispatcherOf(t, n)
			decide(t, d, fmt.Sprintf(`{"mode":%q}`, mode))
			l := d.Leg(asked(t, d, chat(500)), Question{}, nil)
			if _, err := l.first(); err != nil {
				t.Fatal(err)
			}
			if all := len(l.picks.able) == n; all != (n == sampleAbove || mode == "score") {
				t.Errorf("%s: %d of %d nodes are looked at", mode, len(l.picks.able), n)
			}
			l.giveBack()
		}
	}
}

// TestAFullSample checks that the other nodes are looked at if no node of the sample has room.
func TestAFullSample(t *testing.T) {
	o := optionsOf(t, 100)
	for i := range o.Backends {
		if o.Backends[i].MaxConcurrent = 1; i == 55 {
			o.Backends[i].MaxConcurrent = 9
		}
	}
	d := dispatcherFor(t, o)
	decide(t, d, predicted)
	members := d.current().models["sim"].pools[Answer].members
	room := slices.IndexFunc(members, func(m *member) bool { return m.node.ID == "node-55" })
	loaded(d, 1)
	members[room].rank.AcquireAlways() // it has the most to do
	for range 7 {
		l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
		at, err := l.first()
		if err != nil || at != room {
			t.Fatalf("place %d, %v", at, err)
		}
		if l.picks.scope != scopeAny || len(l.picks.times) != 100 {
			t.Errorf("scope %v, %d nodes", l.picks.scope, len(l.picks.times))
		}
		defer l.giveBack()
	}
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	if _, err := l.first(); err != errAllBusy {
		t.Errorf("with no room anywhere: %v", err)
	}
	l.giveBack()
}
