package leg

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/apis"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/connector"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health/patience"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/queue"
	"github.com/cognitora/dataplane/router/where"
)

// Work is the kind of work that a leg wants from a node.
type Work uint8

// These are the kinds of work. Each kind of work has its own nodes, patience and statistics.
const (
	Answer  Work = iota // an answer, from nodes of roles both and decode
	Prefill             // the prompt's KV blocks, from nodes of role prefill, and of role both with a connector
	works
)

// String is the work's name in traces.
func (w Work) String() string { return [...]string{"answer", "prefill"}[w] }

// servedFleet is a fleet snapshot with the dispatcher's data about it. servedFleet is immutable. A
// new snapshot gets a new servedFleet, which takes over the data that stays valid.
type servedFleet struct {
	snap   *fleet.Snapshot
	models map[string]*servedModel // by canonical name
	nodes  map[*fleet.Node]*nodeState
}

// servedModel is one model with the nodes that serve it in this snapshot.
type servedModel struct {
	*model
	view  *fleet.ModelView
	line  *queue.Line // where its requests wait, those of an adapter with those of its base; nil: they do not
	pools [works]pool

	many  bool // some node takes the blocks of several prompts or choices
	needy bool // some node that answers is needy

	adapterLoad time.Duration // of the model, if it is a LoRA adapter; 0: unknown
	slowAdapter bool          // the adapter takes long to load
}

// pool holds the nodes for one kind of work on a model, sorted by id. A node has a place for each
// of its data-parallel ranks, in the order of their numbers.
type pool struct {
	*roster
	members []*member           // in the order of the places
	gates   []*admission.Handle // those of the members; a gate that several share is there once
}

// roster is the part of a pool that depends on the nodes alone. Models with the same nodes share a
// roster. roster is immutable.
type roster struct {
	*lineup
	blanks []policy.Candidate // in the order of the places; a pick's candidates are copies of them
	facts  []*fleet.Info      // of the hosts; the blanks were made of them
}

// lineup is the part of a roster that the members were made of. A node's new facts rarely change
// the lineup. lineup is immutable.
type lineup struct {
	nodes   []*fleet.Node // in the order of the places
	ranks   []*fleet.Rank // in the same order
	several bool          // some node has several ranks
	hosts   []host        // each node once
	index   map[*fleet.Node]int
}

// host is a node of a lineup.
type host struct {
	at    int // its first place
	state *nodeState
	ranks []*fleet.Rank
	role  cluster.Role // its own; the settings of a model may give it another
	lacks apis.Set     // endpoints that the node's engine is known to lack
	like  likeness     // of the node's engine
	hands string       // the stated connector; empty: none is stated
}

// model is the part of a model that outlives snapshots.
type model struct {
	name     string
	hash     uint64 // of the name
	seed     prefix.Digest
	patience [works]*patience.Model
	metrics  metrics.Model
	limits   Limits
	turn     atomic.Uint64 // round robin's counter

	complaints complaints       // about all nodes of the model together
	handovers  complaints       // about failed hand-overs of prompts
	transfer   predict.Transfer // of prompts between the model's nodes
}

// member is one rank's part in one model.
type member struct {
	node   *nodeState
	rank   *fleet.Rank       // its load, requests in flight, book and place in the prefix index are its own
	gate   *admission.Handle // handle of the model and the node's role
	waits  *patience.Node
	engine *predict.Engine
	lacks  apis.Set // endpoints that the node's engine is known to lack
	latch  *busy.Latch
	// connector is how the node hands KV blocks over for the model; nil: it does not.
	connector connector.Connector
	both      bool // the node's role for the model is both
	needy     bool // the node decodes only and cannot compute a prompt
}

// nodeState is the data about a node for all its models.
type nodeState struct {
	*fleet.Node
	metrics              metrics.Node
	pulse                *patience.Pulse
	rejectsStreamOptions atomic.Bool
	// salt keeps requests from what the engine had cached before salt changed; 0: from nothing.
	salt         atomic.Uint64
	complaints   complaints
	missed       missed
	cachedCounts cachedCounts
	unteaching   atomic.Int64                // Unix ns: before that the node is asked for no lesson
	unpaid       atomic.Int64                // Unix ns: see remeasures
	usage        where.Usage                 // in blocks outside of the engine's own memory
	slow         atomic.Pointer[slowness]    // nil: the log has said nothing about its speed
	engines      map[kindKey]*predict.Engine // by the key of their kinds; the dispatcher's rebuilding guards it
}

