package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/patience"
	"github.com/cognitora/dataplane/router/prefix"
)

// table is a fleet snapshot with what the dispatcher keeps beside it. It is immutable; a
// new snapshot gets a new table that carries over what goes on.
type table struct {
	snap   *fleet.Snapshot
	models map[string]*servedModel // by canonical name
	nodes  map[*fleet.Node]*nodeState
}

// servedModel is one model and the nodes that serve it in this snapshot.
type servedModel struct {
	*model
	nodes []*member
}

// model is what outlives snapshots.
type model struct {
	name     string
	seed     prefix.Digest
	patience *patience.Model
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

// holdsThreads tells of a server that keeps a thread waiting at each idle connection, and
// lets new connections wait for a thread: llama.cpp's. An agent before it sees to that itself.
func (n *nodeState) holdsThreads() bool {
	return n.Source == fleet.Static && n.Info().Engine == "llama_cpp"
}

// place makes the first model, by name, that the node serves the job's, and returns the node's
// place in it, -1 if it serves none.
func (t *table) place(j *Job, node string) int {
	n := t.snap.Node(node)
	for _, view := range t.snap.Models() {
		m := t.models[view.Name]
		for i, member := range m.nodes {
			if member.Node == n {
				j.model = m
				return i
			}
		}
	}
	return -1
}

// current returns the table of the fleet's latest snapshot.
func (d *Dispatcher) current() *table {
	snap := d.fleet.Load()
	if t := d.table.Load(); t.snap == snap {
		return t
	}
	return d.rebuild(snap)
}

// rebuild makes the table of a new snapshot. Requests wait for each other here only when
// the fleet has changed.
func (d *Dispatcher) rebuild(snap *fleet.Snapshot) *table {
	d.rebuilding.Lock()
	defer d.rebuilding.Unlock()
	old := d.table.Load()
	if old.snap == snap || old.snap != nil && old.snap.Rev > snap.Rev {
		return old
	}
	t := &table{snap: snap, models: map[string]*servedModel{}, nodes: map[*fleet.Node]*nodeState{}}
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
func (d *Dispatcher) served(view *fleet.ModelView, before *servedModel, t *table, now time.Time) *servedModel {
	s := &servedModel{}
	if before != nil {
		s.model = before.model
	} else {
		s.model = d.newModel(view.Name)
	}
	for _, n := range view.Nodes {
		m := &member{nodeState: t.nodes[n], gate: d.poolOf(s.model, n.Info().Role)}
		if was := before.member(n); was != nil {
			m.waits = was.waits
		} else {
			m.waits = s.patience.Join(m.pulse, now)
		}
		s.nodes = append(s.nodes, m)
	}
	return s
}

func (s *servedModel) member(n *fleet.Node) *member {
	if s == nil {
		return nil
	}
	for _, m := range s.nodes {
		if m.Node == n {
			return m
		}
	}
	return nil
}

// retire tells the patience trackers of the nodes that no longer serve their model.
func retire(old, t *table) {
	for name, s := range old.models {
		now := t.models[name]
		for _, m := range s.nodes {
			if now.member(m.Node) == nil {
				s.patience.Leave(m.waits)
			}
		}
	}
}

func (d *Dispatcher) newModel(name string) *model {
	limits := d.options.Limits
	if own, ok := d.options.ModelLimits[name]; ok {
		limits = own
	}
	return &model{
		name:    name,
		seed:    prefix.Seed(name, "", ""),
		metrics: d.metrics.Model(name),
		limits:  limits,
		patience: patience.NewModel(patience.Options{
			FirstByteFloor: d.options.PatienceFloor,
			StallFloor:     d.options.StallFloor,
			Cold:           d.options.FirstByteCold,
			Hard:           limits.FirstByte,
		}),
	}
}

// poolOf is where the requests to the nodes of one role are counted and capped.
func (d *Dispatcher) poolOf(m *model, role cluster.Role) *admission.Handle {
	pool := d.gate.Handle(m.name, string(role))
	pool.SetMax(m.limits.maxQueue(role))
	return pool
}

// maxQueue is the cap for the nodes of one role; 0 = the gate's own.
func (l *Limits) maxQueue(role cluster.Role) int {
	if role == cluster.RoleDecode && l.MaxQueueDecode > 0 {
		return l.MaxQueueDecode
	}
	return l.MaxQueue
}
