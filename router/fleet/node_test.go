package fleet

import (
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/health"
)

// testNode is a healthy node outside any fleet.
func testNode(id string, slots int32, models ...string) *Node {
	info := &Info{Role: cluster.RoleBoth, Models: models, Upstream: models, MaxConcurrent: slots}
	n := newNode(id, Static, info, relay.NewPool(relay.Target{Addr: "127.0.0.1:1"}, relay.PoolOptions{}))
	f := &Fleet{}
	f.o.Logger = slog.New(slog.DiscardHandler)
	n.asker = newAsker(f, n)
	who := health.Who{ID: id, Pool: n.Pool, Subject: n.asker}
	n.Health.Init(health.NewChecks(health.Options{}), who, health.Healthy)
	return n
}

func TestAcquireNeverExceedsTheSlots(t *testing.T) {
	n := testNode("n", 7)
	var held, most atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				if !n.Acquire() {
					continue
				}
				now := held.Add(1)
				for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
				}
				held.Add(-1)
				n.Release()
			}
		})
	}
	wg.Wait()
	if n.InFlight() != 0 || most.Load() > 7 {
		t.Fatalf("in flight %d at the end, %d at most", n.InFlight(), most.Load())
	}
}

// held is a heartbeat with the given numbers of requests, all and waiting.
func held(have, waiting float64) beat {
	return beat{
		Load: load.Load{Engine: load.Engine{InFlight: load.Known(have), QueueDepth: load.Known(waiting)}},
		from: Heartbeat, trust: defaultTrust,
	}
}

func TestWaitingOfOthersTakesSlots(t *testing.T) {
	n := testNode("n", 4)
	n.setLoad(held(3, 3), time.Now())
	if !n.Acquire() || n.Acquire() {
		t.Fatal("want one free slot beside three waiting requests")
	}
	n.setLoad(beat{}, time.Now())
	if !n.Acquire() {
		t.Fatal("the slots did not come back")
	}
	n.AcquireAlways()
	if n.InFlight() != 3 {
		t.Fatalf("in flight %d", n.InFlight())
	}
}

// TestOursAreNotOthers checks a figure of the engine that is a little older than the router's
// count. The router's requests that have ended since must not count as requests of others.
func TestOursAreNotOthers(t *testing.T) {
	n := testNode("n", 64)
	n.Source = Etcd
	now := time.Now()
	tell := func(have, waiting float64, want int32) {
		t.Helper()
		b := held(have, waiting)
		b.Arrived(now)
		n.setLoad(b, now)
		if got := n.Load().Others; got != want {
			t.Errorf("%v held, %d in flight: %d of others, want %d", have, n.InFlight(), got, want)
		}
	}
	for range 10 {
		n.Acquire()
	}
	tell(13, 0, 3)
	for range 6 {
		n.Release()
	}
	now = now.Add(books.PeakWindow / 2)
	tell(13, 1, 3) // true before this router's requests ended
	now = now.Add(books.PeakWindow)
	tell(13, 0, 3) // the window is over; the next one begins with this figure
	now = now.Add(2 * books.PeakWindow)
	tell(7, 0, 0)
	now = now.Add(2 * books.PeakWindow)
	tell(7, 0, 3)
	n.age(now)
	if n.Load().Others != 3 || !n.Load().Told() {
		t.Errorf("%+v", n.Load())
	}
	n.age(now.Add(defaultTrust + time.Second))
	if l := n.Load(); l.Others != 0 || l.InFlight != (load.Gauge{}) || l.From != Nobody || l.Told() {
		t.Errorf("too old: %+v", l)
	}
}

func TestSlotsFollowBothOfTheirSources(t *testing.T) {
	n := testNode("n", 4)
	for round := range int32(500) {
		info := *n.Info()
		info.MaxConcurrent = 100 + round
		var wg sync.WaitGroup
		wg.Go(func() { n.setInfo(&info) })
		wg.Go(func() { n.setLoad(held(float64(round%7), float64(round%7)), time.Now()) })
		wg.Wait()
		if want := 100 + round - round%7; n.slots.Load() != want || n.MaxConcurrent() != 100+round {
			t.Fatalf("round %d: %d slots of %d, want %d", round, n.slots.Load(), n.MaxConcurrent(), want)
		}
	}
}

