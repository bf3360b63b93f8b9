package router_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// cachedIn returns the cached tokens of the usage in an answer, streamed or not; -1: there is none.
func cachedIn(page []byte) int {
	n := -1
	if _, after, ok := strings.Cut(string(page), `"cached_tokens":`); ok {
		fmt.Sscanf(after, "%d", &n)
	}
	return n
}

// TestCachedTokensOfWires checks that the client's usage has the tokens that P found in its cache,
// whatever D says of them, and D's other counts.
func TestCachedTokensOfWires(t *testing.T) {
	each(t, func(t *testing.T, w wire) {
		d := w.divide(t, 1, 1)
		common := strings.Repeat("The same beginning of all prompts. ", 30)
		for i, more := range []string{`,"max_tokens":8`, `,"max_tokens":8`,
			`,"max_tokens":8,"stream":true,"stream_options":{"include_usage":true}`,
			`,"max_tokens":8,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`,
			`,"max_tokens":8,"stream":true`} {
			body := chatBody(common+longPrompt(fmt.Sprint("request ", i)), more)
			resp, err := http.Post(d.plain.URL()+"/v1/chat/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			want := read(resp)
			if n := cachedIn(want.body); n >= 0 && (n > 0) != (i > 0) {
				t.Fatalf("request %d: one engine finds %d tokens: %s", i, n, want.body)
			}
			r := d.chat(body)
			if r.status != 200 || r.err != nil || r.header.Get("x-cgn-prefill-node") == "" ||
				cachedIn(r.body) != cachedIn(want.body) || answerIn(r.body) != answerIn(want.body) {
				t.Errorf("request %d: P %q\n%s\nwant\n%s", i, r.header.Get("x-cgn-prefill-node"), r.body, want.body)
			}
			if !json.Valid(r.body) && !strings.Contains(more, "stream") {
				t.Errorf("%s", r.body)
			}
		}
		d.clean(t)
	})
}
