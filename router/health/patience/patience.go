package patience

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options of one model. Zero values mean the defaults named.
type Options struct {
	PatienceFloor time.Duration // no stream is given up earlier; 1 s
	StallFloor    time.Duration // no node is set aside for a shorter silence, overdue streams apart; 2 s
	FirstByteCold time.Duration // first-byte limit while nothing is known; 60 s
	FirstByte     time.Duration // upper bound of every first-byte limit; 300 s
}

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&o.PatienceFloor, time.Second)
	set(&o.StallFloor, 2*time.Second)
	set(&o.FirstByteCold, time.Minute)
	set(&o.FirstByte, 5*time.Minute)
	o.FirstByteCold = min(o.FirstByteCold, o.FirstByte)
	return o
}

// epoch turns times into durations, which follow the monotonic clock and fit an atomic.
var epoch = time.Now()

const never = time.Duration(-1 << 63)

// Pulse is the time of the last byte that a node sent, and the prompt tokens that wait there,
// whichever model they are for. One Pulse belongs to one incarnation of a node and is shared by
// its trackers in all models.
type Pulse struct {
	last   atomic.Int64
	queued atomic.Int64 // the sum of Node.queued; written under each model's mutex
}

// NewPulse returns a pulse that counts now as the last sign of life.
func NewPulse(now time.Time) *Pulse {
	p := &Pulse{}
	p.beat(now)
	return p
}

func (p *Pulse) beat(now time.Time) { p.last.Store(int64(now.Sub(epoch))) }

// At is when the last sign of life came, as time since the process began to count.
func (p *Pulse) At() time.Duration { return time.Duration(p.last.Load()) }

// Model is what has been learned of one served model, and who waits for it. Its memory is
// fixed apart from its nodes; attempts belong to their callers. Safe for concurrent use.
type Model struct {
	o Options

	mu       sync.Mutex
	nodes    []*Node
	first    line      // time to first byte over tokens
	calls    [2]spread // whole response times: of generations, of everything else
	perToken pace
	answers  ring
	promptAt time.Duration // last first byte that came in time
	open     int           // attempts that wait, over all nodes
	scratch  []float64     // of survey, as long as nodes
}

// NewModel returns a model that knows nothing yet.
func NewModel(o Options) *Model {
	return &Model{o: o.withDefaults(), promptAt: never}
}

// Node is one node's part in one model: made by Join when the node enters the fleet snapshot,
// kept with it, given to Leave when it goes.
type Node struct {
	model *Model
	pulse *Pulse

	// Guarded by model.mu.
	gone    bool
	streams attempts // waiting for their first byte
	calls   attempts // waiting for their answer
	queued  int64    // uncached tokens of those that wait; changed by enqueue only

	ratio   float64 // moving mean of wait/E; 0 = nothing seen
	ratioAt time.Duration
	slow    float64 // how slow it is now; set by survey

	cursor *Attempt // of waitAsLong, in calls
	passed int      // attempts before the cursor

	overdueAt time.Duration // last time a stream here was given up as overdue
	lost      lost          // such streams since the last sign of life
	level     level         // the highest reported since the last sign of life
	levelAt   time.Duration // first report of it
	levelFor  time.Duration // when the silence that it is about began
	toldAt    time.Duration // last report
}

// Queued is how many uncached prompt tokens wait at the node, in all models that share its
// pulse: those of requests that the node has not begun to answer. A call that is not streamed
// counts until its prompt should be computed. It takes no lock.
func (n *Node) Queued() int64 { return n.pulse.queued.Load() }

func (n *Node) enqueue(tokens int64) {
	n.queued += tokens
	n.pulse.queued.Add(tokens)
}

// Join adds a node. pulse is shared by all models of that node; nil gives it one of its own.
func (m *Model) Join(pulse *Pulse, now time.Time) *Node {
	if pulse == nil {
		pulse = NewPulse(now)
	}
	n := &Node{model: m, pulse: pulse, overdueAt: never, levelAt: never}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes = append(m.nodes, n)
	m.scratch = append(m.scratch, 0)
	return n
}

// Leave removes a node. Its running attempts go on and are no longer judged.
func (m *Model) Leave(n *Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.nodes, n)
	if i < 0 {
		return
	}
	m.nodes = slices.Delete(m.nodes, i, i+1)
	m.scratch = m.scratch[:len(m.nodes)]
	m.open -= n.streams.n + n.calls.n
	m.answers.forget(n)
	n.gone = true
}

// Verdict is why an attempt should be given up.
type Verdict uint8

const (
	Overdue Verdict = iota + 1 // a stream's first byte is late by the standard of its peers
	Stalled                    // the node makes no progress on anything while its peers do
)

// Owner can give an attempt up and ask another node.
type Owner interface {
	// GiveUp is called by Check with the model locked: it must return quickly and call nothing
	// of this package. It returns whether the attempt ends now. A refusal (nobody else to ask,
	// no retry budget, bytes already passed on) leaves the attempt waiting; it is asked again
	// after half of the time waited so far.
	GiveUp(Verdict) bool
	// Prefilled is called by Check, as GiveUp is, when the prompt of an attempt that is not
	// streamed should be computed, once at most. It is not called after FirstByte or Done has
	// returned.
	Prefilled()
}

// Stall is a node that makes no progress while its peers do. It is reported once per silence,
// and again when the evidence grows or new attempts fall victim to it.
type Stall struct {
	Node   *Node
	Rescue bool // sure enough that they were asked to go elsewhere
}

// Check looks at every waiting attempt, asks the owners of late ones to give up, and appends
// the nodes to set aside to out. Call it about every PatienceFloor/10; a model for which nobody
// waits costs one lock.
func (m *Model) Check(now time.Time, out []Stall) []Stall {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open == 0 {
		return out
	}
	t := now.Sub(epoch)
	m.survey(t)
	for _, n := range m.nodes {
		m.giveUpOverdue(n, t)
		if s, found := m.judge(n, t); found {
			out = append(out, s)
		}
	}
	return out
}
