package engine

import (
	"bytes"
	"hash/fnv"
	"math"
	"strings"
)

// Difficulty returns how hard a question is, uniform in 0..1. A question is the last text of the
// user in a chat, or the whole prompt of a completion. An engine's answer is right if the
// difficulty is at most its Config.Quality.
func Difficulty(question string) float64 { return fraction(mix(questionHash(question))) }

// RightAnswer returns the word at the end of a right answer to a question, without the space before
// it. It is the same for all engines.
func RightAnswer(question string) string {
	return strings.TrimSpace(words[rightPick(questionHash(question))])
}

func questionHash(question string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(question))
	return h.Sum64()
}

func rightPick(question uint64) byte { return byte(mix(question^1) % uint64(len(words))) }

// fraction maps a hash to 0..1, without 1.
func fraction(hash uint64) float64 { return float64(hash>>11) / (1 << 53) }

// normal maps a hash to a standard normal variate.
func normal(hash uint64) float64 {
	return math.Sqrt(-2*math.Log(1-fraction(hash))) * math.Cos(2*math.Pi*fraction(mix(hash)))
}

// These set the mean of -logprob over an answer's tokens: a log-normal variate, whose medians for
// right and wrong answers differ. A right answer has the higher mean in four of five pairs.
const (
	rightSurprise  = 0.25
	wrongSurprise  = 0.65
	surpriseSpread = 0.8
)

// questionIn returns the question in a prompt's tokens.
func questionIn(prompt []uint32) []byte {
	text := appendText(make([]byte, 0, len(prompt)*tokenBytes), prompt)
	if at := bytes.LastIndex(text, []byte("<|user|>")); at >= 0 {
		text, _, _ = bytes.Cut(text[at+len("<|user|>"):], []byte(endMark))
	}
	return text
}

// judge decides whether the answer to source is right, its last word and how sure its tokens look.
// The first word of an answer alone says nothing, so that a prefill with one token has the words of
// the decode.
func (o *output) judge(quality float64, source []uint32) {
	question := string(questionIn(source))
	hash := questionHash(question)
	pick, surprise := rightPick(hash), rightSurprise
	if Difficulty(question) > quality {
		others := uint64(len(words) - 1)
		pick = byte((uint64(pick) + 1 + mix(hash^o.voice)%others) % uint64(len(words)))
		surprise = wrongSurprise
	}
	o.surprise = surprise * math.Exp(surpriseSpread*normal(mix(hash^mix(o.voice))))
	if o.fixed == "" && o.limit+max(0, spokenIn(source, len(source))) > 1 {
		o.picks[o.limit-1] = pick
	}
}

// graded returns the log probability of rank r at token i of a judged answer. -logprob of rank 0 is
// exponential with the mean of the answer.
func (o *output) graded(i, r int) float64 {
	own := max(o.surprise*math.Log(1-fraction(o.chance(i))), -20)
	if r == 0 {
		return own
	}
	rest := max(math.Log(-math.Expm1(own)), -20)
	return min(rest-0.7*float64(r), own-0.01*float64(r))
}
