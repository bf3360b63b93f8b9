package cluster

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/sim/engine"
)

// Config is the configuration of one simulation. The zero value of a field means its default.
type Config struct {
	Nodes int // default 8
	// Routers is the number of routers. Requests go to them in turn. Each has its own index, load
	// books and learned speeds. Only Telemetry tells one of the others' requests. Default 1.
	Routers int
	// Engine describes every node: batch, slots (MaxSeqs) and cost. BlockTokens is always the
	// trace's. CacheBlocks counts blocks of this size and has no default. The other defaults are 64
	// slots, 2048 tokens in a step, 5000 prompt tokens/s, and 15 ms for a decode step plus 0.2 ms
	// for each sequence in it.
	Engine engine.Config
	// Speeds divides the durations of each node's engine. Default 1 for all nodes.
	Speeds []float64
	// Slow has the times at which nodes are slower.
	Slow []Slow
	// Telemetry says what the routers hear of the engines' load. Default: nothing.
	Telemetry Telemetry
	// Limit is the largest number of requests of a router on a node at a time. Default
	// Engine.MaxSeqs; negative: no limit.
	Limit int
	// Roles are the nodes' parts of a request. With roles every node has a connector, so one node
	// may compute a prompt and another one answer. Default: all nodes have role both, and no
	// connector.
	Roles []cluster.Role
	// Disagg says when that is done.
	Disagg leg.Disagg
	// Transfer is the time in which the KV blocks of a prompt's token go to another node. Default
	// 5 µs.
	Transfer time.Duration
	// Hosts are the cache daemons of the nodes' hosts.
	Hosts Hosts
	// Skip is the number of first requests that only fill the caches, and have no part in the
	// result's times and tokens.
	Skip int
	// Gaps makes the result have the times between the tokens of an answer.
	Gaps bool
	// Policy picks nodes in mode Mode. Default policy.Default().
	Policy *policy.Policy
	// Mode is a mode of the policy, or score_exact. In score_exact a router knows the contents of
	// caches instead of using the index.
	Mode string
	// Speed divides the time between arrivals. Default 1.
	Speed float64
	// IndexBlocks and Lifetime are the index's MaxBlocks and Lifetime. The two fields have the
	// index's defaults.
	IndexBlocks int
	Lifetime    time.Duration
	// Unsampled makes mode predicted look at every node of a large fleet.
	Unsampled bool
	// Seed is the seed of random choices.
	Seed uint64
}

// Slow makes one node slower for some time of the simulation.
type Slow struct {
	Node int
	engine.Slowdown
}

func (c Config) withDefaults() Config {
	c.Nodes, c.Routers = cmp.Or(c.Nodes, 8), cmp.Or(c.Routers, 1)
	c.Speed, c.Policy = cmp.Or(c.Speed, 1), cmp.Or(c.Policy, policy.Default())
	e := &c.Engine
	e.BlockTokens = trace.BlockTokens
	e.MaxSeqs = cmp.Or(e.MaxSeqs, 64)
	c.Limit, c.Transfer = cmp.Or(c.Limit, e.MaxSeqs), cmp.Or(c.Transfer, 5*time.Microsecond)
	e.MaxBatchTokens = cmp.Or(e.MaxBatchTokens, 2048)
	e.PrefillTokensPerSecond = cmp.Or(e.PrefillTokensPerSecond, 5000)
	e.DecodeStep = cmp.Or(e.DecodeStep, 15*time.Millisecond)
	e.DecodePerSequence = cmp.Or(e.DecodePerSequence, 200*time.Microsecond)
	return c
}

// maxSpan is the longest time in which the index's times stay distinct without the hourly sweep.
const maxSpan = 40 * time.Hour

// Errors of configurations that cannot be simulated.
var (
	ErrCache = errors.New("a node's cache cannot hold the longest request")
	ErrSpan  = errors.New("more than can be simulated")
	ErrBusy  = errors.New("is out of reach")
	ErrShort = errors.New("has too few requests")
)

// simulation is a running simulation.
type simulation struct {
	cfg      Config
	workload *Workload
	routers  []*router
	arrived  int // requests so far
	nodes    []node
	hosts    []*host // by node; empty: there are none
	events   events

	telemetry telemetry
	underway  int // requests that are being answered
	now       time.Duration
	last      time.Duration // time of the last arrival
	exact     bool
	keys      []uint64 // reused buffer
	result    *Result
}

// node is one engine.
type node struct {
	model   *engine.Model
	unbegun []*flight // requests whose first token has not come
	answers []*flight // requests whose first token has come
	busy    bool
}

