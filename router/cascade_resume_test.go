package router_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// pairs runs a router with the cascade smart. Two engines serve each of its models small and large.
func pairs(t *testing.T, threshold float64, tweak ...func(*router.Config)) *site {
	t.Helper()
	engines := simulate(t, 4, func(c *engine.Config) {
		c.Models, c.Quality, c.RecordRequests = []string{"small"}, 0.5, 4096
		if c.ID > "sim-1" {
			c.Models, c.Quality, c.Seed = []string{"large"}, 1, 1
		}
	})
	return serve(t, engines, append([]func(*router.Config){func(c *router.Config) {
		c.Router.Cascade.Enabled, c.Router.Cascade.Threshold = true, threshold
		c.Models = []router.ModelConfig{{Name: "smart", Cascade: []string{"small", "large"}}}
	}, resumes("auto")}, tweak...)...)
}

// TestCascadeGoesOn checks that the stream of any step that answers goes on when its node is gone,
// and that the client sees neither log probabilities nor token ids that it has not asked for.
func TestCascadeGoesOn(t *testing.T) {
	t.Parallel()
	const usage = `,"stream":true,"max_tokens":24,"stream_options":{"include_usage":true}`
	const tools = `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"`
	text := `{"model":"smart","prompt":"once upon a time"` + usage + `}`
	small := func(c *router.Config) { c.Router.Cascade.MaxHeld = 16 << 10 }
	late := func(c *router.Config) { early(1000)(c); c.Router.Cascade.Latency = config.Duration(time.Millisecond) }
	for name, c := range map[string]struct {
		threshold      float64
		judge          func(*router.Config)
		path, body     string
		after          int
		model, outcome string
	}{
		"judged early":    {lenient, early(8), chatPath, smart(usage), 12, "small", "confident"},
		"soon after":      {lenient, early(8), chatPath, smart(usage), 9, "small", "confident"},
		"completion":      {lenient, early(8), textPath, text, 12, "small", "confident"},
		"own logprobs":    {lenient, early(8), chatPath, smart(usage + `,"logprobs":true`), 12, "small", "confident"},
		"own ids":         {lenient, early(8), chatPath, smart(usage + `,"return_token_ids":true`), 12, "small", "confident"},
		"last":            {strict, early(8), chatPath, smart(usage), 5, "large", "last"},
		"last, whole":     {strict, func(*router.Config) {}, chatPath, smart(usage), 5, "large", "last"},
		"last completion": {strict, early(8), textPath, text, 5, "large", "last"},
		"late":            {strict, late, chatPath, smart(usage), 12, "small", "unjudged"},
		"bound":           {strict, small, chatPath, smart(strings.Replace(usage, "24", "400", 1)), 300, "small", "unjudged"},
		"tools":           {strict, early(8), chatPath, smart(usage + tools), 5, "large", "unjudged"},
	} {
		s := pairs(t, c.threshold, c.judge)
		got, want, r := s.broken(c.path, c.body, c.after)
		if c.path == textPath { // to simulated engines the longer prompt is another question, with another last word
			got.text, want.text = got.text[:len(got.text)-len(" any")], want.text[:len(want.text)-len(" any")]
		}
		if !got.same(want) || got.dones != 1 || got.ids != 1 || got.finishes != 1 || got.usages != 1 ||
			want.text == "" {
			t.Errorf("%s:\n%+v\n%+v\n%s", name, got, want, r.body)
		}
		body := string(r.body)
		if strings.Contains(body, `"logprob":`) != (name == "own logprobs") ||
			strings.Contains(body, `"token_ids":[`) != (name == "own ids") {
			t.Errorf("%s: the client sees %s", name, body)
		}
		if step := map[string]string{"small": "1", "large": "2"}[c.model]; r.step() != step {
			t.Errorf("%s: step %s, want %s", name, r.step(), step)
		}
		eventually(t, name+" is counted", func() bool { return s.resumed("ids", "complete") > 0 })
		if n := s.metrics().steps(c.model, c.outcome); n < 2 {
			t.Errorf("%s: %v steps %s", name, n, c.outcome)
		}
		for i, e := range s.engines {
			for _, q := range e.Requests() {
				to := string(q.Body)
				if q.Path == c.path && (strings.Contains(to, "smart") || strings.Contains(to, `"large"`) != (i > 1)) {
					t.Errorf("%s: node %d got %s", name, i, to)
				}
			}
		}
	}
}

// TestCascadeDropsABrokenTrial checks that a stream that breaks before its judgement goes to the
// next model, and that nothing of it is in the stream that goes on there.
func TestCascadeDropsABrokenTrial(t *testing.T) {
	t.Parallel()
	s := pairs(t, strict, early(8))
	const more = `,"stream":true,"max_tokens":24,"stream_options":{"include_usage":true}`
	want := saidBy(t, s.chat(smart(more)))
	s.engines[0].SetFault(&engine.Fault{DieAfter: new(4)})
	s.engines[1].SetFault(&engine.Fault{DieAfter: new(6)})
	s.engines[2].SetFault(&engine.Fault{DieAfter: new(5)})
	for range 30 {
		r := s.chat(smart(more))
		if got := saidBy(t, r); !got.same(want) || got.ids != 1 || got.roles != 1 || r.step() != "2" {
			t.Fatalf("%+v\n%+v\n%s", got, want, r.body)
		}
		if s.resumed("ids", "complete") > 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("no stream went on")
}
