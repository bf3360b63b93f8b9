package leg

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/where"
)

// BenchmarkPick measures the way from a body in memory to the chosen node, with eight nodes.
// BenchmarkPick takes turns with a loop that only scans and hashes the same bytes. pick/floor is
// the ratio of the two medians.
func BenchmarkPick(b *testing.B) {
	d := start(b, 8)
	for _, size := range []int{2 << 10, 220 << 10} {
		kib := fmt.Sprintf("%dKiB/", size>>10)
		body := chat(size)
		b.Run(kib+"never seen", func(b *testing.B) { benchPick(b, d, body, 0) })
		remember(b, d, body, 1)
		b.Run(kib+"nine tenths on one node", func(b *testing.B) { benchPick(b, d, body, 0.9) })
		remember(b, d, body, len(d.current().models["sim"].pools[Answer].ranks))
		b.Run(kib+"nine tenths on every node", func(b *testing.B) { benchPick(b, d, body, 0.9) })
	}
}

// BenchmarkPickNodes is BenchmarkPick for fleets of two sizes, in the two modes that look at every
// node. The prompt is new to all nodes, new to nodes that compute other prompts, or shares its
// beginning with a prompt that all nodes have. In the last case the nodes also report requests of
// others.
func BenchmarkPickNodes(b *testing.B) {
	for _, nodes := range []int{8, 512} {
		for _, mode := range []policy.Mode{policy.Score, policy.Cost, policy.Predicted} {
			name := strconv.Itoa(nodes) + "/" + mode.String()
			d, told := joined(b, nodes, 0, time.Now())
			p := policy.Default()
			p.Mode = mode
			d.policy.Store(p)
			body := chat(2 << 10)
			b.Run(name+"/never seen", func(b *testing.B) { benchPick(b, d, body, 0) })
			occupy(b, d, chat(8<<10), 2*nodes)
			b.Run(name+"/nodes at work", func(b *testing.B) { benchPick(b, d, body, 0) })
			remember(b, d, body, nodes)
			b.Run(name+"/beginning on every node", func(b *testing.B) { benchPick(b, d, body, 0.5) })
			for i := range nodes {
				h := told[fmt.Sprintf("node-%d", i)]
				h.Load.InFlight, h.Load.QueueDepth = load.Known(float64(4+i%4)), load.Known(1)
				d.fleet.Beat(time.Now(), h)
			}
			b.Run(name+"/requests of others too", func(b *testing.B) { benchPick(b, d, body, 0.5) })
		}
	}
}

// BenchmarkRebuild measures the dispatcher's data for a new snapshot, for which all requests wait.
// A number of adapters have the model as their base. The snapshot changes nothing, or the facts of
// one node.
func BenchmarkRebuild(b *testing.B) {
	for _, nodes := range []int{64, 256, 512} {
		for _, adapters := range []int{0, 64, 256} {
			name := fmt.Sprintf("%d nodes/%d adapters/", nodes, adapters)
			b.Run(name+"nothing new", func(b *testing.B) { benchRebuild(b, nodes, adapters, false) })
			b.Run(name+"a node changed", func(b *testing.B) { benchRebuild(b, nodes, adapters, true) })
		}
	}
}

func benchRebuild(b *testing.B, nodes, adapters int, change bool) {
	models := map[string]*cluster.Model{}
	for i := range adapters {
		models[fmt.Sprint("adapter-", i)] = &cluster.Model{Base: "sim"}
	}
	d, o := deafOf(b, nodes, models)
	d.current()
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		if change {
			o.Backends[0].Labels = []string{strconv.Itoa(n)}
		}
		if err := d.fleet.Configure(b.Context(), o.Backends, models); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		d.current()
	}
	b.ReportAllocs()
}

// deafOf returns a dispatcher for a running fleet of n nodes that no check reaches.
func deafOf(tb testing.TB, n int, models map[string]*cluster.Model) (*Dispatcher, fleet.Options) {
	o := optionsOf(tb, n)
	o.Models, o.ProbeInterval, o.ProbeIntervalDown = models, time.Hour, time.Hour
	o.Pool.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
	d := dispatcherFor(tb, o)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.fleet.Run(ctx) }()
	tb.Cleanup(func() { stop(); <-ended })
	return d, o
}

