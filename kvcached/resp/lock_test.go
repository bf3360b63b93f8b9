package resp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// stopped is a store of a fleet in which a lookup of one key waits for a host that does not answer,
// until the test or its context ends that.
type stopped struct {
	*store.Store
	held    block.Addr
	asked   chan struct{} // one element for each such lookup
	answers chan struct{} // closed: the host answers
}

func (s *stopped) Stat(ctx context.Context, a block.Addr) (store.Info, error) {
	if a != s.held {
		return s.Store.Stat(ctx, a)
	}
	s.asked <- struct{}{}
	select {
	case <-s.answers:
		return s.Store.Stat(ctx, a)
	case <-ctx.Done():
		return store.Info{}, ctx.Err()
	}
}

func (s *stopped) Reachable(context.Context, []block.Addr, []bool) bool { return false }

// newStopped returns a server's address, and two keys whose digests begin with the same byte.
func newStopped(t *testing.T) (addr string, srv *Server, s *stopped, held, other string) {
	t.Helper()
	space := block.Namespace{Space: "resp.0"}.ID()
	held = "held"
	s = &stopped{openStore(t, 0), block.OfKey(space, []byte(held)), make(chan struct{}, 8), make(chan struct{})}
	addr, srv, _ = start(t, Options{Store: s})
	for i := 0; ; i++ {
		other = fmt.Sprint("other", i)
		if block.OfKey(space, []byte(held)).Digest[0] == block.OfKey(space, []byte(other)).Digest[0] {
			return addr, srv, s, held, other
		}
	}
}

// pending sends a command whose answer has to wait.
func pending(t *testing.T, addr string, args ...string) (*peer, chan string) {
	t.Helper()
	p, answer := dial(t, "tcp", addr), make(chan string, 1)
	p.send(encode(args...))
	go func() {
		r, err := p.reply()
		if err != nil {
			r = err.Error()
		}
		answer <- r
	}()
	return p, answer
}

func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(deadline) {
			t.Fatal("not so in time:", what)
		}
		<-time.After(time.Millisecond)
	}
}

// TestOneKeyIsHeld: a key that waits for another host holds up nobody who writes another one, and
// who writes the same one in order.
func TestOneKeyIsHeld(t *testing.T) {
	addr, srv, s, held, other := newStopped(t)
	_, setnx := pending(t, addr, "SETNX", held, "1")
	<-s.asked
	_, getset := pending(t, addr, "GETSET", held, "2")
	waitFor(t, "GETSET waits", func() bool { return srv.Stats().KeyWaits == 1 })
	_, mset := pending(t, addr, "MSET", other+"m", "x", held, "3", held, "4", "last", "y")
	waitFor(t, "MSET waits", func() bool { return srv.Stats().KeyWaits == 2 })
	p := dial(t, "tcp", addr)
	p.want("+OK\r\n", "SET", other, "v")
	p.want("$1\r\nv\r\n", "GETSET", other, "w")
	p.want(":1\r\n", "EXPIRE", other, "100")
	p.want(":1\r\n", "DEL", other)
	p.want("$-1\r\n", "GET", held)
	close(s.answers)
	for _, c := range []struct {
		answer chan string
		want   string
	}{{setnx, ":1\r\n"}, {getset, "$1\r\n1\r\n"}, {mset, "+OK\r\n"}} {
		if got := <-c.answer; got != c.want {
			t.Errorf("%q, not %q", got, c.want)
		}
	}
	p.want("$1\r\n4\r\n", "GET", held)
	if n := srv.Stats().KeysHeld; n != 0 {
		t.Errorf("%d keys are held by nobody", n)
	}
}

// TestCloseFreesKeys: who has a key and who waits for it end with the server.
func TestCloseFreesKeys(t *testing.T) {
	addr, srv, s, held, _ := newStopped(t)
	_, setnx := pending(t, addr, "SETNX", held, "1")
	<-s.asked
	_, set := pending(t, addr, "SET", held, "2")
	waitFor(t, "SET waits", func() bool { return srv.Stats().KeyWaits == 1 })
	_, mset := pending(t, addr, "MSET", "a", "1", held, "2", "z", "3")
	waitFor(t, "MSET waits", func() bool { return srv.Stats().KeyWaits == 2 })
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	for _, answer := range []chan string{setnx, set, mset} {
		if got := <-answer; strings.HasPrefix(got, "+") || strings.HasPrefix(got, ":") {
			t.Errorf("answered %q", got)
		}
	}
	if n := srv.Stats().KeysHeld; n != 0 {
		t.Errorf("%d keys are held by nobody", n)
	}
}

// TestLocks: one at a time has a key, whoever gives up meanwhile, and nothing is left.
func TestLocks(t *testing.T) {
	var l locks
	a := block.Addr{Layer: 1}
	if err := l.acquire(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.acquire(gone, a); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	l.release(a)
	var wg sync.WaitGroup
	inside := make([]int, 3) // each guarded by a key's lock
	for range 8 {
		wg.Go(func() {
			for i := range 2000 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%3 == 0 {
					go cancel()
				}
				k := block.Addr{Layer: uint32(i % len(inside))}
				if l.acquire(ctx, k) == nil {
					inside[k.Layer]++
					l.release(k)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if slices.Max(inside) == 0 || len(l.held) != 0 {
		t.Error(inside, l.held)
	}
	for i := range uint32(keptLocks + 1) {
		_ = l.acquire(t.Context(), block.Addr{Layer: i})
	}
	for i := range uint32(keptLocks + 1) {
		l.release(block.Addr{Layer: i})
	}
	if l.held != nil {
		t.Error("a large map is kept")
	}
	if n := testing.AllocsPerRun(100, func() { _ = l.acquire(t.Context(), a); l.release(a) }); n != 0 {
		t.Errorf("%v allocations for a key that is free", n)
	}
}
