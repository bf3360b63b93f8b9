package leg

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/apis"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
)

// picks is the scratch memory of a pick.
type picks struct {
	cands   []policy.Candidate
	able    []int32   // places of the candidates in the pool
	out     []filter  // for each place in the pool, the filter that left the node out at the last look
	found   filterSet // the filters in out
	removed filterSet // the filters of all looks of the pick
	asked   policy.Situation
	policy  *policy.Policy
	session uint64     // the request's key in the dispatcher's sessions; 0: it has no session
	turn    uint64     // the random bits, or the turn, of the pick
	mark    books.Mark // of the prompt; mode cost only
	api     apis.Set   // the request's endpoint, if some engine lacks it

	// Mode predicted only:
	times  []policy.Timing // of the candidates
	output float64         // expected output tokens

	scope scope
}

// scope says which nodes a pick looks at. The order counts: from scopeWhole on no sample is taken.
type scope uint8

const (
	scopeAny     scope = iota // the next look takes a sample of a large fleet
	scopeSample               // the last look took a sample; the next one may take another
	scopeWhole                // the look is at all nodes, because the sample before it had no room
	scopeExplain              // all looks are at all nodes; the leg explains a pick, and changes no state
)

// choose reserves a slot for the spare attempt on the node that the policy picks. The candidates
// are the nodes that may take the request and have not been asked. If there are none, the nodes of
// last resort are the candidates. choose returns the node's place in l.pool.members.
func (l *Leg) choose(now time.Time) (int, *apierror.Error) {
	l.picks.removed = 0
	if l.hand != nil {
		l.hand.prepare(now)
	}
	at, err := l.reserve(now)
	if l.picks.removed != 0 {
		l.d.filtered.note(l.picks.removed)
	}
	if l.d.log.Enabled(context.Background(), slog.LevelDebug) {
		l.logPick(at, err, now)
	}
	return at, err
}

// reserve is choose without its counters and its log line.
func (l *Leg) reserve(now time.Time) (int, *apierror.Error) {
	d := l.d
	p := d.policyOf(l.model)
	l.picks.policy, l.picks.turn = p, l.random(p)
	// Another request may take the last slot, or the last room in the pool, between the look and
	// the reservation. The next look then sees the change.
	for range len(l.pool.members) + 1 {
		pick, last := l.decide(now, nil)
		if pick < 0 {
			return 0, l.noNode(now)
		}
		pick, late := l.inTime(pick, now)
		if late != nil {
			return 0, late
		}
		at := int(l.picks.able[pick])
		n, a := l.pool.members[at], l.spare()
		if !n.rank.Acquire() && !(last && n.rank.AcquireLastResort()) {
			continue
		}
		a.member = n
		err := l.enter(n)
		if err == nil {
			if last {
				d.metrics.LastResort.Inc()
			}
			if l.charge(a, pick, now); l.misses(n, a.forecast.ttft, now, l.tries.fits) {
				l.drop(a)
				return 0, ErrDeadline
			}
			return at, nil
		}
		l.drop(a)
		if err == errGlobalFull {
			return 0, err
		}
	}
	return 0, l.noNode(now)
}

// decide looks at the nodes and returns the place of the chosen one among the candidates, or -1 if
// no node may take the request. last says that the candidates are the nodes of last resort. decide
// says why in e, unless e is nil. decide reserves nothing.
func (l *Leg) decide(now time.Time, e *policy.Explanation) (pick int, last bool) {
	l.candidates(now)
	if l.foresees() {
		l.foreseeAll(now)
	}
	if pick = l.pick(now, e); pick < 0 && l.admitOthers() {
		pick = l.pick(now, e)
	}
	if pick < 0 && l.picks.scope == scopeSample {
		l.picks.scope = scopeWhole
		defer func() { l.picks.scope = scopeAny }()
		return l.decide(now, e)
	}
	if pick < 0 && l.lastResort(now) {
		if l.foresees() {
			l.foreseeAll(now)
		}
		return l.pick(now, e), true
	}
	return pick, false
}

