package health

import (
	"testing"
	"time"
)

// doubted reports n server errors, to the requests first, first+1 and so on.
func (b *breaker) doubted(first, n int, peers float64) {
	for i := range n {
		b.doubt(uint64(first+i), peers)
	}
}

func TestDoubtsOfALoneNode(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		b.doubted(0, windowMin-1, 0)
		b.is(t, Healthy)
		b.doubted(100, 1, 0)
		b.is(t, Open)
		if !b.answers() {
			t.Error("a lone node that answers errors is the last resort")
		}
		time.Sleep(backoffFirst)
		if !b.admit() {
			t.Fatal("no trial")
		}
		b.doubted(101, 1, 0)
		b.is(t, Open)
		time.Sleep(backoffLast)
		for range winsToClose {
			if !b.admit() {
				t.Fatal("no trial")
			}
			b.report(OK)
		}
		b.is(t, Healthy)
		b.doubted(200, 1, 0)
		b.is(t, Healthy)
	})
}

func TestDoubtsAreWeighedAgainstAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		for i := range 60 { // a third of the requests fails
			b.doubted(i, 1, 0)
			b.reports(OK, 2)
		}
		b.is(t, Healthy)

		b = newBreaker(Healthy)
		b.doubted(7, 5, 0)
		b.report(OK)
		for range 60 { // the same request each time
			b.doubt(7, 0)
		}
		b.is(t, Healthy)

		b = newBreaker(Healthy)
		for range windowMin { // the same request each time, without any other answer
			b.doubt(7, 0)
		}
		b.is(t, Open)

		b = newBreaker(Healthy)
		b.doubted(0, windowMin-1, 0)
		time.Sleep(doubtMemory + 1)
		b.doubted(100, windowMin-1, 0)
		b.is(t, Healthy)
	})
}

func TestDoubtsAreWeighedAgainstPeers(t *testing.T) {
	n, peer := testNode(Healthy), testNode(Healthy)
	for i := range uint64(60) { // the same requests fail on both
		for _, pair := range [][2]*Node{{n, peer}, {peer, n}} {
			share, ok := pair[1].Doubt()
			if !ok {
				t.Fatal("a healthy peer cannot be compared with")
			}
			pair[0].ReportDoubt(i, share)
		}
	}
	if n.State() != Healthy || peer.State() != Healthy {
		t.Fatalf("%v and %v", n.State(), peer.State())
	}
	for range 32 {
		peer.Report(OK)
	}
	share, _ := peer.Doubt()
	n.ReportDoubt(1000, share)
	if n.State() != Open || n.Admit() || !n.Answers() {
		t.Errorf("%v, although its peer answers everything", n.State())
	}
}

func TestAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := testNode(Healthy)
		if n.Answers() {
			t.Fatal("a healthy node is not out of service")
		}
		n.Report(ConnectError)
		n.Report(ConnectError)
		if n.Answers() {
			t.Fatal("a node that cannot be reached")
		}
		time.Sleep(time.Second)
		n.breaker.checked(checkWell, time.Now())
		if n.State() != HalfOpen || !n.Admit() || n.Admit() || !n.Answers() {
			t.Fatalf("%v: want one trial request, and more where no other node is left", n.State())
		}
		n.SetAside("hangs")
		n.NoteProgress()
		if n.State() != HalfOpen || n.Answers() {
			t.Fatalf("%v: a node that hung proves itself first", n.State())
		}
		n.breaker.completed(computed, time.Now(), false)
		if n.State() != HalfOpen || !n.Answers() {
			t.Errorf("%v: it has answered a completion", n.State())
		}
	})
}
