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
}

// maxInput is the longest prompt, in tokens.
const maxInput = 120_000

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
}

// Source returns the trace from its beginning.
func (g Generator) Source() Source {
	g.Requests, g.PerSecond = cmp.Or(g.Requests, 2000), cmp.Or(g.PerSecond, 3.4)
	g.Mix = cmp.Or(g.Mix, Mix{Chat: 0.6, Documents: 0.2, Agents: 0.2})
	g.SystemPrompts = cmp.Or(g.SystemPrompts, 8)
	s := &generated{g: g, r: rand.New(rand.NewPCG(g.Seed, 1)), left: g.Requests}
	s.gap = 1000 / g.PerSecond * g.Mix.meanTurns()
	s.nextID = int64(len(kinds) * g.SystemPrompts * maxSystemBlocks)
	return s
}

// maxSystemBlocks is how many ids are reserved for one system prompt.
const maxSystemBlocks = 16

func (m Mix) parts() [3]float64 { return [3]float64{m.Chat, m.Documents, m.Agents} }

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
	s.left--
	for len(s.open) == 0 || s.arrival <= float64(s.open[0].at) {
		heap.Push(&s.open, s.begin())
		s.arrival += s.gap * s.r.ExpFloat64()
	}
	turn := s.open[0]
	q := s.ask(turn)
	if turn.turns--; turn.turns == 0 || turn.tokens > maxInput {
		heap.Pop(&s.open)
	} else {
		turn.at += 1 + int64(turn.kind.pause*s.r.ExpFloat64())
		heap.Fix(&s.open, 0)
	}
	return q, nil
}

func (s *generated) begin() *session {
	k := s.pickKind()
	s.began++
	n := &session{
		kind: &kinds[k], at: int64(s.arrival), order: s.began, system: kinds[k].systemBlocks,
		turns: 1 + int(s.r.ExpFloat64()*(kinds[k].turns-0.5)),
	}
	prompt := k*s.g.SystemPrompts + s.pickSystem()
	for i := range n.system {
		n.ids = append(n.ids, int64(prompt*maxSystemBlocks+i))
	}
	n.complete, n.tokens = n.system, n.system*BlockTokens
	n.tokens += s.around(n.kind.first)
	return n
}

func (s *generated) pickKind() int {
	parts := s.g.Mix.parts()
	x := s.r.Float64() * (parts[0] + parts[1] + parts[2])
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
func (s *generated) around(mean float64) int {
	const sigma = 0.8
	return 1 + int(mean*math.Exp(sigma*s.r.NormFloat64()-sigma*sigma/2))
}

// ask returns the request of the next turn. The full blocks of the last prompt stay, and all blocks
// after them are new.
func (s *generated) ask(n *session) Request {
	input := min(n.tokens, maxInput)
	ids := append([]int64(nil), n.ids[:n.complete]...)
	for len(ids) < (input+BlockTokens-1)/BlockTokens {
		ids = append(ids, s.nextID)
		s.nextID++
	}
	n.ids, n.complete = ids, input/BlockTokens
	output := s.around(n.kind.output)
	n.tokens = input + output + s.around(n.kind.further)
	return Request{Timestamp: n.at, InputLength: input, OutputLength: output, HashIDs: ids, SystemBlocks: n.system}
}
