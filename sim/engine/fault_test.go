package engine

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// send is post for a request that may end with a connection error.
func send(e *Engine, body string, header ...string) (*http.Response, error) {
	r, err := http.NewRequest(http.MethodPost, e.URL()+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return http.DefaultClient.Do(r)
}

var streamed = chatBody("hello", `,"stream":true,"max_tokens":20`)

func TestDieAfterTokens(t *testing.T) {
	e := start(t)
	for header, want := range map[string]error{"die_after=10": syscall.ECONNRESET,
		"die_after=10,close=fin": io.ErrUnexpectedEOF} {
		list, err := events(post(t, e, "/v1/chat/completions", streamed, "x-sim-fault", header).Body)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", header, err)
		}
		if header != "die_after=10" && len(list) != 11 { // a reset may overtake tokens
			t.Errorf("%s: %d events", header, len(list))
		}
		if len(list) > 0 && list[len(list)-1].data == "[DONE]" {
			t.Errorf("%s: a clean end", header)
		}
	}
	eventually(t, "free sequences", func() bool {
		s := e.Stats()
		return s.Running == 0 && s.UsedBlocks == 0 && s.InFlight == 0
	})
}

func TestFaultsBeforeTheAnswer(t *testing.T) {
	e := start(t)
	for _, tc := range []struct {
		fault  string
		status int // 0 for a connection error
	}{
		{"status=500", 500}, {"status=429,retry_after=1", 429}, {"slow=20ms", 200},
		{"reset", 0}, {"garbage", 0}, {"nonsense", 400}, {"status=200", 400},
	} {
		res, err := send(e, chatBody("hello", ""), "x-sim-fault", tc.fault)
		if err != nil {
			if tc.status != 0 {
				t.Errorf("%s: %v", tc.fault, err)
			}
			continue
		}
		res.Body.Close()
		if res.StatusCode != tc.status {
			t.Errorf("%s: status %d", tc.fault, res.StatusCode)
		}
		if retry := res.Header.Get("Retry-After"); (tc.status == 429) != (retry == "1") {
			t.Errorf("%s: Retry-After %q", tc.fault, retry)
		}
	}
}

func TestTruncate(t *testing.T) {
	e := start(t)
	for _, body := range []string{chatBody("hello", ""), streamed} {
		res := post(t, e, "/v1/chat/completions", body, "x-sim-fault", "truncate")
		if got, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) || len(got) == 0 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
}

func TestHangEndsWithTheFault(t *testing.T) {
	e := start(t)
	for _, f := range []Fault{{Hang: true}, {HangBody: true}, {StallAfter: new(3)}} {
		e.SetFault(&f)
		ended := make(chan error, 1)
		go func() {
			res, err := send(e, streamed)
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			ended <- err
		}()
		eventually(t, "a request that hangs", func() bool {
			s := e.Stats()
			return s.InFlight == 1 && s.Faults > 0
		})
		select {
		case err := <-ended:
			t.Fatalf("%+v: ended with %v", f, err)
		case <-time.After(20 * time.Millisecond):
		}
		e.SetFault(nil)
		if err := <-ended; err == nil {
			t.Errorf("%+v: ended well", f)
		}
		eventually(t, "the end", func() bool { return e.Stats().InFlight == 0 })
	}
}

func TestHealthAnswersWhileRequestsHang(t *testing.T) {
	e := start(t)
	e.SetFault(&Fault{Hang: true})
	get(t, e, "/health")
	e.SetFault(&Fault{Status: 503, Path: "*"})
	if res, err := http.Get(e.URL() + "/health"); err != nil || res.StatusCode != 503 {
		t.Errorf("%v, %v", res, err)
	} else {
		res.Body.Close()
	}
}

