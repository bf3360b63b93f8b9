package cascade

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/logprobs"
	"github.com/cognitora/dataplane/sim/engine"
)

// pair is a router before a small and a large simulated model of known quality.
type pair struct {
	t      *testing.T
	url    string
	client *http.Client
}

// These are the prices of a token, and the length of every answer.
const (
	smallPrice, largePrice = 1, 10
	answerTokens           = 48
)

// newPair runs a router with the cascade smart. tweak changes the settings of the cascade.
func newPair(t *testing.T, tweak func(*router.CascadeConfig)) *pair {
	t.Helper()
	var c router.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	c.Router.Listen, c.Router.Admin, c.Router.DrainDelay = "127.0.0.1:0", "127.0.0.1:0", 0
	c.Timeouts.PatienceFloor, c.Timeouts.StallFloor = config.Duration(time.Minute), config.Duration(time.Minute)
	c.Logger = slog.New(slog.DiscardHandler)
	c.Router.Cascade.Enabled = true
	tweak(&c.Router.Cascade)
	c.Models = []router.ModelConfig{{Name: "smart", Cascade: []string{"small", "large"}}}
	for i, model := range []string{"small", "large"} {
		e, err := engine.New(engine.Config{Models: []string{model}, Quality: []float64{0.6, 0.9}[i], Seed: uint64(i),
			DecodeStep: 200 * time.Microsecond, PrefillTokensPerSecond: 1e6})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		c.Router.Backends = append(c.Router.Backends, e.URL())
	}
	r, err := router.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, context.Background()) }()
	p := &pair{t, "http://" + r.Addr().String(), &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		for _, model := range []string{"small", "large"} {
			for begun := time.Now(); ; time.Sleep(5 * time.Millisecond) {
				if _, status := p.post(model, "ready?", ""); status == 200 {
					break
				}
				if time.Since(begun) > time.Minute {
					t.Fatal(model + " does not answer")
				}
			}
		}
	}
	return p
}

// said is an answer to a question.
type said struct {
	right    bool
	logprobs []float64
	cost     float64 // of all models that worked for it
}

func (p *pair) post(model, question, more string) (*http.Response, int) {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"messages":[{"role":"user","content":%q}]%s}`, model, answerTokens,
		question, more)
	resp, err := p.client.Post(p.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		p.t.Error(err)
		return nil, 0
	}
	page, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.Body = io.NopCloser(bytes.NewReader(page)); err != nil {
		p.t.Error(err)
	}
	return resp, resp.StatusCode
}

// ask asks a model, or the cascade, and prices the answer.
func (p *pair) ask(model, question, more string) (s said) {
	resp, status := p.post(model, question, more)
	if status != 200 {
		p.t.Errorf("%s: status %d", model, status)
		return s
	}
	page, _ := io.ReadAll(resp.Body)
	text, by := "", ""
	for line := range strings.Lines(string(page)) {
		var doc struct {
			Model   string
			Choices []struct {
				Delta, Message struct{ Content string }
				Logprobs       struct{ Content []struct{ Logprob float64 } }
			}
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &doc) != nil {
			continue
		}
		by = doc.Model
		for _, c := range doc.Choices {
			text += c.Delta.Content + c.Message.Content
			for _, l := range c.Logprobs.Content {
				s.logprobs = append(s.logprobs, l.Logprob)
			}
		}
	}
	s.right = strings.HasSuffix(text, " "+engine.RightAnswer(question))
	s.cost = map[string]float64{"small": smallPrice, "large": largePrice}[by] * answerTokens
	var prompt, dropped float64
	if _, err := fmt.Sscanf(resp.Header.Get("x-cgn-cascade-tokens"), "%f/%f", &prompt, &dropped); err == nil {
		s.cost += dropped * smallPrice
	}
	return s
}

// each asks n questions, eight at a time.
func each(n int, f func(i int)) {
	next := make(chan int)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
}

// record asks both models the questions of a set, and returns the records as a file has them.
func (p *pair) record(set string, n, dropped int) string {
	lines := make([]string, n)
	each(n, func(i int) {
		question := fmt.Sprint(set, " ", i)
		small, large := p.ask("small", question, `,"logprobs":true`), p.ask("large", question, "")
		line, err := json.Marshal(map[string]any{
			"logprobs": small.logprobs, "small_right": small.right, "large_right": large.right,
			"small_cost": small.cost, "large_cost": large.cost, "dropped_cost": dropped * smallPrice,
		})
		if err != nil {
			p.t.Error(err)
		}
		lines[i] = string(line)
	})
	return strings.Join(lines, "\n")
}

// TestCascadeNearTheBestThreshold checks the target of cascades on a simulated pair: with a
// threshold fitted to recorded answers, other questions cost at most 5 % more than with the best
// fixed threshold, which knows their verdicts, of at least the same quality.
func TestCascadeNearTheBestThreshold(t *testing.T) {
	const questions, within = 600, 0.02
	for _, c := range []struct {
		name     string
		stream   string
		settings router.CascadeConfig
	}{
		{"whole, mean", "", router.CascadeConfig{Judge: "whole", Measure: "mean"}},
		{"whole, quantile", "", router.CascadeConfig{Judge: "whole", Measure: "quantile", Quantile: 0.25}},
		{"stream, mean", `,"stream":true`, router.CascadeConfig{Judge: "stream", Measure: "mean", Tokens: 16}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options{measure: logprobs.Measure{Quantile: c.settings.Measure == "quantile", Q: c.settings.Quantile}}
			dropped := answerTokens
			if c.stream != "" {
				o.tokens, dropped = c.settings.Tokens, c.settings.Tokens
			}
			recorder := newPair(t, func(*router.CascadeConfig) {})
			train, err := read([]byte(recorder.record("train", questions, dropped)), o)
			if err != nil {
				t.Fatal(err)
			}
			test, err := read([]byte(recorder.record("test", questions, dropped)), o)
			if err != nil {
				t.Fatal(err)
			}
			chosen := fit(train, within).Best
			if chosen == nil {
				t.Fatal("no threshold was found")
			}
			p := newPair(t, func(s *router.CascadeConfig) {
				s.Threshold, s.Judge, s.Measure, s.Quantile = chosen.Threshold, c.settings.Judge, c.settings.Measure,
					c.settings.Quantile
				if c.settings.Tokens > 0 {
					s.Tokens = c.settings.Tokens
				}
			})
			answers := make([]said, questions)
			each(questions, func(i int) { answers[i] = p.ask("smart", fmt.Sprint("test ", i), c.stream) })
			var cost, quality float64
			for _, a := range answers {
				cost, quality = cost+a.cost/questions, quality+number(a.right)/questions
			}
			large := alone(test)
			best, ok := cheapest(curve(test), quality)
			if !ok || cost > 1.05*best.Cost {
				t.Errorf("a question costs %.1f, the best threshold %.1f", cost, best.Cost)
			}
			if quality < large.Quality-3*within {
				t.Errorf("quality %.3f, the large model alone %.3f", quality, large.Quality)
			}
			t.Logf("threshold %.3f: cost %.1f, quality %.3f; best threshold %.3f: cost %.1f (ratio %.3f), quality %.3f; "+
				"large alone: cost %.1f, quality %.3f", chosen.Threshold, cost, quality, best.Threshold, best.Cost,
				cost/best.Cost, best.Quality, large.Cost, large.Quality)
		})
	}
}
