package patience

import (
	"testing"
	"time"
)

// spreadOver sends count requests round robin over all nodes that are not set aside.
func (s *sim) spreadOver(count int, stream bool, prompt, maxTokens, generate int64) []*simRequest {
	var out []*simRequest
	for i := 0; len(out) < count; i++ {
		if n := i % len(s.nodes); !s.nodes[n].aside {
			out = append(out, s.send(n, stream, prompt, maxTokens, generate))
		}
	}
	return out
}

func (s *sim) setAside() {
	for _, st := range s.stalls {
		for _, n := range s.nodes {
			n.aside = n.aside || n.n == st.Node
		}
	}
}

func TestHungNodeIsNoticedByStreams(t *testing.T) {
	s := newSim(t, 4)
	s.warm(20, true)
	s.nodes[3].hung = true
	reqs := s.spreadOver(16, true, 500, 64, 20)
	var noticed time.Duration
	for began := s.now; noticed == 0 && s.now.Sub(began) < 10*time.Second; {
		s.run(simStep)
		if s.givenUp(reqs) == 4 {
			noticed = s.now.Sub(began)
		}
	}
	// The node needs 70 to 220 ms for each of the 4 prompts of 500 tokens.
	if noticed == 0 || noticed > 2*time.Second {
		t.Fatalf("given up after %v, want within 2 s", noticed)
	}
	for i, r := range reqs {
		if hung := i%4 == 3; (r.verdict != 0) != hung {
			t.Errorf("request %d: verdict %d, hung node: %v", i, r.verdict, hung)
		}
	}
	if len(s.stalls) == 0 || s.stalls[0].Node != s.nodes[3].n {
		t.Fatalf("stalls %+v, want n3", s.stalls)
	}
	s.run(5 * time.Second)
	if len(s.reqs) != 0 {
		t.Errorf("%d requests still open", len(s.reqs))
	}
}

func TestColdFleetNoticesHungNodeByStreams(t *testing.T) {
	s := newSim(t, 4)
	s.nodes[1].hung = true
	reqs := s.spreadOver(16, true, 500, 64, 20)
	s.run(3 * time.Second)
	if n := s.givenUp(reqs); n != 4 {
		t.Fatalf("%d given up, want the 4 on the hung node", n)
	}
}

// TestAFewAnswersEndTheColdStart hangs one of two nodes. After a handful of answers its streams no
// longer wait for FirstByteCold.
func TestAFewAnswersEndTheColdStart(t *testing.T) {
	for _, answered := range []int{2, 3, 5} {
		s := newSim(t, 2)
		s.nodes[1].hung = true
		var reqs []*simRequest
		for range 3 {
			reqs = append(reqs, s.send(1, true, 500, 64, 20))
		}
		for range answered {
			s.send(0, true, 500, 64, 20)
		}
		s.run(8 * time.Second)
		want := 3
		if answered < few {
			want = 0
		}
		if n := s.givenUp(reqs); n != want {
			t.Errorf("%d answers of the peer: %d of 3 moved, want %d", answered, n, want)
		}
	}
}

// TestFewAnswersLeaveRoomForLargePrompts checks a large prompt after a few answers to small ones.
// The test also checks a prompt with fewer cached tokens than believed.
func TestFewAnswersLeaveRoomForLargePrompts(t *testing.T) {
	for _, cached := range []int64{0, 39_000} {
		s := newSim(t, 2)
		for range few {
			s.send(0, true, 500, 64, 20)
		}
		s.run(time.Second)
		large := s.send(1, true, 40_000, 64, 20) // 4 s
		large.a.Done(s.now, 0, false)
		large.work.UncachedTokens, large.work.CachedTokens = 40_000-cached, cached
		large.node.n.Begin(&large.a, s.now, large.work)
		s.run(8 * time.Second)
		if large.verdict != 0 || large.open {
			t.Errorf("%d believed cached: verdict %d, open %v", cached, large.verdict, large.open)
		}
	}
}

// TestColdOverloadGivesNothingUp overloads a cold fleet after various first answers.
func TestColdOverloadGivesNothingUp(t *testing.T) {
	for _, nodes := range []int{2, 4} {
		for _, gap := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond} {
			s := newSim(t, nodes)
			var reqs []*simRequest
			for range 600 {
				reqs = append(reqs, s.send(s.leastQueued(), true, 100+s.rng.Int64N(900), 64, 20))
				s.run(gap)
			}
			s.run(90 * time.Second)
			if n := s.givenUp(reqs); n != 0 || len(s.stalls) != 0 || len(s.reqs) != 0 {
				t.Errorf("%d nodes, every %v: %d given up, stalls %+v, %d open", nodes, gap, n, s.stalls, len(s.reqs))
			}
		}
	}
}

