package predict

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// answers lets l learn n answers of about these tokens.
func answers(l *Lengths, c Class, n int, tokens float64) {
	dice := rand.New(rand.NewPCG(uint64(tokens), 1))
	for range n {
		l.Learn(&c, int64(tokens*(1+0.1*dice.NormFloat64())))
	}
}

// TestColdLengths checks the lengths of answers before any was seen, and the zero value.
func TestColdLengths(t *testing.T) {
	var l Lengths
	for bound, want := range map[int64]float64{0: 256, 10: 10, 256: 256, 1 << 20: 256, -5: 256} {
		within(t, "the length", l.Expected(&Class{Model: 1, Caller: 2, Session: 3, Bound: bound}), want, 1e-9)
	}
	if l.Learn(&Class{}, 0); l.models != nil || l.narrow != nil {
		t.Error("an answer without a token takes memory")
	}
}

// TestLengthsByClass checks that the narrowest class with enough answers decides, and that each
// part of a class counts.
func TestLengthsByClass(t *testing.T) {
	var l Lengths
	answers(&l, Class{Model: 1}, 100, 1000)
	answers(&l, Class{Model: 2}, 100, 50)
	answers(&l, Class{Model: 1, Caller: 7}, 100, 200)
	answers(&l, Class{Model: 1, Caller: 8}, 100, 4000)
	answers(&l, Class{Model: 1, Caller: 8, Session: 5}, 100, 20)
	answers(&l, Class{Model: 1, Caller: 7, Bound: 3000}, 100, 2500)
	for _, c := range []struct {
		class Class
		want  float64
	}{
		{Class{Model: 2}, 50}, {Class{Model: 2, Caller: 7}, 50},
		{Class{Model: 1, Caller: 7}, 200}, {Class{Model: 1, Caller: 7, Session: 6}, 200},
		{Class{Model: 1, Caller: 8, Session: 5}, 20},
		{Class{Model: 1, Caller: 7, Bound: 2600}, 2500}, // a bound of the same order of magnitude
		{Class{Model: 1, Caller: 7, Bound: 3900}, 2500},
	} {
		within(t, "the length", l.Expected(&c.class), c.want, 0.25)
	}
	if got := l.Expected(&Class{Model: 1, Caller: 7, Bound: 100}); got > 100 {
		t.Errorf("an answer of at most 100 tokens is expected to have %v", got)
	}
}

// TestFewAnswers checks that a class counts the more, the more answers it has: with trust of them
// as much as the wider one.
func TestFewAnswers(t *testing.T) {
	var l Lengths
	for range 1000 {
		l.Learn(&Class{Model: 1}, 1000)
	}
	last := l.Expected(&Class{Model: 1, Caller: 9})
	within(t, "the length of an unseen caller's answer", last, 1000, 0.01)
	for i := range 8 {
		l.Learn(&Class{Model: 1, Caller: 9}, 10)
		got := l.Expected(&Class{Model: 1, Caller: 9})
		if got >= last {
			t.Errorf("%v tokens after %d short answers, %v before", got, i+1, last)
		}
		if last = got; i+1 == trust && (got < 50 || got > 200) {
			t.Errorf("%v tokens after %d answers of 10 tokens among others of 1000", got, trust)
		}
	}
}

// TestChangedLengths checks that old answers are forgotten, and that the distribution's tail
// counts.
func TestChangedLengths(t *testing.T) {
	var l Lengths
	c := Class{Model: 1}
	answers(&l, c, 1000, 2000)
	answers(&l, c, 200, 30)
	within(t, "the length after 200 short answers", l.Expected(&c), 30, 0.1)

	dice, sum := rand.New(rand.NewPCG(1, 1)), 0.0
	var tail Lengths
	got := 0.0
	for range 2000 {
		tokens := math.Exp(5 + dice.NormFloat64())
		tail.Learn(&c, int64(tokens))
		sum += tokens
		got += tail.Expected(&c)
	}
	within(t, "the mean length of many", got/2000, sum/2000, 0.1)
}

