package engine

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// asked is one answer of an engine with Quality.
type asked struct {
	right bool
	mean  float64 // of the log probabilities
}

func ask(t *testing.T, e *Engine, question string) asked {
	t.Helper()
	doc := chatted(t, e, chatBody(question, `,"max_tokens":24,"logprobs":true`), 200)
	a := asked{right: strings.HasSuffix(said(t, doc), " "+RightAnswer(question))}
	list := at(t, doc, "choices", 0, "logprobs", "content").([]any)
	for _, c := range list {
		lp := at(t, c, "logprob").(float64)
		if lp > 0 {
			t.Fatalf("log probability %g", lp)
		}
		a.mean += lp / float64(len(list))
	}
	return a
}

// TestQuality: answers are right up to the engine's quality, and log probabilities say so in most
// cases, but not in all.
func TestQuality(t *testing.T) {
	small := start(t, func(c *Config) { c.Quality = 0.5 })
	large := start(t, func(c *Config) { c.Quality, c.Seed = 0.9, 1 })
	const questions = 400
	var right, wrong []float64
	good := 0
	for i := range questions {
		q := fmt.Sprintf("question %d", i)
		d := Difficulty(q)
		a, b := ask(t, small, q), ask(t, large, q)
		if a.right != (d <= 0.5) || b.right != (d <= 0.9) {
			t.Fatalf("%s of difficulty %g: %v %v", q, d, a, b)
		}
		if b.right {
			good++
		}
		if a.right {
			right = append(right, a.mean)
		} else {
			wrong = append(wrong, a.mean)
		}
	}
	if share := float64(good) / questions; math.Abs(share-0.9) > 0.05 {
		t.Errorf("%g of the answers are right, want 0.9", share)
	}
	surer := 0
	for _, r := range right {
		for _, w := range wrong {
			if r > w {
				surer++
			}
		}
	}
	if share := float64(surer) / float64(len(right)*len(wrong)); math.Abs(share-0.8) > 0.06 {
		t.Errorf("right answers look surer in %g of the pairs, want 0.8", share)
	}
}

// TestQualityOfAContinuation: the end of an answer is the same if another engine says it.
func TestQualityOfAContinuation(t *testing.T) {
	e := start(t, func(c *Config) { c.Quality = 1 })
	whole := listen(t, post(t, e, "/v1/chat/completions", chatBody("why", `,"max_tokens":8,"stream":true,`+
		`"return_token_ids":true,"logprobs":true`)))
	for n := range 8 {
		ids := jsonOf(t, append(append([]uint32{}, whole.prompt...), whole.ids[:n]...))
		body := fmt.Sprintf(`{"stream":true,"prompt":%s,"max_tokens":%d}`, ids, 8-n)
		got := listen(t, post(t, e, "/v1/completions", body))
		if got.text != whole.text[n*tokenBytes:] || !strings.HasSuffix(got.text, " "+RightAnswer("why")) {
			t.Errorf("after %d tokens: %q, want %q", n, got.text, whole.text[n*tokenBytes:])
		}
	}
	// One token, as a prefill for another engine generates, is the answer's first.
	first := said(t, chatted(t, e, chatBody("why", `,"max_tokens":1`), 200))
	if !strings.HasPrefix(whole.text, first) {
		t.Errorf("the first token is %q alone, and %q", first, whole.text)
	}
	text := object(t, post(t, e, "/v1/completions", `{"prompt":"why","max_tokens":5}`), 200)
	if said := at(t, text, "choices", 0, "text").(string); !strings.HasSuffix(said, " "+RightAnswer("why")) {
		t.Errorf("a completion ends with %q", said)
	}
}

// TestLogprobsHaveTheFormOfVLLM: without top_logprobs the list of alternatives is empty.
func TestLogprobsHaveTheFormOfVLLM(t *testing.T) {
	for _, quality := range []float64{0, 0.5} {
		e := start(t, func(c *Config) { c.Quality = quality })
		doc := chatted(t, e, chatBody("x", `,"logprobs":true,"max_tokens":4`), 200)
		if top, there := at(t, doc, "choices", 0, "logprobs", "content", 0).(map[string]any)["top_logprobs"]; !there ||
			len(top.([]any)) != 0 {
			t.Errorf("top_logprobs %v", top)
		}
		doc = chatted(t, e, chatBody("x", `,"logprobs":true,"top_logprobs":3,"max_tokens":40`), 200)
		for _, c := range at(t, doc, "choices", 0, "logprobs", "content").([]any) {
			seen := map[any]bool{}
			last := 0.0
			for r := range 3 {
				alt := at(t, c, "top_logprobs", r).(map[string]any)
				lp := alt["logprob"].(float64)
				if _, nested := alt["top_logprobs"]; nested || lp > last || seen[alt["token"]] ||
					r == 0 && alt["token"] != at(t, c, "token") {
					t.Fatalf("rank %d: %v", r, c)
				}
				seen[alt["token"]], last = true, lp
			}
		}
		chatted(t, e, chatBody("x", `,"top_logprobs":3`), 400)
		chatted(t, e, chatBody("x", `,"logprobs":true,"top_logprobs":21`), 400)
	}
	if _, err := New(Config{Quality: 2}); err == nil {
		t.Error("Quality 2 was taken")
	}
}
