package scan

import (
	"strings"
	"testing"
)

func TestAnswers(t *testing.T) {
	const none = -1 // not told
	for _, c := range []struct {
		api     API
		members string
		most, n int64
	}{
		{Chat, ``, 0, 1},
		{Chat, `"max_tokens":5`, 5, 1},
		{Chat, `"max_tokens":5,"max_completion_tokens":7`, 7, 1},
		{Chat, `"max_completion_tokens":7,"max_tokens":500`, 500, 1}, // an engine may obey either
		{Chat, `"max_completion_tokens":null,"max_tokens":5`, 5, 1},
		{Responses, `"max_output_tokens":9`, 9, 1},
		{Chat, `"max_tokens":5.0e1`, 50, 1},
		{Chat, `"max_tokens":0`, 0, 1}, {Chat, `"max_tokens":-1`, 0, 1}, {Chat, `"max_tokens":1.5`, 0, 1},
		{Chat, `"max_tokens":9223372036854775808`, 0, 1}, {Chat, `"max_tokens":"7"`, 0, 1},
		{Chat, `"max_tokens":1e300`, 0, 1}, {Chat, `"max_tokens":5,"max_completion_tokens":"9000"`, 0, 1},
		{Chat, `"max_tokens":5,"max_completion_tokens":-1`, 0, 1},
		{Chat, `"max_tokens":9223372036854775807`, 0, 1}, {Chat, `"max_tokens":999999999999999999`, 999999999999999999, 1},
		{Chat, `"max_tokens":5,"n_predict":500`, 500, 1}, {Chat, `"n_predict":500,"max_tokens":5`, 500, 1},
		{Chat, `"max_tokens":500,"n_predict":5`, 500, 1}, {Chat, `"max_tokens":5,"n_predict":-1`, 0, 1},
		{Chat, `"max_tokens":5,"n_predict":null`, 5, 1}, {Chat, `"max_tokens":5,"N_PREDICT":500`, 5, 1},
		{Chat, `"max_tokens":5,"n_\u0070redict":500`, 500, 1}, {Chat, `"max_tokens":5,"n_predict":6,"n_predict":7`, 7, 1},
		{Chat, `"n_predict":5`, 0, 1}, {Chat, `"max_output_tokens":5`, 0, 1}, // some engines know no such member
		{Completions, `"max_completion_tokens":5`, 0, 1}, {Responses, `"max_tokens":5`, 0, 1},
		{Responses, `"max_output_tokens":5,"n_predict":9,"n_cmpl":3`, 9, 3}, {Messages, `"max_tokens":5,"n_predict":9`, 5, 1},
		{Chat, `"n":2,"n_cmpl":3`, 0, 3}, {Chat, `"n_cmpl":2,"n":3`, 0, 3}, {Chat, `"n_cmpl":"3"`, 0, none},
		{Completions, `"prompt":["a","b"],"n_cmpl":3`, 0, 6},
		{Chat, `"n":3`, 0, 3}, {Chat, `"n":3,"n":2`, 0, 3}, {Chat, `"n":null`, 0, 1}, {Chat, `"n":0`, 0, 1},
		{Chat, `"n":-5`, 0, 1}, {Chat, `"\u006e":4`, 0, 4}, {Chat, `"n":"4"`, 0, none}, {Chat, `"n":2.5`, 0, none},
		{Chat, `"n":true`, 0, none}, {Chat, `"n":1e300`, 0, none},
		{Completions, `"n":2,"best_of":5`, 0, 5}, {Completions, `"best_of":2,"n":5`, 0, 5},
		{Completions, `"prompt":["a","b","c"],"n":2`, 0, 6}, {Completions, `"n":2,"prompt":[[1,2],[3]]`, 0, 4},
		{Completions, `"prompt":[1,2,3]`, 0, 1}, {Completions, `"prompt":[]`, 0, 1},
		{Completions, `"prompt":["a","b"],"n":9223372036854775807`, 0, none},
		{Completions, `"prompt":["a","b"],"n":9000000000000000000`, 0, none},
		{Messages, `"max_tokens":5,"n":8`, 5, 1}, {Embeddings, `"input":["a","b"]`, 0, 1},
	} {
		var r Request
		body := `{"model":"m","messages":[]`
		if c.members != "" {
			body += "," + c.members
		}
		if err := Scan(c.api, []byte(body+`}`), &r); err != nil {
			t.Errorf("%s: %v", c.members, err)
			continue
		}
		n, ok := r.Answers()
		if !ok || n > 1<<60 {
			n = none
		}
		if most := r.MaxTokens; most != c.most || most > r.MostTokens() || n != c.n {
			t.Errorf("%v %s: %d tokens, %d answers", c.api, c.members, most, n)
		}
	}
}

// TestAnswersOfKnownBeginnings: a scan that begins in the middle of a body has what stood before.
func TestAnswersOfKnownBeginnings(t *testing.T) {
	m := NewMemo(1 << 20)
	body := func(rest string) []byte {
		return []byte(`{"model":"m","n":3,"max_tokens":70,"messages":[` +
			strings.Repeat(`{"role":"user","content":"`+strings.Repeat("word ", 500)+`"},`, 12) +
			`{"role":"user","content":"` + rest + `"}]}`)
	}
	for _, rest := range []string{"a", "b"} {
		var r Request
		if err := m.Scan(Chat, body(rest), &r); err != nil {
			t.Fatal(err)
		}
		m.Keep(&r)
		if n, ok := r.Answers(); n != 3 || !ok || r.MaxTokens != 70 || (rest == "b") != (r.Skipped > 0) {
			t.Errorf("%d, %v, %d tokens, %d bytes skipped", n, ok, r.MaxTokens, r.Skipped)
		}
	}
}
