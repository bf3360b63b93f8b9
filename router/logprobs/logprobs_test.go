package logprobs

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// event reads stream events and returns their values.
func events(docs ...string) *Answer {
	a := new(Answer)
	for _, d := range docs {
		a.Event([]byte(d))
	}
	return a
}

func document(doc string) *Answer {
	a := new(Answer)
	a.Document([]byte(doc))
	return a
}

// TestEvents checks which tokens of a stream count.
func TestEvents(t *testing.T) {
	const token = `"logprobs":{"content":[{"token":"a","logprob":-1.5,"bytes":[97],"top_logprobs":[{"token":"b","logprob":-9}]}]}`
	for name, c := range map[string]struct {
		docs []string
		want []float64
	}{
		"chat":        {[]string{`{"choices":[{"index":0,"delta":{"content":"a"},` + token + `}]}`}, []float64{-1.5}},
		"order":       {[]string{`{"choices":[{` + token + `,"delta":{"content":"a"},"index":0}]}`}, []float64{-1.5}},
		"role":        {[]string{`{"choices":[{"delta":{"role":"assistant","content":""},"logprobs":null}]}`}, nil},
		"reasoning":   {[]string{`{"choices":[{"delta":{"reasoning_content":"a"},` + token + `}]}`}, nil},
		"end":         {[]string{`{"choices":[{"delta":{"content":""},` + token + `,"finish_reason":"stop"}]}`}, nil},
		"without":     {[]string{`{"choices":[{"delta":{"content":"a"},"logprobs":null}]}`}, nil},
		"no choice":   {[]string{`{"choices":[],"usage":{}}`, `[DONE]`, ``, `null`, `[]`}, nil},
		"torn":        {[]string{`{"choices":[{"delta":{"content":"a"},` + token + `}]`}, nil},
		"wrong kinds": {[]string{`{"choices":[{"delta":7,"logprobs":[1],"index":"x","text":{}},5]}`, `{"choices":{}}`}, nil},
		"completion": {[]string{`{"choices":[{"index":0,"text":" a b","logprobs":{"tokens":[" a"," b"],` +
			`"token_logprobs":[-0.5,null,-2]}}]}`}, []float64{-0.5, -2}},
		"bounds": {[]string{`{"choices":[{"text":"x","logprobs":{"token_logprobs":[0.1,-9999,-1e400]}}]}`},
			[]float64{0, Least, Least}},
		"two tokens": {[]string{`{"choices":[{"delta":{"content":"ab"},"logprobs":{"content":[` +
			`{"token":"a","logprob":-1},{"logprob":-2,"token":"b"}]}}]}`}, []float64{-1, -2}},
	} {
		if a := events(c.docs...); !slices.Equal(a.values, c.want) || a.Several() {
			t.Errorf("%s: %v, want %v; several %v", name, a.values, c.want, a.Several())
		}
	}
	two := events(`{"choices":[{"index":1,"delta":{"content":"a"},` + token + `}]}`)
	if !two.Several() || two.Tokens() != 0 {
		t.Errorf("the second choice: several %v, %d tokens", two.Several(), two.Tokens())
	}
}

// TestDocuments checks that the tokens of a whole answer's content are found by their text.
func TestDocuments(t *testing.T) {
	lps := func(tokens ...string) string {
		var all []string
		for i, token := range tokens {
			one, _ := json.Marshal(map[string]any{"token": token, "logprob": -float64(i + 1)})
			all = append(all, string(one))
		}
		return `"logprobs":{"content":[` + strings.Join(all, ",") + `]}`
	}
	for name, c := range map[string]struct {
		doc  string
		want []float64
	}{
		"plain":     {`{"choices":[{"message":{"content":"a b"},` + lps("a", " b") + `}]}`, []float64{-1, -2}},
		"end mark":  {`{"choices":[{"message":{"content":"a b"},` + lps("a", " b", "<|im_end|>") + `}]}`, []float64{-1, -2}},
		"inside":    {`{"choices":[{"message":{"content":"bc"},` + lps("ab", "cd", "e") + `}]}`, []float64{-1, -2}},
		"reasoning": {`{"choices":[{"message":{"reasoning":"x","content":"yes"},` + lps("yes", "</think>", "y", "es") + `}]}`, []float64{-3, -4}},
		"reasoning elsewhere": {`{"choices":[{"message":{"reasoning_content":"x","content":"no"},` +
			lps("x", "</think>") + `}]}`, nil},
		"other text": {`{"choices":[{"message":{"content":"é"},` + lps("\ufffd", "\ufffd") + `}]}`, []float64{-1, -2}},
		"no text":    {`{"choices":[{"message":{"content":null},` + lps("a") + `}]}`, nil},
		"completion": {`{"choices":[{"text":" a","logprobs":{"tokens":[" a","</s>"],"token_logprobs":[-1,-7]}}]}`, []float64{-1}},
		"without":    {`{"choices":[{"message":{"content":"a"},"logprobs":null}]}`, nil},
	} {
		if a := document(c.doc); !slices.Equal(a.values, c.want) {
			t.Errorf("%s: %v, want %v", name, a.values, c.want)
		}
	}
	two := document(`{"choices":[{"index":0,"text":"a",` + lps("a") + `},` +
		`{"index":1,"text":"b",` + lps("x", "b") + `}]}`)
	if !two.Several() || !slices.Equal(two.values, []float64{-1}) {
		t.Errorf("two choices: %v, several %v", two.values, two.Several())
	}
}

