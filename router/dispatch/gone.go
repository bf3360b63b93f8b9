package dispatch

import (
	"time"

	"github.com/cognitora/dataplane/router/fleet"
)

// goneFor is how long the metrics of a node or model are kept that has left: long enough to be scraped once more, and for
// requests that were picked at that moment to be counted.
const goneFor = time.Minute

// gone is what has left the fleet and still has metrics. Its bound is what leaves within goneFor, and what has requests in
// flight.
type gone struct {
	nodes  map[*fleet.Node]time.Time
	models map[string]time.Time
}

// noteGone is called with d.rebuilding held.
func (d *Dispatcher) noteGone(old, t *table, now time.Time) {
	for n := range old.nodes {
		if t.nodes[n] == nil {
			d.gone.nodes[n] = now
		}
	}
	for name := range old.models {
		if t.models[name] == nil {
			d.gone.models[name] = now
		}
	}
	for name := range t.models {
		delete(d.gone.models, name)
	}
}

// forgetGone drops the metrics and caps of what left long ago and has nothing in flight any more.
func (d *Dispatcher) forgetGone(now time.Time) {
	d.rebuilding.Lock()
	defer d.rebuilding.Unlock()
	for n, since := range d.gone.nodes {
		if now.Sub(since) < goneFor || n.InFlight() > 0 {
			continue
		}
		delete(d.gone.nodes, n)
		if !d.lives(n.ID) {
			d.metrics.ForgetNode(n.ID)
		}
	}
	for name, since := range d.gone.models {
		if now.Sub(since) >= goneFor && d.gate.Drop(name) {
			delete(d.gone.models, name)
			d.metrics.ForgetModel(name)
		}
	}
}

// lives tells whether a node of this id is in the fleet, or another one has left and is not forgotten yet.
func (d *Dispatcher) lives(id string) bool {
	if t := d.table.Load(); t.snap != nil && t.snap.Node(id) != nil {
		return true
	}
	for n := range d.gone.nodes {
		if n.ID == id {
			return true
		}
	}
	return false
}