// flight is a request that is being answered.
type flight struct {
	engine.Work
	at        time.Duration
	node      int          // that answers
	prefill   int          // the node that computes the prompt
	handed    *engine.Work // what that node does; nil: the answering node computes the prompt
	rehearsal leg.Rehearsal
	number    int           // of the request, from 0
	expected  time.Duration // until the first token, when the node was picked; 0: unknown
	told      int           // tokens that the router was told of
	last      time.Duration // time of the last token
	over      bool
}

// epoch is the start of virtual time.
var epoch = time.Unix(1_700_000_000, 0)

// Run simulates w until its last request is answered.
func Run(w *Workload, cfg Config) (*Result, error) {
	s, err := newSimulation(w, cfg)
	if err != nil {
		return nil, err
	}
	s.run()
	return s.result, nil
}

func (s *simulation) run() {
	for i := range s.workload.requests {
		r := &s.workload.requests[i]
		at := time.Duration(float64(r.at) / s.cfg.Speed)
		for len(s.events) > 0 && s.events[0].at <= at {
			s.step()
		}
		s.listen(at)
		s.now = at
		s.arrive(r)
	}
	for len(s.events) > 0 {
		s.step()
	}
	s.result.finish(s)
}

func newSimulation(w *Workload, cfg Config) (*simulation, error) {
	cfg = cfg.withDefaults()
	mode, exact, err := parseMode(cfg.Mode)
	if err != nil {
		return nil, err
	}
	if longest := w.Longest(); cfg.Engine.CacheBlocks < longest {
		return nil, fmt.Errorf("%w, of %d blocks of %d tokens, with its %d",
			ErrCache, longest, trace.BlockTokens, cfg.Engine.CacheBlocks)
	}
	if seconds := w.Span().Seconds() / cfg.Speed; seconds > maxSpan.Seconds() {
		return nil, fmt.Errorf("%.4g hours of traffic: %w, of %.0f hours", seconds/3600, ErrSpan, maxSpan.Hours())
	}
	if err := cfg.checkNodes(); err != nil {
		return nil, err
	}
	s := &simulation{cfg: cfg, workload: w, exact: exact, result: newResult(cfg)}
	s.telemetry.Telemetry = cfg.Telemetry
	s.last = time.Duration(float64(w.Span()) / cfg.Speed)
	p := *cfg.Policy
	p.Mode = mode
	s.nodes = make([]node, cfg.Nodes)
	joining := make([]*cluster.NodeHealth, cfg.Nodes)
	for i := range s.nodes {
		if s.nodes[i].model, err = engine.NewModel(cfg.engine(i)); err != nil {
			return nil, err
		}
		joining[i] = s.sample(i)
	}
	s.openHosts()
	for i := range cfg.Routers {
		r, err := newRouter(&s.cfg, i, &p, joining, func() time.Time { return epoch.Add(s.now) })
		if err != nil {
			return nil, err
		}
		s.routers = append(s.routers, r)
	}
	return s, nil
}

// checkNodes returns an error if a setting of single nodes cannot be used.
func (c *Config) checkNodes() error {
	if n := len(c.Speeds); n != 0 && n != c.Nodes {
		return fmt.Errorf("speeds of %d nodes were given for %d", n, c.Nodes)
	}
	if n := len(c.Roles); n != 0 && n != c.Nodes {
		return fmt.Errorf("roles of %d nodes were given for %d", n, c.Nodes)
	}
	for _, s := range c.Slow {
		if s.Node < 0 || s.Node >= c.Nodes {
			return fmt.Errorf("node %d of %d cannot be slow", s.Node, c.Nodes)
		}
	}
	if c.Routers < 0 {
		return fmt.Errorf("%d routers: must not be negative", c.Routers)
	}
	if c.Telemetry.Every < 0 || c.Telemetry.Age < 0 {
		return fmt.Errorf("telemetry every %v and %v old: must not be negative", c.Telemetry.Every, c.Telemetry.Age)
	}
	return nil
}

// whileSlow says whether a node is slower at the time at, whether at is before any is, or after all
// were.
func (c *Config) whileSlow(at time.Duration) (slow, before, after bool) {
	before, after = len(c.Slow) > 0, len(c.Slow) > 0
	for i := range c.Slow {
		s := &c.Slow[i]
		slow = slow || at >= s.From && at < s.To
		before, after = before && at < s.From, after && at >= s.To
	}
	return slow, before, after
}

// engine returns the configuration of node i.
func (c *Config) engine(i int) engine.Config {
	e := c.Engine
	if c.Speeds != nil {
		e.Speed = c.Speeds[i]
	}
	for _, s := range c.Slow {
		if s.Node == i {
			e.Slowdowns = append(slices.Clip(e.Slowdowns), s.Slowdown)
		}
	}
	return e
}

