package leg

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/sim/engine"
)

// booksFor is how long TestBooksEndEmpty goes on. By default each client sends 60 requests.
var booksFor = flag.Duration("books", 0, "how long TestBooksEndEmpty sends requests")

// ranksOf returns the ranks of all nodes.
func ranksOf(nodes []*fleet.Node) (all []*fleet.Rank) {
	for _, n := range nodes {
		all = append(all, n.Ranks()...)
	}
	return all
}

// noneLeft checks that no request is left at the nodes and in their books.
func noneLeft(t *testing.T, nodes []*fleet.Node) {
	t.Helper()
	for _, r := range ranksOf(nodes) {
		if n := r.Owner(); n.InFlight() != 0 || r.InFlight() != 0 || !r.Book.Empty() {
			t.Errorf("%s keeps %d requests, %d tokens and %v blocks", r.Name, n.InFlight(), n.OwnPrefill(time.Now()),
				n.Blocks())
		}
	}
}

// TestBooksEndEmpty sends random requests to nodes that fail in every way, hang and leave. Clients
// leave in all phases. The load books are empty afterwards.
func TestBooksEndEmpty(t *testing.T) {
	var engines []*engine.Engine
	d := startWith(t, 4, &engines, func(c *engine.Config) {
		c.DecodeStep, c.DataParallel = time.Millisecond, 1+len(engines)%2
	})
	d.o.PatienceFloor, d.o.StallFloor = 50*time.Millisecond, 100*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = d.Run(ctx) })
	nodes := d.current().snap.Nodes
	waitFor(t, func() bool { return len(ranksOf(nodes)) == 6 })

	faults := []string{
		"", "", "", "", "status=500", "status=503", "status=429", "status=404", "reset", "truncate", "delay=30ms",
		"hang",
	}
	outcomes := []relay.Outcome{relay.Complete, relay.UpstreamFailed, relay.IdleTimeout, relay.ClientGone}
	var clients sync.WaitGroup
	var asked atomic.Int64
	began := time.Now()
	for client := range uint64(8) {
		clients.Go(func() {
			dice := rand.New(rand.NewPCG(client, 1))
			for i := 0; i < 60 || time.Since(began) < *booksFor; i++ {
				body := chat(1 + dice.IntN(4000))
				if dice.IntN(2) == 0 {
					body = fmt.Appendf(body[:len(body)-1], `,"stream":true}`)
				}
				r := request.New()
				if err := ask(d, r, body); err != nil {
					t.Error(err)
					return
				}
				fault := faults[dice.IntN(len(faults))]
				if fault != "" {
					r.Header = fmt.Appendf(r.Header, "x-sim-fault: %s\r\n", fault)
				}
				takes := dice.IntN(4) > 0
				l := d.Leg(r, Question{}, place(func(ex *relay.Exchange) error {
					if !takes {
						return relay.ErrTooLong
					}
					ex.Close()
					return nil
				}))
				var left sync.WaitGroup
				if fault == "hang" || dice.IntN(3) == 0 {
					wait := time.NewTimer(time.Duration(dice.Int64N(int64(20 * time.Millisecond))))
					left.Go(func() { <-wait.C; r.Life.Cancel() })
				}
				asked.Add(1)
				_ = l.Do()
				l.Finish(outcomes[dice.IntN(len(outcomes))])
				left.Wait()
				if client == 0 && i == 30 {
					engines[0].Close()
				}
			}
		})
	}
	clients.Wait()
	cancel()
	run.Wait()
	t.Logf("%d requests in %v", asked.Load(), time.Since(began).Round(time.Second))
	noneLeft(t, nodes)
}
