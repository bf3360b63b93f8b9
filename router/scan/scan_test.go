package scan

import (
	"errors"
	"strings"
	"testing"
)

// mustScan scans a body that must be accepted.
func mustScan(t *testing.T, api API, body string) *Request {
	t.Helper()
	r := new(Request)
	if err := Scan(api, []byte(body), r); err != nil {
		t.Fatalf("%v %s: %v", api, body, err)
	}
	return r
}

func TestFlags(t *testing.T) {
	body := `{"temperature":0,"model":"qwen\/7\u0062","stream":true,"messages":[],"max_tokens":5,` +
		`"max_completion_tokens":7,` +
		`"stream_options":{"include_usage":true,"x":[1]},"cache_salt":"t\n","previous_response_id":"resp_1",` +
		`"nvext":{"a":{"model":"no"}}}`
	r := mustScan(t, Chat, body)
	if string(r.Model) != "qwen/7b" || body[r.root.model.Start:r.root.model.End] != `"qwen\/7\u0062"` {
		t.Errorf("model %q at %v", r.Model, r.root.model)
	}
	if !r.Stream || !r.IncludeUsage || r.MaxTokens != 7 ||
		string(r.CacheSalt) != "t\n" || string(r.PreviousResponseID) != "resp_1" {
		t.Errorf("got %+v", r)
	}
	if body[r.root.options.at.Start:r.root.options.at.End] != `{"include_usage":true,`+
		`"x":[1]}` || r.root.membersAt != 1 || r.root.empty {
		t.Errorf("stream_options %v, members at %d", r.root.options.at, r.root.membersAt)
	}
}

// TestNvextIsFound checks that the place of nvext is known, for every API and spelling of the name.
func TestNvextIsFound(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","nvext": {"a":[1]} ,"messages":[]}`:   `{"a":[1]}`,
		`{"messages":[],"nve\u0078t":{ },"model":"m"}`:      `{ }`,
		`{"model":"m","messages":[],"nvext": null}`:         `null`,
		`{"model":"m","messages":[],"x":{"nvext":{}}}`:      ``,
		`{"model":"m","messages":[],"nvext_":{},"NVEXT":1}`: ``,
	} {
		for _, api := range []API{Chat, Messages, Other} {
			if at := mustScan(t, api, body).Nvext(); body[at.Start:at.End] != want {
				t.Errorf("%v %s: %q", api, body, body[at.Start:at.End])
			}
		}
	}
}

func TestModelAliasesTheBody(t *testing.T) {
	body := []byte(`{"model":"m1","input":"x"}`)
	var r Request
	if err := Scan(Embeddings, body, &r); err != nil || &r.Model[0] != &body[10] {
		t.Errorf("%v, model %q is a copy", err, r.Model)
	}
}

func TestAbsentIsNull(t *testing.T) {
	r := mustScan(t, Chat, ` { "model" : "m" , "stream":null,"stream_options":null,"max_tokens":null,`+
		`"cache_salt":null,"previous_response_id":null,"tools":null,"messages":[{"role":"user","content":null,`+
		`"tool_calls":null,"name":null}]} `)
	if r.Stream || r.IncludeUsage || r.MaxTokens != 0 || r.CacheSalt != nil ||
		r.PreviousResponseID != nil || string(r.Text) != "\xFFuser" {
		t.Errorf("got %+v", r)
	}
	if r.root.membersAt != 2 || r.root.options.at == (Span{}) {
		t.Errorf("members at %d, stream options %v", r.root.membersAt, r.root.options.at)
	}
}

func TestMaxTokens(t *testing.T) {
	for body, want := range map[string]int64{
		`"max_tokens":16`: 16, `"max_output_tokens":17`: 17, `"max_completion_tokens":18`: 18,
		`"max_completion_tokens":18,"max_tokens":16`: 18,
		`"max_tokens":16,"max_completion_tokens":18`: 18, `"max_tokens":-1`: 0, `"max_tokens":"16"`: 0,
		`"max_tokens":1.6e1`: 16, `"max_tokens":1.5`: 0,
	} {
		if r := mustScan(t, Other, `{"model":"m",`+body+`}`); r.MaxTokens != want {
			t.Errorf("%s: %d", body, r.MaxTokens)
		}
	}
}

