package jsonscan

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

var documents = []string{
	`{}`, `[]`, `null`, `true`, `false`, `0`, `-0`, `1.5e+10`, `""`, ` [1 , 2] `, `{"a":{"b":[1,{"c":null}]}}`,
	`"\u00e9\ud83d\ude00\n\/\b"`, `"\ud800"`, `"\udc00\ud800x"`, `"\ud800\u0041"`, `"日本語 😀"`, "\"\x7f\"",
	`{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `{"a"}`, `{"a":}`, `{1:2}`, `[1 ` +
		`2]`, `01`, `1.`, `.5`, `1e`, `+1`, `-`, `--1`, `nul`, `truex`, `nullnull`,
	`"`, `"\`, `"\x"`, `"\u12"`, `"\u12g4"`, `"\ud800\uzzzz"`, "\"a\nb\"", "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0" +
		"\x80\"", "\x00", "[\x00]", ``, ` `, `{} {}`, `[}`, `{]`, `]`,
	`{"a":1,"a":2}`, "\ufeff{}", `"` + strings.Repeat("x", 100) + `\n` + strings.Repeat("y", 7) + `"`,
}

// depthOf returns the deepest nesting of a valid document.
func depthOf(doc []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(doc); i++ {
		switch b := doc[i]; {
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '{' || b == '[':
			depth++
			deepest = max(deepest, depth)
		case b == '}' || b == ']':
			depth--
		}
	}
	return deepest
}

func checkAgainstStandard(t *testing.T, doc []byte) {
	want := json.Valid(doc) && utf8.Valid(doc) && depthOf(doc) <= DefaultMaxDepth
	err := Valid(doc)
	if (err == nil) != want {
		t.Fatalf("Valid(%q) = %v, want valid %v", doc, err, want)
	}
	var e *Error
	if err != nil && (!errors.As(err, &e) || e.Offset < 0 || e.Offset > len(doc) || e.Reason == "") {
		t.Fatalf("Valid(%q): bad error %#v", doc, err)
	}
	if err == nil {
		checkString(t, doc)
	}
}

// checkString compares the three ways to decode a string document with encoding/json.
func checkString(t *testing.T, doc []byte) {
	var want string
	c := New(doc)
	if c.Kind() != String || json.Unmarshal(doc, &want) != nil {
		return
	}
	raw, escaped := c.String()
	c.Reset(doc, 0)
	appended := c.AppendString(nil)
	if string(appended) != want || string(AppendUnescaped(nil, raw)) != want || !escaped && string(raw) != want {
		t.Fatalf("%q: AppendString %q, AppendUnescaped %q, want %q", doc, appended, AppendUnescaped(nil, raw), want)
	}
	if !Spells(raw, want) || Spells(raw, want+"x") || want != "" && Spells(raw, want[1:]) {
		t.Fatalf("%q: does not spell %q alone", raw, want)
	}
	var back string
	if err := json.Unmarshal(AppendQuoted(nil, want), &back); err != nil || back != want {
		t.Fatalf("AppendQuoted(%q) = %s (%v)", want, AppendQuoted(nil, want), err)
	}
}

func TestAgreesWithStandardLibrary(t *testing.T) {
	for _, doc := range documents {
		checkAgainstStandard(t, []byte(doc))
	}
}

func FuzzValid(f *testing.F) {
	for _, doc := range documents {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) { checkAgainstStandard(t, doc) })
}

func TestNestingIsBounded(t *testing.T) {
	nested := func(n int) []byte { return []byte(strings.Repeat(`[`, n) + strings.Repeat(`]`, n)) }
	if err := Valid(nested(DefaultMaxDepth)); err != nil {
		t.Error(err)
	}
	if err := Valid(nested(DefaultMaxDepth + 1)); err == nil || !strings.Contains(err.Error(), "nested too deeply "+
		"at byte 128") {
		t.Errorf("got %v", err)
	}
	if err := Valid([]byte(strings.Repeat(`{"a":`, 1<<20))); err == nil {
		t.Error("a million open objects pass")
	}
}

func TestErrorsNameTheOffset(t *testing.T) {
	for doc, offset := range map[string]int{
		`{"a" 1}`: 5, `{"a":tru}`: 5, `[1,2`: 4, "\"ab\x01\"": 3, `"a\qb"`: 2, `{} x`: 3, `[1,` +
			`"\ud800\u12"]`: 10, `{"a":01}`: 6,
	} {
		var e *Error
		if err := Valid([]byte(doc)); !errors.As(err, &e) || e.Offset != offset {
			t.Errorf("%s: %v, want offset %d", doc, err, offset)
		}
	}
}

func TestKey(t *testing.T) {
	long := strings.Repeat("k", 300)
	c := New([]byte(`{"plain":1,"m\u006fdel":2,"\u006b` + long + `":3}`))
	var keys []string
	for ok := c.Object(); ok; ok = c.NextMember() {
		keys = append(keys, string(c.Key()))
		c.Skip()
	}
	c.End()
	if c.Err() != nil || len(keys) != 3 || keys[0] != "plain" || keys[1] != "model" ||
		len(keys[2]) < 56 || len(keys[2]) > 64 {
		t.Errorf("keys %q, error %v", keys, c.Err())
	}
	c.Reset([]byte(`{"\u006b`+long+`":3}`), 0)
	if c.Object(); string(c.AppendKey(nil)) != "k"+long {
		t.Error("AppendKey cuts the name")
	}
}

func TestSpells(t *testing.T) {
	for _, c := range []struct {
		raw, name string
		want      bool
	}{
		{"model", "model", true}, {"mod\\u0065l", "model", true}, {"model", "mod", false}, {"", "", true},
		{`\n`, `\n`, false}, {`\\n`, `\n`, true}, {`\ud83d\ude00`, "😀", true}, {`\ud83d`, "\uFFFD", true},
	} {
		if Spells([]byte(c.raw), c.name) != c.want {
			t.Errorf("%s and %s: %v", c.raw, c.name, !c.want)
		}
	}
}

func TestInt(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "-0": 0, "16": 16, "-3": -3, "16.0": 16, "1.6e1": 16, "1e3": 1000,
		"999999999999999999": 999999999999999999,
	} {
		if v, ok := Int([]byte(in)); !ok || v != want {
			t.Errorf("Int(%s) = %d, %v", in, v, ok)
		}
	}
	zeros := strings.Repeat("0", 100)
	for _, in := range []string{"", "1.5", "1e300", "1e-3", "9999999999999999999", "1e400", "0." + zeros} {
		if v, ok := Int([]byte(in)); ok {
			t.Errorf("Int(%s) = %d", in, v)
		}
	}
}

func TestFirstFailureSticks(t *testing.T) {
	c := New([]byte(`[1,tru,"`))
	for ok := c.Array(); ok; ok = c.NextElement() {
		c.Skip()
	}
	c.Fail(0, "later")
	if c.End(); c.Err() == nil || c.Err().Error() != "expected null, true or false at byte 3" {
		t.Errorf("got %v", c.Err())
	}
}

func TestAppendQuotedAnyBytes(t *testing.T) {
	for _, s := range []string{"\x00\x1f\x7f\"\\\n\r\t", "\xff\xfe", "a\u2028b\u2029c", "é😀", "\xf0\x9f\x98"} {
		var back string
		q := AppendQuoted(nil, s)
		if err := json.Unmarshal(q, &back); err != nil || back != strings.ToValidUTF8(s, "") && utf8.ValidString(s) {
			t.Errorf("%q -> %s: %q %v", s, q, back, err)
		}
		if string(AppendQuoted(nil, []byte(s))) != string(q) || strings.ContainsAny(string(q), "\n\r\u2028\u2029") {
			t.Errorf("%q -> %s", s, q)
		}
	}
}

var chatDocument = []byte(`{"model":"m","n":[1,2.5,-3e4],"messages":[{"role":"user","content":"` +
	strings.Repeat(`The quick brown fox jumps over the lazy dog and the \"router\" keeps the cache.\n`, 2700) + `"}]}`)

func TestNoAllocation(t *testing.T) {
	dst := make([]byte, 0, 1<<20)
	escapedKey := []byte(`{"\u0061":"b"}`)
	n := testing.AllocsPerRun(20, func() {
		c := New(chatDocument)
		c.Skip()
		c.Reset(escapedKey, 0)
		c.Object()
		if string(c.Key()) != "a" {
			panic("key")
		}
		dst = AppendQuoted(c.AppendString(dst[:0]), "päß\n")
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSkip(b *testing.B) {
	b.SetBytes(int64(len(chatDocument)))
	for b.Loop() {
		c := New(chatDocument)
		c.Skip()
	}
}

func BenchmarkAppendString(b *testing.B) {
	doc := chatDocument[strings.Index(string(chatDocument), `"The`):]
	dst := make([]byte, 0, len(doc))
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		c := New(doc)
		dst = c.AppendString(dst[:0])
	}
}
