//go:build linux

package client_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kvcached/lease"
	"golang.org/x/sys/unix"
)

// between is a proxy between a client and a daemon. between passes requests on, and answers only
// when the gate is open.
type between struct {
	path string
	gate sync.Mutex // answers wait while gate is held
	wg   sync.WaitGroup
	l    *net.UnixListener
}

func standBetween(t *testing.T, d *daemon) *between {
	b := &between{path: filepath.Join(t.TempDir(), "between.sock")}
	var err error
	if b.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: b.path, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	b.wg.Go(func() {
		for {
			down, err := b.l.AcceptUnix()
			if err != nil {
				return
			}
			up, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: d.path, Net: "unix"})
			if err != nil {
				down.Close()
				return
			}
			b.wg.Go(func() { b.pass(down, up, false) })
			b.wg.Go(func() { b.pass(up, down, true) })
		}
	})
	t.Cleanup(func() { b.l.Close(); b.wg.Wait() })
	return b
}

func (b *between) pass(from, to *net.UnixConn, gated bool) {
	defer from.Close()
	defer to.Close()
	buf, oob := make([]byte, frame.MaxFrame), make([]byte, unix.CmsgSpace(4))
	for {
		n, m, _, _, err := from.ReadMsgUnix(buf, oob)
		if n == 0 || err != nil {
			return
		}
		var rights []byte
		if msgs, _ := unix.ParseSocketControlMessage(oob[:m]); len(msgs) == 1 {
			fds, _ := unix.ParseUnixRights(&msgs[0])
			rights = unix.UnixRights(fds...)
			defer unix.Close(fds[0])
		}
		if gated {
			b.gate.Lock()
		}
		_, _, err = to.WriteMsgUnix(buf[:n], rights, nil)
		if gated {
			b.gate.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// TestCancelled abandons waits for answers. Leases on the socket stay valid. Late answers are
// skipped, and the leases of these answers are returned.
func TestCancelled(t *testing.T) {
	d := start(t, 64<<20, lease.Options{Lease: time.Hour})
	b := standBetween(t, d)
	c, err := client.Options{Sockets: 1}.Dial(t.Context(), b.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, name := range []string{"a", "b"} {
		if _, err := c.Put(t.Context(), item(name), []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	v, err := c.Get(t.Context(), addr("a"))
	if err != nil {
		t.Fatal(err)
	}
	b.gate.Lock()
	opened := sync.OnceFunc(b.gate.Unlock)
	defer opened()
	for i := range uint64(3) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for d.server.Stats().Hits < 2+i { // the daemon has answered
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		if _, err := c.Get(ctx, addr("b")); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.Stat(ctx, addr("b")); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if d.server.Stats().Leases != 4 {
		t.Errorf("%+v", d.server.Stats())
	}
	opened()
	if err := c.Read(t.Context(), addr("b"), func(p []byte) error {
		if string(p) != "b" {
			t.Errorf("%q", p)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if string(v.Bytes()) != "a" || v.Err() != nil {
		t.Error("the lease of an earlier Get:", v.Err())
	}
	until(t, "late answers are given back", func() bool { return d.server.Stats().Leases == 1 })
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Get(done, addr("a")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestADaemonThatHangs checks that calls end with their contexts. After some abandoned answers the
// socket is closed.
func TestADaemonThatHangs(t *testing.T) {
	d := start(t, 64<<20, lease.Options{})
	b := standBetween(t, d)
	c, err := client.Options{Sockets: 1}.Dial(t.Context(), b.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b.gate.Lock()
	defer b.gate.Unlock()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		err := c.Ping(ctx)
		cancel()
		if errors.Is(err, client.ErrGone) {
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
	t.Error("never given up")
}

// TestSocketsAreBounded checks that surplus callers wait for a socket, at most as long as their
// contexts.
func TestSocketsAreBounded(t *testing.T) {
	d := start(t, 64<<20, lease.Options{})
	b := standBetween(t, d)
	c, err := client.Options{Sockets: 2}.Dial(t.Context(), b.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	spread(t, c)
	if got := d.server.Stats().Connections; got != 2 {
		t.Error(got, "connections")
	}
	requests := d.server.Stats().Requests
	b.gate.Lock()
	opened := sync.OnceFunc(b.gate.Unlock)
	defer opened()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := c.Ping(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	until(t, "both sockets are in use", func() bool { return d.server.Stats().Requests >= requests+2 })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	wg.Go(func() {
		if err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
	opened()
	wg.Wait()
}
