//go:build linux

package gateway

import (
	"bufio"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// parking serves a gateway that parks an idle connection after the given time.
func parking(t *testing.T, after, keepAlive time.Duration) (*Gateway, string) {
	t.Helper()
	loops, err := relay.NewLoops(relay.LoopsOptions{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	g := bare(t)
	g.parking.Loops, g.parking.KeepAlive, g.parker.after = loops, keepAlive, after
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l, nil) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := g.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		waitFor(t, func() bool { return g.Connections() == 0 })
		loops.Close()
	})
	return g, l.Addr().String()
}

// askOn asks for an unknown path, whose answer needs no node.
func askOn(c net.Conn, r *bufio.Reader) error {
	if _, err := io.WriteString(c, "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func dialTo(t *testing.T, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, bufio.NewReader(c)
}

func TestIdleConnectionsRestAndComeBack(t *testing.T) {
	g, addr := parking(t, 5*time.Millisecond, time.Minute)
	c, r := dialTo(t, addr)
	for range 5 {
		if err := askOn(c, r); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return g.server.GetOpenConnectionsCount() == 0 })
		if n := g.Connections(); n != 1 {
			t.Fatalf("%d connections are open", n)
		}
	}
	c.Close()
	waitFor(t, func() bool { return g.Connections() == 0 })
}

// TestRequestAfterParkingHasItsOwnTime checks that the time limit of parking does not apply to the
// next request.
func TestRequestAfterParkingHasItsOwnTime(t *testing.T) {
	const after = 5 * time.Millisecond
	g, addr := parking(t, after, time.Minute)
	c, r := dialTo(t, addr)
	if err := askOn(c, r); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return g.server.GetOpenConnectionsCount() == 0 })
	io.WriteString(c, "GET /now")
	waitFor(t, func() bool { return g.server.GetOpenConnectionsCount() == 1 })
	<-time.After(20 * after)
	io.WriteString(c, "here HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestRestingEndsWithKeepAlive(t *testing.T) {
	g, addr := parking(t, time.Millisecond, 50*time.Millisecond)
	c, r := dialTo(t, addr)
	if err := askOn(c, r); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("%v", err)
	}
	waitFor(t, func() bool { return g.Connections() == 0 })
}

func TestShutdownClosesResting(t *testing.T) {
	g, addr := parking(t, time.Millisecond, time.Minute)
	c, r := dialTo(t, addr)
	if err := askOn(c, r); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return g.server.GetOpenConnectionsCount() == 0 })
	if err := g.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("%v", err)
	}
}

// TestRestingAtTheMomentOfARequest checks a request that comes while its connection moves to the
// loop.
func TestRestingAtTheMomentOfARequest(t *testing.T) {
	const after = 2 * time.Millisecond
	_, addr := parking(t, after, time.Minute)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var all sync.WaitGroup
	for i := range 8 {
		c, r := dialTo(t, addr)
		all.Go(func() {
			gaps := rand.New(rand.NewPCG(seed, uint64(i)))
			gap := time.NewTimer(0)
			defer gap.Stop()
			for range 100 {
				<-gap.C
				if err := askOn(c, r); err != nil {
					t.Error(err)
					return
				}
				gap.Reset(time.Duration(gaps.Int64N(int64(2 * after))))
			}
		})
	}
	all.Wait()
}

// TestShutdownAmongThoseWhoAreParked checks that the server may close idle connections while they
// move to a loop.
func TestShutdownAmongThoseWhoAreParked(t *testing.T) {
	for range 20 {
		t.Run("", func(t *testing.T) {
			_, addr := parking(t, 2*time.Millisecond, time.Minute)
			var clients sync.WaitGroup
			for range 8 { // as many connections as bare accepts
				c, r := dialTo(t, addr)
				clients.Go(func() {
					if err := askOn(c, r); err != nil {
						t.Error(err)
					}
				})
			}
			clients.Wait()
		})
	}
}
