package leg

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/connector"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/members"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// A leg for an answer may hand its prompt over: another node, P, computes the prompt, and the leg's
// own node, D, reads the KV blocks and answers. The policy picks D as always. Then decideWay
// decides whether P pays. If it does, a leg of work Prefill picks and asks P. D's attempt begins
// once P has answered, or at once, as the connector of both nodes demands.
//
// P is a convenience. Whatever goes wrong with P, D computes the prompt itself: before D is asked,
// or by a second request to the same D. Parameters of a hand-over are used for one request that a D
// may have received. A D that cannot compute prompts is needy: it gets another P instead.
//
// If both are asked at once, the first failure of one ends the other's exchange. D's answer is held
// back until P has answered.

// Disagg are the settings of hand-overs.
type Disagg struct {
	Off bool // no request is split
	// ColocateBelow is the prompt's length in tokens below which a request is not split.
	ColocateBelow int64
	// UncachedBelow and UncachedRatio keep a request on its node if both hold: fewer tokens of the
	// prompt than UncachedBelow are to be computed there, and less than this share of the prompt.
	UncachedBelow int64
	UncachedRatio float64
	// Lease is the time for which a P of a connector.Lender keeps blocks; 0: for ever.
	Lease time.Duration
	// Always makes mode predicted split every request that may be split. Always serves comparisons
	// with the mode's own choice.
	Always bool
}

// Way says how the prompt of an attempt is computed, and why.
type Way uint8

// These are the ways. All but Split mean that the answering node computes the prompt.
const (
	Undecided Way = iota // the decision is to come, or no node computes prompts of the model for others
	Split                // another node computes the prompt
	Short                // the prompt is short
	Single               // the request's form demands one node
	Cached               // the node has most of the prompt
	Sooner               // the node alone costs less, by expected times
	Unpaired             // no other node pairs with the node
	Over                 // the answer ends with its first token
	Late                 // the other node is expected to end the prompt too late for the client's deadline
	NoNode               // no node that computes prompts for others could take the request
	Refused              // the other node answered with an error
	Broken               // the other node gave no answer
	Garbled              // the other node's answer says nothing about blocks
	Unread               // the node could not read the blocks
	ways
)

var wayNames = [ways]string{
	"undecided", "split", "short", "form", "cached", "sooner", "unpaired", "over", "late", "no_node",
	"refused", "broken", "garbled", "unread",
}

// String is the way's name in metrics and explanations.
func (w Way) String() string { return wayNames[w] }

// failed says that the hand-over was tried and failed.
func (w Way) failed() bool { return w >= NoNode }

// final says that the request is not split any more, unless the answering node is needy. One
// hand-over of a request that leads to nothing is enough.
func (w Way) final() bool { return w >= Over }

// maxPrefillAnswer bounds P's answer in bytes. The ids of the blocks of a million tokens fit.
const maxPrefillAnswer = 4 << 20

// wayCounts counts the decisions, and the hand-overs that failed.
type wayCounts [ways]prometheus.Counter

func newWayCounts(m *metrics.Router) (c wayCounts) {
	for w := Undecided + 1; w < ways; w++ {
		c[w] = m.Handovers.WithLabelValues(w.String())
	}
	return c
}

// hand is the part of a leg that may hand its prompt over. One goroutine uses it, except for
// beside.
type hand struct {
	of *Leg
	nature
	partners
	near  []near // the nodes for P by connector; empty: no times are expected
	stage stage
	fails int       // hand-overs that failed for a needy node
	tried []*member // nodes that could not compute the prompt for a needy node
	last  lastPrefill
	stop  context.CancelFunc // ends the promotion of the blocks that P stores; nil: there is none
	beside

	data  connector.Handover
	place answer.Memory // for P's answer
	event []byte        // memory for Recounted
	bound
}

// nature is what the request's form says about a hand-over.
type nature struct {
	plain Way // Short or Single, unless the answering node is needy; Undecided: neither
	count int // answers that the request asks for; 0: unclear
}

// partners are the nodes of the present hand-over.
type partners struct {
	with    connector.Connector // that of the present attempt's node; nil: it has none
	pick    int                 // the candidate that is the present attempt's node
	prefill *Leg                // not sent yet; nil: no node could compute the prompt, or one was asked
	at      int                 // the place of the node that prefill has picked
	partner *member             // that node
	factKey string              // names the facts about partner for D; "": none
	reader  *member             // the node that was to read the blocks of P's answer
}

// lastPrefill is what is known about the latest leg for P.
type lastPrefill struct {
	node  string
	began time.Time
	took  time.Duration
	ended time.Time
	usage usage.Counts
}

