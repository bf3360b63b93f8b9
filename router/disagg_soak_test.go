package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestSoakOfHandovers sends requests to nodes of both roles while nodes die and return at random
// moments, and clients leave. SOAK_HANDOVERS is its duration, 1 s by default. As long as one node
// for answers lives, every answer is right and whole. Nothing is left of any request at the end.
func TestSoakOfHandovers(t *testing.T) {
	t.Parallel()
	alone := labelled(t)
	newSoak(t, divide(t, 2, 3, unbudgeted), wireOf("nixl")).run(soakTime(t), alone)
}

// TestSoakOfWires is TestSoakOfHandovers with the other connectors. Streams of engines other than
// vLLM end with an error event if their node dies.
func TestSoakOfWires(t *testing.T) {
	some(t, func(w wire) bool { return w.name != "nixl" }, func(t *testing.T, w wire) {
		alone := labelled(t)
		// A D that comes too late for the lease waits for blocks that are gone until its own limit.
		patient := func(c *engine.Config) { c.PeerTimeout = 10 * time.Second }
		set := func(c *router.Config) {
			if unbudgeted(c); w.needy {
				c.Retry.MaxNodes = 4 // a death may fail two hand-overs: of its blocks, and anew
			}
		}
		newSoak(t, w.divideWith(t, 2, 3, set, patient), w).run(soakTime(t), alone)
	})
}

// unbudgeted allows a retry for each request, because a death strikes many of only 12 clients.
func unbudgeted(c *router.Config) { c.Retry.Percent = 100 }

