package relay

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// sifted sends a request to a server that answers with these pieces, and reads the head of the
// answer. Later pieces follow when next is closed.
func sifted(t *testing.T, next chan struct{}, first, later string) *Exchange {
	t.Helper()
	p := newPool(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, first)
		if next != nil {
			<-next
			io.WriteString(c, later)
			io.Copy(io.Discard, r)
		}
	}))
	e, err := p.Send(post("{}"), soonest())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.ReadHead(soonest()); err != nil {
		t.Fatal(err)
	}
	return e
}

// without drops events with the data drop. It has enough at the event enough.
func without(e sse.Event, out []byte, _ time.Time) ([]byte, bool) {
	if string(e.Data) == "drop" {
		return out, false
	}
	return append(out, e.Raw...), string(e.Data) == "enough"
}

// TestSift checks that the next reader gets the bytes that Sift kept, and then the rest.
func TestSift(t *testing.T) {
	long := strings.Repeat("data: "+strings.Repeat("x", 1000)+"\n\n", 100)
	for name, c := range map[string]struct {
		first, later string
		limit        int
		why          Sifted
		want         string
	}{
		"whole": {sseHead + chunk("data: a\n\ndata: drop\n\n: c\n\ndata: b\n") + lastChunk, "", 99, SiftedWhole,
			"data: a\n\n: c\n\ndata: b\n\n\n"},
		"enough": {sseHead + chunk("data: enough\n\ndata: drop\n\ndata: b"), chunk("c\n\ndata: d\n\n") + lastChunk, 99,
			SiftedEnough, "data: enough\n\ndata: bc\n\ndata: d\n\n"},
		"line end": {sseHead + chunk("data: enough\r\n\r"), chunk("\ndata: d\r\n\r\n") + lastChunk, 99, SiftedEnough,
			"data: enough\r\n\r\ndata: d\r\n\r\n"},
		"full": {sseHead + chunk(long), chunk("data: d\n\n") + lastChunk, 50_000, SiftedFull, long + "data: d\n\n"},
		"long event": {sseHead + chunk("data: "+strings.Repeat("x", sse.MaxEventBytes-60_000)),
			chunk("\n\n") + lastChunk, 8 << 20, SiftedFull,
			"data: " + strings.Repeat("x", sse.MaxEventBytes-60_000) + "\n\n"},
		"document":          {withLength("{\"a\":1}"), "", 99, SiftedWhole, "{\"a\":1}"},
		"chunks":            {withChunks(long), "", 1 << 20, SiftedWhole, long},
		"document too long": {withLength(long), "", 99, SiftedFull, long},
	} {
		for _, await := range []bool{false, true} {
			next := make(chan struct{})
			e := sifted(t, next, c.first, c.later)
			if await && name != "long event" {
				if err := e.AwaitBody(soonest()); err != nil {
					t.Fatal(err)
				}
			}
			why, err := Sift(e, SiftOptions{Limit: c.limit, Event: without})
			close(next)
			if err != nil || why != c.why {
				t.Errorf("%s: %v, %v, want %v", name, why, err, c.why)
			}
			var rest []byte
			for err == nil {
				var piece []byte
				piece, err = e.Next()
				rest = append(rest, piece...)
			}
			if err != io.EOF || string(rest) != c.want {
				t.Errorf("%s: then %d bytes, want %d, %v: %.80q", name, len(rest), len(c.want), err, rest)
			}
			e.Close()
		}
	}
}

// TestSiftFails checks that a body that breaks off is no success, and that nothing is held then.
func TestSiftFails(t *testing.T) {
	for name, response := range map[string]string{
		"cut":        sseHead + chunk("data: a\n\n"),
		"not closed": sseHead + chunk("data: a\n\n") + lastChunk,
		"document":   "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
	} {
		e := sifted(t, nil, response, "")
		if _, err := Sift(e, SiftOptions{Limit: 99, MustClose: true, Event: without}); err == nil || len(e.Held()) > 0 {
			t.Errorf("%s: %v, %d bytes held", name, err, len(e.Held()))
		}
		e.Close()
	}
}

// TestSiftUntil checks that Sift returns at its time with what has come, and that the exchange's
// own deadline is a failure.
func TestSiftUntil(t *testing.T) {
	next := make(chan struct{})
	e := sifted(t, next, sseHead+chunk("data: a\n\n"), chunk("data: b\n\n")+lastChunk)
	if err := e.AwaitBody(soonest()); err != nil {
		t.Fatal(err)
	}
	e.SetReadDeadline(soonest())
	why, err := Sift(e, SiftOptions{Limit: 99, Until: time.Now().Add(time.Millisecond), Event: without})
	close(next)
	if err != nil || why != SiftedLate || string(e.Held()) != "data: a\n\n" {
		t.Errorf("%v, %v, %q", why, err, e.Held())
	}
	if b, err := Capture(nil, e, CaptureOptions{Limit: 99}); err != nil || string(b) != "data: a\n\ndata: b\n\n" {
		t.Errorf("then %q, %v", b, err)
	}
	e.Close()
	never := make(chan struct{})
	defer close(never)
	e = sifted(t, never, sseHead+chunk("data: a\n\n"), "")
	e.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err = Sift(e, SiftOptions{Limit: 99, Until: soonest(), Event: without})
	wantError(t, err, PhaseBody, KindTimeout)
	e.Close()
}

// TestSiftedReply checks that a client gets what Sift kept, on loops and without.
func TestSiftedReply(t *testing.T) {
	for _, loops := range []bool{true, false} {
		parkStreams = loops
		o := newObserved()
		f := newFront(t, rawServer(t, "tcp", answering(sseHead+chunk("data: a\n\ndata: drop\n\n"+
			strings.Repeat("data: enough\n\n", 4000))+chunk("data: [DONE]\n\n")+lastChunk)), func(f *front) {
			f.follower, f.await = o, true
			f.sift = &SiftOptions{Limit: 1 << 20, Event: without}
		})
		_, body, err := get(t, f.addr)
		want := "data: a\n\n" + strings.Repeat("data: enough\n\n", 4000) + "data: [DONE]\n\n"
		if err != nil || body != want {
			t.Errorf("loops %v: %d bytes, want %d, %v", loops, len(body), len(want), err)
		}
		o.wait(t, Complete)
	}
	parkStreams = true
}

// TestHoldReplaces checks that a whole document can be replaced by one of another length.
func TestHoldReplaces(t *testing.T) {
	for _, size := range []int{3, 300 << 10} {
		f := newFront(t, rawServer(t, "tcp", answering(withLength(strings.Repeat("x", 290<<10)))), func(f *front) {
			f.sift = &SiftOptions{Limit: 1 << 20, Event: without}
			f.replace = []byte(strings.Repeat("y", size))
		})
		if _, body, err := get(t, f.addr); err != nil || body != strings.Repeat("y", size) {
			t.Errorf("%d bytes, want %d, %v", len(body), size, err)
		}
	}
}
