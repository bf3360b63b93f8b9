package leg

import (
	"strconv"
	"time"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/request"
)

// Explanation says where a request would go, and why.
type Explanation struct {
	Model      string          `json:"model"`
	API        string          `json:"api"`
	Mode       string          `json:"mode"`
	Blocks     int             `json:"prompt_blocks"`
	Winner     string          `json:"winner"`
	WinnerRank *int            `json:"winner_dp_rank,omitempty"` // absent if the winner has one rank
	Why        string          `json:"why"`
	Error      *ExplainedError `json:"error,omitempty"` // absent if there is a winner
	Queue      *ExplainedQueue `json:"queue,omitempty"` // absent unless the request would wait in place of the error
	Candidates []ExplainedNode `json:"candidates"`

	Prefill *ExplainedPrefill `json:"prefill,omitempty"` // absent if no node computes prompts for others
}

// ExplainedError is the error that the request would get.
type ExplainedError struct {
	Status  int    `json:"status"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ExplainedQueue is where a request would wait for a node with room.
type ExplainedQueue struct {
	Requests int `json:"requests"` // that wait there already
}

// ExplainedNode is one node's part in an Explanation, or one data-parallel rank's. Unweighted terms
// are in [0,1], except Waiting.
type ExplainedNode struct {
	Node     string  `json:"node"`
	Rank     *int    `json:"dp_rank,omitempty"` // absent if the node has one rank
	Eligible bool    `json:"eligible"`
	Filter   string  `json:"filter,omitempty"` // the filter that leaves the node out, as in cgn_router_filtered_total
	Reason   string  `json:"reason,omitempty"`
	Matched  int     `json:"matched"`        // leading blocks in the engine's own memory
	Coming   int     `json:"coming"`         // with the blocks that the node computes for other requests now
	Host     int     `json:"matched_host"`   // with the blocks in the host's RAM
	Disk     int     `json:"matched_disk"`   // with the blocks on the host's SSD too
	Shared   int     `json:"matched_shared"` // with the blocks that the host's cache gets from other hosts too
	Total    int     `json:"total"`
	InFlight int     `json:"in_flight"`
	Others   int     `json:"in_flight_of_others"`      // requests of other routers and clients, as last reported
	Slots    int     `json:"max_concurrent,omitempty"` // no limit when absent
	Pending  int     `json:"pending_blocks"`           // blocks of prompts, also of others, that wait for prefill
	Adapter  string  `json:"adapter,omitempty"`        // of a LoRA adapter: loaded, not loaded or unknown
	Device   string  `json:"device,omitempty"`         // gpu or cpu, as the node's agent says
	Load     float64 `json:"load"`                     // the free part of the candidate's slots

	*ScoreTerms // of a candidate in mode score

	// A request with nvext.router.moe_query fills these fields. Hosted experts raise Overlap.
	ExpertsAsked  int `json:"experts_asked,omitempty"`
	ExpertsHosted int `json:"experts_hosted,omitempty"`

	Used *UsedBlocks `json:"used,omitempty"` // absent if the engine used all blocks outside of its own memory

	// Formula is the candidate's score, cost or load as one line. Only mode cost fills Cost. Only
	// mode predicted fills Expected, Last and Speed.
	Formula  string               `json:"formula,omitempty"`
	Cost     *policy.CostTerms    `json:"cost,omitempty"`
	Expected *policy.ExpectedCost `json:"expected,omitempty"`
	Last     *LastAnswer          `json:"last,omitempty"`  // of the node's engine; absent if there was none
	Speed    *NodeSpeed           `json:"speed,omitempty"` // unless the mode's learn is off

	Signals fleet.Signals `json:"signals"`
}

// LastAnswer has the expected and the real time to the first token of the last streamed answer that
// mode predicted compared.
type LastAnswer struct {
	Expected float64 `json:"expected_s"`
	Real     float64 `json:"real_s"`
	Age      float64 `json:"age_s"`
}

// UsedBlocks are the shares of believed blocks that the node's engine lately reported as cached, by
// tier, from 0 to 1. The other blocks do not count in a pick.
type UsedBlocks struct {
	Host   float64 `json:"host"`
	Disk   float64 `json:"disk"`
	Shared float64 `json:"shared"`
}

// usedBlocks returns the shares for a node; nil: all are 1.
func usedBlocks(n *member) *UsedBlocks {
	var u UsedBlocks
	if u.Host, u.Disk, u.Shared = n.node.usage.Ratios(); u == (UsedBlocks{1, 1, 1}) {
		return nil
	}
	return &u
}

// ScoreTerms are a candidate's unweighted terms in mode score, and their weighted sum.
type ScoreTerms struct {
	Overlap  float64 `json:"overlap"`
	Waiting  float64 `json:"waiting"` // the pending blocks over this prompt's blocks, at most 4
	Power    float64 `json:"power"`
	Capacity float64 `json:"capacity"`
	Score    float64 `json:"score"`
	// Elsewhere is the worth of a block that only other hosts have, part of Overlap.
	Elsewhere float64 `json:"shared_worth,omitempty"`
}

// Explain says where a leg of r with question q would go now. Explain sends nothing.
func (d *Dispatcher) Explain(r *request.Request, q Question) (*Explanation, *apierror.Error) {
	return d.explain(r, q, time.Now())
}

func (d *Dispatcher) explain(r *request.Request, q Question, now time.Time) (*Explanation, *apierror.Error) {
	l := d.Leg(r, q, nil)
	defer l.explained()
	l.picks.scope = scopeExplain
	if err := l.resolve(); err != nil {
		return nil, err
	}
	l.look()
	l.identify()
	if err := l.considers(); err != nil {
		return nil, err
	}
	if l.hand != nil {
		l.hand.prepare(now)
	}
	e := &Explanation{API: r.API.String()}
	pick := l.explainTo(e, now)
	e.Candidates = append(e.Candidates, l.prefillRows()...)
	if pick < 0 {
		refused := l.noNode(now)
		e.Error = &ExplainedError{refused.Status, refused.Code, refused.Message}
		if l.queues() && l.lacksRoom(refused) {
			e.Queue = &ExplainedQueue{l.model.line.Len()}
		}
	}
	e.Prefill = l.explainPrefill(pick, now)
	return e, nil
}

// explained frees a leg that has only been explained.
func (l *Leg) explained() {
	if h := l.hand; h != nil {
		if h.prefill != nil {
			h.prefill.recycle()
			h.prefill = nil
		}
		h.release()
	}
	l.recycle()
}

// explainTo fills in e with a pick of the leg at now, and returns the place of the chosen node
// among the candidates; -1: no node may take the request.
func (l *Leg) explainTo(e *Explanation, now time.Time) (pick int) {
	p := l.d.policyOf(l.model)
	l.picks.policy, l.picks.turn = p, l.nextRandom(p)
	var because policy.Explanation
	pick, _ = l.decide(now, &because)
	e.Model, e.Mode, e.Blocks, e.Why = l.model.name, p.Mode.String(), l.prompt.Blocks, because.Why
	var all map[*predict.Engine]paces
	if l.foresees() && p.Predicted.Learn {
		_, all = l.d.paces(now)
	}
	next := 0
	for i, n := range l.pool.members {
		row := l.describe(i, now)
		row.paced(l, n, all, now)
		row.compared(l, n, now)
		if next < len(l.picks.able) && int(l.picks.able[next]) == i {
			row.candidate(&because.Terms[next], n, now)
			row.terms(p.Mode, &because.Terms[next])
			if row.Speed != nil {
				row.Speed.Tried = l.picks.times[next].Tried
			}
			if next == pick {
				e.Winner, e.WinnerRank = row.Node, row.Rank
			}
			next++
		} else {
			row.filtered(l, i, now)
		}
		e.Candidates = append(e.Candidates, row)
	}
	return pick
}

// describe returns the row of the node at place i, without its score.
func (l *Leg) describe(i int, now time.Time) ExplainedNode {
	n, r := l.pool.members[i], l.prompt.Reach(i)
	load := n.rank.Load()
	row := ExplainedNode{
		Node: n.node.ID, Rank: n.number(), Matched: int(r.Device), Coming: int(max(l.prompt.Coming(i), r.Device)),
		Host: int(max(r.Host, r.Device)), Disk: int(max(r.Disk, r.Host, r.Device)),
		Shared: int(max(r.Shared, r.Disk, r.Host, r.Device)), Total: l.prompt.Blocks, Used: usedBlocks(n),
		InFlight: int(n.rank.InFlight()), Others: int(load.Others), Slots: int(n.node.MaxConcurrent()),
		Pending: int(blocksOf(n.prefill(now))), Signals: load.Signals(), Adapter: l.adapterState(n),
		Device:       n.node.Info().Device,
		ExpertsAsked: len(l.Constraints.Experts), ExpertsHosted: l.Constraints.hosted(n.node.Info().Experts),
	}
	return row
}

// prefillRows returns the rows of the model's prefill nodes, which answer no requests.
func (l *Leg) prefillRows() (rows []ExplainedNode) {
	if l.Work != Answer {
		return nil
	}
	for _, n := range l.model.view.Prefill {
		for _, r := range n.Ranks() {
			load, rank := r.Load(), &r.Index
			if r.Count == 1 {
				rank = nil
			}
			rows = append(rows, ExplainedNode{
				Node: n.ID, Rank: rank, Reason: l.model.view.WhyPrefill(n), Total: l.prompt.Blocks,
				InFlight: int(r.InFlight()), Others: int(load.Others), Slots: int(n.MaxConcurrent()),
				Signals: load.Signals(), Device: n.Info().Device,
			})
		}
	}
	return rows
}

// number returns the number of the rank; nil if the node has one rank.
func (n *member) number() *int {
	if n.rank.Count == 1 {
		return nil
	}
	return &n.rank.Index
}

// Title names the row for people: NODE, or NODE rank R.
func (e *ExplainedNode) Title() string { return Title(e.Node, e.Rank) }

// Title names a node, or one of its data-parallel ranks, for people.
func Title(node string, rank *int) string {
	if rank == nil {
		return node
	}
	return node + " rank " + strconv.Itoa(*rank)
}

// candidate adds what the candidates of every mode have.
func (e *ExplainedNode) candidate(t *policy.Terms, n *member, now time.Time) {
	e.Eligible, e.Reason = t.Eligible, t.Reason
	if ok, why := n.node.Eligible(now); !ok {
		e.Reason = "asked because no other node is left or has room; " + why
	}
	e.Load, e.Formula = t.Load, t.Line(e.Title())
	if n.node.Health.Suspect() {
		e.Reason = health.SuspectReason
	}
}

// terms adds the terms of the mode.
func (e *ExplainedNode) terms(m policy.Mode, t *policy.Terms) {
	switch m {
	case policy.Score:
		e.ScoreTerms = &ScoreTerms{t.Overlap, t.Waiting, t.Power, t.Capacity, t.Total, t.Elsewhere}
	case policy.Cost:
		e.Cost = &t.Cost
	case policy.Predicted:
		e.Expected = &policy.ExpectedCost{ExpectedTerms: t.Expected, ExpectedParts: t.Parts}
	}
}

// compared adds the last answer of the node's engine.
func (e *ExplainedNode) compared(l *Leg, n *member, now time.Time) {
	if !l.foresees() {
		return
	}
	if c, ok := n.engine.LastCompared(); ok {
		e.Last = &LastAnswer{c.Expected, c.Real, now.Sub(c.At).Seconds()}
	}
}

// filtered says why the node at place i is no candidate.
func (e *ExplainedNode) filtered(l *Leg, i int, now time.Time) {
	f := l.picks.out[i]
	if f == passes {
		e.Reason = "full" // a node of last resort is asked in its place
		return
	}
	e.Filter, e.Reason = f.String(), l.why(f, l.pool.members[i], now)
}

// nextRandom returns the next result of random without counting a turn.
func (l *Leg) nextRandom(p *policy.Policy) uint64 {
	if p.Mode.Counts() {
		return l.model.turn.Load() + 1
	}
	return l.d.o.Random()
}