// noStreamOptions notes that the node's engine does not know stream_options.
func (n *nodeState) noStreamOptions() {
	n.rejectsStreamOptions.Store(true)
	n.metrics.RejectsStreamOptions.Inc()
}

// holdsThreads recognizes llama.cpp, which keeps a thread for each idle connection and lets new
// connections wait for a thread. An agent in front of it handles that itself.
func holdsThreads(n *fleet.Node) bool {
	return n.Source == fleet.Static && n.Info().Engine == "llama_cpp"
}

// current returns the servedFleet of the fleet's latest snapshot.
func (d *Dispatcher) current() *servedFleet {
	snap := d.fleet.Load()
	if t := d.table.Load(); t.snap == snap {
		return t
	}
	return d.rebuild(snap)
}

// rebuild makes a servedFleet of a snapshot. rebuild takes a lock; requests wait here only after a
// change of the fleet.
func (d *Dispatcher) rebuild(snap *fleet.Snapshot) *servedFleet {
	d.rebuilding.Lock()
	defer d.rebuilding.Unlock()
	old := d.table.Load()
	if old.snap == snap || old.snap != nil && old.snap.Rev > snap.Rev {
		return old
	}
	t := &servedFleet{snap: snap, models: map[string]*servedModel{}, nodes: map[*fleet.Node]*nodeState{}}
	now := time.Now()
	for _, n := range snap.Nodes {
		if t.nodes[n] = old.nodes[n]; t.nodes[n] == nil {
			t.nodes[n] = &nodeState{Node: n, metrics: d.metrics.Node(n.ID), pulse: patience.NewPulse(now)}
		}
	}
	shared := rosters{}
	for _, view := range snap.Models() {
		t.models[view.Name] = d.served(view, old.models[view.Name], t, shared, now)
	}
	retire(old, t)
	d.noteGone(old, t, now)
	d.table.Store(t)
	return t
}

// rosters are the rosters of one snapshot, by the beginning of the list of nodes. The fleet gives
// models with the same nodes one list.
type rosters map[**fleet.Node]*roster

var noNodes = &roster{lineup: &lineup{}}

// of returns the roster of the nodes. An earlier roster is taken as far as it still holds.
func (shared rosters) of(nodes []*fleet.Node, before *roster, t *servedFleet) *roster {
	if len(nodes) == 0 {
		return noNodes
	}
	r := shared[&nodes[0]]
	if r == nil {
		r = before.renew(nodes, t)
		shared[&nodes[0]] = r
	}
	return r
}

// renew returns the roster of the nodes: r, if the nodes are the same with the same facts.
func (r *roster) renew(nodes []*fleet.Node, t *servedFleet) *roster {
	now := &roster{lineup: r.lineup, facts: make([]*fleet.Info, len(nodes))}
	for i, n := range nodes {
		now.facts[i] = n.Info()
	}
	if all := lineUp(nodes, now.facts, t); !all.same(r.lineup) {
		now.lineup = all
	} else if slices.Equal(now.facts, r.facts) {
		return r
	}
	now.blanks = make([]policy.Candidate, len(now.ranks))
	for i, k := range now.ranks {
		now.blanks[i] = blank(k)
	}
	return now
}

func lineUp(nodes []*fleet.Node, facts []*fleet.Info, t *servedFleet) *lineup {
	l := &lineup{hosts: make([]host, len(nodes)), index: make(map[*fleet.Node]int, len(nodes))}
	for i, n := range nodes {
		h := host{at: len(l.nodes), state: t.nodes[n], ranks: n.Ranks(), role: facts[i].Role}
		h.lacks, h.like = apis.Lacking(facts[i].Engine, facts[i].EngineVersion), likenessOf(facts[i])
		h.hands = facts[i].Connector
		l.hosts[i], l.index[n] = h, i
		for _, k := range h.ranks {
			l.nodes, l.ranks, l.several = append(l.nodes, n), append(l.ranks, k), l.several || k.Count > 1
		}
	}
	return l
}

// same says whether both have the same hosts.
func (l *lineup) same(other *lineup) bool {
	return slices.EqualFunc(l.hosts, other.hosts, func(a, b host) bool {
		return a.state == b.state && a.role == b.role && a.lacks == b.lacks && a.like == b.like && a.hands == b.hands &&
			slices.Equal(a.ranks, b.ranks)
	})
}

