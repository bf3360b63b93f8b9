package resp

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
)

// TestHTTP sends requests that a web page can make a browser send. No command in them is executed.
func TestHTTP(t *testing.T) {
	var log bytes.Buffer
	addr, s, _ := start(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	keeper := dial(t, "tcp", addr)
	keeper.want("+OK\r\n", "SET", "k", "v")
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: x\r\n\r\nFLUSHALL\r\n", "pOsT /\r\nFLUSHALL\r\n",
		"GET / HTTP/1.1\r\nhost: x\r\n\r\nFLUSHALL\r\n",
		"MULTI\r\nHost: x\r\nFLUSHALL\r\nEXEC\r\n", encode("Host:", strings.Repeat("x", 30000)) + "FLUSHALL\r\n",
	} {
		p := dial(t, "tcp", addr)
		p.send(request)
		got, _ := io.ReadAll(p.in) // or a reset, because the later bytes were not read
		if strings.Contains(string(got), "unknown") {
			t.Errorf("%.40q: %q", request, got)
		}
		eventually(t, "the end", func() bool { return s.Stats().Connections == 1 })
	}
	keeper.want("$1\r\nv\r\n", "GET", "k")
	if n := strings.Count(log.String(), "HTTP"); s.Stats().CrossProtocol != 5 || n != 1 {
		t.Errorf("%+v, %d log lines", s.Stats(), n)
	}
}

// TestLogOfClients: clients that fail again and again cause one log line of each kind.
func TestLogOfClients(t *testing.T) {
	var log bytes.Buffer
	m := &faulty{lone: openStore(t, 1<<20)}
	addr, s, _ := start(t, Options{Store: m, Purge: m.purge, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Users: []User{{Name: "default", Password: "one"}}})
	p := dial(t, "tcp", addr)
	for range 3 {
		p.want("-"+errWrongPass+"\r\n", "AUTH", "two")
	}
	p.want("+OK\r\n", "AUTH", "one")
	m.fails.Store(true)
	for range 3 {
		p.want("-ERR the store failed\r\n", "DEL", "a")
	}
	if err := s.Serve(&exhausted{left: 3}); err != nil {
		t.Error(err)
	}
	for _, line := range []string{"a wrong password", "the store failed", "cannot accept"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("%d lines tell of %q", n, line)
		}
	}
	if st := s.Stats(); st.AuthFailures != 3 || st.StoreFailures != 3 || st.Refused != 3 {
		t.Errorf("%+v", st)
	}
}

// exhausted is a listener without free file descriptors. After left calls it is closed.
type exhausted struct{ left int }

func (e *exhausted) Accept() (net.Conn, error) {
	if e.left--; e.left < 0 {
		return nil, net.ErrClosed
	}
	return nil, syscall.EMFILE
}

func (e *exhausted) Close() error   { return nil }
func (e *exhausted) Addr() net.Addr { return nil }

// TestTooLongValueIsTold: a client sends a value beyond the limit to its end before it reads, as
// most clients do.
func TestTooLongValueIsTold(t *testing.T) {
	addr, s, _ := start(t, Options{})
	p := dial(t, "tcp", addr)
	const n = MaxValue + 8<<20
	p.send(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", n))
	piece := strings.Repeat("x", 1<<20)
	for range n >> 20 {
		p.send(piece)
	}
	p.send("\r\n")
	if r, err := p.reply(); r != "-ERR "+errLongBulk.Error()+"\r\n" {
		t.Errorf("%q %v", r, err)
	}
	p.ended()
	p.conn.Close()
	eventually(t, "the end", func() bool { return s.Stats().Connections == 0 })
}

// TestRealLimit checks how long a value may be in a small memory.
func TestRealLimit(t *testing.T) {
	m := openStore(t, 1<<20)
	addr, _, _ := start(t, Options{Store: m, Memory: func() (int64, int64) { return 0, 1 << 20 }})
	p := dial(t, "tcp", addr)
	p.want("*2\r\n$18\r\nproto-max-bulk-len\r\n$7\r\n1048576\r\n", "CONFIG", "GET", "proto-max-bulk-len")
	if r := p.do("SET", "k", strings.Repeat("x", 2<<20)); !strings.Contains(r,
		"this object has 2 MiB; with kvcached.ram = 1 MiB at most ") {
		t.Errorf("%q", r)
	}
	p.want("+PONG\r\n", "PING")
}

// TestDrainSeesWhatHasCome: a command comes when the drain has interrupted the wait and the server
// has not read the command yet.
func TestDrainSeesWhatHasCome(t *testing.T) {
	m := openStore(t, 0)
	s, err := New(Options{Store: m, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t, client, bufio.NewReader(client)}
	p.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhe")
	s.draining.Store(true)
	_ = l.Close()
	s.accept(nc)
	eventually(t, "the beginning to be read", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 1
	})
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	p.send("llo\r\n")
	if r, err := p.reply(); r != "+OK\r\n" {
		t.Errorf("%q %v", r, err)
	}
	p.ended()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestDrainTellsWhomItCut checks that the drain reports the number of connections that did not
// finish in time.
func TestDrainTellsWhomItCut(t *testing.T) {
	m := openStore(t, 0)
	s, err := New(Options{Store: m, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	p := dial(t, "tcp", l.Addr().String())
	p.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n")
	eventually(t, "a draft", func() bool { return m.Stats().RAM.Held > 0 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "1 connections were cut") {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
