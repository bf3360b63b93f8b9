package scan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// FuzzScan compares Scan with encoding/json. An accepted body must be valid, with the model and
// stream that the library reads. A refusal must have an explanation. Edits must keep the body
// valid.
func FuzzScan(f *testing.F) {
	for _, c := range canonicalCases {
		f.Add(uint8(c.api), []byte(`{"model":"m",`+c.members+`}`))
	}
	f.Add(uint8(Chat), []byte(`{"messages":[],"stream":true,"stream_options":{"include_usage":false},`+
		`"model":"\ud83d\ude00"}`))
	f.Add(uint8(Chat), []byte(`{"messages":[],"nvext": {"a":[{}]} ,"model":"m"}`))
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

// depth returns an upper bound of a document's nesting.
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
	if at := r.Nvext(); string(body[at.Start:at.End]) != string(root["nvext"]) {
		t.Fatalf("%q: nvext is %q", body, body[at.Start:at.End])
	}
	if max := len(r.Text) + 4*len(r.Tokens); r.FirstTurn < 0 || r.FirstTurn > max {
		t.Fatalf("%q: first turn %d of %d", body, r.FirstTurn, max)
	}
	var e Edits
	e.Reset(r, body)
	e.Model("new\nname")
	e.IncludeUsage()
	spliced := join(e.Segments(nil))
	edited := map[string]json.RawMessage{} // unlike a struct, a map distinguishes names by case
	if err := json.Unmarshal(spliced, &edited); err != nil {
		t.Fatalf("%q: edited to %q: %v", body, spliced, err)
	}
	if model = ""; json.Unmarshal(edited["model"], &model) != nil || model != "new\nname" {
		t.Fatalf("%q: edited to %q, model is %q", body, spliced, model)
	}
}

// FuzzEdits compares edits and Find with encoding/json's decoding, editing and encoding. The test
// uses the body, and a body with a long prompt before or behind its members that a Memo skips.
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

// inner returns the text between the braces of an object.
func inner(body []byte) (string, bool) {
	root := bytes.TrimSpace(body)
	if len(root) < 2 || root[0] != '{' || root[len(root)-1] != '}' {
		return "", false
	}
	return string(root[1 : len(root)-1]), true
}

// checkPassedOver adds a long prompt before or behind the members of a body. checkPassedOver scans
// the body twice, so that the second scan begins in the middle.
func checkPassedOver(t *testing.T, members string, ops []byte) {
	comma := ","
	if strings.TrimSpace(members) == "" {
		comma = ""
	}
	for _, spelled := range []string{
		"{" + longPrompt + comma + members + "}", "{" + members + comma + longPrompt + "}",
	} {
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

// rootMembersOf returns the members of an object in order, as encoding/json reads them.
func rootMembersOf(doc []byte) (names []string, values []json.RawMessage, err error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	if _, err = d.Token(); err != nil {
		return nil, nil, err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, nil, err
		}
		names, values = append(names, name.(string)), append(values, value)
	}
	_, err = d.Token()
	return names, values, err
}

var (
	editNames = []string{
		"model", "stream", "stream_options", "prompt", "messages", "a", "", "q\"\n", "nvext", "é", "max_tokens",
	}
	editValues = []string{
		`1`, `null`, `{"include_usage":false}`, `"` + strings.Repeat("x", 2*smallValue) + `"`, ` [ ] `,
	}
	findPaths = [][]string{
		{"nvext", "agent_hints", "osl"}, {"a", "a"}, {"a"}, {"stream_options", "include_usage"}, {"é"}, {""},
	}
)

// applyEdits makes the edits encoded in ops, both with e and in the map now. A nil value in now
// stands for a removed member. applyEdits returns the names of the edited members.
func applyEdits(e *Edits, ops []byte, now map[string]json.RawMessage) map[string]bool {
	touched := map[string]bool{}
	for ; len(ops) >= 3; ops = ops[3:] {
		name := editNames[int(ops[1])%len(editNames)]
		value := json.RawMessage(editValues[int(ops[2])%len(editValues)])
		old := now[name]
		switch ops[0] % 5 {
		case 0:
			e.Set(name, value)
		case 1:
			e.Remove(name)
			value = nil
		case 2:
			if e.Default(name, value); old != nil && string(old) != "null" {
				continue
			}
		case 3:
			if e.Replace(name, value); old == nil {
				continue
			}
		case 4:
			name, value = "model", json.RawMessage(`"new\nname"`)
			e.Model("new\nname")
		}
		touched[name], now[name] = true, value
	}
	return touched
}

// checkEdits makes the edits encoded in ops with r. checkEdits compares the result with decoding,
// editing and encoding.
func checkEdits(t *testing.T, body []byte, r *Request, ops []byte) {
	names, values, err := rootMembersOf(body)
	if err != nil {
		t.Fatalf("%q: accepted, but %v", body, err)
	}
	now := map[string]json.RawMessage{}
	for i, n := range names {
		now[n] = values[i]
	}
	for _, path := range findPaths {
		if got, want := r.Find(body, path...), decodePath(now, path); string(got) != string(want) {
			t.Fatalf("%q at %v: %q, want %q", body, path, got, want)
		}
	}
	var e Edits
	e.Reset(r, body)
	const options = "stream_options"
	before, usage := now[options], len(ops) > 0 && ops[0]&0x80 != 0
	if usage {
		e.IncludeUsage()
		if usage = !r.IncludeUsage; usage {
			now[options] = json.RawMessage("true") // any other value
		}
	}
	touched := applyEdits(&e, ops, now)
	usage = usage && !touched[options]
	out := join(e.Segments(nil))
	if e.Err() != nil || !json.Valid(out) {
		t.Fatalf("%q with %v: %q: %v", body, ops, out, e.Err())
	}
	if usage {
		touched[options] = true
		now[options] = withUsage(before)
	}
	checkEdited(t, fmt.Sprintf("%q with %v: %q", body, ops, out), out, touched, now)
	checkRest(t, body, out, touched)
}

// checkEdited checks the values of the edited members.
func checkEdited(t *testing.T, what string, out []byte, touched map[string]bool, now map[string]json.RawMessage) {
	names, values, _ := rootMembersOf(out)
	for name := range touched {
		i := slices.Index(names, name)
		if i < 0 {
			if now[name] != nil {
				t.Fatalf("%s: %q is missing", what, name)
			}
			continue
		}
		if slices.Contains(names[i+1:], name) || now[name] == nil {
			t.Fatalf("%s: %q is there, or twice", what, name)
		}
		var got, want any
		json.Unmarshal(values[i], &got)
		json.Unmarshal(now[name], &want)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: %q is %s, want %s", what, name, values[i], now[name])
		}
	}
}