// TestShortAndLongAnswers checks a class with answers of two lengths. No answer is expected to be
// longer than the longest one.
func TestShortAndLongAnswers(t *testing.T) {
	for _, long := range []int64{8000, math.MaxInt64} {
		var l Lengths
		c := Class{Model: 1, Caller: 2}
		for i := range 200 {
			l.Learn(&c, 1)
			if l.Learn(&c, long); i > 2*trust && l.Expected(&c) > float64(long) {
				t.Fatalf("%v tokens after answers of 1 and of %d", l.Expected(&c), long)
			}
		}
	}
}

// TestLengthsAreBounded checks that many classes take no more memory than few, and that a caller
// loses its place to another one, but never takes the other one's answers for its own.
func TestLengthsAreBounded(t *testing.T) {
	var l Lengths
	for i := range uint64(3 * narrowClasses) {
		l.Learn(&Class{Model: i, Caller: i + 1, Session: i + 1, Bound: 100}, 100)
	}
	size := uintptr(len(l.narrow)+len(l.models)) * unsafe.Sizeof(lengths{})
	if len(l.narrow) != narrowClasses || len(l.models) != modelClasses || size > 1<<20 {
		t.Errorf("%d and %d classes take %d bytes", len(l.models), len(l.narrow), size)
	}

	// Two callers that share a place.
	place := func(caller uint64) uint64 { c := Class{Model: 2, Caller: caller}; return c.keys()[2] % narrowClasses }
	a, b := uint64(1), uint64(2)
	for place(b) != place(a) {
		b++
	}
	var shared Lengths
	answers(&shared, Class{Model: 2}, 100, 500)
	answers(&shared, Class{Model: 2, Caller: a}, 100, 20)
	within(t, "the length of a caller without answers", shared.Expected(&Class{Model: 2, Caller: b}), 20,
		0.5) // its model's
	answers(&shared, Class{Model: 2}, 200, 500)
	within(t, "the length of a caller without answers", shared.Expected(&Class{Model: 2, Caller: b}), 500, 0.1)
	within(t, "the length of a caller with answers", shared.Expected(&Class{Model: 2, Caller: a}), 20, 0.3)
	answers(&shared, Class{Model: 2, Caller: b}, 1, 500)
	within(t, "the length of a caller that lost its place", shared.Expected(&Class{Model: 2, Caller: a}), 500, 0.1)
}

// TestModelsKeepTheirLengths checks that a model's classes outlive any number of callers and
// sessions that come once, of its own and of other models.
func TestModelsKeepTheirLengths(t *testing.T) {
	var l Lengths
	quiet, bounded := Class{Model: 1}, Class{Model: 1, Bound: 4000}
	answers(&l, bounded, 100, 3000)
	answers(&l, quiet, 200, 1000)
	busy := Class{Model: 2}
	for i := range uint64(3 * narrowClasses) {
		c := Class{Model: busy.Model, Caller: i + 1, Session: i + 1}
		if l.Learn(&c, 20); i > 100 {
			c.Caller, c.Session = ^c.Caller, ^c.Session // not seen yet
			if got := l.Expected(&c); got > 25 {        // a model without its class: about 150
				t.Fatalf("%v tokens of a new caller's answer after %d of 20 tokens", got, i+1)
			}
		}
	}
	within(t, "the length of the quiet model's answer", l.Expected(&quiet), 1000, 0.25)
	within(t, "the length of its bounded answer", l.Expected(&bounded), 3000, 0.25)
}

// TestAbsurdLengths checks that a count which no engine can have answered with teaches nothing.
func TestAbsurdLengths(t *testing.T) {
	var l Lengths
	c := Class{Model: 1}
	for range 20 {
		l.Learn(&c, 40)
	}
	before := l.Expected(&c)
	for _, tokens := range []int64{-1, 0, longestAnswer + 1, 1e15, math.MaxInt64} {
		if l.Learn(&c, tokens); l.Expected(&c) != before {
			t.Errorf("%d tokens change %v to %v", tokens, before, l.Expected(&c))
		}
	}
}
