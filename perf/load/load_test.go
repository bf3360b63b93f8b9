package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/perf/instant"
	"github.com/cognitora/dataplane/sim/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestQuantiles(t *testing.T) {
	var h Histogram
	if q := h.Quantiles(); q != (Quantiles{}) {
		t.Errorf("empty: %+v", q)
	}
	random := rand.New(rand.NewPCG(1, 1))
	var all []time.Duration
	for range 20000 {
		d := time.Duration(random.ExpFloat64() * float64(time.Millisecond))
		all = append(all, d)
		h.Add(d)
	}
	slices.Sort(all)
	q := h.Quantiles()
	for p, got := range map[float64]float64{0.5: q.P50, 0.9: q.P90, 0.99: q.P99} {
		want := all[int(p*float64(len(all)))].Seconds()
		if got < want || got > want*(1+1.0/32) {
			t.Errorf("p%v: %v, want %v or little more", p, got, want)
		}
	}
	if q.Max != all[len(all)-1].Seconds() || q.Count != 20000 {
		t.Errorf("max %v, count %d", q.Max, q.Count)
	}
	for _, ns := range []uint64{0, 1, 127, 128, 1 << 20, 1<<63 - 1} {
		if b := bucket(ns); upper(b) < ns || b > 0 && upper(b-1) >= ns {
			t.Errorf("%d lies in bucket %d, which ends at %d", ns, b, upper(b))
		}
	}
}

func TestChatBodies(t *testing.T) {
	never := NewChat(ChatConfig{Model: "m", PromptBytes: 4000, Tokens: 3, Stream: true, Wish: "pace=5"})
	seen := NewChat(ChatConfig{Model: "m", PromptBytes: 4000, Shared: 0.9, Documents: 4})
	prompt := func(c *Chat, n uint64) string {
		var doc struct {
			Messages []struct{ Content string }
		}
		body := c.Append(nil, n)
		if err := json.Unmarshal(body, &doc); err != nil || len(doc.Messages[0].Content) < 4000 ||
			len(doc.Messages[0].Content) > 4060 {
			t.Fatalf("%v in %s", err, body)
		}
		return doc.Messages[0].Content
	}
	if first := prompt(never, 7); prompt(never, 7) != first {
		t.Error("one number, two bodies")
	}
	for n := range uint64(100) {
		a, b := prompt(never, n), prompt(never, n+1)
		for at := 0; at+stampEvery <= 4000; at += stampEvery {
			if a[at:at+stampEvery] == b[at:at+stampEvery] {
				t.Fatalf("requests %d and %d are alike at %d", n, n+1, at)
			}
		}
	}
	if a, b := prompt(seen, 3), prompt(seen, 7); a[:3600] != b[:3600] || a[3600:3664] == b[3600:3664] {
		t.Error("two requests for one document share more or less than nine tenths")
	}
	if a, b := prompt(seen, 3), prompt(seen, 4); a[:64] == b[:64] {
		t.Error("two documents begin alike")
	}
	if body := string(seen.Append(nil, 9)); !strings.Contains(body, "prompt=1000 cached=896") {
		t.Errorf("counts in %s", body[len(body)-60:])
	}
}

func event(seq, stream uint32) string {
	text := make([]byte, instant.StampLen)
	instant.Stamp{Seq: seq, Stream: stream, Sent: time.Now()}.Put(text)
	return fmt.Sprintf("data: {\"choices\":[{\"delta\":{\"content\":\"%s\"}}]}\n\n", text)
}

func TestTokensAreChecked(t *testing.T) {
	role := "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
	plain := "data: {\"choices\":[{\"delta\":{\"content\":\" word\"}}]}\r\n\r\n"
	done := "data: [DONE]\n\n"
	for name, tc := range map[string]struct {
		stream string
		want   error
	}{
		"good":             {role + event(0, 1) + event(1, 1) + event(2, 1) + done, nil},
		"good, no stamps":  {role + plain + plain + plain + done, nil},
		"lost":             {event(0, 1) + event(2, 1) + event(3, 1) + done, errOrder},
		"repeated":         {event(0, 1) + event(1, 1) + event(1, 1) + done, errOrder},
		"swapped":          {event(1, 1) + event(0, 1) + event(2, 1) + done, errOrder},
		"another stream's": {event(0, 1) + event(1, 2) + event(2, 1) + done, errStray},
		"one missing":      {event(0, 1) + event(1, 1) + done, errCount},
		"one too many":     {plain + plain + plain + plain + done, errCount},
		"after the end":    {event(0, 1) + event(1, 1) + done + event(2, 1), errOrder},
		"broken off":       {event(0, 1) + event(1, 1) + event(2, 1), errClosed},
		"cut in an event":  {event(0, 1) + event(1, 1) + event(2, 1) + done + "dat", errClosed},
		"error event":      {event(0, 1) + "data: {\"error\":{}}\n\n", errEvent},
	} {
		for cut := range len(tc.stream) {
			e := events{}
			e.reset(&sink{Want: 3})
			err := e.feed([]byte(tc.stream[:cut]))
			if err == nil {
				err = e.feed([]byte(tc.stream[cut:]))
			}
			if err == nil {
				err = e.end()
			}
			if !errors.Is(err, tc.want) {
				t.Fatalf("%s, cut at %d: %v, want %v", name, cut, err, tc.want)
			}
		}
	}
}

