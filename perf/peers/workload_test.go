package peers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/tokens"
)

// chat is the part of a body that the tests look at.
type chat struct {
	Model     string `json:"model"`
	MaxTokens int    `json:"max_tokens"`
	Stream    bool   `json:"stream"`
	IgnoreEOS bool   `json:"ignore_eos"`
	Options   struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
	Messages []struct{ Role, Content string } `json:"messages"`
}

func read(t *testing.T, body []byte) (c chat) {
	t.Helper()
	if err := json.Unmarshal(body, &c); err != nil {
		t.Fatalf("%v in %.200s", err, body)
	}
	if c.Model != modelName || !c.Stream || !c.IgnoreEOS || !c.Options.Usage {
		t.Errorf("%+v", c)
	}
	return c
}

// TestModel: the model's files are those of a real tokenizer, for which each word is one token.
func TestModel(t *testing.T) {
	dir := t.TempDir()
	if err := writeModel(dir); err != nil {
		t.Fatal(err)
	}
	m, err := tokens.Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	b := newBody(3000)
	b.open("system")
	b.words(1000, 1, 2)
	b.open("user")
	b.words(2000, 3, 4)
	set := tokens.NewSet(map[string]*tokens.Model{modelName: m}, 1<<20, 1<<20)
	made := set.Make(modelName, tokens.Chat, b.close(7), 0, nil)
	const around = 6 // the beginning, and the marks of both messages and of the answer
	if len(made.IDs) != 3000+around {
		t.Fatalf("%d tokens", len(made.IDs))
	}
	if i := slices.IndexFunc(made.IDs, func(id uint32) bool { return int(id) >= vocabulary }); i >= 0 {
		t.Errorf("token %d is not in the vocabulary of %d", made.IDs[i], vocabulary)
	}
}

// TestWindows: windows are disjoint and spread over the trace, and their rate is the trace's.
func TestWindows(t *testing.T) {
	var all source
	for i := range 100 {
		all = append(all, trace.Request{Timestamp: int64(i) * 500, InputLength: 600, HashIDs: []int64{int64(i), 1}})
	}
	from := slices.Clone(all)
	found, err := windows(&from, 3, 20, 4)
	if err != nil || len(found) != 3 {
		t.Fatal(found, err)
	}
	for i, w := range found {
		if len(w.requests) != 20 || w.requests[0].HashIDs[0] != int64(33*i) || w.perSecond < 2 || w.perSecond > 2.2 {
			t.Errorf("window %d: %d requests from %v on, %v/s", i, len(w.requests), w.requests[0], w.perSecond)
		}
	}
	for want, settings := range map[string][2]int{
		"100 requests, 3 windows of 34 need 102": {3, 34},
		"window 1, from request 0 on":            {1, 1},
	} {
		from := slices.Clone(all)
		if _, err := windows(&from, settings[0], settings[1], 4); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := windows(trace.NewReader(strings.NewReader("{")), 1, 1, 4); err == nil {
		t.Error("a bad trace was read")
	}
}

// TestScaled: lengths are divided, and equal ids have equal text.
func TestScaled(t *testing.T) {
	body := scaled(4)
	ask := func(q trace.Request) chat { return read(t, body(&q)) }
	one := ask(trace.Request{InputLength: 1200, OutputLength: 500, HashIDs: []int64{7, 8, 9}})
	text := one.Messages[0].Content
	if n := strings.Count(text, " "); n != 2*128+(1200-1024)/4 || one.MaxTokens != 125 || len(one.Messages) != 1 {
		t.Errorf("%d words, %d tokens", n, one.MaxTokens)
	}
	two := ask(trace.Request{InputLength: 1536, HashIDs: []int64{7, 8, 10}}).Messages[0].Content
	shared := len(strings.Join(strings.SplitAfterN(two, " ", 2*128+2)[:2*128+1], ""))
	if text[:shared] != two[:shared] || text[shared:shared+20] == two[shared:shared+20] {
		t.Error("equal ids have no equal text, or different ids have")
	}
	short := ask(trace.Request{InputLength: 1, HashIDs: []int64{3}})
	if strings.Count(short.Messages[0].Content, " ") != 1 || short.MaxTokens != 1 {
		t.Errorf("%+v", short)
	}
}

// TestBurst: all requests of a burst have one long system prompt, which no other burst has.
func TestBurst(t *testing.T) {
	first, second := burst(1), burst(2)
	if len(first.requests) != 200 || first.requests[199].Timestamp != 1990 || first.perSecond != 100 {
		t.Errorf("%d requests", len(first.requests))
	}
	var got []chat
	for _, q := range []*trace.Request{&first.requests[0], &first.requests[199], &second.requests[0]} {
		w := first
		if q == &second.requests[0] {
			w = second
		}
		c := read(t, w.body(q))
		if len(c.Messages) != 2 || strings.Count(c.Messages[0].Content, " ") != 6000 ||
			strings.Count(c.Messages[1].Content, " ") != 200 || c.MaxTokens != 20 {
			t.Fatalf("%+v", c)
		}
		got = append(got, c)
	}
	if got[0].Messages[0] != got[1].Messages[0] || got[0].Messages[1] == got[1].Messages[1] ||
		got[0].Messages[0] == got[2].Messages[0] || got[0].Messages[1] == got[2].Messages[1] {
		t.Error("the wrong texts are shared")
	}
}

// TestSearch: the search ends within its bounds below a rate that is not held.
func TestSearch(t *testing.T) {
	for _, limit := range []float64{3, 31, 40, 90, 400} {
		steps := 0
		got, err := search(firstRate, firstStep, func(rate float64) (bool, error) {
			steps++
			return rate <= limit, nil
		})
		if err != nil || got > limit || got < limit/closeEnough || steps > maxProbes {
			t.Errorf("%v: %v in %d steps, %v", limit, got, steps, err)
		}
	}
	if _, err := search(1, 2, func(float64) (bool, error) { return true, nil }); err == nil {
		t.Error("a search without an end has ended")
	}
	if _, err := search(1, 2, func(float64) (bool, error) { return false, fmt.Errorf("x") }); err == nil {
		t.Error("an error was lost")
	}
}