// bound are methods of a hand, bound once. Passing them allocates nothing.
type bound struct {
	pairs func(*fleet.Node) bool
	edit  func(*scan.Edits)
}

var hands = sync.Pool{New: func() any {
	h := new(hand)
	h.place.Limit, h.bound = maxPrefillAnswer, bound{h.mayPair, h.editPrefill}
	return h
}}

// keptAnswer is the largest memory, in bytes, that is kept for a later answer of a P.
const keptAnswer = 256 << 10

// release ends the leg for P, if there is one, and frees the memory of h.
func (h *hand) release() {
	h.callOff()
	h.repay()
	h.drop()
	h.data.Reset()
	h.place.Status = 0
	if h.place.Body = h.place.Body[:0]; cap(h.place.Body) > keptAnswer {
		h.place.Body = nil
	}
	if cap(h.event) > keptAnswer {
		h.event = nil
	}
	h.of, h.nature, h.partners, h.fails, h.last, h.stop = nil, nature{}, partners{}, 0, lastPrefill{}, nil
	h.near, h.tried = emptied(h.near), emptied(h.tried)
	hands.Put(h)
}

// considers finds out whether the leg may hand its prompt over, once the prompt has been looked up.
// The error is about a P, or a rank of it, that the client names and that does not exist.
func (l *Leg) considers() *apierror.Error {
	set, pool := &l.d.o.Disagg, &l.model.pools[Prefill]
	if !l.parted() || l.Alone {
		return nil
	}
	named, at := l.namedPrefill(), -1
	if named.ID != "" {
		if at = pool.place(l.d.current().snap.Worker(named.ID)); at < 0 {
			return errNoPrefill(named, pool)
		}
	}
	if err := l.refusePrefillRank(pool, at); err != nil {
		return err
	}
	needy := l.model.needy
	if l.way = Undecided; named.ID == "" && l.prompt.Tokens() < set.ColocateBelow {
		if l.way = Short; !needy {
			return nil
		}
	}
	plain, count := l.way, 0
	why, own := l.obstacle()
	if !own {
		count = members.Sequences(l.Request.Scan, l.Request.Body(), l.Request.API)
	}
	if why != "" || count != 1 && !l.model.many {
		if plain = Single; own || !needy {
			l.way = Single
			return nil
		}
	}
	l.way = Undecided
	l.hand = hands.Get().(*hand)
	l.hand.of, l.hand.plain, l.hand.count = l, plain, count
	return nil
}

// parted says whether nodes of the leg's model may compute prompts for those that answer.
func (l *Leg) parted() bool {
	return l.Work == Answer && !l.d.o.Disagg.Off && len(l.model.pools[Prefill].members) > 0
}

// namedPrefill returns the node that the client wants to compute the prompt; without an id: any.
func (l *Leg) namedPrefill() nvext.Worker {
	if x := l.Request.Nvext; x != nil {
		return x.Prefill.Worker
	}
	return nvext.Worker{}
}

// obstacle names what in the request demands one node; "" if nothing does. own says that even a
// needy node gets the request as it is.
func (l *Leg) obstacle() (why string, own bool) {
	return connector.Obstacle(l.Request.Scan, l.Request.Body(), l.Request.API)
}

// prepare gets a leg for P ready before D is picked at now.
func (h *hand) prepare(now time.Time) {
	l := h.of
	h.near = h.near[:0]
	if h.stage == fresh {
		return
	}
	h.repay()
	if h.with = nil; l.way.final() && !l.model.needy || !h.engage() {
		return
	}
	if l.d.policyOf(l.model).Mode == policy.Predicted {
		h.near = h.prefill.cheapest(now, h.near)
	}
}

// engage makes a leg for P, unless there is one. engage returns false if no node has room.
func (h *hand) engage() bool {
	if h.prefill != nil {
		return true
	}
	h.prefill = h.of.d.Leg(h.of.Request, h.question(), &h.place)
	if h.prefill.piece = h.of.piece; h.prefill.start() != nil {
		h.drop()
		return false
	}
	h.prefill.tries.asked = append(h.prefill.tries.asked, h.tried...)
	return true
}

// question returns what the leg for P asks of the fleet.
func (h *hand) question() Question {
	of := &h.of.Question
	q := Question{
		Model: of.Model, Work: Prefill, Allowed: of.Allowed, AllowedBy: of.AllowedBy, Constraints: of.Constraints,
		Filter: h.bound.pairs, Edit: h.bound.edit,
	}
	if x := h.of.Request.Nvext; x != nil {
		q.Rank, q.RankBy = x.Prefill.Rank, x.Prefill.RankBy
	}
	if id := h.of.namedPrefill().ID; id != "" {
		if n := h.of.d.current().snap.Worker(id); n != nil {
			id = n.ID
		}
		q.Node, q.Bond = id, Named
	}
	return q
}