// occupy leaves legs of the body in flight.
func occupy(b *testing.B, d *Dispatcher, body []byte, legs int) {
	for range legs {
		if _, err := d.Leg(asked(b, d, body), Question{}, nil).first(); err != nil {
			b.Fatal(err)
		}
	}
}

// joined returns a dispatcher for n nodes that have joined by heartbeats, and the heartbeats by the
// node's id. ranks is the number of data-parallel ranks of each.
func joined(tb testing.TB, n, ranks int, now time.Time) (*Dispatcher, map[string]*cluster.NodeHealth) {
	d, told := dispatcherOf(tb, 0), map[string]*cluster.NodeHealth{}
	for i := range n {
		h := &cluster.NodeHealth{
			NodeID: fmt.Sprintf("node-%d", i), Address: fmt.Sprintf("http://10.0.%d.%d:8000", i>>8, i&255),
			Models: []string{"sim"}, Ready: true, Hardware: cluster.Hardware{DataParallel: ranks},
		}
		told[h.NodeID] = h
		d.fleet.Beat(now, h)
	}
	return d, told
}

// dispatcherOf returns a dispatcher for n nodes at addresses where no server runs.
func dispatcherOf(tb testing.TB, n int) *Dispatcher { return dispatcherFor(tb, optionsOf(tb, n)) }

// optionsOf returns a fleet of n nodes at addresses where no server runs.
func optionsOf(tb testing.TB, n int) fleet.Options {
	index := prefix.NewIndex(prefix.Options{})
	tb.Cleanup(index.Close)
	o := fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler), Proven: true}
	for i := range n {
		o.Backends = append(o.Backends, fleet.Backend{
			ID: fmt.Sprintf("node-%d", i), Model: "sim", URL: fmt.Sprintf("http://10.0.%d.%d:8000", i>>8, i&255),
		})
	}
	return o
}

// dispatcherFor returns a dispatcher for a fleet that does not run.
func dispatcherFor(tb testing.TB, o fleet.Options) *Dispatcher {
	f, err := fleet.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	counts := metrics.New()
	d := New(Parts{
		Fleet: f, Policy: &atomic.Pointer[policy.Policy]{}, Gate: admission.New(admission.Options{}),
		Where:  &where.Finder{Index: o.Index.(*prefix.Index), Memo: where.NewMemo(16 << 20), Metrics: counts},
		Budget: admission.NewBudget(20, 64, nil), Metrics: counts, Stored: affinity.New(16), Logger: o.Logger,
	}, Options{})
	d.policy.Store(policy.Default())
	return d
}

// remember stores a chat in the memo, and in the index as sent to the first node.
func remember(b testing.TB, d *Dispatcher, body []byte, nodes int) {
	for i := range nodes {
		l := d.Leg(asked(b, d, body), Question{}, nil)
		if _, err := l.first(); err != nil {
			b.Fatal(err)
		}
		l.prompt.Sent(l.pool.ranks[i].Ref(), time.Now())
		l.drop(l.spare())
		l.permit.Release()
		l.recycle()
	}
}

// benchPick picks for bodies that share the given part with body and differ after it.
func benchPick(b *testing.B, d *Dispatcher, body []byte, same float64) {
	body = slices.Clone(body)
	asking, l := request.New(), newLeg()
	var picks, floors []time.Duration
	var r scan.Request
	var c prefix.Chain
	var number [16]byte
	seed := prefix.Seed("sim", "", "")
	at := max(int(same*float64(len(body))), bytes.Index(body, []byte("the quick")))
	for n := 0; b.Loop(); n++ {
		copy(body[at:], strconv.AppendInt(number[:0], int64(1e15)+int64(n), 10))
		begun := time.Now()
		r.Reset()
		if err := scan.Scan(scan.Chat, body, &r); err != nil {
			b.Fatal(err)
		}
		c.Reset(seed, r.Text, nil)
		c.HashTo(c.Blocks())
		between := time.Now()
		if err := pick(d, asking, l, body); err != nil {
			b.Fatal(err)
		}
		picks, floors = append(picks, time.Since(between)), append(floors, between.Sub(begun))
	}
	slices.Sort(picks)
	slices.Sort(floors)
	median := func(d []time.Duration) float64 { return float64(d[len(d)/2].Nanoseconds()) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(picks)/1000, "pick-us")
	b.ReportMetric(median(picks)/median(floors), "pick/floor")
	b.ReportMetric(float64(picks[len(picks)*99/100].Nanoseconds())/median(picks), "p99/p50")
}
