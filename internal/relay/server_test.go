package relay

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// rawServer serves every connection with serve, on a real socket.
func rawServer(t testing.TB, network string, serve func(c net.Conn, r *bufio.Reader)) Target {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = t.TempDir() + "/s"
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c, bufio.NewReader(c))
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return Target{Network: network, Addr: l.Addr().String()}
}

// readRequest reads one request and returns its head and body.
func readRequest(r *bufio.Reader) (head, body string, err error) {
	size := 0
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", "", err
		}
		head += line
		if v, ok := strings.CutPrefix(line, "Content-Length: "); ok {
			for _, c := range strings.TrimSpace(v) {
				size = size*10 + int(c-'0')
			}
		}
		if line == "\r\n" {
			break
		}
	}
	b := make([]byte, size)
	_, err = io.ReadFull(r, b)
	return head, string(b), err
}

// answering sends the same bytes for every request.
func answering(response string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, r *bufio.Reader) {
		for {
			if _, _, err := readRequest(r); err != nil {
				return
			}
			if _, err := io.WriteString(c, response); err != nil {
				return
			}
		}
	}
}

func newPool(t testing.TB, target Target) *Pool {
	p := NewPool(target, PoolOptions{})
	t.Cleanup(p.Close)
	return p
}

// soon is how long a test waits for an event before it fails.
const soon = time.Minute

func soonest() time.Time { return time.Now().Add(soon) }

func post(body string) *Request {
	return &Request{Method: "POST", Path: "/v1/x", Header: []byte("A: b\r\n"), Body: [][]byte{[]byte(body)}}
}

// roundTrip sends req and reads the whole body.
func roundTrip(p *Pool, req *Request) (status int, body string, err error) {
	e, err := p.Send(req, soonest())
	if err != nil {
		return 0, "", err
	}
	defer e.Close()
	if err := e.ReadHead(soonest()); err != nil {
		return 0, "", err
	}
	e.SetReadDeadline(soonest())
	b, err := io.ReadAll(e)
	return e.Status(), string(b), err
}

func wantError(t *testing.T, err error, phase Phase, kind Kind) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Phase != phase || e.Kind != kind {
		t.Fatalf("error %v, want phase %v kind %v", err, phase, kind)
	}
}
