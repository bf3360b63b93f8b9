package relay

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipeServer is an in-memory upstream. serve serves the pipe of every dial.
func pipeServer(serve func(c net.Conn, r *bufio.Reader)) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			serve(theirs, bufio.NewReader(theirs))
		}()
		return ours, nil
	}
}

// hold sends n requests and keeps their exchanges open.
func hold(t *testing.T, p *Pool, n int) (held []*Exchange) {
	t.Helper()
	for range n {
		e, err := p.Send(post("{}"), soonest())
		if err != nil {
			t.Fatal(err)
		}
		if err := e.ReadHead(soonest()); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(e); err != nil {
			t.Fatal(err)
		}
		held = append(held, e)
	}
	return held
}

func TestPoolBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Target{}, PoolOptions{MaxIdle: 2, MaxConnections: 3, Dial: pipeServer(answering(okResponse))})
		defer p.Close()
		held := hold(t, p, 3)
		_, err := p.Send(post("{}"), soonest())
		wantError(t, err, PhaseDial, KindLocal)
		if !errors.Is(err, ErrPoolFull) {
			t.Fatal(err)
		}
		for _, e := range held {
			e.Close()
		}
		if idle, open := p.Stats(); idle != 2 || open != 2 {
			t.Fatalf("%d idle of %d connections", idle, open)
		}
	})
}

func TestIdleConnectionsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Target{}, PoolOptions{Idle: time.Second, Dial: pipeServer(answering(okResponse))})
		defer p.Close()
		want := func(idle int) {
			t.Helper()
			synctest.Wait()
			if n, open := p.Stats(); n != idle || open != idle {
				t.Fatalf("%d idle of %d connections, want %d", n, open, idle)
			}
		}
		held := hold(t, p, 3)
		for _, e := range held {
			e.Close()
		}
		time.Sleep(600 * time.Millisecond)
		hold(t, p, 1)[0].Close() // last in, first out: the other two are not used and age
		time.Sleep(500 * time.Millisecond)
		want(1)
		time.Sleep(600 * time.Millisecond)
		want(0)
		hold(t, p, 1)[0].Close()
		want(1)
		time.Sleep(1100 * time.Millisecond)
		want(0)
	})
}

func TestPoolClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Target{}, PoolOptions{Dial: pipeServer(answering(okResponse))})
		held := hold(t, p, 2)
		held[0].Close()
		p.Close()
		if _, err := p.Send(post("{}"), soonest()); !errors.Is(err, ErrPoolClosed) {
			t.Fatal(err)
		}
		held[1].Close()
		if idle, open := p.Stats(); idle+open != 0 {
			t.Fatalf("%d idle of %d connections", idle, open)
		}
	})
}

// TestTimeouts checks when each deadline passes, to the nanosecond, and that a wait may be resumed.
func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Target{}, PoolOptions{Dial: pipeServer(func(c net.Conn, r *bufio.Reader) {
			readRequest(r)
			time.Sleep(10 * time.Second)
			io.WriteString(c, sseHead)
			time.Sleep(10 * time.Second)
			io.WriteString(c, chunk("data: a\n\n"))
			for range 3 {
				time.Sleep(4 * time.Second)
				io.WriteString(c, chunk(": ping\n\n"))
			}
			io.Copy(io.Discard, r)
		})})
		defer p.Close()
		start := time.Now()
		after := func(seconds int, err error, phase Phase, cause error) {
			t.Helper()
			wantError(t, err, phase, KindTimeout)
			if d := time.Since(start); d != time.Duration(seconds)*time.Second || !errors.Is(err, cause) {
				t.Fatalf("%v after %v, want %v after %ds", err, d, cause, seconds)
			}
		}
		e, err := p.Send(post("{}"), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		after(3, e.ReadHead(start.Add(3*time.Second)), PhaseHead, ErrDeadline)
		if err := e.ReadHead(start.Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		after(13, e.AwaitBody(start.Add(13*time.Second)), PhaseBody, ErrDeadline)
		if err := e.AwaitBody(time.Time{}); err != nil || time.Since(start) != 20*time.Second {
			t.Fatal(err, time.Since(start))
		}
		e.SetIdleTimeout(5 * time.Second)
		for _, want := range []string{"data: a\n\n", ": ping\n\n", ": ping\n\n", ": ping\n\n"} {
			if p, err := e.Next(); string(p) != want || err != nil {
				t.Fatalf("%q %v", p, err)
			}
		}
		_, err = e.Next()
		after(37, err, PhaseBody, ErrIdle)
		e.SetReadDeadline(start.Add(39 * time.Second))
		_, err = e.Next()
		after(39, err, PhaseBody, ErrDeadline)
	})
}

func TestDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Target{}, PoolOptions{DialTimeout: time.Second,
			Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}})
		defer p.Close()
		start := time.Now()
		for _, deadline := range []time.Duration{0, time.Minute, time.Second / 2} {
			var until time.Time
			if deadline > 0 {
				until = time.Now().Add(deadline)
			}
			_, err := p.Send(post("{}"), until)
			wantError(t, err, PhaseDial, KindTimeout)
		}
		if d := time.Since(start); d != 2500*time.Millisecond {
			t.Fatal(d)
		}
	})
}

// TestWriteTimeout: the server accepts and never reads.
func TestWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := NewPool(Target{}, PoolOptions{Dial: pipeServer(func(net.Conn, *bufio.Reader) { <-release })})
		defer p.Close()
		start := time.Now()
		_, err := p.Send(post(strings.Repeat("x", 100_000)), start.Add(3*time.Second))
		wantError(t, err, PhaseWrite, KindTimeout)
		if d := time.Since(start); d != 3*time.Second {
			t.Fatal(d)
		}
		close(release)
	})
}

// TestResponsesAtEverySplit sends a response in two writes, cut at every byte.
func TestResponsesAtEverySplit(t *testing.T) {
	for response, want := range map[string]string{
		okResponse: "hello",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x\r\nlo\r\n0\r\nA: b\r\n\r\n": "hello",
		"HTTP/1.1 100 Continue\r\n\r\n" + sseHead + chunk("data: a\n") + chunk("\ndata: b\n\n") +
			"0\r\n\r\n": "data: a\n\ndata: b\n\n",
	} {
		cut := 0
		p := NewPool(Target{}, PoolOptions{Dial: pipeServer(func(c net.Conn, r *bufio.Reader) {
			for {
				if _, _, err := readRequest(r); err != nil {
					return
				}
				io.WriteString(c, response[:cut])
				io.WriteString(c, response[cut:])
			}
		})})
		for cut = range len(response) {
			for _, await := range []bool{false, true} {
				e, err := p.Send(post("{}"), soonest())
				if err == nil {
					err = e.ReadHead(soonest())
				}
				if err == nil && await {
					err = e.AwaitBody(soonest())
				}
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(e)
				if string(body) != want || err != nil {
					t.Fatalf("%q cut at %d: %q %v", response, cut, body, err)
				}
				e.Close()
			}
		}
		if idle, open := p.Stats(); idle != 1 || open != 1 {
			t.Fatalf("%d idle of %d connections", idle, open)
		}
		p.Close()
	}
}
