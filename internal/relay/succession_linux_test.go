package relay

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSlowReaderBetweenSources: a client that does not read is cut while Next runs. A client that
// reads in time gets everything.
func TestSlowReaderBetweenSources(t *testing.T) {
	const patience = 200 * time.Millisecond
	for _, reads := range []bool{false, true} {
		s := newSuccession(t, "loops", func(f *front) {
			if f.slow = soon; !reads {
				f.slow = patience
			}
		})
		conn := s.dial(t)
		ch := newChain(s.pool, "a|aB.", "a|ha.")
		ch.gate = make(chan struct{})
		start := time.Now()
		s.ask(conn, ch, "aB.")
		<-ch.asked
		if !reads {
			ch.wait(t, SlowReader)
			if took := time.Since(start); took < patience {
				t.Errorf("cut after %v", took)
			}
			if got := firstWords(ch.calls); got != "event event end next done" {
				t.Errorf("%q", ch.calls)
			}
			s.allIdle(t)
			continue
		}
		close(ch.gate) // the next source is there before the client reads
		for deadline := soonest(); ; time.Sleep(time.Millisecond) {
			if idle, open := s.pool.Stats(); open > idle && ch.holds.Load() {
				break
			} else if time.Now().After(deadline) {
				t.Fatal("the client holds up the next source, and the follower has not heard of it")
			}
		}
		body, err := conn.body(t)
		ch.wait(t, Complete)
		if err != nil || body != string(ch.given) {
			t.Errorf("%d bytes of %d, %v", len(body), len(ch.given), err)
		}
		s.allIdle(t)
	}
}

// TestLoopsEndBetweenSources: Close cuts a stream while Next runs, once Next has returned. Drain
// lets the stream end.
func TestLoopsEndBetweenSources(t *testing.T) {
	s := newSuccession(t, "loops", nil)
	conn := s.dial(t)
	ch := newChain(s.pool, "a.")
	ch.gate = make(chan struct{})
	s.ask(conn, ch, "a.")
	<-ch.asked
	s.parking.Loops.Drain()
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if s.parking.Loops.Wait(short) == nil {
		t.Error("the stream does not count while Next is under way")
	}
	close(ch.gate)
	if body, err := conn.body(t); body != event("a.", 0)+event("a.", 0) || err != nil {
		t.Errorf("%q %v", body, err)
	}
	ch.wait(t, Complete)
	if _, err := conn.r.ReadByte(); err != io.EOF {
		t.Error("after the stream:", err)
	}

	for _, ignore := range []bool{false, true} {
		s = newSuccession(t, "loops", nil)
		conn = s.dial(t)
		ch = newChain(s.pool, "a.")
		ch.gate, ch.ignore = make(chan struct{}), ignore
		s.ask(conn, ch, "a.")
		<-ch.asked
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			s.parking.Loops.Close()
		}()
		if ignore {
			<-ch.left
			close(ch.gate)
		}
		<-closed
		ch.wait(t, UpstreamFailed)
		if _, err := conn.body(t); err == nil {
			t.Error("the response ends properly")
		}
		s.allIdle(t)
	}
}

// TestSourceThatCannotBeLent: a source whose connection cannot be parked is relayed if it is
// complete already, and is a failure otherwise.
func TestSourceThatCannotBeLent(t *testing.T) {
	s := newSuccession(t, "loops", nil)
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return struct{ net.Conn }{c}, err // hides its descriptor
	}
	hidden := NewPool(s.pool.Target(), PoolOptions{Dial: dial})
	defer hidden.Close()
	conn := s.dial(t)
	for _, script := range []string{"a~", "aa."} {
		want := failed
		if script == "aa." {
			want = event(script, 0) + event(script, 1)
		}
		ch := newChain(hidden, script)
		ch.tail = failed
		s.ask(conn, ch, "a.")
		if body, err := conn.body(t); body != event("a.", 0)+want || err != nil {
			t.Errorf("%q %v", body, err)
		}
		<-ch.done
	}
	if idle, open := hidden.Stats(); idle != 1 || open != 1 {
		t.Errorf("%d idle of %d connections", idle, open)
	}
}

// fainting is a chain that panics in one of its methods.
type fainting struct {
	*chain
	in string
}

func (f fainting) Next() (*Exchange, error) {
	if f.in == "next" {
		panic("next")
	}
	return f.chain.Next()
}

func (f fainting) Left() {
	f.chain.Left()
	if f.in == "left" {
		panic("left")
	}
}

func (f fainting) End(out []byte, o Outcome, err error) ([]byte, bool) {
	if f.in == "end" {
		panic("end")
	}
	return f.chain.End(out, o, err)
}

