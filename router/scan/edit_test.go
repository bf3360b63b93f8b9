package scan

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func join(segments [][]byte) []byte { return bytes.Join(segments, nil) }

// edited returns a body after edits that must succeed.
func edited(t *testing.T, api API, body string, edit func(*Edits)) string {
	t.Helper()
	var e Edits
	e.Reset(mustScan(t, api, body), []byte(body))
	edit(&e)
	if e.Err() != nil {
		t.Fatalf("%s: %v", body, e.Err())
	}
	once := string(join(e.Segments(nil)))
	if again := string(join(e.Segments(nil))); again != once {
		t.Errorf("%s: first %s, then %s", body, once, again)
	}
	return once
}

func TestModelAndUsage(t *testing.T) {
	const usage = `"stream_options":{"include_usage":true}`
	for _, c := range []struct {
		api               API
		body, model, both string
	}{
		{Chat, `{"model":"m","stream":true,"messages":[]}`, `{"model":"a\"b","stream":true,"messages":[]}`,
			`{` + usage + `,"model":"a\"b","stream":true,"messages":[]}`},
		{Chat, `{ "stream_options" : null , "messages":[],"model" : "m" }`,
			`{ "stream_options" : null , "messages":[],"model" : "a\"b" }`,
			`{ "stream_options" : {"include_usage":true} , "messages":[],"model" : "a\"b" }`},
		{Chat, `{"model":"m","stream_options":{ },"messages":[]}`,
			`{"model":"a\"b","stream_options":{ },"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage":true },"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"x":1},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"x":1},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage":true,"x":1},"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"continuous_usage_stats": true,"x":1},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"continuous_usage_stats": true,"x":1},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage":true,"continuous_usage_stats": false,"x":1},"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"continuous_usage_stats":1 , "include_usage":null},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"continuous_usage_stats":1 , "include_usage":null},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"continuous_usage_stats":false , "include_usage":true},"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[]}`},
		{Chat, `{"model":"m","stream_options":{"include_usage": false},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage": false},"messages":[]}`,
			`{"model":"a\"b","stream_options":{"include_usage": true},"messages":[]}`},
		{Tokenize, `{}`, `{"model":"a\"b"}`, `{"model":"a\"b",` + usage + `}`},
		{Tokenize, ` { } `, ` {"model":"a\"b" } `, ` {"model":"a\"b",` + usage + ` } `},
		{Tokenize, `{"prompt":"x"}`, `{"model":"a\"b","prompt":"x"}`, `{"model":"a\"b",` + usage + `,"prompt":"x"}`},
		{Tokenize, `{"model":null}`, `{"model":"a\"b"}`, `{` + usage + `,"model":"a\"b"}`},
	} {
		if got := edited(t, c.api, c.body, func(e *Edits) { e.Model(`a"b`) }); got != c.model {
			t.Errorf("%s\n got %s\nwant %s", c.body, got, c.model)
		}
		both := func(e *Edits) { e.Model(`a"b`); e.IncludeUsage() }
		if got := edited(t, c.api, c.body, both); got != c.both {
			t.Errorf("%s\n got %s\nwant %s", c.body, got, c.both)
		}
		indexed := func(e *Edits) { both(e); e.Remove("nothing") }
		if got := edited(t, c.api, c.body, indexed); got != c.both {
			t.Errorf("with an index: %s\n got %s\nwant %s", c.body, got, c.both)
		}
	}
}