func TestHungNodeIsNoticedByCalls(t *testing.T) {
	for _, tc := range []struct {
		name      string
		warm      bool
		maxTokens int64
	}{{"cold, max_tokens unknown", false, 0}, {"cold, max_tokens large", false, 4096}, {"warm, max_tokens unknown",
		true, 0}, {"warm, max_tokens known", true, 32}} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSim(t, 4)
			if tc.warm {
				s.warm(10, false)
			}
			s.nodes[2].hung = true
			reqs := s.spreadOver(16, false, 500, tc.maxTokens, 20)
			s.run(2 * time.Second)
			if n := s.givenUp(reqs); n != 4 {
				t.Fatalf("%d given up, want the 4 on the hung node; stalls %+v", n, s.stalls)
			}
			if st := s.stalls[len(s.stalls)-1]; st.Node != s.nodes[2].n || !st.Rescue {
				t.Fatalf("stall %+v", st)
			}
			s.setAside()
			next := s.spreadOver(16, false, 500, tc.maxTokens, 20)
			began := s.now
			s.run(2 * time.Second)
			for i, r := range next {
				if r.verdict != 0 || r.open || r.end.Sub(began) > time.Second {
					t.Errorf("request %d of the next 16 noticed", i)
				}
			}
		})
	}
}

// TestSuspectNodeIsFoundAgainByOneRequest checks that a node that still hangs at its next try costs
// one wait, not the complete evidence.
func TestSuspectNodeIsFoundAgainByOneRequest(t *testing.T) {
	s := newSim(t, 4)
	s.warm(10, false)
	s.nodes[0].hung = true
	s.spreadOver(16, false, 500, 0, 20)
	s.run(2 * time.Second)
	before := len(s.stalls)
	probe := s.send(0, false, 500, 0, 20)
	s.run(time.Second)
	s.send(1, false, 500, 0, 20)
	s.run(6 * time.Second)
	if probe.verdict != Stalled || len(s.stalls) == before {
		t.Fatalf("verdict %d, %d new stalls", probe.verdict, len(s.stalls)-before)
	}
	s.nodes[0].hung = false
	back := s.send(0, false, 500, 0, 20)
	s.send(1, false, 500, 0, 20)
	s.run(2 * time.Second)
	if back.verdict != 0 || s.nodes[0].n.level == fine && s.nodes[0].served == 0 {
		t.Fatal("a node that answers again is still suspect")
	}
}

// hangAndReturn hangs node 0 until it is reported, tried again and reported again. Then the node
// computes again, and nothing waits there.
func (s *sim) hangAndReturn() {
	s.noticeHang()
	s.noticeHang()
	s.nodes[0].hung = false
	s.run(time.Second)
	if len(s.reqs) != 0 {
		s.t.Fatalf("%d requests still open", len(s.reqs))
	}
}

// noticeHang hangs node 0 and sends streams to all nodes. noticeHang returns the time until node 0
// is reported and all its streams are moved.
func (s *sim) noticeHang() time.Duration {
	s.nodes[0].hung = true
	reported, began := len(s.stalls), s.now
	reqs := s.spreadOver(4*len(s.nodes), true, 500, 64, 20)
	for len(s.stalls) == reported || s.givenUp(reqs) < 4 {
		if s.run(simStep); s.now.Sub(began) > 10*time.Second {
			s.t.Fatalf("%d stalls, %d streams given up after 10 s", len(s.stalls)-reported, s.givenUp(reqs))
		}
	}
	took := s.now.Sub(began)
	s.run(2 * time.Second)
	return took
}

// TestOldSilenceDoesNotMoveNewStreams checks that a node that computes again, but has sent no byte
// since its silence, may answer the next streams.
func TestOldSilenceDoesNotMoveNewStreams(t *testing.T) {
	for _, nodes := range []int{2, 4} {
		s := newSim(t, nodes)
		s.warm(20, true)
		s.hangAndReturn()
		reported := len(s.stalls)
		reqs := s.spreadOver(4*nodes, true, 500, 64, 20)
		s.run(2 * time.Second)
		if n := s.givenUp(reqs); n != 0 || len(s.stalls) != reported {
			t.Errorf("%d nodes: %d of %d given up, %d reports", nodes, n, len(reqs), len(s.stalls)-reported)
		}
	}
}