// charge puts the leg's cost in the book of the attempt's node, which is the candidate pick. In
// mode predicted the node is charged what the pick expected it to compute.
func (l *Leg) charge(a *attempt, pick int, now time.Time) {
	a.believe(l, int(l.picks.able[pick]))
	cached := int64(a.matched) * prefix.BlockTokens
	if l.foresees() {
		warm := l.picks.policy.Score.Tiers.Warm(&l.picks.cands[pick], &l.picks.times[pick], l.prompt.Tokens())
		l.foresee(a, pick, warm)
		if cached = min(cached, warm.Held); warm.Fetch > 0 { // others are charged for the blocks that are coming
			cached = warm.Held
		}
	} else if l.measures() {
		l.clock(a, pick, now)
	}
	set, own := &l.picks.policy.Cost, l.overrides()
	cost := books.Cost{Blocks: int64(l.prompt.Blocks)}
	if own.TrackPrefillTokens.Or(set.TrackPrefillTokens) {
		cost.Prefill = l.prompt.Tokens() - cached
		cost.Expected = l.picks.policy.PrefillLoadModel.Expected(cost.Prefill, cached)
	}
	cost.Learned, cost.Lag = a.forecast.prefill, a.forecast.lag
	if !l.teaches() {
		cost.Lag = books.Never
	}
	if l.hand != nil {
		l.decideWay(a, pick, &cost)
	}
	if a.shares = own.AssumeKVReuse.Or(set.AssumeKVReuse); a.shares {
		cost.Blocks -= int64(a.member.rank.Book.Shared(l.prompt.Keys()))
	}
	a.grows = set.TrackOutputBlocks || l.foresees()
	a.member.rank.Book.Open(&a.cost, cost, now)
}

// situation describes the pick among the present candidates.
func (l *Leg) situation() *policy.Situation {
	l.picks.asked = policy.Situation{
		Candidates: l.picks.cands, Blocks: l.prompt.Blocks, Tokens: l.prompt.Tokens(), Key: l.prompt,
		Random: l.picks.turn, Pinned: l.Bond != Free, Prefill: l.Work == Prefill, Scratch: l.picks.asked.Scratch,
	}
	l.picks.asked.Overrides = l.overrides()
	if l.hand != nil { // the node's own prefill does not count, because another node probably does the work
		l.picks.asked.Overrides.TrackPrefillTokens = policy.Given(false)
	}
	if l.foresees() {
		l.picks.asked.Times, l.picks.asked.Output = l.picks.times, l.picks.output
		keys := l.prompt.Keys()
		l.picks.asked.Sharers, l.picks.asked.Shared = l.d.sharing.Sharers(keys), books.Beginning(len(keys))
		l.picks.asked.Tries = l.explores()
	}
	return &l.picks.asked
}

// overrides returns the settings that the request replaces.
func (l *Leg) overrides() (o policy.Overrides) {
	if x := l.Request.Nvext; x != nil {
		o = x.Overrides
	}
	if l.Work == Prefill { // the node keeps no blocks of the prompt for an answer
		o.TrackActiveBlocks = policy.Given(false)
	}
	return o
}

// noNode returns the error of a request that no node may take. A pinned node that does not exist is
// the client's mistake. So is a missing pin in mode direct.
func (l *Leg) noNode(now time.Time) *apierror.Error {
	if l.picks.found.has(lacksAPI) {
		if engines := l.lackers(); engines != nil {
			return errNoAPI(l.endpointPath(), engines)
		}
	}
	if err := l.refuseRank(); err != nil {
		return err
	}
	switch {
	case l.picks.policy.Mode == policy.Direct && l.Bond == Free:
		return errNotPinned
	case l.picks.found.has(poolFull) && len(l.picks.cands) == 0:
		return l.modelFull()
	case l.picks.found.has(overBusy) && len(l.picks.cands) == 0:
		return l.d.overload
	case l.picks.found.has(overTokens) && len(l.picks.cands) == 0:
		return errAllBusy
	case l.picks.found.has(lacksLabel) && len(l.picks.cands) == 0:
		return errLabels(l.Constraints.Required, l.among())
	case l.picks.found.has(lacksExperts) && len(l.picks.cands) == 0:
		return errExperts(l.Constraints.Experts, l.among())
	case l.Bond == Continued:
		return l.holderOut(now)
	case l.Bond == Named:
		return l.pinnedOut(now)
	case len(l.picks.cands) > 0:
		return errAllBusy
	case l.Allowed != nil:
		return errAllowed(l.AllowedBy, l.knowsAllowed())
	}
	return ErrNoNode
}