func started(t *testing.T, cfg instant.Config) *instant.Engine {
	t.Helper()
	e, err := instant.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func TestClosed(t *testing.T) {
	e := started(t, instant.Config{})
	for _, stream := range []bool{false, true} {
		bodies := NewChat(ChatConfig{Model: instant.Model, PromptBytes: 2000, Tokens: 40, Stream: stream})
		before := e.Requests()
		r, next := Closed{Target: Target{Address: e.Addr()}, Bodies: bodies, Clients: 4, First: 10, Requests: 200,
			Window: Window{Measure: time.Minute}}.Run()
		if r.Requests != 200 || r.Failed() != 0 || e.Requests()-before != 200 || r.Latency.Count != 200 || next < 210 {
			t.Errorf("stream %v: %+v, next %d", stream, r, next)
		}
	}
}

// TestOpenCountsFromDue: with one connection and a slow target, later requests wait. The requests'
// times include the wait.
func TestOpenCountsFromDue(t *testing.T) {
	e := started(t, instant.Config{})
	bodies := NewChat(ChatConfig{Model: instant.Model, PromptBytes: 100, Tokens: 2, Stream: true, Wish: "pace=10000"})
	left := 10
	all := func() (time.Duration, bool) { left--; return 0, left >= 0 }
	r := Open{Target: Target{Address: e.Addr()}, Bodies: bodies, Arrivals: all, MaxClients: 1,
		Window: Window{Measure: time.Minute}}.Run()
	if r.Requests != 10 || r.Failed() != 0 || r.Latency.Max < 0.2 || r.TTFT.Max < 0.19 || r.TTFT.P50 > r.Latency.P50 ||
		r.Late.Max < 0.17 {
		t.Errorf("ten requests of 20 ms in turn, all due at once: %+v", r)
	}
	rate, at := Poisson(1000, 1), time.Duration(0)
	for range 10000 {
		at, _ = rate()
	}
	if at < 9*time.Second || at > 11*time.Second {
		t.Errorf("10,000 arrivals at 1,000/s took %v", at)
	}
}

func TestStreams(t *testing.T) {
	e := started(t, instant.Config{})
	bodies := NewChat(ChatConfig{Model: instant.Model, PromptBytes: 100, Tokens: 60, Stream: true, Wish: "pace=5000"})
	run := func() *Result {
		begun, sent := 0, e.Tokens()
		r := Streams{Target: Target{Address: e.Addr()}, Bodies: bodies, N: 50, Ramp: 50 * time.Millisecond,
			Window: Window{Warmup: 50 * time.Millisecond, Measure: 100 * time.Millisecond, Begin: func() { begun++ },
				End: func() { begun++ }}}.Run()
		if r.Requests != 50 || r.Failed() != 0 || begun != 2 || e.Tokens()-sent != 3000 {
			t.Errorf("%+v, %d tokens sent", r, e.Tokens()-sent)
		}
		return r
	}
	often(t, "of 3000 tokens about 1000 are counted", func() bool {
		r := run()
		return r.Tokens >= 500 && r.Tokens <= 1500 && r.Token.Count > 0
	})
	var left atomic.Int64
	gone := make(chan struct{}, 50)
	e = started(t, instant.Config{Left: func(time.Time) { left.Add(1); gone <- struct{}{} }})
	endless := NewChat(ChatConfig{Model: instant.Model, PromptBytes: 100, Tokens: 1e6, Stream: true, Wish: "pace=5000"})
	all := func() { // cancelling a request counts only after the engine has seen it
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for e.Requests() < 50 {
			<-tick.C
		}
	}
	r := Streams{Target: Target{Address: e.Addr()}, Bodies: endless, N: 50, Abandon: true,
		Window: Window{Measure: 50 * time.Millisecond, Begin: all}}.Run()
	for range 50 {
		<-gone
	}
	if r.Failed() != 0 || left.Load() != 50 {
		t.Errorf("abandoned: %+v, %d left", r, left.Load())
	}
}

// TestWrongServers: each kind of wrong answer is counted under its own name.
func TestWrongServers(t *testing.T) {
	chunked := func(parts ...string) string {
		s := "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
		for _, p := range parts {
			s += fmt.Sprintf("%x;ext=1\r\n%s\r\n", len(p), p)
		}
		return s
	}
	good := event(0, 1) + event(1, 1) + "data: [DONE]\n\n"
	for want, response := range map[string]string{
		"":                       chunked(good[:10], good[10:]) + "0\r\ntrailer: x\r\n\r\n",
		"status 503":             "HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno",
		"broken answer":          chunked(good) + "zz\r\n",
		errOrder.Error():         chunked(event(1, 1)) + "0\r\n\r\n",
		errClosed.Error():        chunked(event(0, 1)) + "0\r\n\r\n",
		"closed":                 "",
		"broken answer, by HTTP": "FTP/1.1 200 OK\r\n\r\n",
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 64<<10))
			_, _ = c.Write([]byte(response))
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = bytes.NewBuffer(nil).ReadFrom(c)
			_ = c.Close()
		}()
		bodies := NewChat(ChatConfig{Model: "m", PromptBytes: 100, Tokens: 2, Stream: true})
		r, _ := Closed{Target: Target{Address: ln.Addr().String()}, Bodies: bodies, Clients: 1, Requests: 1,
			Window: Window{Measure: 10 * time.Second}}.Run()
		want, _, _ = strings.Cut(want, ", by")
		if want == "" && r.Requests != 1 || want != "" && r.Failures[want] != 1 {
			t.Errorf("want %q: %d answered, %v", want, r.Requests, r.Failures)
		}
		_ = ln.Close()
		<-done
	}
}

