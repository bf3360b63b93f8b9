package trace

import (
	"cmp"
	"container/heap"
	"io"
	"math"
	"math/rand/v2"
)

// Mix is the proportion of the kinds of sessions. The parts are relative to their sum.
type Mix struct {
	Chat      float64 // multi-turn chat under one of a few shared system prompts
	Documents float64 // several questions about one long document
	Agents    float64 // many quick steps under a long shared tool prompt
	Questions float64 // short questions, mostly without a second turn
}

// Generator makes traces in place of a recorded one. Sessions begin at random times, and each turn
// extends the previous turn. The zero value of a field means its default. Equal values make equal
// traces.
type Generator struct {
	Seed uint64
	// Requests is the number of requests. Default 2000.
	Requests int
	// PerSecond is the mean rate of requests. Default 3.4, the public
	// conversation trace's.
	PerSecond float64
	// Mix defaults to 0.6 chat, 0.2 documents, 0.2 agents.
	Mix Mix
	// SystemPrompts is the number of shared system prompts of each kind. The first prompts are the
	// most popular. Default 8.
	SystemPrompts int
	// Steady begins with sessions underway, so that the rate and the lengths do not grow at first.
	Steady bool
	// Heavy gives the answers lengths with a heavy tail, whose mean differs between system prompts.
	// The longest answer has 4096 tokens.
	Heavy bool
	// MaxInput is the longest prompt, in tokens. Default 120000.
	MaxInput int
	// BurstEvery is the mean number of requests between two bursts. A burst is 50 to 200 requests
	// within two seconds, which begin with the same long new prompt. Default 0: there are none.
	BurstEvery int
}

// kind describes the sessions of one kind.
type kind struct {
	systemBlocks   int     // length of a system prompt
	turns          float64 // mean number of turns
	first, further float64 // mean new input tokens of the first and of a further turn
	output         float64 // mean output tokens of a turn
	pause          float64 // mean ms between two turns
}

var kinds = [...]kind{
	{systemBlocks: 2, turns: 5, first: 600, further: 200, output: 350, pause: 25_000},
	{systemBlocks: 1, turns: 4, first: 18_000, further: 80, output: 250, pause: 20_000},
	{systemBlocks: 8, turns: 12, first: 400, further: 700, output: 120, pause: 3_000},
	{systemBlocks: 1, turns: 1, first: 150, further: 60, output: 180, pause: 10_000},
}

// burstKind describes the requests of a burst. The common prompt comes in addition.
var burstKind = kind{first: 100, output: 100}

// Bounds of a burst.
const (
	burstMin, burstMax             = 50, 200 // requests
	burstBlocksMin, burstBlocksMax = 8, 24   // of the common prompt
	burstMs                        = 2000
)

// Lengths of answers are lognormal.
const (
	sigma       = 0.8
	heavySigma  = 1.2
	promptSigma = 0.5 // of the mean lengths under the system prompts, with Heavy
	maxOutput   = 4096
)

// session is one sequence of turns.
type session struct {
	kind     *kind
	at       int64 // time of the next turn, in ms
	order    int64 // order of sessions with equal times
	turns    int   // remaining turns
	tokens   int   // tokens of the conversation so far, including answers
	complete int   // number of full blocks in the last prompt
	ids      []int64
	system   int
	output   float64 // mean output tokens of a turn
	pause    float64 // mean ms between two turns
	burst    bool    // the turns are the requests of a burst, which do not continue each other
}

type sessions []*session

func (s sessions) Len() int { return len(s) }
func (s sessions) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].order < s[j].order
}
func (s sessions) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *sessions) Push(x any)   { *s = append(*s, x.(*session)) }
func (s *sessions) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

type generated struct {
	g       Generator
	r       *rand.Rand
	left    int
	open    sessions
	nextID  int64
	began   int64   // number of sessions so far
	arrival float64 // time of the next session, in ms
	gap     float64 // mean ms between sessions

	warm    int64      // ms before the trace begins
	more    *rand.Rand // of the choices that the zero Generator does not make
	means   []float64  // factors of the answers' mean length by system prompt
	toBurst int        // requests until the next burst
}

// Source returns the trace from its beginning.
func (g Generator) Source() Source {
	g.Requests, g.PerSecond = cmp.Or(g.Requests, 2000), cmp.Or(g.PerSecond, 3.4)
	g.Mix = cmp.Or(g.Mix, Mix{Chat: 0.6, Documents: 0.2, Agents: 0.2})
	g.SystemPrompts = cmp.Or(g.SystemPrompts, 8)
	g.MaxInput = cmp.Or(g.MaxInput, 120_000)
	s := &generated{g: g, r: rand.New(rand.NewPCG(g.Seed, 1)), left: g.Requests}
	s.gap = 1000 / g.PerSecond * g.Mix.meanTurns()
	prompts := len(kinds) * g.SystemPrompts
	if g.Mix.Questions == 0 {
		prompts -= g.SystemPrompts
	}
	s.nextID = int64(prompts * maxSystemBlocks)
	s.more = rand.New(rand.NewPCG(g.Seed, 2))
	s.means = promptMeans(g.SystemPrompts)
	if g.Steady {
		s.warm = g.Mix.warm()
	}
	s.planBurst()
	return s
}

// promptMeans returns the factors of the mean length of answers under n system prompts. The factors
// are equal for all seeds, and their mean over the requests is 1.
func promptMeans(n int) []float64 {
	r, means, sum := rand.New(rand.NewPCG(0, 3)), make([]float64, n), 0.0
	for i := range means {
		means[i] = math.Exp(promptSigma * r.NormFloat64())
		sum += means[i] * math.Log(float64(i+2)/float64(i+1)) / math.Log(float64(n+1)) // the prompt's share
	}
	for i := range means {
		means[i] /= sum
	}
	return means
}

