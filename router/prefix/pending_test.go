package prefix

import (
	"fmt"
	"testing"
	"time"
)

// expectComing is expect for the blocks that the nodes hold or compute.
func (f *fleet) expectComing(what string, text []byte, want ...int32) {
	f.Helper()
	held, coming := make([]int32, len(f.refs)), make([]int32, len(f.refs))
	f.x.Match(chain(text), f.refs, held, coming)
	if fmt.Sprint(coming) != fmt.Sprint(want) {
		f.Errorf("%s: %v blocks are coming, want %v", what, coming, want)
	}
}

// TestPendingIsNotHeld checks that a node holds a prompt only once it has begun to answer a request
// that computes it.
func TestPendingIsNotHeld(t *testing.T) {
	f := newFleet(t, 2)
	base := prompt("base", 200)
	first := f.dispatch(0, base)
	f.expect("before the first byte", base, 0, 0)
	f.expectComing("it is on its way", branch(base, 150, "tail", 170), 150, 0)
	second := f.dispatch(0, branch(base, 150, "tail", 170))
	if second.believed != 0 {
		t.Errorf("a second request believes %d blocks", second.believed)
	}
	first.begun()
	f.expect("the first answer has begun", base, 200, 0)
	f.expect("its prompt only", branch(base, 150, "tail", 170), 150, 0)
	second.begun()
	f.expect("both", branch(base, 150, "tail", 170), 170, 0)
}

// TestAnyRequestThatComputesItBegins checks that a later request may be answered first.
func TestAnyRequestThatComputesItBegins(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 100)
	first := f.dispatch(0, base)
	f.advance(time.Second)
	second := f.dispatch(0, base)
	second.begun()
	f.expect("of the second request", base, 100)
	f.advance(time.Second)
	first.forget()
	f.expect("the first one's failure takes nothing", base, 100)
}

func TestAWarmNodeKeepsItsBelief(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 100)
	f.serve(0, base[:90*BlockBytes], 0)
	again := f.dispatch(0, base)
	f.expect("what was held, without what is computed", base, 90)
	f.expectComing("and with it", base, 100)
	again.forget()
	f.expect("a failure gives back what it added", base, 90)
	f.dispatch(0, base).begun()
	f.expect("begun", base, 100)
}

// TestFailuresLeaveNothingBelieved checks that failed requests leave no beliefs, in any order.
func TestFailuresLeaveNothingBelieved(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		f := newFleet(t, 1)
		base := prompt("base", 60)
		flights := []*flight{f.dispatch(0, base)}
		f.advance(time.Second)
		flights = append(flights, f.dispatch(0, base))
		for _, i := range order {
			flights[i].forget()
		}
		f.expect("nobody has computed it", base, 0)
		f.dispatch(0, base).begun()
		f.expect("now somebody has", base, 60)
	}
}

// TestAnExpiredBeliefIsPendingAgain checks that an expired belief becomes pending until the answer
// begins.
func TestAnExpiredBeliefIsPendingAgain(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 100)
	f.send(0, base)
	f.advance(121 * time.Second)
	again := f.dispatch(0, base)
	f.expect("computing", base, 0)
	again.begun()
	f.expect("begun", base, 100)
}

// TestTheEndIsABeginning checks that the end of a request confirms its blocks, even without a
// Begun.
func TestTheEndIsABeginning(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 100)
	f.dispatch(0, base).answer(0)
	f.expect("answered", base, 100)
}

func TestBegunOfAnotherIncarnation(t *testing.T) {
	f := newFleet(t, 1)
	base := prompt("base", 20)
	fl := f.dispatch(0, base)
	f.x.Leave(f.refs[0])
	f.refs[0] = f.x.Join("node-0")
	fl.begun()
	f.x.Begun(fl.c, f.refs[0])
	f.x.Begun(chain(base), f.refs[0])
	f.expect("it has restarted", base, 0)
}

// TestHeldAndComingInLongPrompts checks that the beginning of a long prompt's pending part is found
// without a look at every group.
func TestHeldAndComingInLongPrompts(t *testing.T) {
	for held := 0; held <= 960; held += 37 {
		f := newFleet(t, 1)
		base := prompt("base", 1000)
		if held > 0 {
			f.serve(0, base[:held*BlockBytes], 0)
		}
		f.dispatch(0, base)
		f.expect("held", base, int32(held))
		f.expectComing("coming", base, 1000)
	}
}