// among says which nodes the request's own choice of nodes leaves, for an error about a further
// restriction; "" if the request makes none.
func (l *Leg) among() string {
	_, by := l.Request.Worker()
	switch {
	case l.Bond == Named && by != "":
		return "; " + by + " leaves only the node " + shortened(l.Node)
	case l.Allowed != nil:
		return "; " + l.AllowedBy + " leaves only the workers that it lists"
	}
	return ""
}

// pinnedOut returns the error for the named node, which the pick refused.
func (l *Leg) pinnedOut(now time.Time) *apierror.Error {
	_, by := l.Request.Worker()
	why, nodes := "", []string(nil)
	for i, n := range l.pool.members {
		if len(nodes) == 0 || nodes[len(nodes)-1] != n.node.ID { // the ranks of a node stand together
			nodes = append(nodes, n.node.ID)
		}
		if n.node.ID != l.Node || why != "" || l.picks.out[i] == otherRank {
			continue
		}
		if why = "it is at its limit"; l.picks.out[i] != passes {
			why = l.why(l.picks.out[i], n, now)
		}
	}
	switch {
	case why != "":
		return errPinned(l.Node, by, why)
	case l.Work == Answer && l.whyPrefill(l.Node) != "":
		return errPrefillNode(l.Node, by, l.whyPrefill(l.Node), nodes)
	case l.known(l.Node):
		return errPinned(l.Node, by, "it has not said yet what it serves")
	}
	return errNoSuchNode(l.Node, by, nodes)
}

// whyPrefill says why a prefill node of the model gets no requests; "" for any other node.
func (l *Leg) whyPrefill(id string) string {
	for _, n := range l.model.view.Prefill {
		if n.ID == id {
			return l.model.view.WhyPrefill(n)
		}
	}
	return ""
}

// modelFull returns the error of a request whose nodes are all full by the caps of their roles. It
// names the setting with the cap of the first full one.
func (l *Leg) modelFull() *apierror.Error {
	for _, n := range l.pool.members {
		if n.gate.Full() {
			return l.fullAt(n)
		}
	}
	return errModelFull("max_queue") // there is room again
}

// fullAt is modelFull for the cap of the role that n has for the model.
func (l *Leg) fullAt(n *member) *apierror.Error {
	return errModelFull(l.model.capOf(l.model.view.Role(n.node.Node), l.d.policy.Load()))
}

// knowsAllowed says whether one of the allowed workers serves the model, or has not yet named its
// models.
func (l *Leg) knowsAllowed() bool {
	return slices.ContainsFunc(l.Allowed, func(id string) bool {
		n := l.d.current().snap.Worker(id)
		return n != nil && l.known(n.ID)
	})
}

// known says whether the node serves the model, or has not yet named its models.
func (l *Leg) known(id string) bool {
	if slices.ContainsFunc(l.pool.members, func(n *member) bool { return n.node.ID == id }) {
		return true
	}
	n := l.d.current().snap.Node(id)
	return n != nil && n.Health.State() == health.Unproven
}

// random returns the random bits, or the turn, that the policy's mode needs.
func (l *Leg) random(p *policy.Policy) uint64 {
	if p.Mode.Counts() {
		return l.model.turn.Add(1)
	}
	return l.d.o.Random()
}

// candidates fills l.picks.cands with the nodes that may take the request, full ones included.
// candidates fills l.picks.able with their places in l.pool.members, and l.picks.out with the
// reasons against the other nodes.
func (l *Leg) candidates(now time.Time) {
	p := &l.picks
	if p.policy.Mode == policy.Cost {
		p.mark = books.MarkOf(l.prompt.Keys())
	}
	p.able, p.found = slices.Grow(p.able[:0], len(l.pool.nodes)), 0
	p.out = slices.Grow(p.out[:0], len(l.pool.nodes))[:len(l.pool.nodes)]
	clear(p.out)
	if p.scope == scopeSample {
		p.scope = scopeAny
	}
	suspects, screen := 0, l.screen(now)
	for i, n := range l.pool.nodes {
		if screen.rules != 0 || !n.Serves() {
			if f := l.filter(l.pool.members[i], screen); f != passes {
				p.out[i] = f
				p.found.add(f)
				continue
			}
			if n.Health.Suspect() {
				suspects++
			}
		}
		p.able = append(p.able, int32(i))
	}
	suspect := func(at int32) bool { return l.pool.members[at].node.Health.Suspect() }
	if l.foresees() {
		l.thin(suspects, suspect, now)
	}
	l.measure(now)
	l.leaveOut(suspects, suspect)
	l.calm(now)
	l.stayWithAdapter()
	p.removed |= p.found
}