func TestModelMayBeMissing(t *testing.T) {
	for _, api := range []API{Tokenize, Detokenize} {
		for _, body := range []string{`{}`, `{"model":null}`, `{"prompt":"x","tokens":[1]}`} {
			if r := mustScan(t, api, body); len(r.Model) != 0 {
				t.Errorf("%s: model %q", body, r.Model)
			}
		}
	}
}

var tooDeep = strings.Repeat("[", 200) + strings.Repeat("]", 200)

var refusals = []struct {
	api                        API
	body, param, message, code string
}{
	{Chat, ``, "", "is empty", CodeJSON},
	{Chat, " \n", "", "is empty", CodeJSON},
	{Chat, `[]`, "", "must be a JSON object, not an array", CodeType},
	{Chat, `"x"`, "", "not a string", CodeType},
	{Chat, `{"model":"m","messages":[]} x`, "", "unexpected bytes after the end of the document at byte 28", CodeJSON},
	{Chat, `{"model":"m","messages":[]`, "", "unexpected end of the document at byte 26", CodeJSON},
	{Chat, `{"model":"m","messages":[`, "", "unexpected end", CodeJSON},
	{Chat, `{"model":"m","messages":[{"role":"user","content":tru}]}`, "", "is not valid JSON: expected null, true " +
		"or false at byte 50", CodeJSON},
	{Chat, `{"model":"m","messages":[{"role":"user","content":}]}`, "", "is not valid JSON: expected a value", CodeJSON},
	{Chat, `{"model":"m","messages":[{"role":"user","content":"` + "\xff" + `"}]}`, "", "invalid UTF-8 at byte 51", CodeJSON},
	{Chat, `{"model":"m","messages":[],"x":` + tooDeep + `}`, "", "nested too deeply", CodeTooLarge},
	{Chat, `{"model":"m","messages":[],"tools":[{"a":` + tooDeep + `}]}`, "", "nested too deeply", CodeTooLarge},
	{Chat, `{}`, "model", "`model` is missing; name one", CodeMissing},
	{Chat, `{"model":null,"messages":[]}`, "model", "`model` is missing", CodeMissing},
	{Chat, `{"model":"","messages":[]}`, "model", "`model` is empty", CodeValue},
	{Chat, `{"model":7,"messages":[]}`, "model", "`model` must be a string, not a number", CodeType},
	{Chat, `{"model":"m","model":"m","messages":[]}`, "model", "`model` appears twice", CodeValue},
	{Chat, `{"model":"m","mod\u0065l":"m","messages":[]}`, "model", "`model` appears twice", CodeValue},
	{Chat, `{"model":"m"}`, "messages", "`messages` is missing", CodeMissing},
	{Messages, `{"model":"m"}`, "messages", "`messages` is missing", CodeMissing},
	{Chat, `{"model":"m","messages":null}`, "messages", "must be an array of messages, not null", CodeType},
	{Chat, `{"model":"m","messages":{}}`, "messages", "must be an array of messages, not an object", CodeType},
	{Chat, `{"model":"m","messages":["x"]}`, "messages[0]", "must be an object with role and content, not a string", CodeType},
	{Chat, `{"model":"m","messages":[{},{"role":1}]}`, "messages[1].role", `must be a string such as "user", not a ` +
		`number`, CodeType},
	{Chat, `{"model":"m","messages":[{"role":"user","role":"user"}]}`, "messages[0].role", "appears twice", CodeValue},
	{Chat, `{"model":"m","messages":[{"content":"a","content":"b"}]}`, "messages[0].content", "appears twice", CodeValue},
	{Chat, `{"model":"m","messages":[{"role":"user","content":5}]}`, "messages[0].content", "must be a string or a " +
		"list of content parts, not a number", CodeType},
	{Chat, `{"model":"m","messages":[{"role":"user","content":[5]}]}`, "messages[0].content", "made of content parts", CodeType},
	{Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"text",` +
		`"text":5}]}]}`, "messages[0].content", "text is a string", CodeType},
	{Chat, `{"model":"m","messages":[{"role":"assistant","tool_calls":{}}]}`, "messages[0].tool_calls", "must be " +
		"an array of tool calls", CodeType},
	{Chat, `{"model":"m","messages":[],"tools":{}}`, "tools", "must be an array of definitions, not an object", CodeType},
	{Chat, `{"model":"m","messages":[],"tools":[1]}`, "tools", "must be an array of objects", CodeType},
	{Chat, `{"model":"m","messages":[],"stream":"yes"}`, "stream", "`stream` must be true or false, not a string", CodeType},
	{Chat, `{"model":"m","messages":[],"stream":true,"stream":false}`, "stream", "appears twice", CodeValue},
	{Chat, `{"model":"m","messages":[],"stream_options":true}`, "stream_options", "must be an object such as", CodeType},
	{Chat, `{"model":"m","messages":[],"stream_options":{"include_usage":1}}`, "stream_options.include_usage",
		"must be true or false", CodeType},
	{Chat, `{"model":"m","messages":[],"stream_options":{"include_usage":true,` +
		`"include_usage":true}}`, "stream_options.include_usage", "appears twice", CodeValue},
	{Chat, `{"model":"m","messages":[],"cache_salt":1}`, "cache_salt", "must be a string", CodeType},
	{Chat, `{"model":"m","messages":[],"nvext":"x"}`, "nvext", "must be an object such as", CodeType},
	{Other, `{"model":"m","nvext":{},"nvext":null}`, "nvext", "appears twice", CodeValue},
	{Chat, `{"model":"m","messages":[],"nvext":{"a":}}`, "", "is not valid JSON: expected a value", CodeJSON},
	{Responses, `{"model":"m","input":7}`, "input", "must be a string or an array of items, not a number", CodeType},
	{Responses, `{"model":"m","previous_response_id":{}}`, "previous_response_id", "must be a string", CodeType},
	{Completions, `{"model":"m","prompt":{}}`, "prompt", "must be a string, a list of strings", CodeType},
	{Completions, `{"model":"m","prompt":[1,"x"]}`, "prompt", "must be a string, a list of strings", CodeType},
	{Completions, `{"model":"m","prompt":["x",1]}`, "prompt", "must be a string, a list of strings", CodeType},
	{Completions, `{"model":"m","prompt":[[1],["x"]]}`, "prompt", "must be a string, a list of strings", CodeType},
	{Completions, `{"model":"m","prompt":[1,-1]}`, "prompt", "holds a token id", CodeValue},
	{Completions, `{"model":"m","prompt":[4294967296]}`, "prompt", "holds a token id", CodeValue},
	{Rerank, `{"model":"m","query":1}`, "query", "must be a string, an object or a list of them", CodeType},
	{Other, `{"stream":true}`, "model", "is missing", CodeMissing},
}

func TestErrors(t *testing.T) {
	for _, c := range refusals {
		var r Request
		err := Scan(c.api, []byte(c.body), &r)
		var e *Error
		if !errors.As(err, &e) || e.Param != c.param || e.Code != c.code || !strings.Contains(e.Message, c.message) ||
			e.Offset < 0 || e.Offset > len(c.body) {
			t.Errorf("%v %.80s:\n got %+v\nwant %s of %s: %s", c.api, c.body, e, c.code, c.param, c.message)
		}
	}
}

// TestForeignMembersTravelThrough checks that an API ignores members of other APIs.
func TestForeignMembersTravelThrough(t *testing.T) {
	for api, body := range map[API]string{
		Chat:        `{"model":"m","messages":[],"input":7,"prompt":{},"system":1,"documents":[{}],"model_":1,"MODEL":2}`,
		Completions: `{"model":"m","messages":3,"tools":4}`,
		Responses:   `{"model":"m","prompt":{"id":"p"},"messages":1}`,
		Audio:       `{"model":"m","input":7}`,
		Other:       `{"model":"m","messages":7,"input":[1,"x"]}`,
	} {
		if r := mustScan(t, api, body); len(r.Text) != 0 {
			t.Errorf("%v: text %q", api, r.Text)
		}
	}
}

func TestResetForgets(t *testing.T) {
	r := mustScan(t, Chat, `{"model":"\u006d","stream":true,"stream_options":{},"max_tokens":3,"cache_salt":"s",`+
		`"nvext":{},"messages":[{"role":"user","content":"hi"}]}`)
	r.Reset()
	if err := Scan(Completions, []byte(`{"model":"n","prompt":[1,2]}`), r); err != nil {
		t.Fatal(err)
	}
	if string(r.Model) != "n" || r.Stream || r.root.options.at != (Span{}) || r.MaxTokens != 0 ||
		r.CacheSalt != nil || r.Nvext() != (Span{}) || len(r.Text) != 0 || len(r.Tokens) != 2 || r.FirstTurn != 8 {
		t.Errorf("got %+v", r)
	}
	r.Text = make([]byte, 0, keepBytes+1)
	if r.Reset(); cap(r.Text) != 0 {
		t.Error("a huge buffer is kept")
	}
}