// drop ends a leg for P that has not been sent.
func (h *hand) drop() {
	if h.prefill != nil {
		h.prefill.Finish(relay.UpstreamFailed)
		h.prefill = nil
	}
}

// mayPair says whether n may be P. Before D is picked, any node with a connector may.
func (h *hand) mayPair(n *fleet.Node) bool {
	if f := h.of.Filter; f != nil && !f(n) {
		return false
	}
	own := n.Info().Prefills(h.of.model.view.Role(n))
	if own == "" {
		return false
	}
	if h.with == nil {
		return true
	}
	d := h.of.spare().member
	return own == h.with.Name() && n != d.node.Node &&
		(h.of.foresees() || !d.both || h.of.model.view.Role(n) != cluster.RoleBoth)
}

// paired says whether another node could compute prompts for the attempt's node if it had room.
func (l *Leg) paired(a *attempt) bool {
	with := l.hand.with
	return slices.ContainsFunc(l.model.pools[Prefill].members, func(p *member) bool {
		return p.connector == with && p.node != a.member.node &&
			p.node.Info().Prefills(l.model.view.Role(p.node.Node)) == with.Name()
	})
}

// alike says whether all nodes that could compute the prompt for the attempt's node are of role
// both like that node. Whether two such nodes are better than one, only expected times tell.
func (l *Leg) alike(a *attempt) bool {
	return a.member.both && !slices.ContainsFunc(l.hand.prefill.pool.members, func(p *member) bool {
		return p.connector == l.hand.with && !p.both
	})
}

// editPrefill edits the body for P.
func (h *hand) editPrefill(e *scan.Edits) {
	if h.of.Edit != nil {
		h.of.Edit(e)
	}
	h.with.Prefill(e, &h.data)
}

// decideWay decides how the prompt of the attempt at the picked candidate is computed. If another
// node does, cost loses the prompt's computation.
func (l *Leg) decideWay(a *attempt, pick int, cost *books.Cost) {
	h := l.hand
	if h.pick, a.split = pick, false; l.way.final() && !a.member.needy {
		return
	}
	if h.stage == fresh && (a.member.connector != h.with || a.member.node == h.partner.node) {
		h.repay() // the blocks are of no use to this node
		h.engage()
	}
	h.with = a.member.connector
	if l.way = l.wayOf(a); l.way != Split {
		l.d.ways[l.way].Inc()
		return
	}
	a.split = true
	cost.Prefill, cost.Expected, cost.Learned, cost.Elsewhere = 0, 0, 0, true
}

// wayOf returns how the prompt of the attempt should be computed.
func (l *Leg) wayOf(a *attempt) Way {
	h, set := l.hand, &l.d.o.Disagg
	switch {
	case h.plain != Undecided && !a.member.needy:
		return h.plain
	case h.with == nil:
		return Unpaired
	case h.count == 0 || h.count > 1 && !h.with.Many():
		return Single
	case h.stage == fresh: // P has computed it for a node that could not be reached
		return Split
	case !l.paired(a):
		return Unpaired
	case h.prefill == nil:
		return NoNode
	case a.member.needy:
		return Split
	case h.nearest(a.member).late:
		return Late
	case h.prefill.Bond == Named:
		return Split
	case h.nearest(a.member).node != nil:
		if a.forecast.via {
			return Split
		}
		return Sooner
	}
	if l.alike(a) {
		return Unpaired
	}
	tokens := l.prompt.Tokens()
	fresh := tokens - int64(a.matched)*prefix.BlockTokens
	if fresh < set.UncachedBelow && float64(fresh) < set.UncachedRatio*float64(tokens) {
		return Cached
	}
	return Split
}

// prefillFirst gets the attempt's prompt computed by another node, before the attempt begins. If
// both nodes are asked together, prefillFirst only picks the other one. If that fails, the attempt
// is no longer split.
func (l *Leg) prefillFirst(a *attempt) {
	h := l.hand
	if h.stage == fresh || !l.choosePartner(a, time.Now()) {
		return
	}
	p := h.prefill
	if h.with.Together() {
		p.tries.spare = 0 // D is told of this node
		if h.learn(h.partner) != nil {
			h.drop()
			l.unsplit(a, Broken, time.Now())
		}
		return
	}
	h.prefill = nil
	h.call(a.member)
	if w := h.ask(p); w != Split {
		if h.stop != nil {
			h.stop()
		}
		l.unsplit(a, w, time.Now())
		return
	}
	h.keep(a.member)
}