// soakTime returns how long a soak lasts.
func soakTime(t *testing.T) time.Duration {
	lasts := time.Second
	if text := os.Getenv("SOAK_HANDOVERS"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	return lasts
}

// TestKilledPrefillNodes checks that every request gets the right answer while the nodes that
// compute prompts die at random moments, both at once too.
func TestKilledPrefillNodes(t *testing.T) {
	t.Parallel()
	s := newSoak(t, divide(t, 2, 2), wireOf("nixl"))
	s.requests.Store(200)
	var clients, killers sync.WaitGroup
	for client := range s.turns {
		clients.Go(func() { s.ask(client) })
	}
	rng := rand.New(rand.NewPCG(8, 8))
	killers.Go(func() {
		for s.pause(time.Duration(20+rng.IntN(300)) * time.Millisecond) {
			after := time.Duration(rng.IntN(200)) * time.Millisecond
			s.die(s.prefills[rng.IntN(2)], func() { time.Sleep(after) })
		}
	})
	clients.Wait()
	close(s.ended)
	killers.Wait()
	if right := s.right.Load(); right != 200 {
		t.Errorf("%d of 200 answers are right", right)
	}
	if s.handovers("split") == 0 {
		t.Error("no prompt was handed over")
	}
	s.clean(t)
}

// soak is the traffic of 12 clients, while nodes die.
//
// One node of each role dies at a time, until the router has noticed. The next one dies once the
// router uses that node again, and all requests that may have met the death have ended. So a
// request loses at most one node of each role, and every request can be answered. Two outages of a
// whole role follow.
type soak struct {
	*divided
	wire     wire
	goesOn   bool         // streams go on at another node
	requests atomic.Int64 // still to be sent
	leaving  bool         // some clients leave
	ended    chan struct{}
	turns    [12]atomic.Int64 // answers that each client has had
	known    sync.Map         // from question to the answer of an engine that nothing happens to
	dead     map[string]*spell
	outage   spell // requests may fail

	right, broken, excused, left, wrong, deaths atomic.Int64
}

// spell is a state that comes and goes.
type spell struct{ n atomic.Int64 }

func (s *spell) turn()                             { s.n.Add(1) }
func (s *spell) mark() int64                       { return s.n.Load() }
func (s *spell) since(mark int64) bool             { return mark%2 == 1 || s.n.Load() != mark }
func (d *divided) nodesOf() (all []*engine.Engine) { return slices.Concat(d.prefills, d.decodes) }

// newSoak prepares a soak of nodes with wire w.
func newSoak(t *testing.T, d *divided, w wire) *soak {
	t.Helper()
	s := &soak{divided: d, wire: w, ended: make(chan struct{}), dead: map[string]*spell{}}
	s.goesOn = w.by == engine.ConnectorNIXL || w.by == engine.ConnectorMooncake
	s.requests.Store(math.MaxInt64)
	for id := range s.nodes() {
		s.dead[id] = new(spell)
	}
	d.known(t)
	return s
}

// run sends requests for some time while nodes die, and checks that nothing is left of them. alone
// returns the goroutines of the test.
func (s *soak) run(lasts time.Duration, alone func() map[string]int) {
	s.leaving = true
	s.idle()
	before := alone()
	var clients, killers sync.WaitGroup
	for client := range s.turns {
		clients.Go(func() { s.ask(client) })
	}
	over := make(chan struct{})
	for seed, role := range [][]*engine.Engine{s.prefills, s.decodes} {
		killers.Go(func() { s.reap(rand.New(rand.NewPCG(8, uint64(seed))), role, over) })
	}
	time.Sleep(lasts)
	close(over)
	killers.Wait()
	s.fail(s.prefills, s.wire.needy)
	s.fail(s.decodes, true)
	s.moveOn(2)
	close(s.ended)
	clients.Wait()
	p := s.metrics()
	s.t.Logf("%d right, %d left, %d broken off with their node, %d failed in an outage, %d deaths\n%s",
		s.right.Load(), s.left.Load(), s.broken.Load(), s.excused.Load(), s.deaths.Load(),
		strings.Join(append(p.lines("cgn_router_handovers_total"), p.lines("cgn_router_resumed_total")...), "\n"))
	if s.right.Load() == 0 || s.handovers("split") == 0 {
		s.t.Error("no answer is right, or no prompt was handed over")
	}
	if most := s.deaths.Load() * int64(len(s.turns)); s.broken.Load() > most {
		s.t.Errorf("more than %d streams were broken off", most)
	}
	if n := p.sum("cgn_router_retries_refused_total"); n != 0 {
		s.t.Errorf("%v retries were refused", n)
	}
	s.spotless(before, alone)
}

// pause waits, unless the soak ends. pause returns false then.
func (s *soak) pause(d time.Duration) bool {
	select {
	case <-s.ended:
		return false
	case <-time.After(d):
		return true
	}
}

// die kills an engine and brings it back after wait.
func (s *soak) die(e *engine.Engine, wait func()) {
	dead := s.dead[s.idOf(e)]
	s.wrong.Add(e.Stats().WrongBlocks)
	s.deaths.Add(1)
	dead.turn()
	e.Kill()
	wait()
	err := e.Accept()
	for began := time.Now(); err != nil && time.Since(began) < soon; err = e.Accept() {
		time.Sleep(20 * time.Millisecond) // another process has the port for a connection
	}
	if err != nil {
		s.t.Error(err)
	}
	dead.turn()
}

// idOf returns the id of the engine's node.
func (d *divided) idOf(e *engine.Engine) string {
	if i := slices.Index(d.prefills, e); i >= 0 {
		return fmt.Sprint("prefill-", i)
	}
	return fmt.Sprint("decode-", slices.Index(d.decodes, e))
}

// reap kills nodes of a role, one after the other, until over is closed.
func (s *soak) reap(rng *rand.Rand, role []*engine.Engine, over chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(50+rng.IntN(700)) * time.Millisecond):
		}
		e, more := role[rng.IntN(len(role))], time.Duration(rng.IntN(200))*time.Millisecond
		s.die(e, func() {
			s.await("the death is not noticed", func(nodes map[string]node) bool {
				return nodes[s.idOf(e)].State != "healthy"
			})
			time.Sleep(more)
		})
		s.back(role)
		s.moveOn(1)
	}
}

// back waits until the router uses all nodes of a role.
func (s *soak) back(role []*engine.Engine) {
	s.await("a node is not used again", func(nodes map[string]node) bool {
		return !slices.ContainsFunc(role, func(e *engine.Engine) bool { return nodes[s.idOf(e)].State != "healthy" })
	})
}

// await waits until the router says of its nodes what ok asks for.
func (s *soak) await(problem string, ok func(nodes map[string]node) bool) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for began := time.Now(); ; <-look.C {
		nodes := s.nodes()
		if ok(nodes) {
			return
		}
		if time.Since(began) > soon {
			s.t.Errorf("%s: %+v", problem, nodes)
			return
		}
	}
}

// moveOn waits until each client has had so many answers more.
func (s *soak) moveOn(answers int64) {
	var until [len(s.turns)]int64
	for i := range s.turns {
		until[i] = s.turns[i].Load() + answers
	}
	began := time.Now()
	for i := range s.turns {
		for ; s.turns[i].Load() < until[i]; time.Sleep(time.Millisecond) {
			if time.Since(began) > 2*soon {
				s.t.Error("a client waits for its answer")
				return
			}
		}
	}
}

