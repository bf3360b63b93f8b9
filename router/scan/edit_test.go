package scan

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func join(segments [][]byte) []byte { return bytes.Join(segments, nil) }

func TestSplice(t *testing.T) {
	body := []byte("0123456789")
	for _, c := range []struct {
		edits []Edit
		want  string
	}{
		{nil, "0123456789"},
		{[]Edit{{Span{0, 0}, []byte("a")}, {Span{10, 10}, []byte("z")}}, "a0123456789z"},
		{[]Edit{{Span{0, 2}, []byte("a")}, {Span{2, 4}, nil}, {Span{9, 10}, []byte("z")}}, "a45678z"},
		{[]Edit{{Span{3, 3}, []byte("a")}, {Span{3, 3}, []byte("b")}, {Span{3, 5}, []byte("c")}}, "012abc56789"},
		{[]Edit{{Span{0, 10}, nil}}, ""},
	} {
		if got := join(Splice(nil, body, c.edits)); string(got) != c.want {
			t.Errorf("%v: %s, want %s", c.edits, got, c.want)
		}
	}
}

func TestEditsKeepTheRest(t *testing.T) {
	for _, c := range []struct {
		api               API
		body, model, both string
	}{
		{Chat, `{"model":"m","stream":true,"messages":[]}`, `{"model":"a\"b","stream":true,"messages":[]}`,
			`{"stream_options":{"include_usage":true},"model":"a\"b","stream":true,"messages":[]}`},
		{Chat, `{ "stream_options" : null , "messages":[],"model" : "m" }`, `{ "stream_options" : null , "messages":[],"model" : "a\"b" }`,
			`{ "stream_options" : {"include_usage":true} , "messages":[],"model" : "a\"b" }`},
		{Chat, `{"model":"m","stream_options":{ },"messages":[]}`, `{"model":"a\"b","stream_options":{ },"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage":true },"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"x":1},"messages":[]}`, `{"model":"a\"b","stream_options":{"x":1},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage":true,"x":1},"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"continuous_usage_stats": true,"x":1},"messages":[]}`, `{"model":"a\"b","stream_options":{"continuous_usage_stats": true,"x":1},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage":true,"continuous_usage_stats": false,"x":1},"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"continuous_usage_stats":1 , "include_usage":null},"messages":[]}`, `{"model":"a\"b","stream_options":{"continuous_usage_stats":1 , "include_usage":null},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"continuous_usage_stats":false , "include_usage":true},"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[]}`, `{"model":"a\"b","stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"include_usage": false},"messages":[]}`, `{"model":"a\"b","stream_options":{"include_usage": false},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage": true},"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"include_usage":true},"messages":[]}`, `{"model":"a\"b","stream_options":{"include_usage":true},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage":true},"messages":[]}`},
		{Tokenize, `{}`, `{"model":"a\"b"}`, `{"model":"a\"b","stream_options":{"include_usage":true}}`},
		{Tokenize, ` { } `, ` {"model":"a\"b" } `, ` {"model":"a\"b","stream_options":{"include_usage":true} } `},
		{Tokenize, `{"prompt":"x"}`, `{"model":"a\"b","prompt":"x"}`, `{"model":"a\"b","stream_options":{"include_usage":true},"prompt":"x"}`},
		{Tokenize, `{"model":null}`, `{"model":"a\"b"}`, `{"stream_options":{"include_usage":true},"model":"a\"b"}`},
	} {
		r := mustScan(t, c.api, c.body)
		edits := r.EditModel(nil, []byte(`a"b`))
		if got := join(Splice(nil, []byte(c.body), edits)); string(got) != c.model {
			t.Errorf("%s\n got %s\nwant %s", c.body, got, c.model)
		}
		if got := join(Splice(nil, []byte(c.body), r.EditIncludeUsage(edits))); string(got) != c.both {
			t.Errorf("%s\n got %s\nwant %s", c.body, got, c.both)
		}
	}
}

// bodyGen draws request bodies as maps, with each form of what is edited.
var bodyGen = rapid.Custom(func(t *rapid.T) map[string]any {
	body := map[string]any{}
	for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "temperature", "x\"y", "stream"}), 0, 4, rapid.ID[string]).Draw(t, "members") {
		body[k] = rapid.SampledFrom([]any{true, nil}).Draw(t, "value")
	}
	switch rapid.IntRange(0, 2).Draw(t, "model") {
	case 0:
		body["model"] = rapid.String().Draw(t, "name")
	case 1:
		body["model"] = nil
	}
	switch rapid.IntRange(0, 4).Draw(t, "options") {
	case 0:
		body["stream_options"] = nil
	case 1:
		body["stream_options"] = map[string]any{}
	case 2:
		body["stream_options"] = map[string]any{"b": []any{"}", 1.0}}
	case 3:
		body["stream_options"] = map[string]any{"b": nil, "include_usage": rapid.SampledFrom([]any{true, false, nil}).Draw(t, "usage"), "z": 1.0}
	}
	return body
})

// After both edits, in either order, the body says what it said plus the edits.
func TestEditsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := bodyGen.Draw(t, "body")
		raw, _ := json.Marshal(want)
		if rapid.Bool().Draw(t, "indent") {
			raw, _ = json.MarshalIndent(want, " ", "\t")
		}
		name := rapid.String().Draw(t, "new name")
		var r Request
		if err := Scan(Tokenize, raw, &r); err != nil {
			t.Fatal(err)
		}
		var edits []Edit
		if rapid.Bool().Draw(t, "model first") {
			edits = r.EditIncludeUsage(r.EditModel(nil, []byte(name)))
		} else {
			edits = r.EditModel(r.EditIncludeUsage(nil), []byte(name))
		}
		want["model"] = name
		options, _ := want["stream_options"].(map[string]any)
		if options == nil {
			options = map[string]any{}
		}
		options["include_usage"] = true
		want["stream_options"] = options
		var got map[string]any
		spliced := join(Splice(nil, raw, edits))
		if err := json.Unmarshal(spliced, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s -> %s: %v\nwant %v", raw, spliced, err, want)
		}
	})
}

// Edits made earlier stay as they are when the scratch buffer grows.
func TestEditsSurviveFurtherEdits(t *testing.T) {
	body := []byte(`{"model":"m","messages":[]}`)
	r := mustScan(t, Chat, string(body))
	first := r.EditModel(nil, []byte("first"))
	for range 100 {
		r.EditModel(nil, []byte("another name"))
	}
	if got := join(Splice(nil, body, first)); string(got) != `{"model":"first","messages":[]}` {
		t.Errorf("got %s", got)
	}
}