func TestMeasures(t *testing.T) {
	values := []float64{-4, -1, -2, -3, 0}
	for _, c := range []struct {
		m    Measure
		n    int
		want float64
	}{
		{Measure{}, 0, -2}, {Measure{}, 2, -2.5}, {Measure{}, 9, -2},
		{Measure{Quantile: true}, 0, -4}, {Measure{true, 1}, 0, 0}, {Measure{true, 0.5}, 0, -2},
		{Measure{true, 0.125}, 0, -3.5}, {Measure{true, 0.5}, 1, -4},
	} {
		a := &Answer{values: slices.Clone(values)}
		if got, ok := a.Confidence(c.m, c.n); !ok || math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%+v of the first %d: %v %v, want %v", c.m, c.n, got, ok, c.want)
		}
		if !slices.Equal(a.values, values) {
			t.Errorf("%+v changed the order", c.m)
		}
	}
	if v, ok := new(Answer).Confidence(Measure{}, 0); ok {
		t.Errorf("of nothing: %v", v)
	}
}

// TestReset checks that nothing of an answer counts in the next one.
func TestReset(t *testing.T) {
	a := document(`{"choices":[{"index":0,"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-1]}},{"index":1}]}`)
	a.Reset()
	if a.Event([]byte(`{"choices":[{"text":"b","logprobs":{"tokens":["b"],"token_logprobs":[-2]}}]}`)); a.Several() ||
		!slices.Equal(a.values, []float64{-2}) {
		t.Errorf("%v, several %v", a.values, a.Several())
	}
}

func TestCut(t *testing.T) {
	for doc, want := range map[string]string{
		`{"choices":[{"logprobs":{"content":[{"logprob":-1}]},"index":0}],"x":1}`: "" +
			`{"choices":[{"logprobs":null,"index":0}],"x":1}`,
		`{"choices":[{"a":1,"logprobs" : [1] },{"logprobs":2}]}`: "" +
			`{"choices":[{"a":1,"logprobs" : null },{"logprobs":null}]}`,
		`{"logprobs":1,"choices":[{"message":{"logprobs":1}}]}`: "" +
			`{"logprobs":1,"choices":[{"message":{"logprobs":1}}]}`,
		`{"choices":[{"logprobs":1}`: `{"choices":[{"logprobs":1}`, `[DONE]`: `[DONE]`, ``: ``,
		`{"choices":[7,null]}`: `{"choices":[7,null]}`, `{"choices":null}`: `{"choices":null}`,
	} {
		if got := string(Cut([]byte("> "), []byte(doc))); got != "> "+want {
			t.Errorf("%s: %s", doc, got)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-1.5}]}}]}`))
	f.Add([]byte(`{"choices":[{"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-1,null]}}]}`))
	f.Add([]byte(`{"choices":[{"message":{"content":"b","reasoning":"a"},"logprobs":{"content":[{"token":"a","logprob":-1},{"token":"b","logprob":-2}]}}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		for _, read := range []func(*Answer){func(a *Answer) { a.Event(doc) }, func(a *Answer) { a.Document(doc) }} {
			var a Answer
			read(&a)
			for _, v := range a.values {
				if !(v >= Least && v <= 0) {
					t.Fatalf("%q: %v", doc, v)
				}
			}
			if v, ok := a.Confidence(Measure{true, 0.1}, 3); ok != (a.Tokens() > 0) || ok && !(v >= Least && v <= 0) {
				t.Fatalf("%q: %v %v", doc, v, ok)
			}
		}
		cut := Cut(nil, doc)
		var was, is any
		if json.Unmarshal(doc, &was) != nil {
			return
		}
		if json.Unmarshal(cut, &is) != nil {
			t.Fatalf("%q became %q", doc, cut)
		}
		without(was)
		if without(is); !reflect.DeepEqual(was, is) {
			t.Fatalf("%q became %q", doc, cut)
		}
	})
}

// without removes the log-probabilities of the choices.
func without(doc any) {
	root, _ := doc.(map[string]any)
	choices, _ := root["choices"].([]any)
	for _, c := range choices {
		if c, ok := c.(map[string]any); ok {
			delete(c, "logprobs")
		}
	}
}