// served returns the model of view in table t. served takes over the data of before, if there is
// one.
func (d *Dispatcher) served(view *fleet.ModelView, before *servedModel, t *servedFleet, shared rosters,
	now time.Time) *servedModel {
	s := &servedModel{view: view}
	if view.Adapter && view.Settings != nil {
		s.adapterLoad = view.Settings.AdapterLoad()
	}
	s.slowAdapter = s.adapterLoad >= adapterLong
	if before != nil {
		s.model = before.model
	} else {
		s.model = d.newModel(view.Name)
	}
	if q := d.waiting.Queue; q != nil {
		s.line = q.Line(timedAs(view))
	}
	for work, nodes := range [works][]*fleet.Node{Answer: view.Nodes, Prefill: prefillers(view)} {
		p, was := &s.pools[work], before.pool(Work(work))
		p.roster = shared.of(nodes, was.roster, t)
		if before != nil && p.lineup == was.lineup && view.Policy == before.view.Policy &&
			view.SameRoles(before.view) && timedAs(view) == timedAs(before.view) {
			p.members, p.gates = was.members, was.gates
		} else {
			d.fill(s, Work(work), was, now)
		}
	}
	for _, m := range s.pools[Answer].members {
		s.many = s.many || m.connector != nil && m.connector.Many()
		s.needy = s.needy || m.needy
	}
	return s
}

// prefillers returns the nodes that may compute prompts for others, sorted by id.
func prefillers(view *fleet.ModelView) (nodes []*fleet.Node) {
	for _, n := range view.Prefill {
		if n.Info().Hands(view.Role(n)) != "" {
			nodes = append(nodes, n)
		}
	}
	for _, n := range view.Nodes {
		if role := view.Role(n); role == cluster.RoleBoth && n.Info().Hands(role) != "" {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b *fleet.Node) int { return cmp.Compare(a.ID, b.ID) })
	return nodes
}

// fill makes the members of a model's pool from its roster. fill takes over members of the earlier
// pool, or their data.
func (d *Dispatcher) fill(s *servedModel, work Work, was *pool, now time.Time) {
	p := &s.pools[work]
	p.members = make([]*member, 0, len(p.nodes))
	var gate *admission.Handle
	var of cluster.Role
	for i := range p.hosts {
		h := &p.hosts[i]
		if role := s.view.Role(h.state.Node); gate == nil || role != of {
			gate, of = d.gate.Handle(s.name, string(role)), role
			gate.SetMax(s.maxQueue(role))
			if !slices.Contains(p.gates, gate) {
				p.gates = append(p.gates, gate)
			}
		}
		earlier := was.of(h.state.Node, i)
		var waits *patience.Node
		if len(earlier) > 0 {
			waits = earlier[0].waits
		} else {
			waits = s.patience[work].Join(h.state.pulse, now)
		}
		for _, r := range h.ranks {
			m := member{node: h.state, rank: r, gate: gate, waits: waits, lacks: h.lacks}
			m.connector, m.both = connector.Of(cluster.Hands(h.like.engine, h.hands, of)), of == cluster.RoleBoth
			m.needy = of == cluster.RoleDecode && m.connector != nil && !m.connector.Alone()
			m.engine = d.engine(h.state, h.like, s.view)
			p.members = append(p.members, memberOf(m, earlier))
		}
	}
}

// memberOf returns m with a latch, or the same earlier member of the node. A rank keeps its latch.
func memberOf(m member, earlier []*member) *member {
	if m.rank.Index < len(earlier) && earlier[m.rank.Index].rank == m.rank {
		was := earlier[m.rank.Index]
		if m.latch = was.latch; m == *was {
			return was
		}
	} else {
		m.latch = new(busy.Latch)
	}
	other := m // m itself would take memory even if it is not returned
	return &other
}

// of returns the members of node n, which is probably the i-th host.
func (p *pool) of(n *fleet.Node, i int) []*member {
	if i >= len(p.hosts) || p.hosts[i].state.Node != n {
		var known bool
		if i, known = p.index[n]; !known {
			return nil
		}
	}
	h := &p.hosts[i]
	return p.members[h.at : h.at+len(h.ranks)]
}

// nobody is the pool of a model that is not served.
var nobody = &pool{roster: noNodes}

// pool returns the model's pool for the given work. s may be nil.
func (s *servedModel) pool(work Work) *pool {
	if s == nil {
		return nobody
	}
	return &s.pools[work]
}

