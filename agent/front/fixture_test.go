package front

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/address"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// goroutines of fasthttp: one in each server checks every 10 s whether the server has
		// stopped, and one in the process keeps the date
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

const patience = time.Minute // a test fails when an event takes longer

func testOptions(t *testing.T) Options {
	vec := func(labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x"}, labels)
	}
	return Options{
		Health: func() string { return "" },
		Limits: Limits{
			MaxBody: 1 << 20, MaxBodyTotal: 3 << 20, MaxHeader: 8 << 10, MaxConnections: 64, MaxRequests: 16,
			ReadTimeout: patience, KeepAlive: patience, SlowReader: patience, Idle: patience, Total: time.Minute,
		},
		Counters: Counters{
			Requests: vec("code"), Rejected: vec("reason"), Failures: vec("phase", "kind"),
			ClientLeft: prometheus.NewCounter(prometheus.CounterOpts{Name: "x"}),
			Panics:     prometheus.NewCounter(prometheus.CounterOpts{Name: "x"}),
			Seconds:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x"}),
		},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

// awaitCount waits until c equals want, because a request is counted after its answer has been
// sent.
func awaitCount(t *testing.T, c prometheus.Collector, want float64) {
	t.Helper()
	for deadline := time.Now().Add(patience); counted(c) != want; {
		if time.Now().After(deadline) {
			t.Fatalf("counted %v, want %v", counted(c), want)
		}
		runtime.Gosched()
	}
}

// counted returns the sum of a collector's counters.
func counted(c prometheus.Collector) (n float64) {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n += m.GetCounter().GetValue()
		}
	}
	return n
}

// engineOf serves h as the engine of o.
func engineOf(t *testing.T, o *Options, h http.HandlerFunc) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	var err error
	if o.Engine, err = address.Parse(srv.URL); err != nil {
		t.Fatal(err)
	}
}

// serve runs a front until the test ends and returns its URL and a client.
func serve(t *testing.T, o Options) (s *Server, url string, client *http.Client) {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, "http://" + ln.Addr().String(), &http.Client{Transport: transport}
}

func post(t *testing.T, c *http.Client, url, body string) (*http.Response, string) {
	t.Helper()
	resp, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline, tick := time.After(patience), time.Tick(2*time.Millisecond); !ok(); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
