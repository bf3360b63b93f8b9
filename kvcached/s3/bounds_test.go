package s3

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// dial connects and sends the head of a request, and body, which may be only a part of its body.
func (b *bed) dial(method, path string, length int, body string) net.Conn {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.http.Listener.Addr().String())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: kvb.localhost\r\nContent-Length: %d\r\n\r\n%s", method,
		path, length, body); err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// answer reads the answer to a request of dial.
func (b *bed) answer(conn net.Conn) reply {
	b.t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	resp.Request, err = http.NewRequest(http.MethodPost, "/", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return reply{resp, string(text)}
}

// await polls until done.
func (b *bed) await(what string, done func(st Stats) bool) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(b.server.Stats()); {
		if time.Now().After(deadline) {
			b.t.Fatalf("not %s: %+v", what, b.server.Stats())
		}
		runtime.Gosched()
	}
}

// TestSlowDocuments: 300 clients announce documents of 4 MiB and send a few bytes of them. The
// server waits for only as many as its bound allows. No document takes memory for bytes that have
// not come.
func TestSlowDocuments(t *testing.T) {
	const most, clients = 16, 300
	b := serve(t, Options{Sink: arena(t, 4<<20), maxRequests: most})
	id := b.start("/k")
	complete := string(completionText(map[int]string{1: b.part("/k", id, 1, "x")}))
	b.want(b.answer(b.dial("POST", "/k?uploadId=none", maxCompleteText, "<")), 404, "NoSuchUpload")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var held []net.Conn
	for i := range most {
		held = append(held, b.dial("POST", []string{"/?delete", "/k?uploadId=" + id}[i%2], maxDeleteText, "<Delete>"))
	}
	b.await("all tokens taken", func(st Stats) bool { return st.Bodies == most })
	for i := range clients - most {
		b.want(b.answer(b.dial("POST", []string{"/?delete", "/k?uploadId=" + id}[i%2], maxDeleteText, "<Delete>")), 503,
			"SlowDown")
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("%d MiB were allocated for documents that did not come", took>>20)
	}
	b.want(b.do("HEAD", "/none", ""), 503)
	b.want(b.do("PUT", "/", "<CreateBucketConfiguration/>"), 503, "SlowDown")
	b.want(b.do("POST", "/k?uploadId=none", complete), 404, "NoSuchUpload")
	if st := b.server.Stats(); st.SlowedDown != clients-most+2 || st.Uploads != 1 {
		t.Errorf("%+v", st)
	}
	for _, conn := range held {
		_ = conn.Close()
	}
	b.await("all tokens back", func(st Stats) bool { return st.Bodies == 0 })
	b.want(b.do("POST", "/k?uploadId="+id, complete), 200)
}

// TestLongDocument deletes objects by a document that comes in pieces and has more elements than
// are kept.
func TestLongDocument(t *testing.T) {
	b := serve(t, Options{Sink: arena(t, 4<<20)})
	b.want(b.do("PUT", "/k", "v"), 200)
	b.want(b.do("POST", "/?delete", "<Delete>"+strings.Repeat("<Object><Key>k</Key></Object>", maxDeletes)+
		strings.Repeat(" ", 1<<20)+"</Delete>"), 200, "<Key>k</Key>")
	b.want(b.do("GET", "/k", ""), 404)
	b.want(b.do("POST", "/?delete", "<Delete>"+strings.Repeat("<Object/>", 400_000)+"</Delete>"), 400, "MalformedXML")
	id := b.start("/k")
	b.want(b.do("POST", "/k?uploadId="+id, "<CompleteMultipartUpload>"+strings.Repeat("<Part/>", maxParts+1)+
		"</CompleteMultipartUpload>"), 400, "MalformedXML")
	b.want(b.do("POST", "/?delete", strings.Repeat(" ", maxDeleteText+1)), 400, "EntityTooLarge")
}

// TestDocumentOfGoneClient: a document waits to be parsed only as long as its client stays.
func TestDocumentOfGoneClient(t *testing.T) {
	b := serve(t, Options{Sink: arena(t, 4<<20)})
	for range maxParsing {
		b.server.parsing <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, "POST", "/?delete", strings.NewReader("<Delete/>"))
	r.Host = "kvb.localhost"
	w := httptest.NewRecorder()
	b.server.ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable || b.server.Stats().Bodies != 0 {
		t.Errorf("%d %s %+v", w.Code, w.Body, b.server.Stats())
	}
}

// TestRefusedSlowly refuses a short request whose body does not come. The client gets the error,
// and its connection is closed.
func TestRefusedSlowly(t *testing.T) {
	b := serve(t, Options{Sink: arena(t, 4<<20), Timeout: 500 * time.Millisecond})
	b.want(b.answer(b.dial("POST", "/k?uploadId=none", 100, "<")), 404, "NoSuchUpload")
	b.want(b.answer(b.dial("PUT", "/k", 100, "x")), 400, "RequestTimeout")
	conn := b.dial("PUT", "/k", 0, "")
	b.want(b.answer(conn), 200)
}

// TestSlowTrailers: the server waits for the end of an empty aws-chunked body no longer than for
// the end of any other body.
func TestSlowTrailers(t *testing.T) {
	b := serve(t, Options{Sink: arena(t, 4<<20), Timeout: 500 * time.Millisecond})
	conn, err := net.Dial("tcp", b.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "PUT /k HTTP/1.1\r\nHost: kvb.localhost\r\nContent-Length: 100\r\n%s: "+
		"%s\r\nx-amz-decoded-content-length: 0\r\n\r\n0",
		headerPayload, streamingUnsignedTrailer)
	b.want(b.answer(conn), 400, "RequestTimeout")
}

// ill is a Sink that fails.
type ill struct{ lone }

func (ill) Get(context.Context, block.Addr) (*store.Block, error) {
	return nil, errors.New("the disk is on fire")
}

// TestFailuresLogged: one failure a second is logged, however many there are.
func TestFailuresLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s, err := New(Options{Sink: ill{arena(t, 4<<20)}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for round := range 3 {
			for range 10 {
				if w := askDirectly(s, "GET", "/k", ""); w.Code != http.StatusInternalServerError {
					t.Fatal(w.Code, w.Body)
				}
			}
			if got := strings.Count(log.String(), "on fire"); got != round+1 {
				t.Errorf("%d lines in %d s", got, round)
			}
			time.Sleep(time.Second)
		}
		if st := s.Stats(); st.Failed != 30 {
			t.Errorf("%+v", st)
		}
	})
}

// TestLocation completes uploads over HTTP and over TLS. The object's URL has the right scheme.
func TestLocation(t *testing.T) {
	b := serve(t, Options{Sink: arena(t, 4<<20)})
	secure := httptest.NewTLSServer(b.server)
	defer secure.Close()
	for scheme, front := range map[string]*httptest.Server{"http": b.http, "https": secure} {
		on := &bed{t: t, server: b.server, http: front}
		id := on.start("/k")
		complete := string(completionText(map[int]string{1: on.part("/k", id, 1, "x")}))
		on.want(on.do("POST", "/k?uploadId="+id, complete), 200,
			"<Location>"+scheme+"://kvb.localhost:9000/k</Location>")
	}
}