// TestFollowerPanicsBetweenSources: only the follower's own stream ends.
func TestFollowerPanicsBetweenSources(t *testing.T) {
	for _, in := range []string{"next", "left", "end"} {
		s := newSuccession(t, "loops", nil)
		told := make(chan any, 1)
		s.parking.Loops.o.Panicked = func(p any) { told <- p }
		follow := s.follow
		s.follow = func(a *Abort) Follower { return fainting{follow(a).(*chain), in} }
		conn := s.dial(t)
		ch := newChain(s.pool, "a.")
		ch.gate = make(chan struct{})
		s.ask(conn, ch, "a|.")
		want := UpstreamFailed
		if in == "left" {
			<-ch.asked
			conn.Close()
			want = ClientGone
		} else if _, err := conn.body(t); err == nil {
			t.Errorf("%s: the response ends properly", in)
		}
		if p := <-told; p != in {
			t.Errorf("%s: told of %v", in, p)
		}
		ch.wait(t, want)
		s.allIdle(t)
	}
}

// TestStopBetweenSources: requests are stopped and canceled at any time. A client that is told of
// the failure gets whole events. Any other client is cut.
func TestStopBetweenSources(t *testing.T) {
	clients, requests := 8, 30
	if thorough {
		requests = 150
	}
	seed := churnSeed(t)
	var all, stops sync.WaitGroup
	for k := range clients {
		s := newSuccession(t, ways[k%2*3], func(f *front) { f.aborts = make(chan *Abort, 1) }) // uses loops
		random := rand.New(rand.NewPCG(seed, uint64(k)))
		all.Go(func() {
			conn := s.dial(t)
			for range requests {
				ch := newChain(s.pool, "a|aa|e~", "ha|.", "a|aa|a.")
				ch.tail = failed
				conn.SetDeadline(soonest())
				s.ask(conn, ch, "a|a.")
				a, cancel := <-s.aborts, random.IntN(3) == 0
				stops.Add(1)
				time.AfterFunc(time.Duration(random.IntN(12000))*time.Microsecond, func() {
					defer stops.Done()
					if cancel {
						a.Cancel()
					} else {
						a.Stop()
					}
				})
				if !s.wasTold(t, conn, ch, cancel) {
					conn = s.dial(t)
				}
			}
		})
	}
	all.Wait()
	stops.Wait()
}

// wasTold reads a response that may have been stopped or canceled, and reports whether it ended
// properly.
func (s *succession) wasTold(t *testing.T, conn *client, ch *chain, canceled bool) bool {
	status, body, err := conn.any()
	if status == 502 { // stopped before it began
		<-s.chains
		return true
	}
	select {
	case <-ch.done:
	case <-time.After(soon):
		t.Error("the response has not ended")
		return false
	}
	last := ch.calls[len(ch.calls)-1]
	switch {
	case err == nil && body == string(ch.given):
		return true
	case canceled && strings.HasPrefix(string(ch.given), body) && strings.HasPrefix(last, "done client_gone"):
		return false
	}
	t.Errorf("%d %q of %q: %v; %q", status, body, ch.given, err, ch.calls)
	return false
}

// TestChurnOfSources: clients leave at any time while sources follow one another. Each response is
// accounted for, and no connection stays in use.
func TestChurnOfSources(t *testing.T) {
	clients, requests := 8, 40
	if thorough {
		requests = 200
	}
	seed := churnSeed(t)
	before := openFiles(t)
	var all sync.WaitGroup
	for k := range clients {
		s := newSuccession(t, ways[k%len(ways)], func(f *front) { f.errs = make(chan error, 1) })
		random := rand.New(rand.NewPCG(seed, uint64(k)))
		all.Go(func() {
			defer s.close()
			for range requests {
				conn := s.dial(t)
				ch := newChain(s.pool, randomScript(random), randomScript(random), randomScript(random))
				s.ask(conn, ch, randomScript(random))
				if random.IntN(2) == 0 {
					conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // the response may be shorter
					io.CopyN(io.Discard, conn.r, int64(random.IntN(400)))
				} else {
					time.Sleep(time.Duration(random.IntN(8000)) * time.Microsecond)
				}
				conn.Close()
				if <-s.errs != nil { // the client had left before the answer began
					if len(s.chains) > 0 {
						<-s.chains
					}
					continue
				}
				select {
				case <-ch.done:
				case <-time.After(soon):
					t.Error("the response has not ended")
					return
				}
			}
			s.allIdle(t)
		})
	}
	all.Wait()
	for end := soonest(); openFiles(t) > before+3*clients; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors, %d before", openFiles(t), before)
		}
	}
}
