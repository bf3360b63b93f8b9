package prefix

import (
	"fmt"
	"math"
	"testing"
	"time"
)

func TestAgreementWithinAnEngineBlock(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 20)
	if e := f.serve(0, base, 0); e != 0 {
		t.Errorf("a first request: error %v", e)
	}
	if e := f.serve(0, base, 19); e != 0 {
		t.Errorf("all but the last block: error %v", e)
	}
	if e := f.serve(0, base, 10); math.Abs(e-0.5) > 1e-9 {
		t.Errorf("half of it: error %v, want 0.5", e)
	}
}

func TestFractionsNotCounts(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 20)
	f.serve(0, base, 0)
	fl := f.send(0, base)
	// The engine's tokens are coarser: 180 instead of 320.
	o := Observation{Ref: fl.ref, Believed: fl.believed, DispatchedAt: fl.at, PromptTokens: 180, CachedTokens: 176}
	if e := f.x.Observe(fl.c, o); e != 0 {
		t.Errorf("error %v, want 0", e)
	}
	// llama.cpp counts single tokens, but an engine may have larger blocks.
	fl = f.send(0, base)
	o = Observation{Ref: fl.ref, Believed: fl.believed, DispatchedAt: fl.at, PromptTokens: 180,
		CachedTokens: 128, EngineBlockTokens: 64}
	if e := f.x.Observe(fl.c, o); e != 0 {
		t.Errorf("within a block of 64: error %v, want 0", e)
	}
}

func TestShorterThanBelieved(t *testing.T) {
	f := newFleet(t, 2)
	base := prompt("base", 20)
	tail := branch(base, 15, "other", 30)
	f.serve(0, tail, 0)
	f.serve(0, base, 15)
	f.send(1, tail)
	f.expect("before", tail, 30, 30)

	f.advance(10 * time.Second)
	f.serve(0, base, 5)
	f.expect("older beliefs below the cut are gone on that node only", tail, 15, 30)
	f.expect("this request's own blocks stay", base, 20, 15)
	f.advance(5 * time.Second)
	f.expect("and are dated now", base, 20, 15)
}

// TestACutIsSeenInLongPrompts checks that a cut is found in a prompt of any length, even if the cut
// has moved few groups.
func TestACutIsSeenInLongPrompts(t *testing.T) {
	for _, c := range []struct{ shared, cached, other int }{
		{32, 14, 48}, {48, 30, 64}, {160, 140, 300}, {400, 380, 800}, {1600, 1510, 3000}, {1600, 20, 3000},
	} {
		f := newFleet(t, 2)
		base := prompt("base", c.shared)
		tail := branch(base, c.shared, "other", c.other)
		f.serve(0, tail, 0)
		f.serve(0, base, c.shared)
		f.advance(10 * time.Second)
		f.expect("before", tail, int32(c.other), 0)
		n := f.x.node(f.refs[0])
		lifetime := n.lifetime.Load()
		f.serve(0, base, c.cached)
		n.lifetime.Store(lifetime) // this test is not about the learned lifetime
		f.expect(fmt.Sprintf("%d of %d blocks were there", c.cached, c.shared), tail, int32(c.shared), 0)
		f.expect("the request's own", base, int32(c.shared), 0)
	}
}

// TestPromptsThatPartWithinAGroup checks what is learned where conversations share a beginning that
// ends within a group. Tags may mistake a conversation's blocks for another's. That is no evidence.
// A conversation that is gone teaches its own age, and the others stay believed.
func TestPromptsThatPartWithinAGroup(t *testing.T) {
	f := newFleet(t, 1)
	system := prompt("system", 10)
	old, young := branch(system, 10, "old", 40), branch(system, 10, "young", 40)
	f.serve(0, old, 0)
	f.advance(30 * time.Second)
	f.serve(0, young, 10)
	n := f.x.node(f.refs[0])
	before := n.lifetime.Load()
	for i, mistaken := 0, 0; mistaken < 3 && i < 20_000; i++ {
		fl := f.send(0, branch(system, 10, fmt.Sprint("other ", i), 13))
		if fl.believed >= 12 {
			mistaken++
		}
		fl.answer(10)
		f.advance(time.Millisecond)
	}
	if now := n.lifetime.Load(); now != before {
		t.Errorf("mistaken blocks taught a lifetime of %d ms after %d", now, before)
	}
	f.expect("the younger conversation", young, 40)
	f.advance(10 * time.Second)
	f.serve(0, old, 10)
	if now := n.lifetime.Load(); now < 30_000 || now > 41_000 {
		t.Errorf("the older conversation was gone after 40 s, which taught %d ms", now)
	}
	f.expect("the younger conversation stays", young, 40)
}

