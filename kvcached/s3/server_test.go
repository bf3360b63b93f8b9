package s3

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is a server on loopback over a memory.
type bed struct {
	t      *testing.T
	server *Server
	http   *httptest.Server
}

// serve starts a server. A request without a Host of its own is for the bucket "kvb", in
// virtual-host style.
func serve(t *testing.T, o Options) *bed {
	t.Helper()
	b := &bed{t: t}
	if o.Sink == nil {
		o.Sink = arena(t, 512<<20)
	}
	var err error
	if b.server, err = New(o); err != nil {
		t.Fatal(err)
	}
	b.http = httptest.NewServer(b.server)
	t.Cleanup(func() {
		b.http.Client().CloseIdleConnections()
		b.http.Close()
		b.server.Close()
	})
	return b
}

// reply is an answer that was read to its end.
type reply struct {
	*http.Response
	body string
}

// do sends a request; header is name, value, name, value.
func (b *bed) do(method, url, body string, header ...string) reply {
	b.t.Helper()
	r, err := http.NewRequest(method, b.http.URL+url, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Host = "kvb.localhost:9000"
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Add(header[i], header[i+1])
	}
	return b.send(r)
}

func (b *bed) send(r *http.Request) reply {
	b.t.Helper()
	resp, err := b.http.Client().Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return reply{resp, string(text)}
}

// want checks status and, if given, that the body holds each text.
func (b *bed) want(r reply, status int, texts ...string) reply {
	b.t.Helper()
	if r.StatusCode != status {
		b.t.Fatalf("%s %s: %s, want %d: %.300s", r.Request.Method, r.Request.URL, r.Status, status, r.body)
	}
	for _, text := range texts {
		if !strings.Contains(r.body, text) {
			b.t.Fatalf("%s %s: no %q in %.600s", r.Request.Method, r.Request.URL, text, r.body)
		}
	}
	return r
}

// pattern is n bytes that differ from place to place.
func pattern(n int) []byte {
	return bytes.Repeat([]byte("0123456789abcdefghijklmnopqrstuvwxyz!"), n/37+1)[:n]
}
