package scan

import "testing"

// TestReadsNoCache reads the members with which vLLM computes the whole prompt.
func TestReadsNoCache(t *testing.T) {
	completion, chat := `"prompt":"a"`, `"messages":[{"role":"user","content":"a"}]`
	for _, c := range []struct {
		api  API
		more string
		want bool
	}{
		{Completions, ``, false}, {Chat, ``, false},
		{Completions, `,"prompt_logprobs":0`, true}, {Chat, `,"prompt_logprobs":3`, true},
		{Completions, `,"prompt_logprobs":null`, false}, {Chat, `,"prompt_logprobs":null`, false},
		{Completions, `,"prompt_\u006cogprobs":1`, true},
		{Completions, `,"prompt_logprobs":1,"prompt_logprobs":null`, false},
		{Completions, `,"echo":true`, false}, {Completions, `,"logprobs":1`, false},
		{Completions, `,"echo":true,"logprobs":0`, true}, {Completions, `,"logprobs":1,"echo":true`, true},
		{Completions, `,"echo":true,"logprobs":null`, false}, {Completions, `,"echo":false,"logprobs":1`, false},
		{Completions, `,"echo":null,"logprobs":1`, false},
		{Chat, `,"echo":true`, true}, {Chat, `,"echo":false,"logprobs":true`, false},
		{Chat, `,"logprobs":true,"top_logprobs":2`, false}, {Chat, `,"echo":true,"top_logprobs":null`, false},
		{Other, `,"prompt_logprobs":1`, false},
	} {
		prompt := completion
		if c.api == Chat {
			prompt = chat
		}
		begin := `{"model":"m"`
		for _, body := range []string{begin + `,` + prompt + c.more + `}`, begin + c.more + `,` + prompt + `}`} {
			var r Request
			if err := Scan(c.api, []byte(body), &r); err != nil {
				t.Fatal(body, err)
			}
			if got := r.ReadsNoCache(); got != c.want {
				t.Errorf("%s: %v", body, got)
			}
		}
	}
}