func TestNodeFaultByHTTP(t *testing.T) {
	e := start(t)
	set := func(doc string, want int) {
		if res := post(t, e, "/sim/fault", doc); res.StatusCode != want {
			t.Fatalf("%s: %s", doc, res.Status)
		}
	}
	status := func() int { return post(t, e, "/v1/chat/completions", chatBody("hello", "")).StatusCode }
	set(`{"status":400,"count":2}`, 204)
	if a, b, c := status(), status(), status(); a != 400 || b != 400 || c != 200 {
		t.Errorf("count 2 gave %d %d %d", a, b, c)
	}
	set(`{"status":502,"probability":0.5}`, 204)
	hit := 0
	for range 200 {
		if status() == 502 {
			hit++
		}
	}
	if hit < 60 || hit > 140 {
		t.Errorf("probability 0.5 struck %d of 200", hit)
	}
	set(`{"unknown":1}`, 400)
	set(`{"no_stream_options":true}`, 204)
	res := post(t, e, "/v1/chat/completions",
		chatBody("hello", `,"stream":true,"stream_options":{"include_usage":true}`))
	if object(t, res, 400); status() != 200 {
		t.Error("a request without stream_options was refused")
	}
	set(`{"no_cached_tokens":true}`, 204)
	doc := object(t, post(t, e, "/v1/chat/completions", chatBody("hello", "")), 200)
	if d := at(t, doc, "usage", "prompt_tokens_details"); d != nil {
		t.Errorf("details %v", d)
	}
}

func TestRefuseAndAccept(t *testing.T) {
	e := start(t)
	addr := e.Addr()
	body := chatBody(strings.Repeat("hello ", 30), "")
	object(t, post(t, e, "/v1/chat/completions", body), 200)
	e.Refuse()
	http.DefaultClient.CloseIdleConnections()
	if _, err := send(e, body); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a refused request: %v", err)
	}
	if err := e.Accept(); err != nil || e.Addr() != addr {
		t.Fatalf("%s: %v", e.Addr(), err)
	}
	doc := object(t, post(t, e, "/v1/chat/completions", body), 200)
	if n := at(t, doc, "usage", "prompt_tokens_details", "cached_tokens"); n == 0.0 {
		t.Error("refusing connections lost the cache")
	}
	e.Kill()
	if err := e.Accept(); err != nil {
		t.Fatal(err)
	}
	doc = object(t, post(t, e, "/v1/chat/completions", body), 200)
	if n := at(t, doc, "usage", "prompt_tokens_details", "cached_tokens"); n != 0.0 {
		t.Error("the cache survived a crash")
	}
}

func TestRefuseForAWhile(t *testing.T) {
	e := start(t)
	post(t, e, "/sim/fault", `{"refuse":"50ms"}`)
	eventually(t, "a refused connection", func() bool {
		conn, err := net.Dial("tcp", e.Addr())
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	eventually(t, "an answer", func() bool {
		res, err := send(e, chatBody("hello", ""))
		if err == nil {
			res.Body.Close()
		}
		return err == nil
	})
}

func TestKillMidStream(t *testing.T) {
	e := start(t, func(c *Config) { c.Speed = 1 })
	res := post(t, e, "/v1/chat/completions", chatBody("hello", `,"stream":true,"max_tokens":10000`))
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	e.Kill()
	if _, err := io.Copy(io.Discard, res.Body); err == nil {
		t.Error("the stream ended well")
	}
}

// TestClientLeaves checks that an aborted request is noticed and its sequence freed, with or
// without a flow of tokens.
func TestClientLeaves(t *testing.T) {
	for name, header := range map[string]string{"streaming": "slow=0", "stalled": "stall_after=2", "hanging": "hang"} {
		t.Run(name, func(t *testing.T) {
			leave(t, start(t, func(c *Config) { c.Speed = 1 }), header)
		})
	}
}

// leave makes a client leave. leave waits until the engine notices.
func leave(t *testing.T, e *Engine, fault string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+"/v1/chat/completions",
		strings.NewReader(chatBody("hello", `,"stream":true,"max_tokens":10000`)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Sim-Fault", fault)
	if fault == "hang" {
		go func() { _, _ = http.DefaultClient.Do(r) }()
	} else if res, err := http.DefaultClient.Do(r); err != nil {
		t.Fatal(err)
	} else {
		defer res.Body.Close()
	}
	eventually(t, "the request", func() bool { return e.Stats().InFlight == 1 })
	aborted := e.Stats().Aborted
	cancel()
	eventually(t, "an abort", func() bool { return e.Stats().Aborted == aborted+1 })
	eventually(t, "free blocks", func() bool { s := e.Stats(); return s.Running == 0 && s.UsedBlocks == 0 })
}
