package leg

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/apis"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// filter is a reason why a pick leaves a node out. The filters apply before any mode of the policy.
// A node has the first of these reasons that applies.
type filter uint8

const (
	passes filter = iota // the node is a candidate

	// The request rules these nodes out, in any state of the node.
	pinned
	disallowed
	otherRank
	byPlan
	lacksAPI
	lacksLabel
	lacksExperts
	tried

	// These nodes take no requests now.
	departed
	cordoned
	notReady
	stale
	unwell

	// Limits keep further requests away from these nodes.
	poolFull
	overBusy
	overTokens

	// These filters compare the candidates, and apply only if enough of them are left.
	suspected
	failedLately
	unloaded
	unsampled

	filters // the number of filters
)

// filterTexts holds the word of each filter in metrics and explanations, and its sentence. A filter
// without a sentence has one that depends on the node; see Leg.why.
var filterTexts = [filters]struct{ word, sentence string }{
	pinned:       {"pinned", "another node is pinned"},
	disallowed:   {"allowed_workers", "not among the allowed workers"},
	otherRank:    {"dp_rank", "another data-parallel rank is pinned"},
	byPlan:       {"plan", "left out by the request's plan"},
	lacksAPI:     {word: "api"},
	lacksLabel:   {word: "required_taints"},
	lacksExperts: {word: "experts"},
	tried:        {"asked", "the request has asked it already"},
	departed:     {word: "gone"},
	cordoned:     {word: "cordon"},
	notReady:     {word: "not_ready"},
	stale:        {word: "stale"},
	unwell:       {word: "health"},
	poolFull:     {"max_queue", "as many requests as may be are in flight on the nodes of its role (max_queue)"},
	overBusy:     {word: "busy"},
	overTokens:   {word: "active_tokens"},
	suspected:    {"suspect", health.SuspectReason},
	failedLately: {"failed_lately", "its connection has just failed, and another node has room"},
	unloaded:     {"adapter", "its engine would have to load the adapter, as far as is known, and a node that has it has room"},
	unsampled:    {"sample", "others of this large fleet hold more of the prompt or have less to do"},
}

// String returns the word of the filter.
func (f filter) String() string { return filterTexts[f].word }

// filterSet is a set of filters.
type filterSet uint32

func (s filterSet) has(f filter) bool { return s&(1<<f) != 0 }

func (s *filterSet) add(f filter) { *s |= 1 << f }

func (s *filterSet) addIf(f filter, applies bool) {
	if applies {
		s.add(f)
	}
}

// filterCounts counts, for each filter, the picks that it has left a node out of.
type filterCounts [filters]prometheus.Counter

func newFilterCounts(m *metrics.Router) (c filterCounts) {
	for f := passes + 1; f < filters; f++ {
		c[f] = m.Filtered.WithLabelValues(f.String())
	}
	return c
}

// note counts a pick in which the filters of s left a node out.
func (c *filterCounts) note(s filterSet) {
	for f := passes + 1; s>>f != 0; f++ {
		if s.has(f) {
			c[f].Inc()
		}
	}
}

// screen is what a look at the nodes filters by. Its rules are the filters of the request and of
// limits that can leave a node out now. Most requests have none. Every node that serves is then a
// candidate, and the look spares filter for these nodes.
type screen struct {
	rules filterSet
	busy  *busy.Thresholds // of the model; nil: none
	now   time.Time
}

// screen returns the screen for a look at now. A filter that is no rule here leaves no node out,
// except those by the state of a node and those that compare the candidates.
func (l *Leg) screen(now time.Time) screen {
	s := screen{rules: l.rules(), busy: l.thresholds(), now: now}
	s.rules.addIf(tried, len(l.tries.asked) > 0)
	s.rules.addIf(poolFull, slices.ContainsFunc(l.pool.gates, (*admission.Handle).Full))
	s.rules.addIf(overBusy, s.busy != nil)
	s.rules.addIf(overTokens, !l.d.waiting.Active.IsZero() && l.queues())
	return s
}

// rules returns the filters by the leg's question and the request's form that can leave a node out.
func (l *Leg) rules() (s filterSet) {
	s.addIf(pinned, l.Bond != Free)
	s.addIf(disallowed, l.Allowed != nil)
	s.addIf(otherRank, l.Rank.Given)
	s.addIf(byPlan, l.Filter != nil)
	s.addIf(lacksAPI, l.picks.api != 0)
	s.addIf(lacksLabel, len(l.Constraints.Required) > 0)
	s.addIf(lacksExperts, l.Constraints.Strict)
	return s
}

// breaks says whether n breaks rule f of s.
func (l *Leg) breaks(f filter, n *member, s screen) bool {
	switch f {
	case pinned:
		return n.node.ID != l.Node
	case disallowed:
		return l.disallows(n)
	case otherRank:
		return l.Rank.Value != uint32(n.rank.Index)
	case byPlan:
		return !l.Filter(n.node.Node)
	case lacksAPI:
		return n.lacks&l.picks.api != 0
	case lacksLabel:
		return !l.Constraints.allow(n.node.Info().Labels)
	case lacksExperts:
		return l.Constraints.hosted(n.node.Info().Experts) < len(l.Constraints.Experts)
	case tried:
		return l.asked(n)
	case poolFull:
		return !l.admits(n)
	case overBusy:
		return l.busy(n, s.busy, s.now) != busy.Not
	case overTokens:
		return l.overTokens(n, s.now) != busy.Not
	}
	return false
}