// TestFirstGone checks which group is found gone, with engine blocks of one block and of four.
func TestFirstGone(t *testing.T) {
	for _, c := range []struct {
		believed, actual int
		slack            float64
		group            int
		ok               bool
	}{
		{32, 10, 1, 1, true}, {17, 15, 1, 1, true}, {32, 14, 4, 2, false}, {33, 14, 4, 2, true},
		{16, 10, 1, 1, false},                    // the blocks behind the leader are no evidence
		{16, 0, 1, 0, true}, {5, 0, 4, 1, false}, // nothing was found
		{2, 0, 1, 1, false}, {7, 0, 1, 1, false}, // all but the leader may be another prompt's
		{8, 0, 1, 0, true},                       // more than are ever mistaken
		{17, 0, 4, 0, true}, {23, 0, 4, 0, true}, // the group before the last one is certain
		{10, 0, 4, 1, false}, {11, 0, 4, 0, true}, // an engine block may be missing although its leader is there
	} {
		v := verdict{believed: float64(c.believed), actual: float64(c.actual), slack: c.slack}
		if group, ok := v.firstGone(c.believed); group != c.group || ok != c.ok {
			t.Errorf("%d blocks believed, %d found, engine blocks of %g: group %d, %v; want %d, %v", c.believed,
				c.actual, c.slack, group, ok, c.group, c.ok)
		}
	}
}

func TestTheLifetimeShrinksToTheAgeOfTheYoungestGone(t *testing.T) {
	f := newFleet(t, 2)
	base := prompt("base", 40)
	f.serve(0, base, 0)
	f.advance(30 * time.Second)
	f.serve(0, base, 0)
	if got := f.x.Lifetime(f.refs[0]); got != taught(30*time.Second) {
		t.Errorf("lifetime %v, want %v", got, taught(30*time.Second))
	}
	if got := f.x.Lifetime(f.refs[1]); got != 120*time.Second {
		t.Errorf("the other node's lifetime %v, want 2m0s", got)
	}
	f.advance(taught(30*time.Second) + time.Second)
	f.expect("older than that is not believed", base, 0, 0)
}

// taught returns the lifetime learned from a block that was gone at the given age.
func taught(age time.Duration) time.Duration { return age - age/8 }

// TestOneIsEnoughToLearnAPeriod repeats prompts in turn. Each prompt is gone from the cache at
// about the same age each time. The first repeated prompt must teach the lifetime for all prompts.
// Another prompt is used all the time.
func TestOneIsEnoughToLearnAPeriod(t *testing.T) {
	f := newFleet(t, 1)
	used := prompt("used", 20)
	f.serve(0, used, 0)
	wrong := 0
	for round := range 5 {
		for i := range 8 {
			f.advance(1250*time.Millisecond - time.Duration(round)*10*time.Millisecond)
			f.serve(0, used, 20)
			if e := f.serve(0, prompt(fmt.Sprint("in turn ", i), 40), 0); e > 0.5 {
				wrong++
			}
		}
	}
	if wrong != 1 {
		t.Errorf("%d prompts were believed to be there, want 1", wrong)
	}
}

func TestTheLifetimeIsBounded(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 40)
	f.serve(0, base, 0)
	f.advance(10 * time.Millisecond)
	f.serve(0, base, 0)
	if got := f.x.Lifetime(f.refs[0]); got != time.Second {
		t.Errorf("lifetime %v, want the floor of 1s", got)
	}
}

func TestTheLifetimeGrowsWhenOldBeliefsProveRight(t *testing.T) {
	f := newFleet(t, 1)
	f.lose(0, 100*time.Second)
	base := prompt("base", 40)
	f.serve(0, base, 0)
	last := f.x.Lifetime(f.refs[0])
	for range 12 { // idle for longer than the lifetime, but still cached
		f.advance(5 * time.Minute)
		f.serve(0, base, 39)
		got := f.x.Lifetime(f.refs[0])
		if got < last || got > last+75*time.Second {
			t.Errorf("lifetime went from %v to %v", last, got)
		}
		last = got
	}
	f.advance(5 * time.Minute)
	f.expect("believed now", base, 40)
}

