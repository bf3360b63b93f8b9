package patience

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the settings of one model. A zero value means the default given here.
type Options struct {
	PatienceFloor time.Duration // no stream is given up earlier; 1 s
	// StallFloor is the shortest silence for which a node is set aside, except for overdue streams;
	// 2 s. A node set aside has as long to answer a completion check before its calls move.
	StallFloor    time.Duration
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

// epoch turns times into durations. The durations follow the monotonic clock and fit an atomic.
var epoch = time.Now()

const never = time.Duration(-1 << 63)

// Pulse holds the time of a node's last byte, over all models. One incarnation of a node has one
// Pulse, which its Node values in all models share.
type Pulse struct{ last atomic.Int64 }

// NewPulse returns a pulse whose last sign of life is now.
func NewPulse(now time.Time) *Pulse {
	p := &Pulse{}
	p.beat(now)
	return p
}

func (p *Pulse) beat(now time.Time) { p.last.Store(int64(now.Sub(epoch))) }

// Beat notes a sign of life that is no part of an attempt, such as an answered completion check.
// Beat does nothing if a later sign of life is known.
func (p *Pulse) Beat(at time.Time) {
	if at.Sub(epoch) > p.At() {
		p.beat(at)
	}
}

// At returns the time of the last sign of life, counted from epoch.
func (p *Pulse) At() time.Duration { return time.Duration(p.last.Load()) }

// Model holds the experience with one served model and its waiting attempts. Model uses fixed
// memory, apart from its nodes. Callers own the attempts. Model is safe for concurrent use.
type Model struct {
	o Options

	mu       sync.Mutex
	nodes    []*Node
	first    line                  // time to first byte over tokens
	calls    [unbounded + 1]spread // complete response times, by Work.class
	perToken pace
	answers  ring
	promptAt time.Duration // time of the last first byte that came in time
	open     int           // waiting attempts at all nodes
	scratch  []float64     // buffer of survey, as long as nodes
}

// NewModel returns a model without experience.
func NewModel(o Options) *Model {
	return &Model{o: o.withDefaults(), promptAt: never}
}

// Node is one node's part in one model. Call Join when the node enters the fleet snapshot, keep the
// Node with the snapshot, and pass it to Leave when the node goes.
type Node struct {
	model *Model
	pulse *Pulse

	// model.mu guards these fields.
	gone    bool
	streams attempts // waiting for their first byte
	calls   attempts // waiting for their answer
	// queued counts the uncached tokens of the waiting attempts. A stream's prompt counts until its
	// first byte. An unstreamed call's prompt counts until its first token is expected.
	queued int64

	ratio   float64 // moving mean of wait/E; 0 = nothing seen
	ratioAt time.Duration
	slow    float64 // present slowness, set by survey
	// callRatio is the moving mean of the slowness of unstreamed answers; 0 = nothing seen. A call
	// that is given up may raise it, to the call's wait over the usual time.
	callRatio float64

	cursor *Attempt // position of waitAsLong in calls
	passed int      // attempts before the cursor

	overdueAt time.Duration // last time a stream here was given up as overdue
	lost      lost          // streams given up since the last sign of life
	level     level         // highest level reported since the last sign of life
	levelAt   time.Duration // time of the first report of the silence
	levelFor  time.Duration // beginning of the reported silence
	toldAt    time.Duration // last report
}

// Join adds a node. All models of a node share its pulse; a nil pulse gets the node its own.
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

// Leave removes a node. The node's running attempts continue without being judged.
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

// Verdict is the reason to give an attempt up.
type Verdict uint8

const (
	Overdue Verdict = iota + 1 // a stream's first byte is late compared with the peers
	Stalled                    // the node makes no progress while its peers do
)

// Owner can give an attempt up and ask another node.
type Owner interface {
	// GiveUp is called by Check with the model locked. GiveUp must return quickly and call nothing
	// of this package. GiveUp returns true if the attempt ends now. A refusal (no other node, no
	// retry budget, bytes already passed on) leaves the attempt waiting. GiveUp is called again
	// after another half of the wait so far.
	GiveUp(Verdict) bool
	// Prefilled is called by Check with the model locked, at most once, when the prompt of an
	// unstreamed attempt should have been computed. Prefilled is not called after FirstByte or Done
	// has returned.
	Prefilled()
}

// Stall reports a node that makes no progress while its peers do. Stall comes once per silence, and
// again when the evidence grows or new attempts fall victim to the silence.
type Stall struct {
	Node   *Node
	Rescue bool // the evidence was strong enough to move the waiting attempts
}

// Check looks at every waiting attempt and asks the owners of late ones to give up. Check appends
// to out the nodes that are to be set aside. Call Check about every PatienceFloor/10. Without
// waiting attempts a Check costs one lock.
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
