package gateway

import (
	"bufio"
	"net"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// headOf parses a request head as the server does.
func headOf(t testing.TB, lines ...string) *fasthttp.RequestHeader {
	t.Helper()
	h := new(fasthttp.RequestHeader)
	text := "POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	if err := h.Read(bufio.NewReader(strings.NewReader(text))); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestOwnHeaders(t *testing.T) {
	own := ownHeadersOf(headOf(t, "accept: */*", "x-cgn-session-id: s", "X-CGN-NODE: n", "x-cgn-node: m",
		"x-cgn-deadline-ms: 5", "x-request-id: r", "x-dynamo-session-id: d"))
	if string(own.Sessions.ID()) != "s" || string(own.Pin) != "n" || string(own.Deadline) != "5" || own.Routing {
		t.Errorf("%+v", own)
	}
	own = ownHeadersOf(headOf(t, "Accept: */*"))
	if own.Sessions.ID() != nil || own.Pin != nil || own.Deadline != nil {
		t.Errorf("%+v", own)
	}
	for _, name := range request.SessionHeaders {
		if own := ownHeadersOf(headOf(t, strings.ToLower(name)+": s")); string(own.Sessions.ID()) != "s" {
			t.Errorf("%s is not seen", name)
		}
	}
	for _, name := range []string{"x-cgn-router-temperature", "x-cgn-router-x", "x-dynamo-dp-rank"} {
		if !ownHeadersOf(headOf(t, name+": 1")).Routing {
			t.Errorf("%s is not seen", name)
		}
	}
}

// ordinary is a head that an SDK sends.
var ordinary = []string{
	"Content-Type: application/json", "Content-Length: 2000", "Accept: application/json", "Accept-Encoding: gzip",
	"User-Agent: OpenAI/Python 1.99.0", "Authorization: Bearer sk-1234567890", "X-Stainless-Lang: python",
	"X-Stainless-Os: Linux", "X-Stainless-Runtime: CPython", "X-Request-Id: 0123456789abcdef", "Connection: keep-alive",
}

func TestOwnHeadersAllocateNothing(t *testing.T) {
	h := headOf(t, ordinary...)
	if n := testing.AllocsPerRun(100, func() { ownHeadersOf(h) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkOwnHeaders(b *testing.B) {
	h := headOf(b, ordinary...)
	b.ReportAllocs()
	for b.Loop() {
		if ownHeadersOf(h).Routing {
			b.Fatal("there are none")
		}
	}
}

// TestOnlySomeClientsSteer checks the requests that need a client of this host or a certificate.
func TestOnlySomeClientsSteer(t *testing.T) {
	g := bare(t)
	read := func(peer net.Addr, api scan.API, body string, header ...string) *apierror.Error {
		t.Helper()
		ctx := contextAt(t, g)
		ctx.Request.Header.SetMethod("POST")
		for i := 0; i+1 < len(header); i += 2 {
			ctx.Request.Header.Set(header[i], header[i+1])
		}
		ctx.Request.SetBodyString(body)
		if peer != nil {
			ctx.SetRemoteAddr(peer)
		}
		who, _ := g.auth.Identify(&ctx.Request.Header, g.auth.PeerOf(ctx.RemoteAddr(), nil))
		c := g.begin(ctx, api, who, nil)
		defer c.conclude(0)
		if body == "" {
			return c.readHead()
		}
		return c.read()
	}
	other := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4711}
	const plain = `{"model":"m","messages":[]}`
	for _, c := range []struct {
		body, denied string
		header       []string
	}{
		{plain, "", nil},
		{plain, "", []string{"x-cgn-session-id", "s", "x-dynamo-session-id", "s", "x-dynamo-request-priority", "1"}},
		{`{"model":"m","messages":[],"nvext":{"agent_hints":{"osl":5},"cache_salt":"s"}}`, "", nil},
		{plain, "x-cgn-node", []string{"x-cgn-node", "n"}},
		{"", "x-cgn-node", []string{"x-cgn-node", "n"}},
		{plain, "x-dynamo-worker-instance-id", []string{"x-dynamo-worker-instance-id", "1"}},
		{plain, "x-cgn-router-temperature", []string{"x-cgn-router-temperature", "1"}},
		{`{"model":"m","messages":[],"nvext":{"router":{}}}`, "nvext.router", nil},
		{`{"model":"m","messages":[],"nvext":{"allowed_worker_ids":[1]}}`, "nvext.allowed_worker_ids", nil},
	} {
		if err := read(nil, scan.Chat, c.body, c.header...); err != nil {
			t.Errorf("%s %v by loopback: %v", c.body, c.header, err)
		}
		err := read(other, scan.Chat, c.body, c.header...)
		if (err == nil) != (c.denied == "") || err != nil && (err.Status != 403 || err.Param != c.denied) {
			t.Errorf("%s %v of another host: %v", c.body, c.header, err)
		}
	}
	for api, body := range map[scan.API]string{scan.Chat: plain, scan.Other: `{"model":"m"}`} {
		err := read(nil, api, body, "x-cgn-router-temperature", "warm")
		if err == nil || err.Status != 400 || err.Param != "x-cgn-router-temperature" {
			t.Errorf("a bad value: %v", err)
		}
		err = read(nil, api, body[:len(body)-1]+`,"nvext":{"dp_rank":"x"}}`)
		if err == nil || err.Status != 400 || err.Param != "nvext.dp_rank" {
			t.Errorf("a bad member: %v", err)
		}
	}
}
