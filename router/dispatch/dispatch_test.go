package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/engine"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// start returns a dispatcher over n simulated engines, all of them in service.
func start(t testing.TB, n int, tweak ...func(*engine.Config)) *Dispatcher {
	t.Helper()
	index := prefix.NewIndex(prefix.Options{})
	t.Cleanup(index.Close)
	o := fleet.Options{Index: index, Log: slog.New(slog.DiscardHandler)}
	for range n {
		var c engine.Config
		for _, f := range tweak {
			f(&c)
		}
		e, err := engine.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		o.Backends = append(o.Backends, fleet.Backend{URL: e.URL()})
	}
	f, err := fleet.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })

	d := New(Parts{
		Fleet: f, Index: index, Policy: &atomic.Pointer[policy.Policy]{}, Gate: admission.New(admission.Options{}),
		Budget: admission.NewBudget(20, 64, nil), Metrics: metrics.New(), Stored: affinity.New(16), Memo: NewMemo(16 << 20), Log: o.Log,
	}, Options{Limits: Limits{FirstByte: time.Minute, Idle: time.Minute, Total: time.Minute}, MaxNodes: 2, Feedback: true})
	d.policy.Store(policy.Default())
	waitFor(t, func() bool {
		able := map[*fleet.Node]bool{}
		for _, m := range f.Load().Models() {
			for _, node := range m.Nodes {
				if ok, _ := node.Eligible(time.Now()); ok {
					able[node] = true
				}
			}
		}
		return len(able) == n
	})
	return d
}

func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("not there in a minute")
		}
		tick := time.NewTimer(2 * time.Millisecond)
		<-tick.C
	}
}

func chat(bytes int) []byte {
	text := strings.Repeat("the quick brown fox jumps over the lazy dog. ", bytes/45+1)[:bytes]
	return fmt.Appendf(nil, `{"model":"sim","messages":[{"role":"system","content":"be brief"},{"role":"user","content":"%s"}]}`, text)
}

// pick does what Do does before it sends.
func pick(d *Dispatcher, j *Job, body []byte) error {
	defer j.reset()
	defer func() { j.permit.Release() }()
	j.API, j.Body, j.Received = scan.Chat, body, time.Now()
	if err := d.Scan(j); err != nil {
		return err
	}
	if err := d.admit(j); err != nil {
		return err
	}
	d.match(j)
	at, err := d.choose(j, j.Received)
	if err != nil {
		return err
	}
	j.model.nodes[at].Release()
	return nil
}

func TestPickDoesNotAllocate(t *testing.T) {
	d := start(t, 4)
	j := d.Job() // not from the pool each time: it forgets at random under the race detector
	for _, size := range []int{200, 2 << 10, 220 << 10} {
		body := chat(size)
		if err := pick(d, j, body); err != nil {
			t.Fatal(err)
		}
		// The engines and their probes allocate in the same process, now and then: what
		// the pick itself allocates shows every time.
		least := math.Inf(1)
		for range 10 {
			least = min(least, testing.AllocsPerRun(20, func() {
				if err := pick(d, j, body); err != nil {
					t.Fatal(err)
				}
			}))
		}
		if least != 0 {
			t.Errorf("%d bytes: %v allocations from body to picked node, want 0", size, least)
		}
	}
}

func TestFurther(t *testing.T) {
	for v, want := range map[verdict]int{
		unreached: 2, overloaded: 2, overdue: 2, broken: 2, failed500: 1, stalled: 1, late: 0, abandoned: 0, answered: 0,
	} {
		if got := v.further(2); got != want {
			t.Errorf("after %v %d further nodes may be asked, want %d", v, got, want)
		}
	}
}