// arrive routes one request.
func (s *simulation) arrive(r *request) {
	router := s.routers[s.arrived%len(s.routers)]
	number := s.arrived
	s.arrived++
	s.keys = r.keys(s.keys[:0])
	f := &flight{
		at: s.now, number: number,
		Work: engine.Work{Blocks: r.blocks(), PromptTokens: r.prompt, OutputTokens: r.answer},
	}
	f.For = f
	var known func(*fleet.Node) int32
	if s.exact {
		known = func(n *fleet.Node) int32 {
			held := s.nodes[router.nodes[n]].model.Cached(f.Blocks[:len(r.chain)])
			return int32(held * indexBlocks)
		}
	}
	piece := leg.Piece{Keys: s.keys, MaxTokens: int64(r.maxTokens), Session: r.session, Known: known}
	if s.cfg.Hosts.Told > ToldNothing {
		piece.Warm = s.reaches(router, f.Blocks[:len(r.chain)])
	}
	rehearsal, refused := router.Rehearse(piece, epoch.Add(s.now))
	f.rehearsal = rehearsal
	if refused != nil {
		s.result.Refused++
		return
	}
	f.expected = rehearsal.Expected()
	f.node = router.nodes[f.rehearsal.Node()]
	if s.cfg.Hosts.Ahead {
		s.hosts[f.node].bring(f.Blocks[:len(r.chain)])
	}
	s.underway++
	s.result.singles.underway = append(s.result.singles.underway, s.underway)
	n := &s.nodes[f.node]
	n.unbegun = append(n.unbegun, f)
	s.result.sent(f.node, f, len(n.unbegun)+len(n.answers))
	if p := f.rehearsal.Prefill(); p != nil {
		f.handOver(router.nodes[p])
		s.submit(f.prefill, f.handed)
		return
	}
	s.submit(f.node, &f.Work)
}

// submit gives a node work, and begins its next step unless one is underway.
func (s *simulation) submit(at int, w *engine.Work) {
	s.nodes[at].model.Submit(w, s.now)
	if !s.nodes[at].busy {
		s.begin(at)
	}
}

// begin starts a node's next step, if it has any work.
func (s *simulation) begin(at int) {
	n := &s.nodes[at]
	var d, prefill time.Duration
	if d, prefill, n.busy = n.model.Begin(s.now); n.busy {
		heap.Push(&s.events, event{at: s.now + d, node: at})
		s.result.prefill += s.arriving(d, prefill)
	}
}

// arriving returns the part of a step's prefill that counts as until the last arrival. A step that
// begins now and takes d counts in proportion if it ends later.
func (s *simulation) arriving(d, prefill time.Duration) time.Duration {
	left := s.last - s.now
	if d <= left {
		return prefill
	}
	return time.Duration(float64(prefill) * float64(max(left, 0)) / float64(d))
}

// step completes the earliest step of all nodes, or the earliest transfer of blocks.
func (s *simulation) step() {
	e := heap.Pop(&s.events).(event)
	s.listen(e.at)
	s.now = e.at
	if e.read != nil {
		s.read(e.read)
		return
	}
	n := &s.nodes[e.node]
	n.model.End(func(w *engine.Work) {
		f := w.For.(*flight)
		if w == f.handed {
			s.handedOver(f)
			return
		}
		s.begun(n) // an ending answer may have only one token
		s.generated(f)
		f.over = true
		f.rehearsal.Finish(usage.Counts{
			Prompt: int64(w.PromptTokens), HasPrompt: true, Cached: int64(f.cached()), HasCached: true,
			Completion: int64(w.OutputTokens),
		}, epoch.Add(s.now))
		s.result.answered(s, f)
		s.underway--
	})
	s.begun(n)
	n.answers = slices.DeleteFunc(n.answers, func(f *flight) bool {
		if !f.over {
			s.generated(f)
		}
		return f.over
	})
	s.begin(e.node)
}

// generated reports a token of an answer to the router.
func (s *simulation) generated(f *flight) {
	if n := f.Produced(); n > f.told {
		f.rehearsal.Generated(n, epoch.Add(s.now))
		if s.cfg.Gaps && f.told > 0 {
			s.result.singles.gaps = append(s.result.singles.gaps, ms(s.now-f.last))
		}
		f.told, f.last = n, s.now
	}
}

// begun reports to the router the answers that begin in n's present step, before any answer ends.
func (s *simulation) begun(n *node) {
	n.unbegun = slices.DeleteFunc(n.unbegun, func(f *flight) bool {
		if f.FirstToken() == 0 {
			return false
		}
		f.rehearsal.Begun(epoch.Add(s.now))
		n.answers = append(n.answers, f)
		return true
	})
}

// event is the end of a node's step, or of a transfer to the node.
type event struct {
	at   time.Duration
	node int
	read *flight // whose blocks the node has read
}

// events is a heap with the next event first.
type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].node < h[j].node
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(e any)   { *h = append(*h, e.(event)) }
func (h *events) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}
