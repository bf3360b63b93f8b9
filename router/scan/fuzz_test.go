package scan

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// FuzzScan compares with encoding/json: whatever Scan accepts is valid, and has
// the model and stream that the library reads; whatever it refuses has an
// explanation. Edits keep the body valid.
func FuzzScan(f *testing.F) {
	for _, c := range canonicalCases {
		f.Add(uint8(c.api), []byte(`{"model":"m",`+c.members+`}`))
	}
	f.Add(uint8(Chat), []byte(`{"messages":[],"stream":true,"stream_options":{"include_usage":false},"model":"\ud83d\ude00"}`))
	f.Fuzz(func(t *testing.T, api uint8, body []byte) {
		var r Request
		err := Scan(API(api%uint8(Other+1)), body, &r)
		if err == nil {
			checkAccepted(t, body, &r)
			return
		}
		e, ok := err.(*Error)
		if !ok || e.Message == "" || e.Offset < 0 || e.Offset > len(body) {
			t.Fatalf("%q: error %#v", body, err)
		}
		if e.Param == "" && json.Valid(body) && utf8.Valid(body) && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) && depth(body) < 100 {
			t.Fatalf("%q: refused as bad JSON: %v", body, err)
		}
	})
}

// depth is at least the nesting of a document.
func depth(body []byte) int { return bytes.Count(body, []byte("{")) + bytes.Count(body, []byte("[")) }

func checkAccepted(t *testing.T, body []byte, r *Request) {
	root := map[string]json.RawMessage{}
	if err := json.Unmarshal(body, &root); err != nil {
		t.Fatalf("%q: accepted, but %v", body, err)
	}
	var model string
	var stream bool
	json.Unmarshal(root["model"], &model)
	json.Unmarshal(root["stream"], &stream)
	if string(r.Model) != model || r.Stream != stream || len(r.Text) > 0 && len(r.Tokens) > 0 {
		t.Fatalf("%q: model %q, stream %v, text %q, tokens %v", body, r.Model, r.Stream, r.Text, r.Tokens)
	}
	if max := len(r.Text) + 4*len(r.Tokens); r.FirstTurn < 0 || r.FirstTurn > max {
		t.Fatalf("%q: first turn %d of %d", body, r.FirstTurn, max)
	}
	edits := r.EditIncludeUsage(r.EditModel(nil, []byte("new\nname")))
	var edited struct {
		Model         string
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	spliced := bytes.Join(Splice(nil, body, edits), nil)
	if !json.Valid(spliced) {
		t.Fatalf("%q: edited to %q", body, spliced)
	}
	// encoding/json also takes members that differ in case only, and the last one wins.
	lower := map[string]bool{}
	for k := range root {
		lower[string(bytes.ToLower([]byte(k)))] = true
	}
	if err := json.Unmarshal(spliced, &edited); len(lower) == len(root) && err == nil && string(spliced) != "" && edited.Model == "" {
		t.Fatalf("%q: edited to %q, model is gone", body, spliced)
	}
}
