package kvcached

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kv/accesses"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/chunks"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/lease"
	"github.com/cognitora/dataplane/kvcached/resp"
	"github.com/cognitora/dataplane/kvcached/rpc"
	"github.com/cognitora/dataplane/kvcached/s3"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// instruments has all metrics of one daemon.
type instruments struct {
	set       *metric.Set
	latency   latencies
	reclaimed prometheus.Counter
	audit     audit.Metrics

	store  *store.Store
	index  *residency.Index
	chunks *chunks.Table
	rpc    *rpc.Server
	lease  *lease.Server
	resp   *resp.Server // nil: the part is not served; the same for the fields below
	s3     *s3.Server
	peers  *transport.Server
	fleet  *fleet.View
	pool   *transport.Pool
	trace  *accesses.Recorder

	rails *transport.Rails // RDMA cards; nil: rdma.devices is empty
}

func newInstruments() *instruments {
	set := metric.NewSet()
	reclaimed := set.Counter("cgn_kvcached_registration_reclaimed_total",
		"Times that the cache's key in etcd held a value that no daemon writes, and the daemon wrote its record again.")
	return &instruments{set: set, latency: newLatencies(set), reclaimed: reclaimed.WithLabelValues(),
		audit: audit.NewMetrics(set, "cgn_kvcached")}
}

// row is one metric that is read from a snapshot S. A metric whose name ends in _total is a
// counter.
type row[S any] struct {
	name, help string // the name without the daemon's prefix
	read       func(s *S) float64
}

// export defines the metrics of a table. With a nil snapshot the metrics have no values, because
// the part is not served.
func export[S any](in *instruments, table []row[S], snapshot func() S) {
	defs := make([]metric.Def, len(table))
	for i, r := range table {
		defs[i] = metric.Def{Name: "cgn_kvcached_" + r.name, Help: r.help}
		if strings.HasSuffix(r.name, "_total") {
			defs[i].Kind = metric.Counter
		}
	}
	in.set.Read(defs, func(emit func(def int, value float64, labels ...string)) {
		if snapshot == nil {
			return
		}
		s := snapshot()
		for i, r := range table {
			emit(i, r.read(&s))
		}
	})
}

// snapshotOf is the Stats method of a part, or nil where there is no part.
func snapshotOf[P any, S any](part *P, stats func(*P) S) func() S {
	if part == nil {
		return nil
	}
	return func() S { return stats(part) }
}
