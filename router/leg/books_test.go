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
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
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
		if n := r.Owner(); n.InFlight() != 0 || r.InFlight() != 0 || !r.Book.Empty() || r.Book.WaitingPrompts() != 0 ||
			r.Book.Backlog(time.Now()) != 0 {
			t.Errorf("%s keeps %d requests, %d tokens and %v blocks", r.Name, n.InFlight(), n.OwnPrefill(time.Now()),
				n.Blocks())
		}
	}
}

// bookedPolicies are the policies that take turns in TestBooksEndEmpty.
var bookedPolicies = []string{
	`{}`, `{"mode":"cost"}`, `{"mode":"cost","cost":{"track_output_blocks":true}}`,
	`{"mode":"cost","cost":{"track_output_blocks":true,"assume_kv_reuse":false,"temperature":1}}`,
	`{"mode":"cost","cost":{"track_active_blocks":false,"track_prefill_tokens":false}}`,
	`{"mode":"predicted"}`, `{"mode":"predicted","predicted":{"learn":false},"cost":{"assume_kv_reuse":false}}`,
	`{"mode":"least_loaded","cost":{"track_output_blocks":true},"prefill_load_model":` +
		`{"mode":"modelled","table":[{"tokens":100,"cached_tokens":0,"ms":5},{"tokens":1000,"cached_tokens":0,"ms":50}]}}`,
}

// bookedWishes are values of nvext that change what a request costs, or choose its node.
var bookedWishes = []string{
	"", "", `{"agent_hints":{"osl":1}}`, `{"agent_hints":{"osl":20}}`, `{"agent_hints":{"osl":1000}}`,
	`{"router":{"assume_kv_reuse":false}}`, `{"router":{"assume_kv_reuse":true},"agent_hints":{"osl":24}}`,
	`{"router":{"track_prefill_tokens":false}}`, `{"router":{"router_temperature":2,"overlap_score_credit":0}}`,
	`{"dp_rank":0}`, `{"dp_rank":1,"agent_hints":{"osl":9}}`,
}

// parsed returns the policies of documents.
func parsed(t *testing.T, docs []string) (all []*policy.Policy) {
	t.Helper()
	for _, doc := range docs {
		p, err := policy.Parse([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// bookedFaults are faults of the engines. Most requests meet none.
var bookedFaults = []string{
	"", "", "", "", "", "", "", "", "", "", "", "", "status=500", "status=503", "status=429", "status=404", "reset",
	"truncate", "delay=30ms", "hang",
}

// bookedRequest returns a random request of a client, and what it asks of the fleet.
func bookedRequest(d *Dispatcher, dice *rand.Rand) (*request.Request, Question, error) {
	body := chat(1 + dice.IntN(4000))
	body = fmt.Appendf(body[:len(body)-1], `,"max_tokens":%d`, 1+dice.IntN(40))
	if dice.IntN(2) == 0 {
		body = append(body, `,"stream":true`...)
	}
	if wish := bookedWishes[dice.IntN(len(bookedWishes))]; wish != "" {
		body = append(append(body, `,"nvext":`...), wish...)
	}
	r := request.New()
	if err := ask(d, r, append(body, '}')); err != nil {
		return nil, Question{}, err
	}
	if dice.IntN(2) == 0 {
		r.Session = fmt.Appendf(nil, "session-%d", dice.IntN(8))
	}
	q, fail := d.Wanted(r)
	if fail != nil {
		return nil, Question{}, fail
	}
	return r, q, nil
}

// bookedPlace returns a place that refuses the answer, leaves it, or reads it.
func bookedPlace(dice *rand.Rand) answer.Place {
	switch dice.IntN(4) {
	case 0:
		return place(func(*relay.Exchange) error { return relay.ErrTooLong })
	case 1:
		return place(func(ex *relay.Exchange) error { ex.Close(); return nil })
	}
	return &answer.Memory{Limit: 1 << 20}
}

// TestBooksEndEmpty sends random requests to nodes that fail in every way, hang and leave. Clients
// leave in all phases, and the policy changes. The load books are empty afterwards.
func TestBooksEndEmpty(t *testing.T) {
	var engines []*engine.Engine
	d := startWith(t, 4, &engines, func(c *engine.Config) {
		c.DecodeStep, c.DataParallel = time.Millisecond, 1+len(engines)%2
	})
	d.sessions, d.o.HardSessions = affinity.NewSessions(100, sessionLifetime), true
	d.o.PatienceFloor, d.o.StallFloor = 50*time.Millisecond, 100*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = d.Run(ctx) })
	nodes := d.current().snap.Nodes
	waitFor(t, func() bool { return len(ranksOf(nodes)) == 6 })

	policies := parsed(t, bookedPolicies)
	outcomes := []relay.Outcome{
		relay.Complete, relay.Complete, relay.Complete, relay.Complete, relay.Complete, relay.UpstreamFailed,
		relay.IdleTimeout, relay.ClientGone,
	}
	var clients sync.WaitGroup
	var asked, answered atomic.Int64
	began := time.Now()
	for client := range uint64(8) {
		clients.Go(func() {
			dice := rand.New(rand.NewPCG(client, 1))
			for i := 0; i < 60 || time.Since(began) < *booksFor; i++ {
				if dice.IntN(8) == 0 {
					d.policy.Store(policies[dice.IntN(len(policies))])
				}
				r, q, err := bookedRequest(d, dice)
				if err != nil {
					t.Error(err)
					return
				}
				fault := bookedFaults[dice.IntN(len(bookedFaults))]
				if fault != "" {
					r.Header = fmt.Appendf(r.Header, "x-sim-fault: %s\r\n", fault)
				}
				l := d.Leg(r, q, bookedPlace(dice))
				var left sync.WaitGroup
				if fault == "hang" || dice.IntN(3) == 0 {
					wait := time.NewTimer(time.Duration(dice.Int64N(int64(20 * time.Millisecond))))
					left.Go(func() { <-wait.C; r.Life.Cancel() })
				}
				asked.Add(1)
				switch l.Do() {
				case nil:
					answered.Add(1)
				case ErrNoNode: // until a node is back
					wait := time.NewTimer(time.Duration(dice.Int64N(int64(30 * time.Millisecond))))
					<-wait.C
				}
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
	t.Logf("%d requests, %d answered, in %v", asked.Load(), answered.Load(), time.Since(began).Round(time.Second))
	if noneLeft(t, nodes); answered.Load() == 0 {
		t.Error("no request was answered")
	}
}
