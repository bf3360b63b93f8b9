package health

import (
	"context"
	"iter"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// The watch finds dead nodes that send no reset. The watch asks the kernel about the connections to
// them that are in use.
const (
	lookEvery = 50 * time.Millisecond
	// looksAtOnce bounds the connections of one round; the connections take turns. At about 1 µs
	// each the looks cost at most 2 % of a core.
	looksAtOnce = 1024
	looksMin    = 4  // of a node
	looksMax    = 64 // of a node
)

// Watch looks at the connections to all nodes, at intervals and after kernel events.
type Watch struct {
	nodes  iter.Seq[*Node]
	lag    func(time.Duration)
	looks  atomic.Uint64 // connections the kernel was asked about
	told   chan told
	untold atomic.Uint64 // events dropped because told was full
}

// NewWatch returns a watch over nodes. lag is called when the watch looks into a kernel event, with
// the age of the event. lag may be nil.
func NewWatch(nodes iter.Seq[*Node], lag func(time.Duration)) *Watch {
	return &Watch{nodes: nodes, lag: lag, told: make(chan told, toldQueue)}
}

// Run looks at the nodes until ctx ends. Run is called once.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	looker, busy := relay.NewLooker(), 1
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			busy = w.round(looker, busy)
		case e := <-w.told:
			w.heed(looker, e)
		}
	}
}

// round looks at the nodes with requests in flight, and returns their number. busy is the result of
// the last round.
func (w *Watch) round(looker *relay.Looker, busy int) int {
	share := min(max(looksAtOnce/max(busy, 1), looksMin), looksMax)
	busy = 0
	for n := range w.nodes {
		if n.checker.who.Subject.InFlight() == 0 && !n.Suspect() {
			continue
		}
		busy++
		links := looker.Look(n.pool, share)
		w.looks.Add(uint64(len(links)))
		n.consider(links, byLook, time.Now())
	}
	return busy
}

// Looks counts how often the kernel was asked about a connection.
func (w *Watch) Looks() uint64 { return w.looks.Load() }
