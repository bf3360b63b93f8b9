package leg

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp/fasthttputil"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// sent sends a request to the fleet and reads the answer to its end.
func sent(t *testing.T, d *Dispatcher, api scan.API, path, body string) {
	t.Helper()
	r := asked(t, d, chat(1))
	r.Reset()
	r.API, r.Method, r.Path, r.Received = api, "POST", path, time.Now()
	r.Own([]byte(body), nil)
	if err := r.Read(nil, d.where.Memo.Scans()); err != nil {
		t.Fatal(err)
	}
	place := answer.Memory{Limit: 1 << 20}
	l := d.Leg(r, Question{}, &place)
	if err := l.Do(); err != nil || place.Status != 200 {
		t.Fatalf("%v, status %d: %s", err, place.Status, place.Body)
	}
	l.Finish(relay.Complete)
}

// slowEngine answers chats and responses in the time of the bubble: a second until the first token,
// then 50 ms for each further one. It sends each token at once.
func slowEngine(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Stream    bool `json:"stream"`
		Tokens    int  `json:"max_tokens"`
		Responses int  `json:"max_output_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	const wait, step = time.Second, 50 * time.Millisecond
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":200,"completion_tokens":%d}`, q.Tokens)
	if q.Responses > 0 {
		usage = fmt.Sprintf(`"usage":{"input_tokens":200,"output_tokens":%d}`, q.Responses)
	}
	if !q.Stream {
		time.Sleep(wait + time.Duration(q.Tokens-1)*step)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[{"message":{"content":"x"}}],%s}`, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	flush := func(format string, args ...any) {
		fmt.Fprintf(w, format, args...)
		_ = http.NewResponseController(w).Flush()
	}
	if q.Responses > 0 {
		flush("event: response.created\ndata: {\"type\":\"response.created\"}\n\n")
	}
	time.Sleep(wait)
	for i := range q.Tokens + q.Responses {
		if i > 0 {
			time.Sleep(step)
		}
		if q.Responses > 0 {
			flush("event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n")
		} else {
			flush("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
		}
	}
	if q.Responses > 0 {
		flush("event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{%s}}\n\n", usage)
	} else {
		flush("data: {\"choices\":[],%s}\n\ndata: [DONE]\n\n", usage)
	}
}

// served returns a dispatcher over one node, which the handler answers through memory, in a
// bubble.
func served(t *testing.T, handler http.HandlerFunc) *Dispatcher {
	t.Helper()
	ln := fasthttputil.NewInmemoryListener()
	server := &http.Server{Handler: handler}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
	index := prefix.NewIndex(prefix.Options{Inline: true})
	f, err := fleet.New(fleet.Options{
		Index: index, Logger: slog.New(slog.DiscardHandler), Proven: true,
		Backends: []fleet.Backend{{URL: "http://10.0.0.1:1", ID: "a", Model: "sim"}},
		Pool:     relay.PoolOptions{Dial: func(context.Context, string, string) (net.Conn, error) { return ln.Dial() }},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Load().Nodes[0].Pool.Close()
		_ = server.Close()
		<-done
		index.Close()
	})
	return over(f, index, Options{Limits: Limits{FirstByte: time.Minute, Idle: time.Minute, Total: time.Minute},
		Feedback: true})
}

// TestRatesOfAnEngine learns from the answers of an engine that is slower than the start values, in
// virtual time.
func TestRatesOfAnEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const chats = "/v1/chat/completions"
		d := served(t, slowEngine)
		decide(t, d, predicted)
		e := d.current().models["sim"].pools[Answer].members[0].engine
		for _, c := range []struct {
			api        scan.API
			path, body string
		}{
			{scan.Chat, chats, `{"model":"sim","max_tokens":3,"messages":[{"role":"user","content":"hello"}]}`},
			{scan.Responses, "/v1/responses", `{"model":"sim","max_output_tokens":40,"stream":true,"input":"hello"}`},
		} {
			sent(t, d, c.api, c.path, c.body)
			if firsts, gaps := taught(e); firsts != 0 || gaps != 0 {
				t.Errorf("%s teaches %d first tokens and %d gaps", c.path, firsts, gaps)
			}
			if sumOf(t, d, "cgn_router_expected_ttft_error_seconds") != 0 {
				t.Errorf("%s is compared with its forecast", c.path)
			}
		}
		const streamed = `{"model":"sim","max_tokens":35,"stream":true,"messages":[{"role":"user","content":"hello"}]}`
		for n := range 4 {
			sent(t, d, scan.Chat, chats, streamed)
			if firsts, gaps := taught(e); firsts != n+1 || gaps != n+1 {
				t.Errorf("%d answers teach %d first tokens and %d gaps", n+1, firsts, gaps)
			}
		}
		now := e.Speed()
		was := predict.Untaught()
		if !(now.PrefillFactor*now.Prefill(predict.Prompt(200, 0)) > was.Prefill(predict.Prompt(200, 0)) &&
			now.DecodeFactor*now.Decode(1, 4) > was.Decode(1, 4)) {
			t.Errorf("%+v of %+v", now, *now.Rates)
		}
		c := predict.Class{Model: d.current().models["sim"].hash}
		if got := d.forecasts.lengths.Expected(&c); got > 128 {
			t.Errorf("%v tokens are expected after answers of 3, 40 and 35", got)
		}
		noneLeft(t, d.current().snap.Nodes)
	})
}
