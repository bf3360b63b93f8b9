package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/metric"
)

// Bands is the number of priorities with series of their own.
const Bands = 11

// BandName returns the priority of a band of package queue: -1 for band 0.
func BandName(band int) string { return strconv.Itoa(band - 1) }

// Queue holds the metrics of waiting requests, by their priority.
type Queue struct{ Bands [Bands]QueueBand }

// QueueBand holds the metrics of the waiting requests of one priority.
type QueueBand struct {
	Seconds prometheus.Observer // waits that ended with a node
	refused *prometheus.CounterVec
	name    string
}

// Refuse counts a request that was refused before or during its wait. code is that of its error.
func (b *QueueBand) Refuse(code string) { b.refused.WithLabelValues(b.name, code).Inc() }

func newQueue(s *metric.Set) (q Queue) {
	waits := s.Histogram("cgn_router_queue_seconds", "Time that requests waited in the queue until they got a node, "+
		"by their priority (-1: after all others); requests that need not wait do not count.", latencyBuckets, "priority")
	refused := s.Counter("cgn_router_queue_refused_total", "Requests that found no node with room and were refused "+
		"before or during their wait, by their priority and the error's code: waiting_full (router.queue.max_requests, "+
		"or others of the tenant had to make room), waiting_memory (router.queue.max_bytes), deadline_too_near and "+
		"ttft_over_slo (expected too late), deadline_exceeded (the deadline passed during the wait), waited_too_long "+
		"(router.queue.max_wait), or the code for a request that no node may take any more.", "priority", "reason")
	for i := range q.Bands {
		name := BandName(i)
		q.Bands[i] = QueueBand{waits.WithLabelValues(name), refused, name}
	}
	return q
}
