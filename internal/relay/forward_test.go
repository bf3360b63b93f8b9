package relay

import (
	"bufio"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// parseRequest parses a request head as the server does.
func parseRequest(t testing.TB, lines ...string) *fasthttp.RequestHeader {
	t.Helper()
	h := new(fasthttp.RequestHeader)
	s := "POST /x HTTP/1.1\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	if err := h.Read(bufio.NewReader(strings.NewReader(s))); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestAppendForwardHeaders(t *testing.T) {
	h := parseRequest(t,
		"Host: router", "Content-Length: 2", "Content-Type: application/json", "User-Agent: sdk/1",
		"Connection: keep-alive, X-Secret, x-hop", "X-Secret: 1", "X-Hop: 2", "Keep-Alive: 5", "TE: trailers",
		"Upgrade: h2c", "Proxy-Authorization: x", "Authorization: Bearer client", "x-api-key: k", "Api-Key: k",
		"Cookie: a=b", "Expect: 100-continue", "Accept-Encoding: gzip", "X-Forwarded-For: 1.2.3.4",
		"X-User-Id: root", "X-Cgn-Node: n1", "traceparent: 00-1-2-01", "X-Request-Id: r1",
		"Accept: text/event-stream", "anthropic-version: 2023-06-01", "OpenAI-Organization: o", "X-Many: a",
		"X-Many: b")
	got := strings.Split(strings.TrimSuffix(string(AppendForwardHeaders(nil, h)), "\r\n"), "\r\n")
	slices.Sort(got)
	want := []string{
		"Accept: text/event-stream", "Anthropic-Version: 2023-06-01", "Content-Type: application/json",
		"Openai-Organization: o", "Traceparent: 00-1-2-01", "User-Agent: sdk/1", "X-Many: a", "X-Many: b",
		"X-Request-Id: r1",
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%q\nwant %q", got, want)
	}
}

// TestRankIsARoutersOnly: a client's rank is not forwarded. A proxy behind a router passes the
// router's rank on.
func TestRankIsARoutersOnly(t *testing.T) {
	h := parseRequest(t, "Host: x", "X-Data-Parallel-Rank: 3", "Accept: a/b")
	if got := string(AppendForwardHeaders(nil, h)); got != "Accept: a/b\r\n" {
		t.Errorf("%q", got)
	}
	if got := string(AppendRank([]byte("A: b\r\n"), h)); got != "A: b\r\nx-data-parallel-rank: 3\r\n" {
		t.Errorf("%q", got)
	}
	h.SetBytesKV([]byte("X-Data-Parallel-Rank"), []byte("3\x00"))
	if got := AppendRank(nil, h); len(got) != 0 {
		t.Errorf("%q", got)
	}
	if got := AppendRank(nil, parseRequest(t, "Host: x")); got != nil {
		t.Errorf("%q", got)
	}
}

func TestForwardedHeadersCannotInject(t *testing.T) {
	h := new(fasthttp.RequestHeader)
	h.DisableNormalizing()
	h.SetBytesKV([]byte("A\r\nB"), []byte("c"))
	h.SetBytesKV([]byte("D"), []byte("e\r\nX-Evil: 1"))
	h.SetBytesKV([]byte("F"), []byte("g\x00h"))
	h.SetBytesKV([]byte("I J"), []byte("k"))
	h.SetUserAgent("a\r\nX-Evil: 2")
	out := string(AppendForwardHeaders(nil, h))
	for line := range strings.SplitSeq(strings.TrimSuffix(out, "\r\n"), "\r\n") {
		if strings.HasPrefix(line, "X-Evil") || strings.ContainsAny(line, "\r\n\x00") {
			t.Fatalf("%q", out)
		}
	}
}

func TestAppendForwardHeadersDoesNotAllocate(t *testing.T) {
	h := parseRequest(t, "Host: x", "Content-Type: a/b", "User-Agent: c", "Connection: keep-alive", "X-Request-Id: d",
		"Authorization: Bearer e")
	dst := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(1000, func() { AppendForwardHeaders(dst, h) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestCopyHeaders(t *testing.T) {
	p := newPool(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nDate: x\r\nServer: engine\r\nContent-Length: 0\r\nConnection: "+
			"keep-alive\r\n"+
			"Connection: x, X-Drop\r\nX-Drop: 1\r\nconnection: X-Other\r\nX-Other: 2\r\nX-Cgn-Load: 3\r\nKeep-Alive: "+
			"5\r\nContent-Type: a/b\r\nVary: Origin\r\nSet-Cookie: a=1\r\n"+
			"Set-Cookie: b=2\r\nX-Many: 1\r\nX-Many: 2\r\n\r\n")
	}))
	e, err := p.Send(post(""), soonest())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.ReadHead(soonest()); err != nil {
		t.Fatal(err)
	}
	var h fasthttp.ResponseHeader
	CopyHeaders(&h, e)
	var got []string
	for k, v := range h.All() {
		got = append(got, string(k)+"="+string(v))
	}
	slices.Sort(got)
	want := "Content-Length=0 Content-Type=a/b Set-Cookie=a=1 Set-Cookie=b=2 Vary=Origin X-Many=1 X-Many=2"
	if s := strings.Join(got, " "); s != want && "Content-Length=0 "+s != want {
		t.Fatalf("%s\nwant %s", s, want)
	}
	if string(e.Header("x-cgn-load")) != "3" {
		t.Fatal("the exchange still has what is not copied")
	}
}

// TestDeadlinePasses checks that an agent reads the deadline that a router writes, and that nothing
// makes it later than the agent's own.
func TestDeadlinePasses(t *testing.T) {
	now := time.Now()
	line := string(AppendDeadline([]byte("A: b\r\n"), now.Add(1500*time.Millisecond), now))
	if line != "A: b\r\nX-Cgn-Deadline-Ms: 1600\r\n" {
		t.Errorf("%q", line)
	}
	if line := string(AppendDeadline(nil, now.Add(-time.Second), now)); line != "X-Cgn-Deadline-Ms: 0\r\n" {
		t.Errorf("a deadline that has passed: %q", line)
	}
	own := now.Add(time.Minute)
	for value, want := range map[string]time.Duration{
		"1500": 1500 * time.Millisecond, "0": 0, "60001": time.Minute, "-1": time.Minute, "x": time.Minute,
		"99999999999999999999": time.Minute,
	} {
		h := parseRequest(t, "Host: x", "X-Cgn-Deadline-Ms: "+value)
		if got := Deadline(h, now, own).Sub(now); got != want {
			t.Errorf("%s: %v, want %v", value, got, want)
		}
	}
	if got := Deadline(parseRequest(t, "Host: x"), now, own); got != own {
		t.Errorf("without one: %v", got)
	}
}