// call asks d's host to bring the blocks of the prompt while P computes them, if they pass through
// the caches of two hosts. h.stop takes that back.
func (h *hand) call(d *member) {
	cacher, ok := h.with.(connector.Cacher)
	l := h.of
	at := slices.Index(l.pool.members, d)
	h.stop = nil
	if ok && at >= 0 && d.node.Info().KVAddress != h.partner.node.Info().KVAddress {
		var ctx context.Context
		ctx, h.stop = context.WithCancel(context.Background())
		l.prompt.PromoteComing(at, l.model.name, holdings.Wait{For: cacher.Coming(),
			From: h.partner.node.Info().KVAddress, Ended: ctx})
	}
}

// choosePartner picks the node that computes the prompt for the attempt. If there is none,
// choosePartner returns false, and the attempt is no longer split.
func (l *Leg) choosePartner(a *attempt, now time.Time) bool {
	h := l.hand
	h.data.Reset()
	h.data.ID = l.d.o.Random() >> 1
	h.last = lastPrefill{began: now}
	p := h.prefill
	left := l.timeFor(now)
	p.tries.until, p.tries.rushed = now.Add(left/2), left < l.model.limits.FirstByte
	if !a.member.needy {
		p.tries.fits = l.partEnd(now)
	}
	at, err := p.choose(now)
	if err != nil {
		w := NoNode
		if err == ErrDeadline {
			w = Late
		}
		h.drop()
		l.unsplit(a, w, now)
		return false
	}
	n := p.pool.members[at]
	h.at, h.partner, h.last.node = at, n, n.node.ID
	h.data.API, h.data.Sequences = l.Request.API, h.count
	h.data.Bootstrap, h.data.Rank, h.data.Ranks = n.node.Info().Bootstrap, n.rank.Index, n.rank.Count
	h.data.DecodeRank, h.data.DecodeRanks = a.member.rank.Index, a.member.rank.Count
	return true
}

// timeFor returns the time from now until the first byte of an answer must have come. A P may take
// half of it, so that D can still compute the prompt.
func (l *Leg) timeFor(now time.Time) time.Duration {
	end := l.Request.Before(now.Add(l.model.limits.FirstByte))
	return max(end.Sub(now), 0)
}

// partEnd returns the end of P's part of the client's time; zero: the client has set no deadline.
func (l *Leg) partEnd(now time.Time) time.Time {
	if l.Request.Deadline.IsZero() {
		return time.Time{}
	}
	return now.Add(l.timeFor(now) / 2)
}

// ask runs the leg p for P, and says how it went.
func (h *hand) ask(p *Leg) Way {
	p.traceLeg()
	err := p.traceError(h.run(p))
	h.mu.Lock()
	h.running = nil
	off := h.off
	h.mu.Unlock()
	h.last.ended = time.Now()
	h.last.took, h.last.node = h.last.ended.Sub(h.last.began), cmp.Or(p.NodeID(), h.last.node)
	w, end := Split, relay.Complete
	switch {
	case err != nil && p.tries.excused:
		w, end = Late, relay.UpstreamFailed
	case err != nil:
		w, end = Broken, relay.UpstreamFailed
	case h.place.Status >= 300:
		w = Refused
	case !h.with.Together():
		w = h.receive()
	}
	h.last.usage = p.Reading.Usage
	if p.Finish(end); w != Split && !off && h.with.Together() {
		h.of.unpair()
	}
	return w
}

// receive reads P's answer.
func (h *hand) receive() Way {
	switch err := h.with.Receive(&h.data, h.place.Body); err {
	case nil:
		return Split
	case connector.ErrOver:
		return Over
	}
	return Garbled
}

// handedCame learns from the first token of a split attempt, which came at now.
func (l *Leg) handedCame(a *attempt, now time.Time) {
	f, h := &a.forecast, l.hand
	if !f.made() || !l.teaches() {
		return
	}
	f.took = now.Sub(a.sent).Seconds()
	a.cost.Listen(true, now)
	l.model.metrics.FirstCame(f.ttft, now.Sub(h.last.began).Seconds())
	if l.picks.policy.Predicted.Learn {
		if h.stage != together && !f.held {
			l.model.transfer.Learn(float64(l.prompt.Tokens()), max(f.took-f.own, 0))
		}
		f.looked, f.events, f.computed, f.batch = now, 1, a.member.rank.Book.Computed(now), a.member.batch()
	}
}

// PrefillNode returns the node that has computed the prompt for the answering node, and the time
// that it took; "" if there is none.
func (l *Leg) PrefillNode() (id string, took time.Duration) {
	if l.hand == nil || l.now == nil || !l.now.split {
		return "", 0
	}
	return l.hand.last.node, l.hand.last.took
}
