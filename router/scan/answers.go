package scan

import (
	"math"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// answers says how much a request may generate at most, as far as its members tell. An engine may
// obey any member of several that differ, so the largest one counts.
type answers struct {
	most      int64 // the largest maximum of the tokens of one answer; 0: none
	n         int64 // the largest one of n, best_of and n_cmpl; 0: none
	prompts   int32 // in a list
	bound     bool  // a maximum is one that every engine obeys
	unbounded bool  // a maximum is no positive whole number, so an engine may take it for none
	unclear   bool  // n, best_of or n_cmpl is neither a whole number nor null
}

// binding are the maxima that every engine obeys, for each API. vLLM and SGLang ignore the others,
// but llama.cpp prefers n_predict and max_completion_tokens to all of them.
var binding = [...]uint32{
	Chat:        1<<rootMaxTokens | 1<<rootMaxCompletionTokens,
	Completions: 1 << rootMaxTokens,
	Responses:   1 << rootMaxOutputTokens,
	Messages:    1 << rootMaxTokens,
	Other:       1<<rootMaxTokens | 1<<rootMaxCompletionTokens | 1<<rootMaxOutputTokens,
}

// maximum reads a maximum. binds says that every engine obeys it. Only the engine judges a value
// that is no positive whole number.
func (r *Request) maximum(binds bool) {
	a, kind := &r.root.answers, r.c.Kind()
	if kind != jsonscan.Number {
		a.unbounded = a.unbounded || kind != jsonscan.Null
		r.c.Skip()
		return
	}
	n, whole := r.c.Int()
	a.most, a.bound = max(a.most, n), a.bound || binds
	a.unbounded = a.unbounded || !whole || n <= 0
}

// choices reads n, best_of or n_cmpl.
func (r *Request) choices() {
	a, kind := &r.root.answers, r.c.Kind()
	if kind != jsonscan.Number {
		a.unclear = a.unclear || kind != jsonscan.Null
		r.c.Skip()
		return
	}
	n, whole := r.c.Int()
	a.n, a.unclear = max(a.n, n), a.unclear || !whole
}

// MostTokens returns the largest number among the maxima that the request sets for the tokens of
// one answer; 0: none. If MaxTokens is 0, an engine may take them for none.
func (r *Request) MostTokens() int64 { return r.root.answers.most }

// Answers returns how many answers the request asks for: n, best_of or n_cmpl for each prompt of a
// list. ok is false if one of them is not a whole number.
func (r *Request) Answers() (n int64, ok bool) {
	a := &r.root.answers
	n = max(a.n, 1)
	if prompts := int64(max(a.prompts, 1)); r.api == Completions {
		if n > math.MaxInt64/prompts {
			return math.MaxInt64, !a.unclear
		}
		n *= prompts
	}
	return n, !a.unclear
}
