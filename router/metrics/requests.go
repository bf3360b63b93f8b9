package metrics

import (
	"maps"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/metric"
)

// Requests counts answers. Requests has a map of counters with one entry per series.
type Requests struct {
	vec *prometheus.CounterVec // api, model, code

	mu      sync.Mutex // held while counters are added or removed
	handles atomic.Pointer[map[answer]prometheus.Counter]
}

type answer struct {
	api, model string
	status     int
}

func newRequests(s *metric.Set) *Requests {
	r := &Requests{vec: s.Counter("cgn_router_requests_total", "Requests answered, by endpoint (other: unknown paths, "+
		"and requests that could not be read), served model (empty: unknown) and HTTP status.", "api", "model", "code")}
	r.handles.Store(&map[answer]prometheus.Counter{})
	return r
}

// Inc counts an answer with the given HTTP status.
func (r *Requests) Inc(api, model string, status int) {
	a := answer{api, model, status}
	c, ok := (*r.handles.Load())[a]
	if !ok {
		c = r.add(a)
	}
	c.Inc()
}

func (r *Requests) add(a answer) prometheus.Counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.vec.WithLabelValues(a.api, a.model, strconv.Itoa(a.status))
	all := maps.Clone(*r.handles.Load())
	all[a] = c
	r.handles.Store(&all)
	return c
}

// forget removes the series of a model.
func (r *Requests) forget(model string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := maps.Clone(*r.handles.Load())
	maps.DeleteFunc(all, func(a answer, _ prometheus.Counter) bool { return a.model == model })
	r.handles.Store(&all)
	r.vec.DeletePartialMatch(prometheus.Labels{"model": model})
}