// fail kills all nodes of a role at once. excuse says that requests may fail then.
func (s *soak) fail(role []*engine.Engine, excuse bool) {
	if excuse {
		s.outage.turn()
		defer s.outage.turn()
	}
	var all sync.WaitGroup
	for _, e := range role {
		all.Go(func() { s.die(e, func() { time.Sleep(100 * time.Millisecond) }) })
	}
	all.Wait()
	s.back(role)
	s.moveOn(1)
}

// question is a request of a soak.
type question struct {
	prompt       string
	tokens       int
	stream, told bool // told: the stream has a usage
}

func (q *question) body() string {
	more := fmt.Sprintf(`,"max_tokens":%d`, q.tokens)
	if q.stream {
		more += `,"stream":true`
	}
	if q.told {
		more += `,"stream_options":{"include_usage":true}`
	}
	return chatBody(q.prompt, more)
}

// question returns the next question of a client. A prompt is short, known to some node, new, or
// new and longer than bodies that do not count.
func (s *soak) question(rng *rand.Rand) question {
	q := question{tokens: 8 + 92*rng.IntN(2), stream: rng.IntN(3) > 0, told: rng.IntN(2) == 0}
	q.told = q.told && q.stream
	switch n := rng.IntN(100); {
	case n < 30:
		q.prompt = fmt.Sprint("a short prompt ", rng.IntN(8))
	case n < 60:
		q.prompt = longPrompt(fmt.Sprint("prompt ", rng.IntN(16)))
	case n < 99:
		q.prompt = longPrompt(fmt.Sprint("new ", rng.Uint64()))
	default:
		q.prompt = strings.Repeat(longPrompt(fmt.Sprint("large ", rng.Uint64())), 16)
	}
	return q
}

// finished is what a complete answer says.
type finished struct {
	text, reason       string
	prompt, completion float64
}