func TestEditsByName(t *testing.T) {
	set := func(name, value string) func(*Edits) { return func(e *Edits) { e.Set(name, []byte(value)) } }
	gone := func(names ...string) func(*Edits) {
		return func(e *Edits) {
			for _, n := range names {
				e.Remove(n)
			}
		}
	}
	all := func(edits ...func(*Edits)) func(*Edits) {
		return func(e *Edits) {
			for _, f := range edits {
				f(e)
			}
		}
	}
	long := `"` + strings.Repeat("v", 2*smallValue) + `"`
	for i, c := range []struct {
		body string
		edit func(*Edits)
		want string
	}{
		{`{"a":1,"b":2,"c":3}`, gone("a"), `{"b":2,"c":3}`},
		{`{"a":1,"b":2,"c":3}`, gone("b"), `{"a":1,"c":3}`},
		{`{"a":1,"b":2,"c":3}`, gone("c"), `{"a":1,"b":2}`},
		{`{"a":1,"b":2,"c":3}`, gone("a", "b"), `{"c":3}`},
		{`{"a":1,"b":2,"c":3}`, gone("c", "b"), `{"a":1}`},
		{`{"a":1,"b":2,"c":3}`, gone("a", "c"), `{"b":2}`},
		{`{ "a" : 1 , "b" : 2 , "c" : 3 } `, gone("b"), `{ "a" : 1 , "c" : 3 } `},
		{"{\n\"a\": 1,\n\"b\": 2\n}", gone("a", "b"), "{\n\n}"},
		{`{"a":1}`, all(gone("a"), set("b", "2")), `{"b":2}`},
		{`{"a":1}`, all(gone("a"), set("a", "2")), `{"a":2}`},
		{`{"a":1}`, all(set("a", "2"), gone("a")), `{}`},
		{`{"b":1}`, all(set("a", "2"), gone("a")), `{"b":1}`},
		{`{"a":1}`, all(set("b", "2"), set("c", "3")), `{"b":2,"c":3,"a":1}`},
		{`{ }`, all(set("b", "2"), set("c", "3")), `{"b":2,"c":3 }`},
		{`{}`, all(set("b", long), set("c", long)), `{"b":` + long + `,"c":` + long + `}`},
		{`{"a":1}`, all(set("b", long), set("c", "3"), gone("a")), `{"b":` + long + `,"c":3}`},
		{`{"a":1,"x":0,"a":2}`, set("a", "3"), `{"a":3,"x":0}`},
		{`{"a":1,"x":0,"a":2,"\u0061":4}`, gone("a"), `{"x":0}`},
		{`{"x":0,"\u0061":{"a":1}}`, set("a", "3"), `{"x":0,"\u0061":3}`},
		{`{"a":1,"a":2}`, gone("a"), `{}`},
		{`{"q\"":1}`, all(set(`q"`, "2"), set("\n", "3")), `{"\n":3,"q\"":2}`},
		{`{"a":null}`, func(e *Edits) { e.Default("a", one); e.Default("b", one) }, `{"b":1,"a":1}`},
		{`{"a":[]}`, func(e *Edits) { e.Default("a", one); e.Default("b", one); e.Default("b", falseValue) },
			`{"b":1,"a":[]}`},
		{`{"a":[]}`, func(e *Edits) { e.Remove("a"); e.Default("a", one) }, `{"a":1}`},
		{`{"a":null}`, func(e *Edits) { e.Replace("a", one); e.Replace("b", one) }, `{"a":1}`},
		{`{"a":1}`, func(e *Edits) { e.Remove("a"); e.Replace("a", one) }, `{}`},
		{`{"model":"m","prompt":"p"}`, all(set("prompt", "[1]"), gone("model"), func(e *Edits) { e.Model("n") }),
			`{"model":"n","prompt":[1]}`},
		{`{"stream_options":{"x":1}}`, func(e *Edits) { e.IncludeUsage(); e.Remove("stream_options") }, `{}`},
	} {
		if got := edited(t, Tokenize, c.body, c.edit); got != c.want {
			t.Errorf("%d: %s\n got %s\nwant %s", i, c.body, got, c.want)
		}
	}
}

// TestEditsBeyondTheIndex checks edits of members that did not fit into the index.
func TestEditsBeyondTheIndex(t *testing.T) {
	var members, kept []string
	for i := range maxEntries + 20 {
		members = append(members, fmt.Sprintf(`"m%d":%d`, i, i))
		if i != 0 && i < maxEntries-1 {
			kept = append(kept, members[i])
		}
	}
	body := "{" + strings.Join(members, ",") + "}"
	got := edited(t, Tokenize, body, func(e *Edits) {
		e.Remove("m0")
		for i := maxEntries - 1; i < maxEntries+20; i++ {
			e.Remove(fmt.Sprint("m", i))
		}
	})
	if want := "{" + strings.Join(kept, ",") + "}"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	r := mustScan(t, Tokenize, body)
	if got := r.Find([]byte(body), fmt.Sprint("m", maxEntries+19)); string(got) != fmt.Sprint(maxEntries+19) {
		t.Errorf("the last member is %s", got)
	}
}

