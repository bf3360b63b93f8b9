package kvcached

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// latencyBuckets are in seconds. The buckets range from a Get of a block in RAM to a very slow pull
// from another host.
var latencyBuckets = []float64{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1,
	2, 5, 10}

// doors are the servers for clients of this host.
var doors = []string{"grpc", "lease", "resp", "s3"}

// door has the histograms of one of these servers.
type door struct{ hit, miss, failed, put prometheus.Observer }

// latencies are the histograms of a daemon.
type latencies struct {
	doors map[string]*door
	pulls map[transport.Lane]prometheus.Observer
}

func newLatencies(set *metric.Set) latencies {
	gets := set.Histogram("cgn_kvcached_get_seconds", "Time from a request for a block until the block was in RAM, "+
		"from SSD or another host if necessary, or was a miss or an error.", latencyBuckets, "door",
		"result")
	puts := set.Histogram("cgn_kvcached_put_seconds", "Time from the reservation of room for a block until the "+
		"block was stored: its bytes had arrived and, if it was to be durable, were on SSD.", latencyBuckets, "door")
	pulls := set.Histogram("cgn_kvcached_pull_seconds", "Time to read a block from another host's cache.",
		latencyBuckets, "lane")
	l := latencies{map[string]*door{}, map[transport.Lane]prometheus.Observer{}}
	for _, name := range doors {
		l.doors[name] = &door{
			hit: gets.WithLabelValues(name, "hit"), miss: gets.WithLabelValues(name, "miss"),
			failed: gets.WithLabelValues(name, "error"),
			put:    puts.WithLabelValues(name),
		}
	}
	for _, lane := range []transport.Lane{transport.QUIC, transport.TLS, transport.RDMA} {
		l.pulls[lane] = pulls.WithLabelValues(string(lane))
	}
	return l
}

// pulled belongs to transport.PoolOptions.
func (l *latencies) pulled(lane transport.Lane, took time.Duration) {
	l.pulls[lane].Observe(took.Seconds())
}

// got records the duration of a Get that ends now.
func (d *door) got(began time.Time, err error) {
	to := d.hit
	switch {
	case err == nil:
	case errors.Is(err, store.ErrMiss):
		to = d.miss
	default:
		to = d.failed
	}
	to.Observe(time.Since(began).Seconds())
}
