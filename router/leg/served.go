package leg

import (
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health/patience"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/prefix"
)

// Work is what a leg wants of a node.
type Work uint8

// The kinds of work. Each has nodes, a patience and statistics of its own.
const (
	Answer  Work = iota // an answer, from nodes of the roles both and decode
	Prefill             // the prompt's KV blocks, from nodes of role prefill
	works
)

// servedFleet is a fleet snapshot with what the dispatcher keeps beside it. It is immutable; a new
// snapshot gets a new one that carries over what goes on.
type servedFleet struct {
	snap   *fleet.Snapshot
	models map[string]*servedModel // by canonical name
	nodes  map[*fleet.Node]*nodeState
}

// servedModel is one model and who serves it in this snapshot.
type servedModel struct {
	*model
	pools [works]pool
}

// pool is the nodes that do one kind of work for a model, in the order of their ids.
type pool struct {
	nodes   []*fleet.Node
	members []*member // of the same places
}

// model is what outlives snapshots.
type model struct {
	name     string
	seed     prefix.Digest
	patience [works]*patience.Model
	metrics  metrics.Model
	limits   Limits

	complaints complaints // of its nodes together
}

// member is one node's part in one model.
type member struct {
	*nodeState
	gate  *admission.Handle // of the model and the node's role
	waits *patience.Node
}

// nodeState is what is kept of a node, whichever model it serves.
type nodeState struct {
	*fleet.Node
	metrics              metrics.Node
	pulse                *patience.Pulse
	rejectsStreamOptions atomic.Bool
	complaints           complaints
	cachedCounts         cachedCounts
}

// holdsThreads tells of a server that keeps a thread waiting at each idle connection, and lets new
// connections wait for a thread: llama.cpp's. An agent before it sees to that itself.
func holdsThreads(n *fleet.Node) bool {
	return n.Source == fleet.Static && n.Info().Engine == "llama_cpp"
}

// current returns what is served in the fleet's latest snapshot.
func (d *Dispatcher) current() *servedFleet {
	snap := d.fleet.Load()
	if t := d.table.Load(); t.snap == snap {
		return t
	}
	return d.rebuild(snap)
}

// rebuild makes a servedFleet of a snapshot. Requests wait for each other here only when the fleet
// has changed.
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
	for _, view := range snap.Models() {
		t.models[view.Name] = d.served(view, old.models[view.Name], t, now)
	}
	retire(old, t)
	d.noteGone(old, t, now)
	d.table.Store(t)
	return t
}

// served is the model of view in table t, going on from what it was before, if it was.
func (d *Dispatcher) served(view *fleet.ModelView, before *servedModel, t *servedFleet, now time.Time) *servedModel {
	s := &servedModel{}
	if before != nil {
		s.model = before.model
	} else {
		s.model = d.newModel(view.Name)
	}
	for work, nodes := range [works][]*fleet.Node{Answer: view.Nodes, Prefill: view.Prefill} {
		p := &s.pools[work]
		p.nodes = nodes
		for _, n := range nodes {
			m := &member{nodeState: t.nodes[n], gate: d.gateOf(s.model, n.Info().Role)}
			if was := before.member(Work(work), n); was != nil {
				m.waits = was.waits
			} else {
				m.waits = s.patience[work].Join(m.pulse, now)
			}
			p.members = append(p.members, m)
		}
	}
	return s
}

// member is the part of n in the work for the model; nil where it has none.
func (s *servedModel) member(work Work, n *fleet.Node) *member {
	if s == nil {
		return nil
	}
	if at := s.pools[work].place(n); at >= 0 {
		return s.pools[work].members[at]
	}
	return nil
}

// place is the place of n in the pool, -1 if it has none.
func (p *pool) place(n *fleet.Node) int {
	for i, other := range p.nodes {
		if other == n {
			return i
		}
	}
	return -1
}

// retire tells the patience trackers of the nodes that no longer serve their model.
func retire(old, t *servedFleet) {
	for name, s := range old.models {
		now := t.models[name]
		for work := range works {
			for _, m := range s.pools[work].members {
				if now.member(work, m.Node) == nil {
					s.patience[work].Leave(m.waits)
				}
			}
		}
	}
}

func (d *Dispatcher) newModel(name string) *model {
	limits := d.options.Limits
	if own, ok := d.options.ModelLimits[name]; ok {
		limits = own
	}
	m := &model{name: name, seed: prefix.Seed(name, "", ""), metrics: d.metrics.Model(name), limits: limits}
	for work := range m.patience {
		m.patience[work] = patience.NewModel(patience.Options{
			PatienceFloor: d.options.PatienceFloor,
			StallFloor:    d.options.StallFloor,
			FirstByteCold: d.options.FirstByteCold,
			FirstByte:     limits.FirstByte,
		})
	}
	return m
}

// gateOf is where the requests to the nodes of one role are counted and capped.
func (d *Dispatcher) gateOf(m *model, role cluster.Role) *admission.Handle {
	h := d.gate.Handle(m.name, string(role))
	h.SetMax(m.limits.maxQueue(role))
	return h
}

// maxQueue is the cap for the nodes of one role; 0 = the gate's own.
func (l *Limits) maxQueue(role cluster.Role) int {
	if role == cluster.RoleDecode && l.MaxQueueDecode > 0 {
		return l.MaxQueueDecode
	}
	return l.MaxQueue
}

// goneFor is how long the metrics of a node or model are kept that has left: long enough to be
// scraped once more, and for requests that were picked at that moment to be counted.
const goneFor = time.Minute

// gone is what has left the fleet and still has metrics. Its bound is what leaves within goneFor,
// and what has requests in flight.
type gone struct {
	nodes  map[*fleet.Node]time.Time
	models map[string]time.Time
}

// noteGone is called with d.rebuilding held.
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

// lives tells whether a node of this id is in the fleet, or another one has left and is not
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