func TestAYoungProofDoesNotMoveTheLifetime(t *testing.T) {
	f := newFleet(t, 1)
	f.lose(0, 100*time.Second)
	base := prompt("base", 40)
	f.serve(0, base, 0)
	for range 100 {
		f.advance(20 * time.Second)
		f.serve(0, base, 40)
	}
	if got := f.x.Lifetime(f.refs[0]); got != taught(100*time.Second) {
		t.Errorf("lifetime %v, want %v", got, taught(100*time.Second))
	}
}

// lose makes a node lose a prompt of the given age, which is below its lifetime.
func (f *fleet) lose(node int, age time.Duration) {
	f.serve(node, prompt("lost", 40), 0)
	f.advance(age)
	f.serve(node, prompt("lost", 40), 0)
}

// TestAllIsBelievedUntilSomethingIsLost checks an engine that has reported cached tokens. All
// blocks are believed until the engine reports a loss.
func TestAllIsBelievedUntilSomethingIsLost(t *testing.T) {
	f := newFleet(t, 2)
	old, base := prompt("old", 40), prompt("base", 40)
	f.serve(0, old, 0)
	f.serve(1, old, 0)
	f.serve(0, base, 0)
	f.advance(time.Second)
	f.serve(0, base, 40)
	f.advance(3 * time.Hour)
	f.expect("after three hours", old, 40, 0)
	f.serve(0, old, 0)
	if got := f.x.Lifetime(f.refs[0]); got < 2*time.Hour || got > 3*time.Hour {
		t.Errorf("lifetime %v after a loss at 3h0m1s", got)
	}
	f.x.Leave(f.refs[1])
	if got := f.x.Lifetime(f.x.Join("node-1")); got != 120*time.Second {
		t.Errorf("a node of which nothing was learned begins again with %v", got)
	}
}

// TestConcurrentRequestsAreNoEvidence runs requests with a common prefix at once. Each request
// finds the prefix missing, and only the first one's count is evidence.
func TestConcurrentRequestsAreNoEvidence(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("system", 20)
	a := f.send(0, branch(base, 20, "a", 40))
	f.advance(50 * time.Millisecond)
	b := f.send(0, branch(base, 20, "b", 40))
	f.advance(50 * time.Millisecond)
	c := f.send(0, branch(base, 20, "c", 40))
	for _, fl := range []*flight{b, c, a} {
		f.advance(time.Second)
		fl.answer(0)
	}
	if got := f.x.Lifetime(f.refs[0]); got != 120*time.Second {
		t.Errorf("lifetime %v, want 2m0s", got)
	}
	for _, name := range []string{"a", "b", "c"} {
		f.expect(name, branch(base, 20, name, 40), 40)
	}
}

// TestConcurrentRequestsAfterAnEviction runs requests with a common prefix at once. The prefix was
// cached once and is being recomputed.
func TestConcurrentRequestsAfterAnEviction(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("system", 20)
	f.serve(0, base, 0)
	f.advance(40 * time.Second)
	a := f.send(0, branch(base, 20, "a", 40))
	f.advance(50 * time.Millisecond)
	b := f.send(0, branch(base, 20, "b", 40))
	f.advance(time.Second)
	b.answer(0)
	if got := f.x.Lifetime(f.refs[0]); got != 120*time.Second {
		t.Errorf("after the second one: lifetime %v, want 2m0s", got)
	}
	a.answer(0)
	if got := f.x.Lifetime(f.refs[0]); got != taught(40*time.Second) {
		t.Errorf("after the first one: lifetime %v, want %v", got, taught(40*time.Second))
	}
	f.expect("a", branch(base, 20, "a", 40), 40)
	f.expect("b", branch(base, 20, "b", 40), 40)
}

// TestLateFeedbackSparesYoungerBlocks checks that a count does not change beliefs born after its
// dispatch.
func TestLateFeedbackSparesYoungerBlocks(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 20)
	f.serve(0, base, 0)
	f.advance(10 * time.Second)
	slow := f.send(0, base) // finds the prompt evicted
	f.advance(10 * time.Second)
	young := branch(base, 10, "young", 30)
	f.serve(0, young, 10)
	slow.answer(0)
	f.expect("blocks born after the slow request's dispatch", young, 30)
}