// whole reads the answer to q. whole returns an error unless it is a complete one.
func (q *question) whole(r *reply) (a finished, err error) {
	if !q.stream {
		var doc struct {
			Choices []struct {
				Message struct{ Content string }
				Reason  string `json:"finish_reason"`
			}
			Usage struct {
				Prompt     float64 `json:"prompt_tokens"`
				Completion float64 `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal(r.body, &doc); err != nil || r.status != 200 || len(doc.Choices) != 1 {
			return a, fmt.Errorf("no answer (%w): %v", err, r)
		}
		c := doc.Choices[0]
		return finished{c.Message.Content, c.Reason, doc.Usage.Prompt, doc.Usage.Completion}, nil
	}
	s, err := r.said()
	if err != nil {
		return a, err
	}
	usages := 0
	if q.told {
		usages = 1
	}
	if s.err != "" || s.roles != 1 || s.ids != 1 || s.finishes != 1 || s.dones != 1 || s.usages != usages {
		return a, fmt.Errorf("no whole stream: %+v", s)
	}
	return finished{s.text, s.reason, s.prompt, s.completion}, nil
}

// expected returns the answer to q of an engine that nothing happens to.
func (s *soak) expected(q question) (finished, error) {
	q.stream, q.told = false, false
	if a, known := s.known.Load(q); known {
		return a.(finished), nil
	}
	resp, err := s.client.Post(s.plain.URL()+chatPath, "application/json", strings.NewReader(q.body()))
	if err != nil {
		return finished{}, err
	}
	a, err := q.whole(read(resp))
	if err == nil && !strings.HasPrefix(q.prompt, "new") && !strings.HasPrefix(q.prompt, "large") {
		s.known.Store(q, a)
	}
	return a, err
}

// ask sends one request after the other, and leaves some of them.
func (s *soak) ask(client int) {
	defer s.turns[client].Store(math.MaxInt64)
	rng := rand.New(rand.NewPCG(7, uint64(client)))
	for s.requests.Add(-1) >= 0 && s.pause(0) {
		q := s.question(rng)
		want, err := s.expected(q)
		if err != nil {
			s.t.Errorf("an engine alone: %v", err)
			return
		}
		if !q.told && q.stream {
			want.prompt, want.completion = 0, 0
		}
		ctx, leave := context.WithCancel(s.t.Context())
		leaves := s.leaving && rng.IntN(5) == 0
		if leaves {
			time.AfterFunc(time.Duration(rng.IntN(60))*time.Millisecond, leave)
		}
		outage, dead := s.outage.mark(), map[string]int64{}
		for id, spell := range s.dead {
			dead[id] = spell.mark()
		}
		r := new(reply)
		if resp, err := s.send(ctx, http.MethodPost, chatPath, q.body()); err != nil {
			r.err = err
		} else {
			r = read(resp)
		}
		leave()
		s.judge(&q, want, r, leaves, s.outage.since(outage),
			s.dead[r.node()] != nil && s.dead[r.node()].since(dead[r.node()]))
		s.turns[client].Add(1)
	}
}

// judge checks an answer. leaves says that the client may have left, outage that nobody may have
// been there, and died that the answering node has died meanwhile.
func (s *soak) judge(q *question, want finished, r *reply, leaves, outage, died bool) {
	got, err := q.whole(r)
	failed := r.status >= 500 && openAIError(event{data: string(r.body)})
	cut := q.stream && r.status == 200 && bytes.Contains(r.body, []byte(`"error":{`))
	begun := r.status == 0 || failed || strings.HasPrefix(want.text, answerIn(r.body))
	switch {
	case r.err == nil && err == nil && got == want:
		s.right.Add(1)
	case r.err == nil && err == nil || !begun:
		s.t.Errorf("wrong: %+v, want %+v: %v", got, want, r)
	case r.err != nil && leaves && errors.Is(r.err, context.Canceled):
		s.left.Add(1)
	case r.err == nil && outage && (failed || cut):
		s.excused.Add(1)
	case r.err == nil && cut && died && !s.goesOn:
		s.broken.Add(1)
	default:
		s.t.Errorf("%q of %d bytes, stream %v: %v, %v\n%.2000s\n%s", q.prompt[:min(30, len(q.prompt))], len(q.prompt),
			q.stream, err, r, r.body, s.log.last(12))
	}
}

// spotless checks that nothing is left of any request: on the router, on the engines, and between
// them. before are the goroutines that alone returned before the first request.
func (s *soak) spotless(before map[string]int, alone func() map[string]int) {
	s.clean(s.t)
	s.back(s.nodesOf())
	for _, e := range s.nodesOf() {
		eventually(s.t, "no block is in use", func() bool { return e.Stats().UsedBlocks+e.Stats().LentBlocks == 0 })
		s.wrong.Add(e.Stats().WrongBlocks)
	}
	if n := s.wrong.Load(); n != 0 {
		s.t.Errorf("%d answers from another prompt's blocks", n)
	}
	eventually(s.t, "no connection to a node is in use", func() bool {
		p := s.metrics()
		const name = "cgn_router_upstream_connections"
		return p.sum(name, `state="open"`) == p.sum(name, `state="idle"`)
	})
	if n := s.metrics().sum("cgn_router_panics_total"); n != 0 {
		s.t.Errorf("%v panics", n)
	}
	s.client.CloseIdleConnections()
	eventually(s.t, "no client is connected", func() bool { return s.metrics().sum("cgn_router_connections") == 0 })
	s.noMore(before, alone)
	if err := s.stop(); err != nil {
		s.t.Error(err)
	}
	for _, e := range s.nodesOf() {
		eventually(s.t, "no connection is left", func() bool { return e.Stats().Connections == 0 })
	}
}

// noMore waits until no goroutine is left that was not there before.
func (s *soak) noMore(before map[string]int, alone func() map[string]int) {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		var more []string
		for what, n := range alone() {
			if n > before[what] {
				more = append(more, fmt.Sprintf("%d of %s, %d before", n, what, before[what]))
			}
		}
		if len(more) == 0 {
			return
		}
		if time.Since(began) > soon {
			s.t.Errorf("goroutines are left: %s", more)
			return
		}
	}
}

// labelled labels the goroutines that the test begins from now on. The function returned counts
// those that run, by their first function. It leaves out goroutines of connections, which idle
// connections have too.
func labelled(t *testing.T) (running func() map[string]int) {
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
	label := fmt.Sprintf("%q:%q", "test", t.Name())
	return func() map[string]int {
		var page bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&page, 1); err != nil {
			t.Error(err)
		}
		all := map[string]int{}
		for part := range strings.SplitSeq(page.String(), "\n\n") {
			if !strings.Contains(part, label) {
				continue
			}
			var n int
			fmt.Sscan(part, &n)
			lines := strings.Split(strings.TrimSpace(part), "\n")
			fields := strings.Fields(lines[len(lines)-1])
			first, _, _ := strings.Cut(fields[min(2, len(fields)-1)], "+")
			all[first] += n
		}
		maps.DeleteFunc(all, func(first string, _ int) bool {
			return slices.ContainsFunc(ofConnections, func(name string) bool { return strings.HasPrefix(first, name) })
		})
		return all
	}
}

// ofConnections are the first functions of goroutines of connections.
var ofConnections = []string{
	"net/http.(*conn).serve", "net/http.(*connReader).backgroundRead", "net/http.(*persistConn)",
	"net/http.(*Transport)", "github.com/valyala/fasthttp.(*workerPool)",
}