// member returns n's part in the given work for the model, that of its first rank, or nil if it has
// none. s may be nil.
func (s *servedModel) member(work Work, n *fleet.Node) *member {
	p := s.pool(work)
	if at := p.place(n); at >= 0 {
		return p.members[at]
	}
	return nil
}

// place returns the first index of n in the pool, or -1 if it has none.
func (l *lineup) place(n *fleet.Node) int {
	if i, ok := l.index[n]; ok {
		return l.hosts[i].at
	}
	return -1
}

// each yields the first member of each node in the pool.
func (p *pool) each(yield func(*member) bool) {
	for _, m := range p.members {
		if m.rank.Index == 0 && !yield(m) {
			return
		}
	}
}

// retire tells the patience trackers which nodes no longer serve their model.
func retire(old, t *servedFleet) {
	for name, s := range old.models {
		now := t.models[name]
		for work := range works {
			if now.pool(work).lineup == s.pools[work].lineup {
				continue
			}
			for m := range s.pools[work].each {
				if now.member(work, m.node.Node) == nil {
					s.patience[work].Leave(m.waits)
				}
			}
		}
	}
}

func (d *Dispatcher) newModel(name string) *model {
	limits := d.o.Limits
	if own, ok := d.o.ModelLimits[name]; ok {
		limits = own
	}
	m := &model{name: name, hash: xxhash.Sum64String(name), seed: prefix.Seed(name, "", ""),
		metrics: d.metrics.Model(name), limits: limits}
	for work := range m.patience {
		m.patience[work] = patience.NewModel(patience.Options{
			PatienceFloor: d.o.PatienceFloor,
			StallFloor:    d.o.StallFloor,
			FirstByteCold: d.o.FirstByteCold,
			FirstByte:     limits.FirstByte,
		})
	}
	return m
}

// maxQueue returns the cap for the nodes of one role; 0 = the gate's own cap. A cap in the model's
// limits counts before the cap of the model's own policy.
func (s *servedModel) maxQueue(role cluster.Role) int {
	most := s.limits.maxQueue(role)
	if own := s.view.Policy; most == 0 && own != nil {
		most = own.MaxQueue
	}
	return most
}

// capOf names the setting that maxQueue, or else the gate's own cap, follows from. fleets is the
// fleet's policy.
func (s *servedModel) capOf(role cluster.Role, fleets *policy.Policy) string {
	own := s.view.Policy
	switch {
	case role == cluster.RoleDecode && s.limits.MaxQueueDecode > 0:
		return "max_queue_decode of the router's configuration"
	case s.limits.MaxQueue > 0:
		return "max_queue of the model in the router's configuration"
	case own != nil && own.MaxQueue > 0:
		return "max_queue of the model's policy"
	case fleets.MaxQueue > 0:
		return "max_queue of the policy"
	}
	return "router.admission.max_queue"
}

// policyOf returns the policy for a model: its own, or else the fleet's.
func (d *Dispatcher) policyOf(m *servedModel) *policy.Policy {
	if own := m.view.Policy; own != nil {
		return own
	}
	return d.policy.Load()
}

// maxQueue returns the cap for the nodes of one role; 0 = the gate's own cap.
func (l *Limits) maxQueue(role cluster.Role) int {
	if role == cluster.RoleDecode && l.MaxQueueDecode > 0 {
		return l.MaxQueueDecode
	}
	return l.MaxQueue
}

// goneFor is how long the metrics of a departed node or model are kept. goneFor leaves time for one
// more scrape and for requests whose node was just being picked.
const goneFor = time.Minute

// gone holds the departed nodes and models that still have metrics. gone is bounded by the
// departures within goneFor and the requests in flight.
type gone struct {
	nodes  map[*fleet.Node]time.Time
	models map[string]time.Time
}

// noteGone records the nodes and models that are in old and not in t. The caller holds
// d.rebuilding.
func (d *Dispatcher) noteGone(old, t *servedFleet, now time.Time) {
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

// forgetGone drops the metrics and caps of nodes and models that left long ago and have nothing in
// flight.
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
		if now.Sub(since) >= goneFor && d.gate.Drop(name) && d.waiting.Queue.Drop(name) {
			delete(d.gone.models, name)
			d.metrics.ForgetModel(name)
		}
	}
}

// lives says whether a node of this id is in the fleet, or is a departed one that is not yet
// forgotten.
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