// lastResort replaces the candidates if there are none, or all are full. The new candidates are the
// nodes whose own server errors keep them out of service, or whose trial requests are all in use.
// lastResort returns false and changes nothing if no node is left as a last resort, or if an
// engine's answer is kept to fall back on. lastResort also returns false while a node in service is
// kept from requests by a limit, because that limit is meant to refuse them. A leg that may wait
// waits for a full node instead.
func (l *Leg) lastResort(now time.Time) bool {
	if l.picks.found.has(poolFull) || l.picks.found.has(overBusy) || l.picks.found.has(overTokens) || l.kept != nil {
		return false
	}
	if len(l.picks.cands) > 0 && l.queues() {
		return false
	}
	found, screen := false, l.screen(now)
	for i, n := range l.pool.members {
		if l.excludes(n, screen) != passes || !n.node.LastResort() || l.limits(n, screen) != passes {
			continue
		}
		if !found {
			l.picks.able, found = l.picks.able[:0], true
		}
		l.picks.able = append(l.picks.able, int32(i))
	}
	if found {
		l.measure(now)
	}
	return found
}

// leaveOut removes the suspects from the candidates. suspects is their number. leaveOut keeps
// suspects that are on more than half of the nodes, because then the network is more likely at
// fault. leaveOut also keeps them if no other node is left.
func (l *Leg) leaveOut(suspects int, suspect func(at int32) bool) {
	if suspects == 0 || l.most(suspect) {
		return
	}
	l.keep(suspected, func(at int32) bool { return !suspect(at) }) // a node may have become suspect since the count
}

// admitOthers counts only the queued ones among others' requests at a node. The count of the
// running ones may be seconds old, so that count refuses no request. A node that seems full with
// others' requests is then asked if it has no queue.
func (l *Leg) admitOthers() (changed bool) {
	for i, at := range l.picks.able {
		n, c := l.pool.members[at], &l.picks.cands[i]
		waiting := n.rank.Load().Waiting
		limit := n.limit(n.node.Load().Waiting, waiting)
		changed = changed || waiting < c.Others || limit > c.MaxConcurrent
		c.Others, c.MaxConcurrent = waiting, limit
	}
	return changed
}

// measure fills l.picks.cands with the ranks at the places of l.picks.able.
func (l *Leg) measure(now time.Time) {
	p := &l.picks
	p.cands = slices.Grow(p.cands[:0], len(p.able))[:len(p.able)]
	cands, nodes, ranks, blanks, held := p.cands, l.pool.nodes, l.pool.ranks, l.pool.blanks, l.prompt.Held()
	costs, several, measures := p.policy.Mode == policy.Cost, l.pool.several, held && l.measures()
	fits := len(l.Constraints.Preferred)+len(l.Constraints.Experts) > 0 || l.model.view.Adapter
	for i, at := range p.able {
		c, n, book := &cands[i], nodes[at], &ranks[at].Book
		*c = blanks[at]
		c.InFlight, c.MaxConcurrent = n.InFlight(), n.MaxConcurrent()
		c.PrefillTokens = book.Prefill(now)
		if held {
			reach := l.reach(int(at))
			c.Matched, c.Coming, c.Host, c.Disk = reach.Device, l.prompt.Coming(int(at)), reach.Host, reach.Disk
			if c.SharedCache = reach.Shared; measures && reach.Fetch > 0 {
				c.Saved = l.saved(int(at), &reach)
			}
		}
		if costs {
			c.ActiveBlocks = book.Blocks()
			if book.MayShare(p.mark) {
				c.SharedActive = int32(book.Shared(l.prompt.Keys()))
			}
		}
		if fits {
			l.fit(c, l.pool.members[at])
		}
		load := n.Load()
		if several {
			load, c.InFlight = ranks[at].Load(), ranks[at].InFlight()
		}
		if load.Told() || n.Path() != nil {
			addReport(c, n, book, load)
		}
		if several {
			c.MaxConcurrent = l.pool.members[at].limit(n.Load().Others, c.Others)
		}
	}
}

