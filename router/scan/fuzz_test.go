package scan

import (
	"bytes"
	"encoding/json"
	"strings"
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
	f.Add(uint8(Chat), []byte(`{"messages":[],"stream":true,"stream_options":{"include_usage":false},`+
		`"model":"\ud83d\ude00"}`))
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
		if e.Param == "" && json.Valid(body) && utf8.Valid(body) && bytes.HasPrefix(bytes.TrimLeft(body, " "+
			"\t\r\n"), []byte("{")) && depth(body) < 100 {
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
	var e Edits
	e.Reset(r, body)
	e.Model("new\nname")
	e.IncludeUsage()
	var edited struct {
		Model         string
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	spliced := join(e.Segments(nil))
	if !json.Valid(spliced) {
		t.Fatalf("%q: edited to %q", body, spliced)
	}
	// encoding/json also takes members that differ in case only, and the last one wins.
	lower := map[string]bool{}
	for k := range root {
		lower[string(bytes.ToLower([]byte(k)))] = true
	}
	err := json.Unmarshal(spliced, &edited)
	if len(lower) == len(root) && err == nil && string(spliced) != "" && edited.Model == "" {
		t.Fatalf("%q: edited to %q, model is gone", body, spliced)
	}
}

// FuzzEdits compares edits and Find with decoding, editing and encoding by encoding/json: on the
// body, and on one with a long prompt before or behind its members that a Memo passes over.
func FuzzEdits(f *testing.F) {
	for _, body := range []string{
		`{}`, `{ }`, `{"model":"m"}`, `{"a":1,"b":[{}],"a":"x","\u0061":null}`, ` { "stream" : true , ` +
			`"stream_options":{"x":1} } `,
		`{"stream_options":{"continuous_usage_stats":true}, "nvext":{"agent_hints":{"osl":12}},` +
			`"nvext":{"agent_hints":{"osl":13}}}`,
		`{"é":1,"\u00e9":2,"q\"\n":3,"":4,"messages":[{"role":"user","content":"hi"}]}`,
	} {
		f.Add(uint8(Tokenize), []byte(body), []byte{0, 1, 2, 1, 4, 0, 130, 5, 3})
		f.Add(uint8(Tokenize), []byte(body), []byte{0x81, 3, 0, 4, 0, 0, 2, 6, 4})
	}
	f.Fuzz(func(t *testing.T, api uint8, body, ops []byte) {
		var r Request
		kind := API(api % uint8(Other+1))
		if Scan(kind, body, &r) == nil {
			checkEdits(t, body, &r, ops)
		}
		if members, ok := inner(body); ok {
			checkPassedOver(t, members, ops)
		}
	})
}

// inner is the text between the braces of an object.
func inner(body []byte) (string, bool) {
	root := bytes.TrimSpace(body)
	if len(root) < 2 || root[0] != '{' || root[len(root)-1] != '}' {
		return "", false
	}
	return string(root[1 : len(root)-1]), true
}

// checkPassedOver adds a long prompt before or behind the members of a body, and scans it twice, so
// that the second scan begins in its middle.
func checkPassedOver(t *testing.T, members string, ops []byte) {
	comma := ","
	if strings.TrimSpace(members) == "" {
		comma = ""
	}
	for _, spelled := range []string{"{" + longPrompt + comma + members + "}", "{" + members + comma + longPrompt + "}"} {
		body, m := []byte(spelled), NewMemo(16<<10)
		var first, second Request
		if m.Scan(Tokenize, body, &first) != nil {
			continue
		}
		m.Keep(&first)
		if err := m.Scan(Tokenize, body, &second); err != nil {
			t.Fatalf("%q: %v the second time", body, err)
		}
		if len(first.rec.marks) > 0 && second.Skipped == 0 {
			t.Fatalf("%q: nothing was passed over", body)
		}
		checkEdits(t, body, &second, ops)
	}
}

var longPrompt = `"prompt":"` + strings.Repeat("long ", 3*stride/5) + `"`
