package cluster

import (
	"io"
	"math"
	"math/rand/v2"

	"github.com/cognitora/dataplane/perf/trace"
)

// part is one kind of the requests of strangers.
type part struct {
	share          float64 // of all requests, relative to the sum of the shares
	prompt, answer float64 // mean tokens
}

// The parts of the traffic long and mixed.
var (
	longPart  = part{share: 2, prompt: 8000, answer: 100}
	shortPart = part{share: 3, prompt: 1000, answer: 400}
)

// independent is a kind of traffic whose requests have nothing to do with each other.
func independent(name string, requests int, parts ...part) Traffic {
	return Traffic{Name: name, Requests: requests, Fleet: fleetOf8(), parts: parts, apart: true}
}

// strangers makes requests that arrive at random times and share one block, that of their part.
// Their lengths are lognormal.
type strangers struct {
	parts  []part
	dice   *rand.Rand
	left   int
	at     float64 // ms of the next arrival
	gap    float64 // mean ms between arrivals
	nextID int64
}

const (
	strangeSigma   = 0.4    // of the lengths
	strangeLongest = 32_768 // tokens of a prompt, and of an answer
)

func newStrangers(parts []part, seed uint64, perSecond float64, requests int) trace.Source {
	return &strangers{
		parts: parts, dice: rand.New(rand.NewPCG(seed, 4)), left: requests, gap: 1000 / perSecond,
		nextID: int64(len(parts)),
	}
}

// Next returns the next request.
func (s *strangers) Next() (trace.Request, error) {
	if s.left == 0 {
		return trace.Request{}, io.EOF
	}
	s.left--
	of := s.pick()
	q := trace.Request{
		Timestamp: int64(s.at), InputLength: s.length(s.parts[of].prompt), OutputLength: s.length(s.parts[of].answer),
		HashIDs: []int64{int64(of)}, SystemBlocks: 1,
	}
	for range q.InputLength / trace.BlockTokens {
		q.HashIDs = append(q.HashIDs, s.nextID)
		s.nextID++
	}
	s.at += s.gap * s.dice.ExpFloat64()
	return q, nil
}

// pick returns the number of a random part.
func (s *strangers) pick() int {
	sum := 0.0
	for _, p := range s.parts {
		sum += p.share
	}
	x := s.dice.Float64() * sum
	for i, p := range s.parts {
		if x -= p.share; x < 0 {
			return i
		}
	}
	return len(s.parts) - 1
}

// length returns a random number of tokens with the given mean.
func (s *strangers) length(mean float64) int {
	factor := math.Exp(strangeSigma*s.dice.NormFloat64() - strangeSigma*strangeSigma/2)
	return 1 + min(int(mean*factor), strangeLongest)
}