func TestForeignWaiting(t *testing.T) {
	for _, c := range []struct {
		held, waiting float64
		ours, want    int32
	}{
		{70, 6, 70, 0}, {70, 6, 10, 6}, {70, 6, 67, 3}, {70, 6, 90, 0}, {0, 0, 0, 0}, {1e18, 1e18, 0, 1 << 20},
	} {
		if got := foreignWaiting(c.held, c.waiting, c.ours); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestFlagsKeepRequestsAway(t *testing.T) {
	n := testNode("n", 4)
	for flag, want := range map[uint32]struct {
		reason   string
		obstacle Obstacle
	}{
		flagCordoned: {"cordoned", Cordoned}, flagDraining: {"draining", Cordoned},
		flagNotReady: {"its agent says it is not ready", NotReady}, flagNoModel: {noModel, NotReady},
		flagSilent: {"its heartbeat is stale", Stale}, flagGone: {"left the fleet", Gone},
	} {
		n.setFlag(flag, true)
		if ok, reason := n.Eligible(time.Now()); ok || n.Serves() || reason != want.reason || n.Acquire() {
			t.Errorf("flag %d: %v %q", flag, ok, reason)
		}
		if o := n.Obstacle(); o != want.obstacle {
			t.Errorf("flag %d is obstacle %d, want %d", flag, o, want.obstacle)
		}
		n.setFlag(flag, false)
	}
	why := cluster.Cordon{Reason: "new driver"}.String()
	n.cordon.Store(&why)
	n.setFlag(flagCordoned, true)
	if _, reason := n.Eligible(time.Now()); reason != "cordoned: new driver" {
		t.Errorf("a cordon with a reason: %q", reason)
	}
	n.setFlag(flagCordoned, false)
	if ok, _ := n.Eligible(time.Now()); !ok || !n.Serves() || !n.Acquire() {
		t.Error("not eligible without flags")
	}
	n.Health.SetAside("a test")
	if n.Serves() {
		t.Error("serves while it is aside")
	}
}

// TestPicksReadFewLines bounds what a pick of a large fleet reads of each node: two lines of the
// processor's cache.
func TestPicksReadFewLines(t *testing.T) {
	const line = 64
	offset := func(path ...string) (at uintptr) {
		of := reflect.TypeFor[Node]()
		for _, name := range path {
			f, ok := of.FieldByName(name)
			if !ok {
				t.Fatalf("no field %v", path)
			}
			at, of = at+f.Offset, f.Type
		}
		return at
	}
	lines := map[uintptr]bool{}
	for _, path := range [][]string{
		{"load"}, {"path"}, {"flags"}, {"limit"}, {"only", "ref"}, {"only", "inFlight"},
		{"only", "others"}, {"only", "Book", "prefill"}, {"only", "Book", "used"},
		{"only", "Book", "modelled"}, {"only", "Book", "present"},
		{"Health", "suspicion", "since"}, {"Health", "breaker", "state"},
	} {
		lines[offset(path...)/line] = true
	}
	if len(lines) > 2 {
		t.Errorf("a pick reads %d lines of each node, want 2", len(lines))
	}
}

func TestDrainedOnceTheLastRequestEnds(t *testing.T) {
	n := testNode("n", 4)
	n.AcquireAlways()
	n.leave()
	select {
	case <-n.end.drained:
		t.Fatal("drained with a request in flight")
	default:
	}
	n.Release()
	<-n.end.drained
	n.AcquireAlways()
	n.Release() // a late Release does no harm
}

func TestLastResort(t *testing.T) {
	n := testNode("n", 4)
	if n.LastResort() || n.AcquireLastResort() {
		t.Fatal("a healthy node")
	}
	for i := range uint64(32) { // nothing but server errors
		n.Health.ReportDoubt(i, 0)
	}
	if n.Health.State() != health.Open || !n.LastResort() || n.Acquire() || !n.AcquireLastResort() {
		t.Errorf("%v: it answers, if only errors", n.Health.State())
	}
	if n.InFlight() != 1 {
		t.Errorf("%d in flight", n.InFlight())
	}
	n.setFlag(flagCordoned, true)
	if n.LastResort() || n.AcquireLastResort() {
		t.Error("cordoned")
	}

	n = testNode("n", 4)
	n.Health.SetAside("hangs")
	n.Health.NoteProgress()
	if !n.Acquire() || n.Acquire() || n.LastResort() {
		t.Fatal("want one trial request of a node that hung, and no more until it has proven itself")
	}
	n.Health.Report(health.OK)
	for range 2 {
		if !n.Acquire() {
			t.Fatal("want two more trial requests")
		}
	}
	if n.Acquire() || !n.AcquireLastResort() || n.AcquireLastResort() {
		t.Errorf("want one more where no other node is left, in its last slot; %d in flight", n.InFlight())
	}
}

func TestUnknownCapacityIsNaN(t *testing.T) {
	i := &Info{}
	if v, w := i.VRAM(), i.Throughput(); known(v) != nil || known(w) != nil {
		t.Fatal("unknown is a number", v, w)
	}
	for dtype, want := range map[string]float32{"bfloat16": 2, "fp16": 2, "fp8_e4m3": 4, "float32": 1, "Q4_K_M": 2} {
		if got := (&Info{TP: 2, DType: dtype}).Throughput(); got != want {
			t.Errorf("%s: %v, want %v", dtype, got, want)
		}
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	n := testNode("n", 4, "m")
	f := &Fleet{}
	f.snap.Store(build([]*Node{n}, stored(map[string]*cluster.Model{"m": {Aliases: []string{"alias"}}})))
	name, now := []byte("alias"), time.Now()
	for what, fn := range map[string]func(){
		"Load and Model": func() { f.Load().Model(name) },
		"Eligible":       func() { n.Eligible(now) },
		"Acquire":        func() { n.Acquire(); n.Release() },
		"Report":         func() { n.Health.Report(health.OK) },
		"NoteProgress":   func() { n.Health.NoteProgress() },
		"Load":           func() { _ = n.Load() },
		"UpstreamModel":  func() { n.UpstreamModel("m") },
	} {
		if allocs := testing.AllocsPerRun(200, fn); allocs != 0 {
			t.Errorf("%s: %v allocations", what, allocs)
		}
	}
}

func TestSnapshotNames(t *testing.T) {
	a, b, p := testNode("a", 4, "m", "lora"), testNode("b", 4, "m"), testNode("p", 4, "m")
	prefill := *p.Info()
	prefill.Role = cluster.RolePrefill
	p.setInfo(&prefill)
	s := build([]*Node{p, b, a}, stored(map[string]*cluster.Model{
		"m": {Aliases: []string{"gpt-4", "lora"}}, "z": {Aliases: []string{"gpt-4"}},
	}))
	m := s.Model([]byte("gpt-4"))
	if m == nil || m.Name != "m" || len(m.Nodes) != 2 || m.Nodes[0] != a || len(m.Prefill) != 1 {
		t.Fatalf("gpt-4: %+v", m)
	}
	if l := s.Model([]byte("lora")); l.Name != "lora" || len(l.Nodes) != 1 {
		t.Fatalf("a model's own name must win: %+v", l)
	}
	if z := s.Model([]byte("z")); z == nil || len(z.Nodes) != 0 {
		t.Fatalf("configured model without nodes: %+v", z)
	}
	if s.Model([]byte("nope")) != nil || s.Node("b") != b || s.Node("x") != nil || len(s.Models()) != 3 ||
		len(s.Problems) != 2 {
		t.Fatalf("%+v", s.Problems)
	}
}

func TestPrefillNodesSayThatTheyServeNothing(t *testing.T) {
	n := testNode("p", 4, "m")
	info := *n.Info()
	info.Role = cluster.RolePrefill
	n.setInfo(&info)
	s := build([]*Node{n}, stored(nil))
	if ready, detail := s.Ready(time.Now()); ready || !strings.Contains(detail, "p: "+prefillUnused) {
		t.Errorf("ready %v: %s", ready, detail)
	}
	if v := n.View(time.Now()); v.Reason != prefillUnused {
		t.Errorf("the view says %q", v.Reason)
	}
}

func BenchmarkAcquire(b *testing.B) {
	n := testNode("n", 4)
	for b.Loop() {
		n.Acquire()
		n.Release()
	}
}

func BenchmarkEligible(b *testing.B) {
	n, now := testNode("n", 4), time.Now()
	for b.Loop() {
		n.Eligible(now)
	}
}

// TestNumbers checks the numbers of nodes, which clients may have stored.
func TestNumbers(t *testing.T) {
	a, b := testNode("host-1", 1), testNode("42", 1)
	if n := a.Number(); n != 7713573729520661 || n != NumberOf("host-1") {
		t.Errorf("host-1 is %d", a.Number())
	}
	s := build([]*Node{a, b}, stored(nil))
	for id, want := range map[string]*Node{
		"host-1": a, "42": b, strconv.FormatUint(a.Number(), 10): a, strconv.FormatUint(b.Number(), 10): b,
		"0" + strconv.FormatUint(a.Number(), 10): a, "host-2": nil, "": nil, "0": nil, "-1": nil, "43": nil,
		strings.Repeat("9", 40): nil, "18446744073709551615": nil,
	} {
		if got := s.Worker(id); got != want {
			t.Errorf("%q: %v", id, got)
		}
	}
	if n := testing.AllocsPerRun(100, func() { s.Worker("not a number"); s.Worker("12345678901234567890") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
