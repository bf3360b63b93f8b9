package usage

import (
	"encoding/json"
	"testing"
)

func TestAppendCached(t *testing.T) {
	for doc, want := range map[string]string{
		`{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":9,"a":1}},"b":[]}`: `{"usage":{` +
			`"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":48,"a":1}},"b":[]}`,
		`{"id":"\"cached_tokens\"","usage" : {"prompt_tokens_details": { "cached_tokens" : 0 } } }`: `{"id":"\"cached_tokens\"` +
			`","usage" : {"prompt_tokens_details": { "cached_tokens" : 48 } } }`,
		`{"usage":{"prompt_tokens_details":{"cached_tokens":48}}}`:   "",
		`{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}`: "",
		`{"usage":{"prompt_tokens_details":{"cached_tokens":"1"}}}`:  "",
		`{"usage":{"prompt_tokens_details":null,"cached_tokens":1}}`: "",
		`{"usage":null,"cached_tokens":7}`:                           "",
		`{"usage":{"prompt_tokens_details":{"cached_tokens":9}}`:     "",
		`[{"cached_tokens":1}]`:                                      "",
		`{"choices":[]}`:                                             "",
		``:                                                           "",
	} {
		out, changed := AppendCached([]byte("before "), []byte(doc), 48)
		if changed != (want != "") || string(out) != "before "+want {
			t.Errorf("%s: %s, %v", doc, out, changed)
		}
	}
}

func FuzzAppendCached(f *testing.F) {
	f.Add([]byte(`{"usage":{"prompt_tokens_details":{"cached_tokens":9}}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		out, changed := AppendCached(nil, doc, 48)
		if changed && (!json.Valid(out) || !json.Valid(doc)) {
			t.Errorf("%q became %q", doc, out)
		}
	})
}