// addReport adds what the node's agent, its engine and the kernel have reported, given the rank's
// book and load.
func addReport(c *policy.Candidate, n *fleet.Node, book *books.Book, load *fleet.Load) {
	c.Retransmits = n.Resent()
	if load.Told() {
		c.Load, c.Others = &load.Load, load.Others
		c.PrefillTokens += othersPrefill(book, load)
		c.ActiveBlocks += float64(load.OthersBlocks)
	}
}

// fit adds the facts about a node that count for few requests.
func (l *Leg) fit(c *policy.Candidate, n *member) {
	info := n.node.Info()
	if len(l.Constraints.Preferred) > 0 {
		c.Labels = l.Constraints.weight(info.Labels)
	}
	if len(l.Constraints.Experts) > 0 {
		c.Experts = l.Constraints.share(info.Experts)
	}
	c.Loads = l.lacksAdapter(n)
}

// blank returns the rank as a candidate without load and without a block of the prompt.
func blank(r *fleet.Rank) policy.Candidate {
	info := r.Owner().Info()
	c := policy.Candidate{
		IDHash: r.IDHash, EngineSlots: info.EngineSlots,
		VRAM: info.VRAM(), Throughput: info.Throughput(), Retransmits: policy.Unknown(), CPU: info.Device == "cpu",
	}
	if r.Count > 1 {
		part(&c, int32(r.Count), info.MaxConcurrent)
	}
	return c
}

// prefill returns how many prompt tokens wait for their computation at the rank, of this router's
// requests and of others'.
func (n *member) prefill(now time.Time) int64 {
	return n.rank.Book.Prefill(now) + othersPrefill(&n.rank.Book, n.rank.Load())
}

// othersPrefill returns how many prompt tokens of others wait at a rank. A waiting request counts
// with the mean of this router's requests.
func othersPrefill(book *books.Book, load *fleet.Load) int64 {
	return int64(load.Waiting) * book.Mean()
}

// blocksOf converts tokens to blocks.
func blocksOf(tokens int64) int32 {
	return int32(min(max(tokens, 0)/prefix.BlockTokens, math.MaxInt32))
}

// calm removes from a retry's candidates the nodes whose connection has just failed, if another
// node has room. When several nodes end at once, a request then need not try each of these nodes.
func (l *Leg) calm(now time.Time) {
	if l.Attempts == 0 {
		return
	}
	lately := func(at int32) bool { return l.pool.members[at].node.Health.FailedLately(now) }
	for i, at := range l.picks.able {
		if l.picks.cands[i].Room() && !lately(at) {
			l.keep(failedLately, func(at int32) bool { return !lately(at) })
			return
		}
	}
}

// keep reduces the candidates to those for which ok is true, unless that leaves none. The others
// are left out for reason f.
func (l *Leg) keep(f filter, ok func(at int32) bool) {
	p, kept := &l.picks, 0
	for i, at := range p.able {
		if !ok(at) {
			p.out[at] = f
			continue
		}
		p.cands[kept], p.able[kept] = p.cands[i], at
		kept++
	}
	switch {
	case kept == len(p.able):
	case kept == 0:
		for _, at := range p.able {
			p.out[at] = passes
		}
	default:
		p.cands, p.able = p.cands[:kept], p.able[:kept]
		p.found.add(f)
	}
}

// enter gets the leg a permit for the pool of n. If the leg holds another pool's permit, enter
// moves that permit.
func (l *Leg) enter(n *member) *apierror.Error {
	var err error
	if l.permit.Out() {
		err = l.permit.Move(n.gate)
	} else {
		l.permit, err = n.gate.Admit()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, admission.ErrGlobalFull):
		return errGlobalFull
	}
	return l.fullAt(n)
}

// admits says whether the pool of n has room for the leg, or counts it already.
func (l *Leg) admits(n *member) bool { return !n.gate.Full() || l.permit.On(n.gate) }

// others says whether a node that was not asked yet could take the leg now.
func (l *Leg) others(now time.Time) bool {
	screen := l.screen(now)
	for _, n := range l.pool.members {
		if l.filter(n, screen) == passes && !n.node.Health.Suspect() && !n.node.Full() {
			return true
		}
	}
	return false
}
