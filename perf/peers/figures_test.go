package peers

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/replay"
)

func TestQuotient(t *testing.T) {
	p := quotient([]float64{8, 9, 10, 0}, []float64{10, 10, 10, 5})
	// By hand: logarithms -0.2231, -0.1054, 0; mean -0.1095, deviation 0.1116, t 4.303.
	if p.N != 3 || math.Abs(p.Ratio-0.8963) > 1e-4 || math.Abs(p.Low-0.6792) > 1e-3 || math.Abs(p.High-1.1827) > 1e-3 {
		t.Errorf("%+v", p)
	}
	for want, p := range map[string]Paired{
		"ahead":         quotient([]float64{5, 5.1, 4.9}, []float64{10, 10, 10}),
		"behind":        quotient([]float64{20, 21, 22}, []float64{10, 10, 10}),
		"open":          p,
		"too few pairs": quotient([]float64{1}, []float64{10}),
	} {
		if p.Verdict() != want {
			t.Errorf("%+v: %s, want %s", p, p.Verdict(), want)
		}
	}
	if many := quotient(make([]float64, 50), make([]float64, 50)); many.N != 0 {
		t.Errorf("%+v", many)
	}
	ones := make([]float64, 50)
	for i := range ones {
		ones[i] = 1 + float64(i%2)
	}
	if many := quotient(ones, ones); many.N != 50 || many.Low != 1 || many.High != 1 {
		t.Errorf("%+v", many)
	}
}

func TestVoid(t *testing.T) {
	c := Default()
	for want, got := range map[string]string{
		"":                         void(0.6, 0.01, &c),
		"61 % of the host's CPU":   void(0.61, 0, &c),
		"sent more than 10ms late": void(0.1, 0.011, &c),
	} {
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestBusiest(t *testing.T) {
	if got := busiest([]float64{1, 1, 5}, []float64{3, 1, 9}); got != 2 {
		t.Errorf("%v", got)
	}
	if got := busiest([]float64{1, 1}, []float64{1, 1}); got != 0 {
		t.Errorf("%v of no requests", got)
	}
}

func TestHolds(t *testing.T) {
	for _, c := range []struct {
		result replay.Result
		want   bool
	}{
		{replay.Result{Requests: 300, InFlight: [3]float64{10, 40, 45}}, true},
		{replay.Result{Requests: 300, InFlight: [3]float64{10, 40, 46}}, false},
		{replay.Result{Requests: 300, Failures: map[string]int{"timeout": 1}}, false},
	} {
		if got := holds(&c.result); got != c.want {
			t.Errorf("%+v: %t", c.result, got)
		}
	}
}

// TestSharesSince: a program that works shows as busy, and as this program's own.
func TestSharesSince(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	from, err := readCPU()
	if err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); time.Since(begun) < 50*time.Millisecond; {
	}
	to, err := readCPU()
	if busy, own := to.sharesSince(from); err != nil || own <= 0 || busy < 0 || busy > 1 {
		t.Errorf("busy %v, own %v, %v", busy, own, err)
	}
}

// metrics are lines of a worker, as Dynamo 1.6.1 writes them.
const metrics = `# HELP dynamo_component_requests_total Total number of requests processed by work handler
# TYPE dynamo_component_requests_total counter
dynamo_component_requests_total{dynamo_component="backend",dynamo_endpoint="generate",dynamo_namespace="dynamo",worker_id="dfc5"} 2
dynamo_component_requests_total{dynamo_component="backend",dynamo_endpoint="worker_kv_query_source_1519",dynamo_namespace="dynamo",worker_id="dfc5"} 1
`

func TestGenerated(t *testing.T) {
	for text, want := range map[string]float64{metrics: 2, "": 0} {
		if n, err := generated(strings.NewReader(text)); err != nil || n != want {
			t.Errorf("%v, %v of %q", n, err, text)
		}
	}
	if _, err := generated(strings.NewReader("a b c")); err == nil {
		t.Error("garbage was read")
	}
}

// TestShim: vLLM's requests for tokens are answered, what vllm-router adds is removed, and all
// else goes through.
func TestShim(t *testing.T) {
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		io.WriteString(w, r.URL.Path+" "+string(text))
	}))
	defer worker.Close()
	s, err := startShim([]string{strings.TrimPrefix(worker.URL, "http://")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	const ask = `{"model":"mock","messages":[{"role":"system","content":" a b"},{"role":"user","content":" a"}]}`
	for _, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"model":"m","stream_reasoning":true}`, `/v1/chat/completions {"model":"m"}`},
		{"/v1/chat/completions", `{"model" :"m"}`, `/v1/chat/completions {"model" :"m"}`},
		{"/other", `not JSON`, `/other not JSON`},
		{"/tokenize", ask, `"count":5,`},
		{"/v1/chat/completions/render", ask, `"token_ids":[0,2,`},
	} {
		resp, err := once.Post("http://"+s.Addrs[0]+c.path, "application/json", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !strings.Contains(string(text), c.want) {
			t.Errorf("%s: %s, want %s", c.path, text, c.want)
		}
	}
	if err := get(t.Context(), "http://"+s.Addrs[0]+"/health"); err != nil {
		t.Error(err)
	}
}

func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	return errors.Join(err, fetch(req, io.Discard))
}

func TestCheck(t *testing.T) {
	c := Default()
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(c *Config){
		"--contestants": func(c *Config) { c.Contestants = []string{"x"} },
		"--loads":       func(c *Config) { c.Loads = []int{0} },
		"is empty":      func(c *Config) { c.Loads = nil },
		"--rate -1":     func(c *Config) { c.Rates = []float64{-1} },
		"for 3 windows": func(c *Config) { c.Rates = []float64{1, 2} },
		"--rate-only":   func(c *Config) { c.RateOnly, c.Rates = true, []float64{1} },
		"nothing":       func(c *Config) { c.Windows, c.Bursts = 0, 0 },
		"--scale":       func(c *Config) { c.Scale = 3 },
	} {
		c := Default()
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