// TestAStreamThatCannotMoveDoesNotMoveLaterOnes keeps a stream on node 0 that is never answered.
// The node answers all later streams.
func TestAStreamThatCannotMoveDoesNotMoveLaterOnes(t *testing.T) {
	s := newSim(t, 2)
	s.warm(20, true)
	s.noticeHang()
	pinned := s.send(0, true, 500, 64, 20)
	pinned.refuse, pinned.first, pinned.end = true, s.now.Add(time.Hour), s.now.Add(time.Hour)
	s.noticeHang()
	s.nodes[0].hung = false
	reqs := s.spreadOver(8, true, 500, 64, 20)
	s.run(2 * time.Second)
	if n := s.givenUp(reqs); n != 0 || !pinned.open {
		t.Errorf("%d of %d given up, the pinned stream waits: %v", n, len(reqs), pinned.open)
	}
}

// TestNextHangIsNoticedAsFast hangs a node again after its return. The node has sent bytes in
// between, or only completion checks have seen it well. The expected times vary by a tenth.
func TestNextHangIsNoticedAsFast(t *testing.T) {
	for _, nodes := range []int{2, 4} {
		for _, bytes := range []bool{false, true} {
			s := newSim(t, nodes)
			s.warm(20, true)
			fresh := s.noticeHang()
			s.hangAndReturn()
			if bytes {
				s.warm(20, true)
			}
			if next := s.noticeHang(); next > fresh+fresh/10 {
				t.Errorf("%d nodes, bytes %v: noticed after %v, the first hang after %v", nodes, bytes, next, fresh)
			}
		}
	}
}

// TestRefusedCallsAreAskedAgain checks that calls without a stream move when their owner accepts,
// although the node was reported before.
func TestRefusedCallsAreAskedAgain(t *testing.T) {
	s := newSim(t, 4)
	s.warm(10, false)
	s.nodes[0].hung = true
	reqs := s.spreadOver(16, false, 500, 0, 20)
	for _, r := range reqs {
		r.refuse = true
	}
	s.run(2 * time.Second)
	if len(s.stalls) == 0 || s.givenUp(reqs) != 0 {
		t.Fatalf("%d stalls, %d given up", len(s.stalls), s.givenUp(reqs))
	}
	for _, r := range reqs {
		r.refuse = false
	}
	s.run(2 * time.Second)
	if n := s.givenUp(reqs); n != 4 {
		t.Errorf("%d given up, want the 4 on the hung node", n)
	}
}

func TestLongCallAloneIsNotFlagged(t *testing.T) {
	for _, maxTokens := range []int64{0, 100_000} {
		s := newSim(t, 4)
		s.warm(50, false)
		generate := int64(3000) // 30 s, against 0.2 s so far
		if maxTokens == 0 {
			generate = 60 // 0.6 s: within 4 times the longest
		}
		long := s.send(0, false, 500, maxTokens, generate)
		for range 120 {
			s.spreadTo(1, 4)
			s.run(250 * time.Millisecond)
		}
		if long.verdict != 0 || len(s.stalls) != 0 {
			t.Fatalf("max_tokens %d: verdict %d, stalls %+v", maxTokens, long.verdict, s.stalls)
		}
	}
}

func (s *sim) spreadTo(from, to int) {
	for i := from; i < to; i++ {
		s.send(i, false, 300, 0, 10)
	}
}

// TestTwoLongCallsAmongLongOnesAreNotFlagged checks that earlier response times tell two long
// generations from a hang.
func TestTwoLongCallsAmongLongOnesAreNotFlagged(t *testing.T) {
	s := newSim(t, 4)
	for i := range 200 {
		generate := int64(10)
		if i%10 == 0 {
			generate = 1000
		}
		s.send(i%4, false, 200, 0, generate)
		s.run(50 * time.Millisecond)
	}
	s.run(15 * time.Second)
	a, b := s.send(0, false, 200, 0, 1000), s.send(0, false, 200, 0, 1000)
	for range 48 {
		s.spreadTo(1, 4)
		s.run(250 * time.Millisecond)
	}
	if a.verdict != 0 || b.verdict != 0 {
		t.Fatalf("verdicts %d %d, stalls %+v", a.verdict, b.verdict, s.stalls)
	}
}

// TestOneCallBeyondItsBoundIsFlagged checks that one call finds a hung node once its max_tokens
// cannot explain the wait.
func TestOneCallBeyondItsBoundIsFlagged(t *testing.T) {
	s := newSim(t, 4)
	s.warm(20, true)
	s.warm(20, false)
	s.nodes[0].hung = true
	r := s.send(0, false, 300, 16, 16)
	for range 20 {
		s.spreadTo(1, 4)
		s.run(200 * time.Millisecond)
	}
	if r.verdict != Stalled {
		t.Fatalf("verdict %d after 4 s", r.verdict)
	}
}

