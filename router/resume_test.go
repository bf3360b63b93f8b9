package router_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// resumes is a tweak that sets router.resume.mode.
func resumes(mode string) func(*router.Config) {
	return func(c *router.Config) { c.Router.Resume.Mode, c.Router.Mode = mode, "score" }
}

// said is a stream as its client understands it. The sum of its chunks is compared with that of an
// undisturbed stream, because the boundaries of chunks may differ at the seam.
type said struct {
	ids, roles, finishes, usages, dones int
	id, text, reason, stop              string
	tokens                              []float64
	prompt, completion, total           float64
	err                                 string
}

func saidBy(t *testing.T, r *reply) (s said) {
	t.Helper()
	if r.status != 200 || r.err != nil {
		t.Fatalf("%v", r)
	}
	ids := map[string]bool{}
	for _, e := range r.events() {
		if e.data == "[DONE]" {
			s.dones++
			continue
		}
		var c struct {
			ID      string
			Object  string
			Created int
			Model   string
			Error   *struct{ Message string }
			Usage   *struct {
				Prompt     float64 `json:"prompt_tokens"`
				Completion float64 `json:"completion_tokens"`
				Total      float64 `json:"total_tokens"`
			}
			Choices []struct {
				Delta  struct{ Role, Content string }
				Text   string
				Reason *string   `json:"finish_reason"`
				Stop   *string   `json:"stop_reason"`
				IDs    []float64 `json:"token_ids"`
			}
		}
		if err := json.Unmarshal([]byte(e.data), &c); err != nil {
			t.Fatalf("%v: %s", err, e.data)
		}
		if c.Error != nil {
			s.err = c.Error.Message
			continue
		}
		ids[fmt.Sprint(c.ID, c.Object, c.Created, c.Model)] = true
		s.id = c.ID
		if c.Usage != nil {
			s.usages++
			s.prompt, s.completion, s.total = c.Usage.Prompt, c.Usage.Completion, c.Usage.Total
		}
		for _, choice := range c.Choices {
			if choice.Delta.Role != "" {
				s.roles++
			}
			s.text += choice.Delta.Content + choice.Text
			s.tokens = append(s.tokens, choice.IDs...)
			if choice.Reason != nil {
				s.finishes++
				s.reason = *choice.Reason
			}
			if choice.Stop != nil {
				s.stop = *choice.Stop
			}
		}
	}
	s.ids = len(ids)
	return s
}

// same compares a stream with an undisturbed one.
func (s said) same(of said) bool {
	s.id, of.id = "", ""
	return fmt.Sprint(s) == fmt.Sprint(of)
}

// resumed returns the number of broken streams with this end.
func (s *site) resumed(by, result string) int {
	return int(s.metrics().sum("cgn_router_resumed_total", `by="`+by+`"`, `result="`+result+`"`))
}

// varies is what differs between two runs of one request: its time, and what the engine had cached.
var varies = regexp.MustCompile(`"created":\d+|"(created_cache|cached)_tokens":\d+`)

// TestStreamsGoOn: D is killed in the middle of 200 streams. Every stream is complete, and has
// exactly the bytes of an undisturbed one.
func TestStreamsGoOn(t *testing.T) {
	const streams = 200
	s := serve(t, simulate(t, 2, func(c *engine.Config) { c.DecodeStep = 10 * time.Millisecond }), resumes("auto"))
	bodies := make([]string, streams)
	for i := range bodies {
		bodies[i] = chatBody(fmt.Sprint("question ", i), `,"stream":true,"max_tokens":100,"stream_options":{"include_usage":true}`)
	}
	id := func(i int) []string { return []string{"x-request-id", fmt.Sprint("stream-", i)} }
	undisturbed := together(streams, func(i int) *reply { return s.chat(bodies[i], id(i)...) })
	mustAll(t, "undisturbed", undisturbed)
	var begun sync.WaitGroup
	begun.Add(streams)
	done := make(chan []*reply)
	go func() {
		done <- together(streams, func(i int) *reply {
			resp, err := s.send(t.Context(), http.MethodPost, "/v1/chat/completions", bodies[i], id(i)...)
			if err != nil {
				begun.Done()
				return &reply{err: err}
			}
			defer resp.Body.Close()
			first := make([]byte, 1500)
			_, err = io.ReadFull(resp.Body, first)
			begun.Done()
			if err != nil {
				return &reply{err: err}
			}
			rest, err := io.ReadAll(resp.Body)
			return &reply{status: resp.StatusCode, header: resp.Header, body: append(first, rest...), err: err}
		})
	}()
	begun.Wait()
	s.engines[0].Kill()
	all := <-done
	for i, r := range all {
		if got := saidBy(t, r); got.err != "" {
			t.Fatalf("stream %d: %s\n%s", i, got.err, s.log.text())
		}
	}
	went := 0
	for i, r := range all {
		if got, want := saidBy(t, r), saidBy(t, undisturbed[i]); !got.same(want) || got.roles != 1 || got.ids != 1 ||
			got.usages != 1 || got.dones != 1 || got.finishes != 1 {
			t.Fatalf("stream %d:\n%+v\n%+v", i, got, want)
		}
		if r.node() == "sim-0" {
			went++
			if varies.ReplaceAllString(string(r.body), "") != varies.ReplaceAllString(string(undisturbed[i].body), "") {
				t.Errorf("stream %d:\n%s\n%s", i, r.body, undisturbed[i].body)
			}
		}
	}
	eventually(t, "all are counted", func() bool { return s.resumed("ids", "complete") == went })
	if went < streams/4 {
		t.Errorf("only %d streams were on the killed node", went)
	}
	for _, r := range s.engines[1].Requests() {
		if strings.Contains(string(r.Body), "prompt_token_ids") {
			return
		}
	}
	t.Error("no stream went on by its ids")
}