// TestSimulatedEngine: the load also works against a server other than the instant engine.
func TestSimulatedEngine(t *testing.T) {
	e, err := engine.New(engine.Config{DecodeStep: 5 * time.Millisecond, PrefillTokensPerSecond: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	target := Target{Address: strings.TrimPrefix(e.URL(), "http://")}
	cfg := ChatConfig{Model: "sim", PromptBytes: 500, Tokens: 20}
	window := Window{Warmup: 100 * time.Millisecond, Measure: 300 * time.Millisecond}
	often(t, "closed: some requests are counted", func() bool {
		r, _ := Closed{Target: target, Bodies: NewChat(cfg), Clients: 4, Window: window}.Run()
		if r.Failed() != 0 {
			t.Errorf("closed: %+v", r)
		}
		return r.Requests > 0
	})
	cfg.Stream = true
	r := Streams{Target: target, Bodies: NewChat(cfg), N: 20, Window: Window{Measure: 50 * time.Millisecond}}.Run()
	if r.Requests != 20 || r.Failed() != 0 {
		t.Errorf("streams: %+v", r)
	}
	often(t, "open: some requests are counted", func() bool {
		r := Open{Target: target, Bodies: NewChat(cfg), Arrivals: Poisson(200, 1), Window: window}.Run()
		if r.Failed() != 0 {
			t.Errorf("open: %+v", r)
		}
		return r.Requests > 0 && r.TTFT.Count > 0
	})
}

// often retries for a minute, because a busy machine may delay the condition.
func often(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if so() {
			return
		}
	}
	t.Error("never: " + what)
}

// TestStop: a stopped window ends immediately, whatever runs in it.
func TestStop(t *testing.T) {
	e := started(t, instant.Config{})
	endless := NewChat(ChatConfig{Model: instant.Model, PromptBytes: 100, Tokens: 1e6, Stream: true, Wish: "pace=5000"})
	for name, at := range map[string]Streams{
		"while opening": {N: 1000, Ramp: time.Hour, Window: Window{Measure: time.Hour}},
		"in the window": {N: 10, Window: Window{Measure: time.Hour}},
		"behind it":     {N: 10, Window: Window{Measure: time.Nanosecond}},
	} {
		stop := make(chan struct{})
		at.Target, at.Bodies, at.Window.Stop = Target{Address: e.Addr()}, endless, stop
		at.Timeout = time.Hour
		var once sync.Once
		at.OnToken = func() { once.Do(func() { close(stop) }) }
		if r := at.Run(); r.Failed() != 0 {
			t.Errorf("%s: %v", name, r.Failures)
		}
	}
	stop := make(chan struct{})
	close(stop)
	short := NewChat(ChatConfig{Model: instant.Model, PromptBytes: 100, Tokens: 1})
	Closed{Target: Target{Address: e.Addr()}, Bodies: short, Clients: 2,
		Window: Window{Warmup: time.Hour, Measure: time.Hour, Stop: stop}}.Run()
	short.cfg.Stream = true
	Open{Target: Target{Address: e.Addr()}, Bodies: short, Arrivals: Poisson(0.001, 1),
		Window: Window{Measure: time.Hour, Stop: stop}}.Run()
}

// TestReadSlowly: the client goes on reading, and the rest of the answer stays with the server.
func TestReadSlowly(t *testing.T) {
	e := started(t, instant.Config{})
	endless := NewChat(ChatConfig{Model: instant.Model, PromptBytes: 100, Tokens: 1e9, Stream: true, Wish: "pace=0"})
	s, err := ReadSlowly(Target{Address: e.Addr()}, endless, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Leave()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); s.Read() < 2*slowPiece; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("only %d bytes were read", s.Read())
		}
	}
	if sent := e.Tokens() * 200; sent > 64<<20 {
		t.Errorf("%d bytes were sent to a client that has read %d", sent, s.Read())
	}
}