// TestWholeFleetTenTimesSlower checks that only the first late stream is given up. The stream's
// peers are idle and give no evidence, and the abandoned stream then acts as the probe.
func TestWholeFleetTenTimesSlower(t *testing.T) {
	for _, stream := range []bool{true, false} {
		s := newSim(t, 4)
		s.warm(30, stream)
		for _, n := range s.nodes {
			n.slow = 10
		}
		var reqs []*simRequest
		for range 300 {
			reqs = append(reqs, s.send(s.leastQueued(), stream, 100+s.rng.Int64N(900), 64, 20))
			s.run(200 * time.Millisecond)
		}
		s.run(20 * time.Second)
		if n := s.givenUp(reqs); n > 1 || !stream && n > 0 || len(s.stalls) != 0 {
			t.Errorf("stream=%v: %d of %d given up, %d stalls", stream, n, len(reqs), len(s.stalls))
		}
	}
}

// TestOverloadGivesNothingUp sends twice the fleet's capacity. The waits grow without end, and no
// node is at fault.
func TestOverloadGivesNothingUp(t *testing.T) {
	s := newSim(t, 4)
	s.warm(30, true)
	var reqs []*simRequest
	for range 1500 {
		reqs = append(reqs, s.send(s.leastQueued(), true, 100+s.rng.Int64N(900), 64, 20))
		s.run(5 * time.Millisecond)
	}
	s.run(60 * time.Second)
	if n := s.givenUp(reqs); n != 0 || len(s.stalls) != 0 {
		t.Errorf("%d of %d given up, stalls %+v", n, len(reqs), s.stalls)
	}
	if len(s.reqs) != 0 {
		t.Errorf("%d never answered", len(s.reqs))
	}
}

// TestWholeFleetHangingIsWaitedFor hangs a whole fleet, or starts a slow one cold.
func TestWholeFleetHangingIsWaitedFor(t *testing.T) {
	for _, warm := range []bool{true, false} {
		s := newSim(t, 4)
		if warm {
			s.warm(20, true)
		}
		for _, n := range s.nodes {
			n.hung = true
		}
		reqs := s.spreadOver(16, true, 500, 64, 20)
		s.run(120 * time.Second)
		if n := s.givenUp(reqs); n != 0 {
			t.Errorf("warm=%v: %d of 16 given up", warm, n)
		}
	}
}

// TestDoubtWidensOnAQuietSlowFleet slows a quiet fleet, which gives no peers to compare with. Each
// further node tried makes giving up rarer.
func TestDoubtWidensOnAQuietSlowFleet(t *testing.T) {
	s := newSim(t, 4)
	s.warm(30, true)
	for _, n := range s.nodes {
		n.slow = 10
	}
	var reqs []*simRequest
	for i := range 40 {
		for node := i; ; node++ {
			r := s.send(node%4, true, 500, 64, 20)
			reqs = append(reqs, r)
			for r.open && !r.begun {
				s.run(simStep)
			}
			if r.verdict == 0 {
				break
			}
		}
		s.run(4 * time.Second)
	}
	if n := s.givenUp(reqs); n > 4 {
		t.Errorf("%d given up for 40 requests", n)
	}
}

// TestWrongBeliefInCachedTokensIsWaitedFor computes a prompt that was believed cached. The
// computation must not count as a hang.
func TestWrongBeliefInCachedTokensIsWaitedFor(t *testing.T) {
	s := newSim(t, 4)
	s.warm(40, true)
	r := s.send(0, true, 20_000, 64, 20) // 2 s
	r.a.Done(s.now, 0, false)
	r.work.UncachedTokens, r.work.CachedTokens = 200, 19_800
	r.node.n.Begin(&r.a, s.now, r.work)
	for range 20 {
		s.send(1+s.rng.IntN(3), true, 300, 0, 10)
		s.run(200 * time.Millisecond)
	}
	if r.verdict != 0 {
		t.Fatal("given up")
	}
}

func TestSlowHardwareGetsItsTime(t *testing.T) {
	s := newSim(t, 4)
	s.nodes[0].slow = 6
	var reqs []*simRequest
	for range 100 {
		for i := range s.nodes {
			reqs = append(reqs, s.send(i, true, 300+s.rng.Int64N(300), 64, 10))
		}
		s.run(time.Second)
	}
	if n := s.givenUp(reqs); n > 2 {
		t.Errorf("%d of %d given up", n, len(reqs))
	}
}
