package relay

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

const okResponse = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello"

func TestRoundTrips(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for name, response := range map[string]string{
			"length": okResponse,
			"chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: " +
				"x\r\n\r\n",
			"lf":      "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nhel\n2\nlo\n0\n\n",
			"interim": "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + okResponse,
		} {
			p := newPool(t, rawServer(t, network, answering(response)))
			for range 3 {
				status, body, err := roundTrip(p, post("{}"))
				if status != 200 || body != "hello" || err != nil {
					t.Fatalf("%s %s: %d %q %v", network, name, status, body, err)
				}
			}
			if idle, open := p.Stats(); idle != 1 || open != 1 {
				t.Fatalf("%s %s: %d idle of %d connections", network, name, idle, open)
			}
		}
	}
}

func TestRequestBytes(t *testing.T) {
	got := make(chan string, 2)
	target := rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		head, body, _ := readRequest(r)
		got <- head + body
		io.WriteString(c, okResponse)
	})
	target.Host, target.BasePath, target.Authorization = "engine", "/base", "Bearer own\r\nX: y"
	p := newPool(t, target)
	req := post("he")
	req.Body = append(req.Body, nil, []byte("llo"))
	roundTrip(p, req)
	want := "POST /base/v1/x HTTP/1.1\r\nHost: engine\r\nA: b\r\nAuthorization: Bearer ownX: y\r\nContent-Length: " +
		"5\r\n\r\nhello"
	if s := <-got; s != want {
		t.Fatalf("sent %q, want %q", s, want)
	}
	roundTrip(p, &Request{Method: "GET", Path: "/v1/models", ForwardAuthorization: []byte("Bearer client")})
	want = "GET /base/v1/models HTTP/1.1\r\nHost: engine\r\nAuthorization: Bearer client\r\n\r\n"
	if s := <-got; s != want {
		t.Fatalf("sent %q, want %q", s, want)
	}
	_, _, err := roundTrip(p, &Request{Method: "GET", Path: "/a b"})
	wantError(t, err, PhaseWrite, KindProtocol)
}

// TestStaleConnections closes each connection after one answer. So every further request gets a
// closed connection from the pool, and notices before or during use that the connection is closed.
func TestStaleConnections(t *testing.T) {
	closed := make(chan struct{}, 8)
	p := newPool(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, okResponse)
		c.Close()
		closed <- struct{}{}
	}))
	for i := range 4 {
		if status, body, err := roundTrip(p, post("{}")); status != 200 || body != "hello" || err != nil {
			t.Fatalf("request %d: %d %q %v", i, status, body, err)
		}
		<-closed
	}
}

// TestStaleOnUse closes a reused connection after it has read the request.
func TestStaleOnUse(t *testing.T) {
	p := newPool(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, okResponse)
		readRequest(r)
	}))
	for i := range 4 {
		if status, body, err := roundTrip(p, post("{}")); status != 200 || body != "hello" || err != nil {
			t.Fatalf("request %d: %d %q %v", i, status, body, err)
		}
	}
}

// TestKilledOnUse: a server that ends for good while it has the request causes a reset, not the
// error of an unreachable server.
func TestKilledOnUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		r := bufio.NewReader(c)
		readRequest(r)
		io.WriteString(c, okResponse)
		readRequest(r)
		l.Close()
	}()
	p := newPool(t, Target{Addr: l.Addr().String()})
	if _, _, err := roundTrip(p, post("{}")); err != nil {
		t.Fatal(err)
	}
	_, _, err = roundTrip(p, post("{}"))
	<-done
	wantError(t, err, PhaseHead, KindReset)
	if idle, open := p.Stats(); idle+open != 0 {
		t.Fatalf("%d idle of %d connections", idle, open)
	}
	_, _, err = roundTrip(p, post("{}"))
	wantError(t, err, PhaseDial, KindRefused)
}

// TestNewConnectionIsNotReplaced: if an engine dies on a new connection, the caller gets the error.
func TestNewConnectionIsNotReplaced(t *testing.T) {
	seen := make(chan struct{}, 8)
	p := newPool(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		seen <- struct{}{}
	}))
	_, _, err := roundTrip(p, post("{}"))
	wantError(t, err, PhaseHead, KindReset)
	if len(seen) != 1 {
		t.Fatalf("%d requests", len(seen))
	}
}

func TestRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, _, err = roundTrip(newPool(t, Target{Addr: l.Addr().String()}), post(""))
	wantError(t, err, PhaseDial, KindRefused)
	_, _, err = roundTrip(newPool(t, Target{Network: "unix", Addr: t.TempDir() + "/none"}), post(""))
	wantError(t, err, PhaseDial, KindRefused)
}

func TestTruncatedBodies(t *testing.T) {
	for _, response := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
	} {
		p := newPool(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
			readRequest(r)
			io.WriteString(c, response)
		}))
		_, body, err := roundTrip(p, post("{}"))
		wantError(t, err, PhaseBody, KindReset)
		if body != "hello" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%q %v", body, err)
		}
	}
}

