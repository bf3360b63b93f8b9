// Package metric makes a daemon's metrics and the table that documents them. Each metric is defined
// once, with its help. Both /metrics and the reference follow from the definition.
package metric

import (
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Kinds of metrics.
const (
	Counter   = "counter"
	Gauge     = "gauge"
	Histogram = "histogram"
)

// Def is one row of the metric table.
type Def struct {
	Name, Kind string // Kind is Counter, Gauge or Histogram
	Labels     []string
	Help       string // includes the unit if the name does not
}

// Bool returns the value of a gauge that is 1 or 0.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Set holds one daemon's metrics in a registry of their own.
type Set struct {
	registry *prometheus.Registry
	defs     []Def
}

// NewSet returns a set with the metrics of the Go runtime and the process.
func NewSet() *Set {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &Set{registry: r}
}

func (s *Set) add(kind, name, help string, labels []string, c prometheus.Collector) {
	s.defs = append(s.defs, Def{name, kind, labels, help})
	s.registry.MustRegister(c)
}

// Counter defines a counter. The counter's name must end in _total.
func (s *Set) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	s.add(Counter, name, help, labels, c)
	return c
}

// Histogram defines a histogram with the given upper bounds.
func (s *Set) Histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	s.add(Histogram, name, help, labels, h)
	return h
}

// Read defines gauges and counters with labels. read emits all their values at each scrape. emit
// takes the index of the definition, the value and the label values.
func (s *Set) Read(defs []Def, read func(emit func(def int, value float64, labels ...string))) {
	c := &reader{read: read}
	for _, d := range defs {
		kind := prometheus.GaugeValue
		if d.Kind == Counter {
			kind = prometheus.CounterValue
		} else {
			d.Kind = Gauge
		}
		s.defs = append(s.defs, d)
		c.kinds = append(c.kinds, kind)
		c.descs = append(c.descs, prometheus.NewDesc(d.Name, d.Help, d.Labels, nil))
	}
	s.registry.MustRegister(c)
}

// ReadHistograms defines histograms that other code counts. read emits all of them at each scrape.
// emit takes the index of the definition, the number of values, their sum, and the number of values
// up to each bound.
func (s *Set) ReadHistograms(defs []Def,
	read func(emit func(def int, count uint64, sum float64, buckets map[float64]uint64, labels ...string))) {
	c := &histogramReader{read: read}
	for _, d := range defs {
		d.Kind = Histogram
		s.defs = append(s.defs, d)
		c.descs = append(c.descs, prometheus.NewDesc(d.Name, d.Help, d.Labels, nil))
	}
	s.registry.MustRegister(c)
}

type histogramReader struct {
	descs []*prometheus.Desc
	read  func(emit func(def int, count uint64, sum float64, buckets map[float64]uint64, labels ...string))
}

func (r *histogramReader) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range r.descs {
		ch <- d
	}
}

func (r *histogramReader) Collect(ch chan<- prometheus.Metric) {
	r.read(func(def int, count uint64, sum float64, buckets map[float64]uint64, labels ...string) {
		ch <- prometheus.MustNewConstHistogram(r.descs[def], count, sum, buckets, labels...)
	})
}

type reader struct {
	descs []*prometheus.Desc
	kinds []prometheus.ValueType
	read  func(emit func(def int, value float64, labels ...string))
}

func (r *reader) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range r.descs {
		ch <- d
	}
}

func (r *reader) Collect(ch chan<- prometheus.Metric) {
	r.read(func(def int, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(r.descs[def], r.kinds[def], value, labels...)
	})
}

// Handler serves the set in the Prometheus text format.
func (s *Set) Handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{})
}

// Defs returns the metric table, sorted by name, without the Go runtime's metrics.
func (s *Set) Defs() []Def {
	defs := append([]Def(nil), s.defs...)
	sort.Slice(defs, func(i, j int) bool { return defs[i].Name < defs[j].Name })
	return defs
}

// WriteTable writes the definitions as a Markdown table.
func WriteTable(w io.Writer, defs []Def) error {
	if _, err := io.WriteString(w, "| metric | kind | labels | meaning |\n|---|---|---|---|\n"); err != nil {
		return err
	}
	for _, d := range defs {
		if _, err := fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", d.Name, d.Kind, strings.Join(d.Labels, ", "),
			d.Help); err != nil {
			return err
		}
	}
	return nil
}
