package gateway

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/plan"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/where"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestUnknownModelsWhileABackendIsSilent checks the error for an unknown model. At first the silent
// backend may serve that model; later no node does. Inference requests and /v1/models give the same
// error.
func TestUnknownModelsWhileABackendIsSilent(t *testing.T) {
	silent := listen(t)
	defer silent.Close() // the silent backend accepts no connections
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	log := slog.New(slog.DiscardHandler)
	const wait = 500 * time.Millisecond
	began := time.Now() // the fleet counts from here, or a little later
	backends := []fleet.Backend{{URL: e.URL()}, {URL: "http://" + silent.Addr().String()}}
	f, err := fleet.New(fleet.Options{Backends: backends, Logger: log, FirstWord: wait})
	if err != nil {
		t.Fatal(err)
	}
	ask := serve(t, f, log)
	both := func() [2]int {
		return [2]int{ask(http.MethodPost, "/v1/chat/completions"), ask(http.MethodGet, "/v1/models/other")}
	}
	waitFor(t, func() bool { return f.Load().Model([]byte("sim")) != nil })
	if got := both(); got != [2]int{503, 503} && time.Since(began) < wait {
		t.Errorf("at first: POST %d, GET %d", got[0], got[1])
	}
	waitFor(t, func() bool { return both() == [2]int{404, 404} })
	if took := time.Since(began); took < wait {
		t.Errorf("404 after %v", took)
	}
	if !f.Load().Partial {
		t.Error("the silent one is forgotten")
	}
	late := fleet.Backend{URL: "http://" + silent.Addr().String() + "/late", ID: "late"}
	before := time.Now()
	if err := f.Reload(t.Context(), []fleet.Backend{{URL: e.URL()}, late}); err != nil {
		t.Fatal(err)
	}
	if s := f.Load(); !s.MayCome(before) || s.MayCome(time.Now().Add(wait)) {
		t.Error("a backend that was added is not waited for as one of the start")
	}
}

// TestNothingIsKnown checks that no model counts as missing while no backend has named its models.
func TestNothingIsKnown(t *testing.T) {
	silent := listen(t)
	silent.Close()
	log := slog.New(slog.DiscardHandler)
	backends := []fleet.Backend{{URL: "http://" + silent.Addr().String()}}
	f, err := fleet.New(fleet.Options{Backends: backends, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	if !f.Load().MayCome(time.Now().Add(time.Hour)) {
		t.Error("all models are said to be missing before any backend has answered")
	}
	if _, err := leg.Served(f.Load(), []byte("other")); err == nil || err.Status != 503 {
		t.Errorf("%v", err)
	}
}

// serve runs f and a gateway in front of it until the test ends. ask sends a request for a model
// and returns the status.
func serve(t *testing.T, f *fleet.Fleet, log *slog.Logger) (ask func(method, path string) int) {
	t.Helper()
	w, err := relay.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	index := prefix.NewIndex(prefix.Options{})
	p := Parts{Fleet: f, Metrics: metrics.New(), Watcher: w, Logger: log}
	inForce := &atomic.Pointer[policy.Policy]{}
	inForce.Store(policy.Default())
	stored := affinity.New(16)
	legs := leg.New(leg.Parts{
		Fleet: f, Where: &where.Finder{Index: index}, Policy: inForce, Gate: admission.New(admission.Options{}),
		Budget: admission.NewBudget(20, 64, nil), Metrics: p.Metrics, Stored: stored, Logger: log,
	}, leg.Options{})
	p.Plans = plan.New(plan.Parts{Legs: legs, Fleet: f, Stored: stored, Metrics: p.Metrics, Logger: log})
	g := New(p, Limits{
		MaxBody: 1 << 20, MaxBodyTotal: 4 << 20, MaxHeader: 16 << 10, MaxConnections: 8, MaxStreams: 8,
		HeaderTimeout: time.Minute, BodyTimeout: time.Minute, KeepAlive: time.Minute, SlowReader: time.Minute,
	}, false)
	l, client := listen(t), &http.Client{Transport: &http.Transport{}}
	ctx, cancel := context.WithCancel(context.Background())
	ran, served := make(chan error, 1), make(chan error, 1)
	go func() { ran <- f.Run(ctx) }()
	go func() { served <- g.Serve(l, nil) }()
	t.Cleanup(func() {
		client.CloseIdleConnections()
		if err := g.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		cancel()
		<-ran
		<-served
		w.Close()
		index.Close()
	})
	return func(method, path string) int {
		req, err := http.NewRequest(method, "http://"+l.Addr().String()+path,
			strings.NewReader(`{"model":"other","messages":[]}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
}
