//go:build linux

package relay

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// pair returns a client and its accepted connection, wrapped by w if wrap is set.
func pair(t *testing.T, w *Watcher, network string, wrap bool) (client, accepted net.Conn) {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = t.TempDir() + "/s"
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if wrap {
		l = w.Listen(l, ListenOptions{SendBufferBytes: 64 << 10})
	}
	if client, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		accepted.Close()
	})
	return client, accepted
}

func newWatcher(t *testing.T) *Watcher {
	t.Helper()
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// signal returns a callback, and the channel that it signals.
func signal() (func(), chan struct{}) {
	c := make(chan struct{}, 4)
	return func() { c <- struct{}{} }, c
}

func wantSignal(t *testing.T, c chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(soon):
		t.Fatal("not noticed")
	}
}

func TestWatchEveryKindOfConnection(t *testing.T) {
	w := newWatcher(t)
	for _, network := range []string{"tcp", "unix"} {
		for _, wrap := range []bool{false, true} {
			for _, secure := range []bool{false, true} {
				client, c := pair(t, w, network, wrap)
				if secure {
					c = tls.Server(c, &tls.Config{})
				}
				gone, signaled := signal()
				w.Watch(c, gone)() // a watch that has ended
				stop := w.Watch(c, gone)
				client.Write([]byte("more")) // bytes do not mean that the client has left
				client.Close()
				wantSignal(t, signaled)
				stop()
				stop()
				stop = w.Watch(c, gone) // the client has left already
				wantSignal(t, signaled)
				stop()
				c.Close()
				if len(signaled) > 0 {
					t.Fatal("called once too often")
				}
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.conns) != 0 {
		t.Fatalf("%d connections are still registered", len(w.conns))
	}
}

func TestInMemoryConnectionsAreNotWatched(t *testing.T) {
	w := newWatcher(t)
	client, c := net.Pipe()
	stop := w.Watch(c, func() { t.Error("called") })
	client.Close()
	c.Close()
	stop()
}

// TestLateEvents: an event of a closed connection does not reach the connection that has its
// descriptor now.
func TestLateEvents(t *testing.T) {
	w := newWatcher(t)
	_, old := pair(t, w, "tcp", true)
	gone, signaled := signal()
	w.Watch(old, gone)
	state := &old.(*clientConn).watched
	id, fd := state.id, state.fd
	old.Close()
	_, next := pair(t, w, "tcp", true)
	w.Watch(next, gone)
	if next.(*clientConn).watched.fd != fd {
		t.Log("the descriptor was not used again")
	}
	w.event(id)
	if len(signaled) > 0 {
		t.Fatal("a late event was taken for a departure")
	}
}

// TestStopWaits: the callback is not running after stop.
func TestStopWaits(t *testing.T) {
	w := newWatcher(t)
	client, c := pair(t, w, "tcp", true)
	running, release := make(chan struct{}), make(chan struct{})
	var finished atomic.Bool
	stop := w.Watch(c, func() {
		close(running)
		<-release
		finished.Store(true)
	})
	client.Close()
	<-running
	time.AfterFunc(10*time.Millisecond, func() { close(release) })
	stop()
	if !finished.Load() {
		t.Fatal("stop returned while the callback was running")
	}
}

func TestWatcherClosesBeforeItsConnections(t *testing.T) {
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	_, c := pair(t, w, "tcp", true)
	w.Watch(c, func() {})
	w.Close()
	w.Close()
	_, d := pair(t, w, "tcp", true)
	w.Watch(d, func() {})()
	c.Close()
}

func TestWatchDoesNotAllocate(t *testing.T) {
	w := newWatcher(t)
	_, c := pair(t, w, "tcp", true)
	onGone := func() {}
	if n := testing.AllocsPerRun(100, func() { w.Watch(c, onGone)() }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
