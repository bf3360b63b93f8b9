package realengine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// endless requests more tokens than a test waits for.
var endless = object{"stream": true, "max_tokens": 1900, "ignore_eos": true}

// tokens reads a stream until n tokens have come, and returns the bytes.
func tokens(t *testing.T, body io.Reader, n int) []byte {
	t.Helper()
	var page []byte
	piece := make([]byte, 4096)
	for bytes.Count(page, []byte(`"content":"`)) < n {
		got, err := body.Read(piece)
		page = append(page, piece[:got]...)
		if err != nil {
			t.Fatalf("after %d bytes: %v", len(page), err)
		}
	}
	return page
}

// killed: an engine is killed while it streams. The engine's tokens have arrived. With vLLM the
// other engine goes on with the stream, which otherwise ends with an error. The other engine takes
// over immediately. The killed engine gets its share again soon after its return.
func (w *site) killed(t *testing.T) {
	resp, err := w.open(t.Context(), http.MethodPost, "/v1/chat/completions", chatBody(user("Never stop."), endless))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page := tokens(t, resp.Body, 10)
	victim := w.engine(t, resp.Header.Get("x-cgn-node"))
	victim.kill()
	rest, err := io.ReadAll(resp.Body)
	a := &answer{status: resp.StatusCode, header: resp.Header, body: append(page, rest...), err: err}
	events := a.events()
	goesOn := os.Getenv("REALENGINE") == "vllm"
	if last := events[len(events)-1]; err != nil || strings.Contains(last.data, `"error":{`) == goesOn ||
		strings.Contains(string(a.body), "[DONE]") != goesOn {
		t.Errorf("a killed engine's stream ends with %v, %v", last, err)
	}
	t.Logf("killed %s after 10 tokens; %d events arrived, the last is %s", victim.id, len(events),
		events[len(events)-1].data)
	w.served(t, "right after the kill", 24)
	t.Logf("errors seen by clients afterwards: 0 of 24; retries: %v", w.metric(t, "cgn_router_retries_total"))
	w.returns(t, victim)
}

// served: n requests, half of them streams, a few at a time, all succeed.
func (w *site) served(t *testing.T, when string, n int) []*answer {
	t.Helper()
	all := together(n, func(i int) *answer {
		more := object{}
		if i%2 == 0 {
			more["stream"] = true
		}
		return w.chat(user(prose(fmt.Sprint(when, i), 200)), more)
	})
	for i, a := range all {
		if !a.good() {
			t.Errorf("%s, request %d: %v", when, i, a)
		}
	}
	return all
}

// returns starts the engine again and waits until it gets its share.
func (w *site) returns(t *testing.T, e *engine) {
	t.Helper()
	e.start(t)
	e.awaitReady(t)
	up := time.Now()
	for k := 0; ; k++ {
		by := spread(w.served(t, fmt.Sprint("return ", k, " "), 8))
		if by[e.id] >= 2 && w.nodes()[e.id].State == "healthy" {
			break
		}
		if time.Since(up) > soon {
			t.Fatalf("%s answers none of 8 requests %v after it is up", e.id, time.Since(up))
		}
	}
	t.Logf("%s has its share back %.2f s after it is up", e.id, time.Since(up).Seconds())
}

// keepAlive is the idle time after which both servers close a connection.
const keepAlive = 5 * time.Second

// idles: requests after a pause, and at the moment when the engines close idle connections, do not
// fail more often than others.
func (w *site) idles(t *testing.T) {
	w.served(t, "before the pause", 48)
	time.Sleep(keepAlive + time.Second)
	after := w.served(t, "after the pause", 48)
	time.Sleep(keepAlive - 300*time.Millisecond)
	for i := range 60 { // the oldest connections are used last, so some are about to be closed
		after = append(after, w.served(t, fmt.Sprint("at the edge ", i, " "), 4)...)
	}
	retried := 0
	for _, a := range after {
		if a.attempts() != "1" {
			retried++
		}
	}
	t.Logf("%d requests after pauses of about %v: none failed, %d were asked of a second node", len(after), keepAlive,
		retried)
}

// bursts: many requests at once are all answered, repeatedly. llama.cpp's server has a thread for
// each connection. A new connection that finds no thread waits until an idle connection is closed.
func (w *site) bursts(t *testing.T) {
	const rounds, size = 6, 32
	var slowest time.Duration
	for k := range rounds {
		for i, a := range together(size, func(i int) *answer {
			return w.chat(user(prose(fmt.Sprint("burst ", k, i), 200)), nil)
		}) {
			if !a.good() {
				t.Errorf("burst %d, request %d: %v", k, i, a)
			}
			slowest = max(slowest, a.took)
		}
	}
	t.Logf("%d bursts of %d requests: the slowest took %.2f s", rounds, size, slowest.Seconds())
}

// leaves: when a client leaves, the engine stops its work.
func (w *site) leaves(t *testing.T, running string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := w.open(ctx, http.MethodPost, "/v1/chat/completions", chatBody(user("Nobody listens."), endless))
	if err != nil {
		t.Fatal(err)
	}
	tokens(t, resp.Body, 3)
	e := w.engine(t, resp.Header.Get("x-cgn-node"))
	busy := func() float64 { return sum(t, w.page(e.url()+"/metrics"), running) }
	if n := busy(); n != 1 {
		t.Errorf("%s says that %v requests run", e.id, n)
	}
	cancel()
	resp.Body.Close()
	took := within(t, soon, e.id+" stops computing", func() bool { return busy() == 0 })
	t.Logf("%s stopped %d ms after the client had gone", e.id, took.Milliseconds())
}

// page returns the page at a URL; nil if that fails.
func (w *site) page(url string) []byte {
	resp, err := w.client.Get(url)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	return page
}