func TestFailedRequestsLeaveNothing(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 10)
	f.serve(0, base, 0)
	f.advance(time.Second)
	fl := f.send(0, branch(base, 10, "new", 25))
	f.expect("in flight", branch(base, 10, "new", 25), 25)
	f.x.Forget(fl.c, fl.ref, fl.at)
	f.expect("failed", branch(base, 10, "new", 25), 10)
	f.advance(119 * time.Second)
	f.expect("what was there before is as old as it was", base, 10)
	f.advance(2 * time.Second)
	f.expect("and expires when it would have", base, 0)
}

func TestAFailedRequestSparesSharers(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 10)
	failing := f.send(0, base)
	f.advance(time.Millisecond)
	f.send(0, base)
	f.x.Forget(failing.c, failing.ref, failing.at)
	f.expect("used by another request since", base, 10)
}

func TestAnEngineThatDoesNotCache(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 40)
	for range 4 {
		f.serve(0, base, 0)
	}
	f.expect("after three repeats that found nothing", base, 0)
	if f.x.Caching(f.refs[0]) {
		t.Error("the node is taken to cache")
	}
	f.serve(0, base, 39)
	if !f.x.Caching(f.refs[0]) {
		t.Error("a cached token did not bring the node back")
	}
	f.expect("after a repeat that found something", base, 40)
}

func TestZerosInParallelCountOnce(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 40)
	f.serve(0, base, 0)
	var fls []*flight
	for range 10 {
		fls = append(fls, f.send(0, base))
	}
	f.advance(time.Second)
	for _, fl := range fls {
		fl.answer(0)
	}
	if !f.x.Caching(f.refs[0]) {
		t.Error("one eviction under ten parallel requests looks like caching switched off")
	}
}

// TestImagesTeachOnlyWhetherAnythingWasThere checks a prompt that consists mostly of images for the
// engine. The prompt's count says only whether anything was cached.
func TestImagesTeachOnlyWhetherAnythingWasThere(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 20)
	image := branch(base, 20, "image", 21)
	f.serve(0, image, 0)
	f.advance(20 * time.Second)
	fl := f.send(0, image)
	o := Observation{Ref: fl.ref, Believed: fl.believed, DispatchedAt: fl.at, PromptTokens: 1258,
		CachedTokens: 320, Uneven: true}
	if e := f.x.Observe(fl.c, o); e != 0 || f.x.Lifetime(fl.ref) != 120*time.Second {
		t.Errorf("error %v, lifetime %v", e, f.x.Lifetime(fl.ref))
	}
	f.expect("what it has", image, 21)
	f.advance(20 * time.Second)
	fl = f.send(0, image)
	o = Observation{Ref: fl.ref, Believed: fl.believed, DispatchedAt: fl.at, PromptTokens: 1258, Uneven: true}
	if e := f.x.Observe(fl.c, o); e != 1 || f.x.Lifetime(fl.ref) == 120*time.Second {
		t.Errorf("nothing was there: error %v, lifetime %v", e, f.x.Lifetime(fl.ref))
	}
}

func TestMoreThanBelieved(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 40)
	fl := f.send(0, base)
	if e := fl.answer(30); math.Abs(e+0.75) > 1e-9 {
		t.Errorf("error %v, want -0.75", e)
	}
	f.expect("believed now", base, 40)
}

func TestNoPromptNoEvidence(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 40)
	f.serve(0, base, 0)
	fl := f.send(0, base)
	if e := f.x.Observe(fl.c, Observation{Ref: fl.ref, Believed: 40, DispatchedAt: fl.at}); e != 0 {
		t.Errorf("error %v, want 0", e)
	}
	short := f.send(0, base[:30])
	if e := short.answer(0); e != 0 {
		t.Errorf("a prompt without a full block: error %v, want 0", e)
	}
}

func TestTheLifetimeOutlivesARestart(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 40)
	f.serve(0, base, 0)
	f.advance(30 * time.Second)
	f.serve(0, base, 0)
	f.x.Leave(f.refs[0])
	if got := f.x.Lifetime(f.x.Join("node-0")); got != taught(30*time.Second) {
		t.Errorf("lifetime %v, want %v", got, taught(30*time.Second))
	}
}
