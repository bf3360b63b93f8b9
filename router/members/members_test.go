package members

import (
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/scan"
)

func TestSequences(t *testing.T) {
	for body, want := range map[string]int{
		`{"prompt":"a"}`: 1, `{"prompt":["a"]}`: 1, `{"prompt":["a","b"]}`: 2, `{"prompt":[1,2,3]}`: 1,
		`{"prompt":[[1,2],[3]]}`: 2, `{"prompt":"a","n":1}`: 1, `{"prompt":"a","n":null}`: 1, `{"prompt":"a","n":3}`: 3,
		`{"prompt":["a","b"],"n":3}`: 6, `{"prompt":"a","n":"3"}`: 0, `{"prompt":"a","n":2.5}`: 0,
		`{"prompt":"a","n":-1}`: 0, `{"prompt":"a","n":100000}`: 0, `{"prompt":["a","b"],"n":200}`: 0,
		`{"prompt":[` + strings.Repeat(`"a",`, 300) + `"a"]}`: 0,
	} {
		body = strings.Replace(body, "{", `{"model":"m",`, 1)
		var r scan.Request
		if err := scan.Scan(scan.Completions, []byte(body), &r); err != nil {
			t.Fatal(err)
		}
		if got := Sequences(&r, []byte(body), scan.Completions); got != want {
			t.Errorf("%.60s: %d, want %d", body, got, want)
		}
	}
}

func TestPrompts(t *testing.T) {
	for value, want := range map[string]Prompt{
		``: Unclear, `null`: Unclear, `[]`: Unclear, `[ ]`: Unclear, `{}`: Unclear, `5`: Unclear, `[-1]`: Unclear,
		`""`: Text, `"a"`: Text, `[1]`: IDs, "[ \n1,2]": IDs, `["a"]`: Several, `[ [1]]`: Several, `[[]]`: Several,
	} {
		if got := PromptOf([]byte(value)); got != want {
			t.Errorf("%s: %v, want %v", value, got, want)
		}
	}
}

// TestBars checks the values that are harmless for one use and not for another.
func TestBars(t *testing.T) {
	for _, c := range []struct {
		name, value string
		bars        Use
	}{
		{"n", "1", 0}, {"n", "2", Resume | Judge}, {"n_cmpl", "2", Resume | Judge}, {"n_predict", "2", Resume},
		{"n", "null", 0}, {"best_of", "2", all}, {"echo", "false", 0},
		{"echo", "true", all}, {"guided_json", "null", 0}, {"guided_json", "{}", Resume},
		{"guided_json", `{"a":1}`, Resume | Judge}, {"grammar", `""`, 0}, {"response_format", `{"type":"text"}`, 0},
		{"response_format", `{"type":"json_object"}`, Resume | Judge}, {"response_format", "{}", Resume},
		{"prompt", `["a"]`, Judge}, {"prompt", `"a"`, 0}, {"kv_transfer_params", "{}", HandOver | Resume},
		{"tools", "[{}]", Judge}, {"tools", "[]", 0}, {"prompt_logprobs", "0", HandOver | Resume},
	} {
		m, got := Named([]byte(c.name)), Use(0)
		for _, use := range []Use{HandOver, Resume, Judge} {
			if m.Bars([]byte(c.value), use) {
				got |= use
			}
		}
		if got != c.bars {
			t.Errorf("%s %s rules out %b, want %b", c.name, c.value, got, c.bars)
		}
	}
}

// TestBarringAllocatesNothing checks a request without such members.
func TestBarringAllocatesNothing(t *testing.T) {
	body := []byte(`{"model":"m","messages":[],"stream":true,"n":1}`)
	var r scan.Request
	if err := scan.Scan(scan.Chat, body, &r); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if Barring(&r, body, HandOver) != nil || Barring(&r, body, Judge) != nil {
			t.Fatal("barred")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