// warm returns the ms after which hardly any of the first sessions goes on.
func (m Mix) warm() (ms int64) {
	for i, p := range m.parts() {
		if p > 0 {
			ms = max(ms, int64(3*kinds[i].turns*kinds[i].pause))
		}
	}
	return ms
}

// maxSystemBlocks is how many ids are reserved for one system prompt.
const maxSystemBlocks = 16

func (m Mix) parts() [len(kinds)]float64 {
	return [...]float64{m.Chat, m.Documents, m.Agents, m.Questions}
}

func (m Mix) meanTurns() float64 {
	var sum, turns float64
	for i, p := range m.parts() {
		sum += p
		turns += p * kinds[i].turns
	}
	return turns / sum
}

// Next returns the earliest turn among the open sessions.
func (s *generated) Next() (Request, error) {
	if s.left == 0 {
		return Request{}, io.EOF
	}
	q, burst := s.turn()
	for q.Timestamp < s.warm {
		q, burst = s.turn()
	}
	if s.left--; !burst {
		s.countToBurst(q.Timestamp)
	}
	q.Timestamp -= s.warm
	return q, nil
}

// turn returns the earliest turn among the open sessions, at its time since the first session.
func (s *generated) turn() (q Request, burst bool) {
	for len(s.open) == 0 || s.arrival <= float64(s.open[0].at) {
		heap.Push(&s.open, s.begin())
		s.arrival += s.gap * s.r.ExpFloat64()
	}
	turn := s.open[0]
	q = s.ask(turn)
	if turn.turns--; turn.turns == 0 || turn.tokens > s.g.MaxInput {
		heap.Pop(&s.open)
	} else {
		turn.at += 1 + int64(turn.pause*s.r.ExpFloat64())
		heap.Fix(&s.open, 0)
	}
	return q, turn.burst
}

// planBurst chooses the number of requests until the next burst.
func (s *generated) planBurst() {
	if every := s.g.BurstEvery; every > 0 {
		s.toBurst = every/2 + s.more.IntN(every) + 1
	}
}

// countToBurst counts a request that belongs to no burst, at the time at, and begins a burst if one
// is due.
func (s *generated) countToBurst(at int64) {
	if s.toBurst--; s.g.BurstEvery == 0 || s.toBurst > 0 {
		return
	}
	s.planBurst()
	s.began++
	n := &session{
		kind: &burstKind, at: at + 1, order: s.began, burst: true, output: burstKind.output,
		turns: burstMin + s.more.IntN(burstMax-burstMin+1),
	}
	n.pause = burstMs / float64(n.turns)
	for range burstBlocksMin + s.more.IntN(burstBlocksMax-burstBlocksMin+1) {
		n.ids = append(n.ids, s.nextID)
		s.nextID++
	}
	n.complete = len(n.ids)
	heap.Push(&s.open, n)
}

func (s *generated) begin() *session {
	k := s.pickKind()
	s.began++
	n := &session{
		kind: &kinds[k], at: int64(s.arrival), order: s.began, system: kinds[k].systemBlocks,
		turns: 1 + int(s.r.ExpFloat64()*(kinds[k].turns-0.5)), output: kinds[k].output, pause: kinds[k].pause,
	}
	system := s.pickSystem()
	prompt := k*s.g.SystemPrompts + system
	if s.g.Heavy {
		n.output *= s.means[system]
	}
	for i := range n.system {
		n.ids = append(n.ids, int64(prompt*maxSystemBlocks+i))
	}
	n.complete, n.tokens = n.system, n.system*BlockTokens
	n.tokens += s.around(n.kind.first)
	return n
}

func (s *generated) pickKind() int {
	parts := s.g.Mix.parts()
	x := s.r.Float64() * (parts[0] + parts[1] + parts[2] + parts[3])
	for i, p := range parts {
		if x -= p; x < 0 {
			return i
		}
	}
	return 0
}

// pickSystem prefers the first system prompts. The prompts' probability falls with 1/rank.
func (s *generated) pickSystem() int {
	n := float64(s.g.SystemPrompts)
	return min(int(math.Pow(n+1, s.r.Float64()))-1, s.g.SystemPrompts-1)
}

// around returns a random length with the given mean. The distribution is skewed as for real
// prompts.
func (s *generated) around(mean float64) int { return 1 + int(mean*lognormal(s.r, sigma)) }

// answer returns a random length of an answer.
func (s *generated) answer(mean float64) int {
	if s.g.Heavy {
		return min(1+int(mean*lognormal(s.r, heavySigma)), maxOutput)
	}
	return s.around(mean)
}

// lognormal returns a random factor with mean 1.
func lognormal(r *rand.Rand, sigma float64) float64 {
	return math.Exp(sigma*r.NormFloat64() - sigma*sigma/2)
}

// ask returns the request of the next turn. The full blocks of the last prompt stay, and all blocks
// after them are new.
func (s *generated) ask(n *session) Request {
	if n.burst {
		n.tokens = n.complete*BlockTokens + s.around(n.kind.first)
	}
	input := min(n.tokens, s.g.MaxInput)
	ids := append([]int64(nil), n.ids[:n.complete]...)
	for len(ids) < (input+BlockTokens-1)/BlockTokens {
		ids = append(ids, s.nextID)
		s.nextID++
	}
	output := s.answer(n.output)
	q := Request{
		Timestamp: n.at, InputLength: input, OutputLength: output, HashIDs: ids, SystemBlocks: n.system,
		Session: n.order,
	}
	if !n.burst {
		n.ids, n.complete = ids, input/BlockTokens
		n.tokens = input + output + s.around(n.kind.further)
	}
	return q
}
