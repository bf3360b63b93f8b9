package scan

import (
	"math"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// answers says how much a request may generate at most, as far as its members tell. An engine may
// obey any member of several that differ, so the largest one counts.
type answers struct {
	most      int64 // the largest maximum of the tokens of one answer; 0: none
	n         int64 // the larger one of n and best_of; 0: none
	prompts   int32 // in a list
	unbounded bool  // a maximum is no positive whole number, so an engine may take it for none
	unclear   bool  // n or best_of is neither a whole number nor null
}

// note notes a maximum.
func (a *answers) note(n int64, whole bool) {
	a.most = max(a.most, n)
	a.unbounded = a.unbounded || !whole || n <= 0
}

// choices reads n or best_of.
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

// MostTokens returns the maximum that the request sets for the tokens of one answer, the largest
// one of several; 0: none, or one that an engine may take for none.
func (r *Request) MostTokens() int64 {
	if r.root.answers.unbounded {
		return 0
	}
	return r.root.answers.most
}

// Answers returns how many answers the request asks for: n or best_of for each prompt of a list. ok
// is false if n or best_of is not a whole number.
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