func TestBodyUntilClose(t *testing.T) {
	for _, version := range []string{"1.0", "1.1"} {
		p := newPool(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
			readRequest(r)
			io.WriteString(c, "HTTP/"+version+" 200 OK\r\n\r\nhello")
		}))
		if _, body, err := roundTrip(p, post("{}")); body != "hello" || err != nil {
			t.Fatalf("%q %v", body, err)
		}
		if idle, open := p.Stats(); idle != 0 || open != 0 {
			t.Fatalf("%d idle of %d connections", idle, open)
		}
	}
}

// TestConnectionKept lists the answers after which the connection is reused.
func TestConnectionKept(t *testing.T) {
	for _, c := range []struct {
		method, response string
		idle             int
	}{
		{"POST", "HTTP/1.1 204 No Content\r\n\r\n", 1},
		{"POST", "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 1},
		{"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 1},
		{"POST", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1},
		{"POST", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n", 0},
		{"POST", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 0},
		{"POST", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", 1},
		{"POST", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc", 0},
		{"POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nx", 0},
		{"POST", "HTTP/1.1 204 No Content\r\n\r\nx", 0},
	} {
		p := newPool(t, rawServer(t, "tcp", answering(c.response)))
		if _, _, err := roundTrip(p, &Request{Method: c.method, Path: "/"}); err != nil {
			t.Fatalf("%q: %v", c.response, err)
		}
		if idle, open := p.Stats(); idle != c.idle || open != c.idle {
			t.Errorf("%s %q: %d idle of %d connections", c.method, c.response, idle, open)
		}
	}
}

// TestOnce: the server is told that the connection will be closed, and the connection is closed
// even if the server keeps its end open.
func TestOnce(t *testing.T) {
	got := make(chan string, 3)
	p := newPool(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		for {
			head, _, err := readRequest(r)
			if err != nil {
				return
			}
			got <- head
			io.WriteString(c, okResponse)
		}
	}))
	for i, once := range []bool{false, true, false} {
		req := post("x")
		req.Once = once
		if _, _, err := roundTrip(p, req); err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(<-got, "\r\nConnection: close\r\n"); told != once {
			t.Errorf("request %d: told to close: %v", i, told)
		}
		if idle, open := p.Stats(); idle != 1 || open != 1 {
			t.Errorf("request %d: %d idle of %d connections", i, idle, open)
		}
	}
}

// TestEarlyAnswers: the server refuses a large body without reading it, and closes or lingers.
func TestEarlyAnswers(t *testing.T) {
	const refusal = "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig"
	for _, linger := range []bool{false, true} {
		release := make(chan struct{})
		p := newPool(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
			r.ReadString('\n')
			io.WriteString(c, refusal)
			if linger {
				<-release
			}
		}))
		req := post("")
		req.Body = [][]byte{bytes.Repeat([]byte("x"), 32<<20)}
		status, body, err := roundTrip(p, req)
		close(release)
		if status != 413 || body != "big" || err != nil {
			t.Fatalf("linger %v: %d %q %v", linger, status, body, err)
		}
		if idle, open := p.Stats(); idle+open != 0 {
			t.Fatalf("%d idle of %d connections", idle, open)
		}
	}
}

func TestCancel(t *testing.T) {
	read := make(chan struct{}, 1)
	p := newPool(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		read <- struct{}{}
		io.Copy(io.Discard, r)
	}))
	req := post("{}")
	req.Abort = new(Abort)
	e, err := p.Send(req, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-read
		req.Abort.Cancel()
		req.Abort.Cancel()
	}()
	err = e.ReadHead(soonest())
	wantError(t, err, PhaseHead, KindCanceled)
	if !errors.Is(err, ErrCanceled) {
		t.Fatal(err)
	}
	e.Close()
	if idle, open := p.Stats(); idle+open != 0 {
		t.Fatalf("%d idle of %d connections", idle, open)
	}
}

// TestAbort: an Abort ends an exchange in progress, refuses the next one, and does nothing to an
// ended one.
func TestAbort(t *testing.T) {
	p := newPool(t, rawServer(t, "tcp", answering(okResponse)))
	req := post("{}")
	req.Abort = new(Abort)
	if _, _, err := roundTrip(p, req); err != nil {
		t.Fatal(err)
	}
	req.Abort.Cancel()
	if idle, _ := p.Stats(); idle != 1 {
		t.Fatal("a late Cancel reached the pooled connection")
	}
	_, _, err := roundTrip(p, req)
	wantError(t, err, PhaseDial, KindCanceled)
	req.Abort.Reset()
	if _, _, err := roundTrip(p, req); err != nil {
		t.Fatal(err)
	}
}

func TestAbortWhileDialing(t *testing.T) {
	p := newPool(t, Target{Addr: "192.0.2.1:9"})
	req := post("{}")
	req.Abort = new(Abort)
	time.AfterFunc(20*time.Millisecond, req.Abort.Cancel)
	_, _, err := roundTrip(p, req)
	var e *Error // the kind differs if the machine has no route to that address
	if !errors.As(err, &e) || e.Phase != PhaseDial || e.Kind == KindTimeout {
		t.Fatal(err)
	}
}