// broken returns the first of the given rules of s that n breaks.
func (l *Leg) broken(n *member, s screen, rules filterSet) filter {
	for ; rules != 0; rules &= rules - 1 {
		if f := filter(bits.TrailingZeros32(uint32(rules))); l.breaks(f, n, s) {
			return f
		}
	}
	return passes
}

// ofRequest are the filters by the request alone.
const ofRequest filterSet = 1<<departed - 1

// filter returns the first reason to leave n out of a pick, apart from those that compare the
// candidates.
func (l *Leg) filter(n *member, s screen) filter {
	if f := l.excludes(n, s); f != passes {
		return f
	}
	if ok, _ := n.node.Eligible(s.now); !ok {
		return obstacle(n.node.Node)
	}
	return l.limits(n, s)
}

// excludes returns the reason why the request must not go to n, whatever n's state is.
func (l *Leg) excludes(n *member, s screen) filter { return l.broken(n, s, s.rules&ofRequest) }

// permits says whether the question and the request's form allow n to be asked, whatever the state
// of n is, and whether or not the leg has asked n.
func (l *Leg) permits(n *member) bool {
	s := screen{rules: l.rules()}
	return l.excludes(n, s) == passes
}

// Permits says whether a leg of r with question q may ask n. Apart from q, only the request's form
// counts: Permits looks neither at the state of n nor at limits. A node with several data-parallel
// ranks may be asked if one of them may. Permits returns false if n does not serve the model.
func (d *Dispatcher) Permits(r *request.Request, q Question, n *fleet.Node) bool {
	l := d.Leg(r, q, nil)
	defer l.recycle()
	return l.resolve() == nil && slices.ContainsFunc(l.pool.members, func(m *member) bool {
		return m.node.Node == n && l.permits(m)
	})
}

// limits returns the limit that n has reached.
func (l *Leg) limits(n *member, s screen) filter { return l.broken(n, s, s.rules&^ofRequest) }

// asked says whether the request has asked the node of n, at any of its ranks.
func (l *Leg) asked(n *member) bool {
	for _, other := range l.tries.asked {
		if other.node == n.node {
			return true
		}
	}
	return false
}

// disallows says whether the client has a list of workers without n.
func (l *Leg) disallows(n *member) bool {
	return l.Allowed != nil && !l.Allowed.Has(n.node.ID, n.node.Number())
}

// obstacle returns the reason why n, which is not eligible, takes no requests.
func obstacle(n *fleet.Node) filter {
	switch n.Obstacle() {
	case fleet.Gone:
		return departed
	case fleet.Cordoned:
		return cordoned
	case fleet.NotReady:
		return notReady
	case fleet.Stale:
		return stale
	}
	return unwell
}

// why returns the sentence for a node that f leaves out.
func (l *Leg) why(f filter, n *member, now time.Time) string {
	if text := filterTexts[f].sentence; text != "" {
		return text
	}
	switch f {
	case overBusy:
		return l.whyBusy(n, now)
	case overTokens:
		return l.whyTokens(n, now)
	case lacksLabel:
		missing := l.Constraints.missing(n.node.Info().Labels)
		return "the request requires labels that it lacks: " + strings.Join(missing, ", ")
	case lacksExperts:
		return "the request's experts must all be on its node, which lacks: " +
			listed(l.Constraints.missingExperts(n.node.Info().Experts))
	case lacksAPI:
		return "its engine, " + engineOf(n) + ", lacks " + l.endpointPath()
	}
	if _, reason := n.node.Eligible(now); reason != "" {
		return reason
	}
	return "it took no requests a moment ago" // the node has come back since the pick
}

// endpoint returns the endpoint of r, if some engine lacks it.
func endpoint(r *request.Request) apis.Set {
	switch r.API {
	case scan.Chat, scan.Completions, scan.Embeddings:
		return 0
	}
	return apis.Of(r.Path)
}

// endpointPath returns the request's path without its query.
func (l *Leg) endpointPath() string {
	path, _, _ := strings.Cut(l.Request.Path, "?")
	return path
}

// engineOf names the engine of n.
func engineOf(n *member) string {
	info := n.node.Info()
	return strings.TrimSpace(cmp.Or(info.Engine, "unknown") + " " + info.EngineVersion)
}

// lackers returns the engines of the nodes that may be asked, if all of them lack the request's
// endpoint. Otherwise lackers returns nil.
func (l *Leg) lackers() (engines []string) {
	if l.picks.api == 0 {
		return nil
	}
	for _, n := range l.pool.members {
		switch name := engineOf(n); {
		case l.Bond != Free && n.node.ID != l.Node:
		case n.lacks&l.picks.api == 0:
			return nil
		case !slices.Contains(engines, name):
			engines = append(engines, name)
		}
	}
	return engines
}
