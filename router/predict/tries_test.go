package predict

import "testing"

// tryAfter returns how many answers of another engine it takes until e may be tried with a prompt
// of so many tokens, at most most.
func tryAfter(e, other *Engine, m *machine, tokens int64, most int) (answers int) {
	now := noon
	for ; answers < most; answers++ {
		if s := e.Speed(); e.MayTry(&s, Prompt(tokens, 0)) {
			break
		}
		now = m.run(other, 1, now)
	}
	return answers
}

// TestTries checks when an engine that is slow is tried: sooner with a short prompt than with a
// long one, later after each slow answer, and at once after one that is not slow.
func TestTries(t *testing.T) {
	all, machines, now := fleet(linear, 500, 1, 1)
	e, m := all[0], machines[0]
	usual := int64(0)
	for n := int64(1); n < 1_000_000 && usual == 0; n += 100 {
		r := e.Kind().Rates()
		if r.Prefill(Prompt(n, 0)) >= r.Prefill(e.Kind().usualWork()) {
			usual = n
		}
	}
	if got := tryAfter(e, all[1], machines[1], usual/4, 1000); got != 1000 {
		t.Fatalf("an engine like its kind is tried after %d answers", got)
	}
	m.slower = 5
	now = m.run(e, 8, now)
	short, long := tryAfter(e, all[1], machines[1], usual/4, 1000), tryAfter(e, all[1], machines[1], 2*usual, 10000)
	if short > pauseLeast || long+short < 3*pauseLeast || long+short > 5*pauseLeast {
		t.Errorf("a short prompt tries it after %d answers, a long one after %d more", short, long)
	}
	for pause := 2 * pauseLeast; pause <= 2*pauseMost; pause *= 2 {
		e.Tried()
		now = m.run(e, 1, now) // still slow
		got := tryAfter(e, all[1], machines[1], usual/4, 10000)
		if want := min(pause, pauseMost); got < want-1 || got > want+1 {
			t.Errorf("the next try comes after %d answers, want %d", got, want)
		}
	}
	m.slower = 1
	for tries := 0; ; tries++ {
		s := e.Speed()
		if was := s; !e.MayTry(&s, Prompt(usual/4, 0)) {
			if tries < 2 || was.PrefillFactor > 1.5*s.Typical[prefill] {
				t.Errorf("after %d tries its factor is %v", tries, was.PrefillFactor)
			}
			break
		} else if s.PrefillFactor != s.Typical[prefill] || s.DecodeFactor != s.Typical[decode] || was == s {
			t.Fatalf("a try at speed %+v", s)
		}
		e.Tried()
		if now = m.run(e, 1, now); tries > 40 {
			t.Fatal("it is still tried")
		}
	}
}