// checkRest checks the bytes and the order of all other members.
func checkRest(t *testing.T, body, out []byte, touched map[string]bool) {
	rest := func(doc []byte) (all []string) {
		names, values, _ := rootMembersOf(doc)
		for i, n := range names {
			if !touched[n] {
				all = append(all, n, string(values[i]))
			}
		}
		return all
	}
	if got, want := rest(out), rest(body); !slices.Equal(got, want) {
		t.Fatalf("%q edited to %q: the rest is %q, want %q", body, out, got, want)
	}
}

// TestEditsProperty edits random bodies with repeated names, names with escapes, and white space.
func TestEditsProperty(t *testing.T) {
	space := rapid.SampledFrom([]string{"", "", " ", "\n\t"})
	name := rapid.SampledFrom([]string{
		`"model"`, `"mod\u0065l"`, `"stream"`, `"stream_options"`, `"a"`, `"\u0061"`, `"a"`, `""`, `"q\"\n"`,
		`"nvext"`, `"é"`,
		`"\u00e9"`, `"max_tokens"`, `"other"`,
	})
	value := rapid.SampledFrom([]string{
		`1`, `null`, `true`, `"x}\","`, `[1,{"a":2}]`, `{"a":1}`, `{"a":1, ` +
			`"a":{}}`, `{}`, `{"include_usage":true}`, `{ "b":1 }`,
		`{"include_usage":null,"b":2}`, `{"continuous_usage_stats":true}`, `{"agent_hints":{"osl":1,"osl":[2]}}`,
	})
	ran := 0
	rapid.Check(t, func(rt *rapid.T) {
		var b strings.Builder
		for i := range rapid.IntRange(0, 6).Draw(rt, "members") {
			if i > 0 {
				b.WriteString(",")
			}
			at := func() string { return space.Draw(rt, "space") }
			b.WriteString(at() + name.Draw(rt, "name") + at() + ":" + at() + value.Draw(rt, "value") + at())
		}
		ops := rapid.SliceOfN(rapid.Byte(), 0, 24).Draw(rt, "edits")
		body := []byte("{" + b.String() + "}")
		var r Request
		if Scan(Tokenize, body, &r) == nil {
			ran++
			checkEdits(t, body, &r, ops)
			checkPassedOver(t, b.String(), ops)
		}
	})
	if ran < 20 {
		t.Errorf("only %d bodies were accepted", ran)
	}
}

// withUsage returns a value of stream_options that asks for usage only at the end.
func withUsage(options json.RawMessage) json.RawMessage {
	var all map[string]any
	json.Unmarshal(options, &all)
	if all == nil {
		all = map[string]any{}
	}
	if _, ok := all["continuous_usage_stats"]; ok {
		all["continuous_usage_stats"] = false
	}
	all["include_usage"] = true
	out, _ := json.Marshal(all)
	return out
}

// decodePath is Find by encoding/json.
func decodePath(members map[string]json.RawMessage, path []string) json.RawMessage {
	value := members[path[0]]
	if len(path) == 1 || len(value) == 0 || value[0] != '{' {
		if len(path) > 1 {
			return nil
		}
		return value
	}
	var inner map[string]json.RawMessage
	if json.Unmarshal(value, &inner) != nil {
		return nil
	}
	return decodePath(inner, path[1:])
}