func TestEditsFail(t *testing.T) {
	contentType, form := form(t, [][2]string{{"model", "whisper"}}, nil)
	body := []byte(`{"model":"m"}`)
	json := mustScan(t, Other, string(body))
	var inForm Request
	if err := ScanMultipart([]byte(contentType), form, &inForm); err != nil {
		t.Fatal(err)
	}
	many := func(e *Edits) {
		for i := range maxChanges + 1 {
			e.Set(fmt.Sprint("m", i), one)
		}
	}
	for _, c := range []struct {
		r    *Request
		body []byte
		edit func(*Edits)
		want error
	}{
		{&inForm, form, func(e *Edits) { e.Set("stream", one) }, errForm},
		{&inForm, form, func(e *Edits) { e.Remove("model") }, errForm},
		{json, body, many, errChanges},
		{mustScan(t, Other, string(body)), []byte(`{"model":"m`), func(e *Edits) { e.Set("a", one) }, errRoot},
	} {
		var e Edits
		e.Reset(c.r, c.body)
		c.edit(&e)
		if !errors.Is(e.Err(), c.want) || len(e.Segments(nil)) != 0 {
			t.Errorf("%s: error %v, want %v", c.body, e.Err(), c.want)
		}
		if e.Reset(c.r, c.body); e.Err() != nil || !bytes.Equal(join(e.Segments(nil)), c.body) {
			t.Errorf("%s: after Reset: %v", c.body, e.Err())
		}
	}
	if inForm.Find(form, "model") != nil {
		t.Error("a member of a form is found")
	}
}

// TestSegmentsAlias checks that neither the body nor a long value is copied.
func TestSegmentsAlias(t *testing.T) {
	body, value := chatBody(20<<10), []byte(`"`+strings.Repeat("v", 2*smallValue)+`"`)
	var r Request
	if err := Scan(Chat, body, &r); err != nil {
		t.Fatal(err)
	}
	var e Edits
	e.Reset(&r, body)
	e.Set("a", value)
	e.Set("stream", falseValue)
	own := 0
	for _, s := range e.Segments(nil) {
		if !slices.ContainsFunc([][]byte{body, value, falseValue}, func(b []byte) bool { return within(s, b) }) {
			own += len(s)
		}
	}
	if own > len(`"a":,`) {
		t.Errorf("%d bytes are not those of the body or the values", own)
	}
}

func within(s, b []byte) bool {
	for i := range b {
		if &b[i] == &s[0] {
			return len(s) <= len(b)-i
		}
	}
	return false
}

func TestFind(t *testing.T) {
	for _, c := range []struct{ doc, path, want string }{
		{`{"a":1}`, "a", "1"},
		{`{"a":1}`, "b", ""},
		{` { "nvext" : { "x":[], "agent_hints": {"osl" : 512 } } } `, "nvext agent_hints osl", "512"},
		{`{"a":{"b":1},"a":{"c":2}}`, "a b", ""},
		{`{"a":{"b":1},"\u0061":{"b":2}}`, "a b", "2"},
		{`{"a":[{"b":1}]}`, "a b", ""},
		{`{"a":null}`, "a", "null"},
		{`{"a":null}`, "a b", ""},
		{`[]`, "a", ""},
		{`{"kv_transfer_params":{"remote_block_ids":[[1, 2]]},` +
			`"id":"x"}`, "kv_transfer_params", `{"remote_block_ids":[[1, 2]]}`},
	} {
		path := strings.Fields(c.path)
		if got, err := Find([]byte(c.doc), path...); string(got) != c.want || err != nil {
			t.Errorf("%s at %v: %s %v, want %s", c.doc, path, got, err, c.want)
		}
		if c.doc[0] != '[' {
			r := mustScan(t, Tokenize, c.doc)
			if got := r.Find([]byte(c.doc), path...); string(got) != c.want {
				t.Errorf("body %s at %v: %s, want %s", c.doc, path, got, c.want)
			}
		}
	}
	for _, doc := range []string{``, `{"a":1`, `{"a":1}}`, `{"a" 1}`, `{"a":{"b":tru}}`, `[1`} {
		if got, err := Find([]byte(doc), "a", "b"); err == nil || got != nil {
			t.Errorf("%s: %s", doc, got)
		}
	}
	doc := []byte(`{"usage":{},"kv_transfer_params":{"a":[1]}}`)
	if n := testing.AllocsPerRun(100, func() { Find(doc, "kv_transfer_params", "a") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestFirstEditsStay checks that early edits survive a growth of the scratch memory.
func TestFirstEditsStay(t *testing.T) {
	body := []byte(`{"messages":[]}`)
	var r Request
	if Scan(Tokenize, body, &r) != nil {
		t.Fatal("refused")
	}
	var e Edits
	e.Reset(&r, body)
	e.Model("first")
	first := e.Segments(nil)
	for range 100 {
		e.Segments(nil)
	}
	if got := string(join(first)); got != `{"model":"first","messages":[]}` {
		t.Errorf("got %s", got)
	}
}
