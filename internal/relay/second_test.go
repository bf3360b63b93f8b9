package relay

import (
	"bufio"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestAwaitSecond checks that two events are held once the second has come, and that the body is
// whole then. A stream with one event is no error, unless it is cut.
func TestAwaitSecond(t *testing.T) {
	for name, test := range map[string]struct {
		late string // comes a second after the first event
		body string
		cut  bool
	}{
		"two events": {chunk("data: b\n\n") + "0\r\n\r\n", "data: a\n\ndata: b\n\n", false},
		"one event":  {"0\r\n\r\n", "data: a\n\n", false},
		"cut":        {"", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := NewPool(Target{}, PoolOptions{Dial: pipeServer(func(c net.Conn, r *bufio.Reader) {
					readRequest(r)
					io.WriteString(c, sseHead+chunk("data: a\n\n"))
					time.Sleep(time.Second)
					io.WriteString(c, test.late)
				})})
				defer p.Close()
				start := time.Now()
				e, err := p.Send(post("{}"), time.Time{})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				if err = e.ReadHead(time.Time{}); err == nil {
					err = e.AwaitBody(time.Time{})
				}
				if err != nil || time.Since(start) != 0 || string(e.Held()) != "data: a\n\n" {
					t.Fatalf("%v after %v: %q", err, time.Since(start), e.Held())
				}
				if err = e.AwaitSecond(time.Time{}); (err != nil) != test.cut || time.Since(start) != time.Second {
					t.Fatalf("%v after %v", err, time.Since(start))
				}
				if test.cut {
					return
				}
				if body, err := io.ReadAll(e); err != nil || string(body) != test.body {
					t.Errorf("%q, %v", body, err)
				}
			})
		})
	}
}
