package scan

import (
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"lukechampine.com/blake3"
)

// hash returns the 0xFD piece of a medium, computed by the library's own function.
func hash(s string) string {
	sum := blake3.Sum256([]byte(s))
	return "\xFD" + hex.EncodeToString(sum[:16])
}

// canonicalCases fix the format, because digests depend on each byte of it.
var canonicalCases = []struct {
	name      string
	api       API
	members   string
	text      string
	firstTurn int
}{
	{"string content", Chat, `"messages":[{"role":"system","content":"be\nbrief"},{"role":"user","content":"hi"},` +
		`{"role":"assistant","content":"yo"},{"role":"user","content":"more"}]`,
		"\xFFsystem\xFEbe\nbrief\xFFuser\xFEhi\xFFassistant\xFEyo\xFFuser\xFEmore", 24},
	{"odd member order", Chat, `"messages":[{"content":"hi","name":"bob","role":"user"}]`, "\xFFuser\xFCbob\xFEhi", 12},
	{"parts", Chat, `"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url",` +
		`"image_url":{"detail":"low","url":"http:\/\/x\/y.png"}},{"text":"b","type":"text"}]}]`,
		"\xFFuser\xFEa" + hash("http://x/y.png") + "\xFEb", 42},
	{"media", Chat, `"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"UklG",` +
		`"format":"wav"}},{"type":"audio_url","audio_url":{"url":"a"}},{"type":"video_url","video_url":{"url":"v"}},` +
		`{"type":"file","file":{"filename":"f","file_data":"d"}},{"type":"image_url","image_url":null,"uuid":"u"}]}]`,
		"\xFFuser" + hash("UklG") + hash("a") + hash("v") + hash("d") + hash("u"), 170},
	{"tool calls", Chat, `"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",` +
		`"function":{"arguments":"{\"q\": 1}","name":"f"}},{"function":{"name":"g","arguments":{"b":1,"a":2}},` +
		`"id":"c2"}]},{"role":"tool","tool_call_id":"c1","content":"42"}]`,
		"\xFFassistant\xFA\xFCf\xC0{\"q\": 1}\xFBc1\xFA\xFCg\xF5\xC1a\xF92\xC1b\xF91\xF6\xFBc2\xFFtool\xFBc1\xFE42", 0},
	{"function call", Chat, `"messages":[{"role":"assistant","function_call":{"name":"f",` +
		`"arguments":"{}"}}]`, "\xFFassistant\xFA\xFCf\xC0{}", 0},
	{"tools after messages", Chat, `"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function",` +
		`"function":{"strict":true,"name":"f","parameters":{"required":["b","a"],"max":1.60e1}}}]`,
		"\xF5\xC1function\xF5\xC1name\xC0f\xC1parameters\xF5\xC1max\xF916\xC1required\xF7\xC0b\xC0a\xF6\xF6\xC1strict" +
			"\xF9true\xF6\xC1type\xC0function\xF6\xFFuser\xFEhi", 89},
	{"functions after tools", Chat, `"functions":[{"name":"g"}],"messages":[],"tools":[{"a":null}]`, "\xF5\xC1a" +
		"\xF9null\xF6\xF5\xC1name\xC0g\xF6", 0},
	{"completion", Completions, `"prompt":"once \u00e9"`, "once é", 7},
	{"completion list", Completions, `"prompt":["a","b"]`, "a\xFFb", 3},
	{"embeddings", Embeddings, `"input":["a","b"]`, "a\xFFb", 3},
	{"responses string", Responses, `"input":"hi","instructions":"be brief"`, "\xFFsystem\xFEbe brief\xFFuser\xFEhi", 24},
	{"responses items", Responses, `"tools":[],"input":[{"type":"message","role":"user",` +
		`"content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"i"}]},` +
		`{"type":"function_call","id":"fc_1","status":"completed","call_id":"c","name":"f","arguments":"{}"},` +
		`{"type":"function_call_output","call_id":"c","output":"7"},` +
		`{"content":[{"type":"output_text","text":"b","annotations":[]}],` +
		`"role":"assistant","type":"message","id":"msg_1"}]`,
		"\xFFuser\xFEa" + hash("i") + "\xFFfunction_call\xFCf\xFBc\xC0{}\xFFfunction_call_output\xFBc\xFE7" +
			"\xFFassistant\xFEb", 40},
	{"anthropic", Messages, `"max_tokens":5,"messages":[{"role":"user","content":[{"type":"image",` +
		`"source":{"type":"base64","media_type":"image/png","data":"iVBO"}},{"type":"text","text":"a",` +
		`"cache_control":{"type":"ephemeral"}}]},{"role":"assistant","content":[{"type":"thinking","thinking":"hm",` +
		`"signature":"s"},{"type":"tool_use","id":"t1","name":"f","input":{"b":[],"a":{}}}]},{"role":"user",` +
		`"content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"7"}]},` +
		`{"type":"document","title":"T","source":{"type":"url","url":"u"}}]}],"system":[{"type":"text","text":"be ` +
		`brief"}],"tools":[{"name":"f"}]`,
		"\xF5\xC1name\xC0f\xF6\xFFsystem\xFEbe brief\xFFuser" + hash("iVBO") + "\xFEa\xFFassistant\xF8hm\xFCf" +
			"\xF5\xC1a\xF5\xF6\xC1b\xF7\xF6\xF6\xFBt1\xFFuser\xFBt1\xFE7\xFET" + hash("u"), 65},
	{"anthropic plain", CountTokens, `"system":"s","messages":[{"role":"user","content":"a"}]`, "\xFFsystem\xFEs" +
		"\xFFuser\xFEa", 16},
	{"rerank", Rerank, `"documents":["d1",{"text":"d2"}],"query":"q"`, "\xFEq\xFEd1\xF5\xC1text\xC0d2\xF6", 15},
	{"score", Score, `"text_2":["b","c"],"text_1":"a"`, "\xFEa\xFEb\xFEc", 6},
	{"tokenize", Tokenize, `"messages":[{"role":"user","content":"a"}]`, "\xFFuser\xFEa", 7},
	{"tokenize prompt", Tokenize, `"prompt":"a"`, "a", 1},
	{"marks cannot be forged", Chat, `"messages":[{"role":"user","content":"\u001e\u00ff\u00feuser ` +
		`\ud800"}]`, "\xFFuser\xFE\x1e\u00ff\u00feuser \uFFFD", 19},
}

func TestCanonicalText(t *testing.T) {
	for _, c := range canonicalCases {
		for _, body := range []string{`{"model":"m",` + c.members + `}`, `{` + c.members + `,"model":"m"}`} {
			r := mustScan(t, c.api, body)
			if string(r.Text) != c.text || r.FirstTurn != c.firstTurn || len(r.Tokens) != 0 {
				t.Errorf("%s:\n got %q %d\nwant %q %d", c.name, r.Text, r.FirstTurn, c.text, c.firstTurn)
			}
		}
	}
}

func TestTokenPrompts(t *testing.T) {
	for body, want := range map[string][]uint32{
		`[1, 4294967295]`: {1, 4294967295}, `[[1,2],[3]]`: {1, 2, 3}, `[]`: {}, `[[],[5.0]]`: {5},
	} {
		r := mustScan(t, Completions, `{"model":"m","prompt":`+body+`}`)
		if len(r.Text) != 0 || r.FirstTurn != 4*len(want) || len(r.Tokens) != len(want) {
			t.Errorf("%s: %v %q", body, r.Tokens, r.Text)
			continue
		}
		for i, id := range want {
			if r.Tokens[i] != id {
				t.Errorf("%s: %v", body, r.Tokens)
			}
		}
	}
}

// respell rewrites a document with shuffled members and with random escapes and white space.
func respell(rng *rand.Rand, v any) string {
	space := strings.Repeat(" ", rng.IntN(3))
	switch v := v.(type) {
	case map[string]any:
		var members []string
		for k, e := range v {
			members = append(members, space+respellString(rng, k)+space+":"+respell(rng, e))
		}
		rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		return space + "{" + strings.Join(members, ",") + "}" + space
	case []any:
		var elements []string
		for _, e := range v {
			elements = append(elements, respell(rng, e))
		}
		return "[" + strings.Join(elements, ","+space) + space + "]"
	case string:
		return space + respellString(rng, v)
	}
	out, _ := json.Marshal(v)
	return string(out) + space
}

func respellString(rng *rand.Rand, s string) string {
	if len(s) > 1000 { // long strings without escapes
		out, _ := json.Marshal(s)
		return string(out)
	}
	out := `"`
	for _, c := range s {
		switch q, _ := json.Marshal(string(c)); {
		case rng.IntN(4) == 0 && c < 0x10000:
			const digits = "0123456789abcdefABCDEF"
			out += `\u` + string([]byte{digits[c>>12&15], digits[c>>8&15], digits[c>>4&15], digits[c&15]})
		case c == '/' && rng.IntN(2) == 0:
			out += `\/`
		default:
			out += string(q[1 : len(q)-1])
		}
	}
	return out + `"`
}

func TestSpellingDoesNotCount(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range canonicalCases {
		var doc any
		if err := json.Unmarshal([]byte(`{"model":"m",`+c.members+`}`), &doc); err != nil {
			t.Fatal(err)
		}
		for range 30 {
			body := respell(rng, doc)
			r := mustScan(t, c.api, body)
			if string(r.Text) != c.text || r.FirstTurn != c.firstTurn {
				t.Errorf("%s: %s\n got %q %d\nwant %q %d", c.name, body, r.Text, r.FirstTurn, c.text, c.firstTurn)
			}
		}
	}
}

// TestTextGrowsAtItsEnd checks that a longer conversation begins with the text of the shorter one.
func TestTextGrowsAtItsEnd(t *testing.T) {
	turns := []string{`{"role":"system","content":"s"}`, `{"role":"user","content":[{"type":"text","text":"u"}]}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f",` +
			`"arguments":"{}"}}]}`, `{"content":"7","role":"tool","tool_call_id":"1"}`, `{"role":"user","content":"v"}`}
	before := mustScan(t, Chat, `{"model":"m","messages":[]}`)
	for i := range turns {
		r := mustScan(t, Chat, `{"messages":[`+strings.Join(turns[:i+1], ",")+`],"model":"m"}`)
		if len(r.Text) <= len(before.Text) || !strings.HasPrefix(string(r.Text), string(before.Text)) {
			t.Errorf("%q does not begin with %q", r.Text, before.Text)
		}
		if before.FirstTurn != 0 && r.FirstTurn != before.FirstTurn {
			t.Errorf("first turn moves from %d to %d", before.FirstTurn, r.FirstTurn)
		}
		before = r
	}
}

func TestNumbersHaveOneSpelling(t *testing.T) {
	for in, want := range map[string]string{
		"16": "16", "16.0": "16", "1.6e1": "16", "-0": "0", "0.0": "0", "1.50": "1.5", "15e-1": "1.5", "1E400": "1E400",
		"12345678901234567890123": "12345678901234567890123", "9007199254740993": "9007199254740993", "-7": "-7",
		"0.100000000000000000000000000000000000000000": "0.100000000000000000000000000000000000000000",
	} {
		if got := string(appendNumber(nil, []byte(in))); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestMediaHashIsBLAKE3(t *testing.T) {
	var r Request
	data := make([]byte, 200<<10)
	for i := range data {
		data[i] = "abcdefghijk/"[i*7%12]
	}
	quoted := func(n int, escaped bool) []byte {
		s := `"` + string(data[:n]) + `"`
		if escaped {
			s = strings.ReplaceAll(s, "/", `\/`)
		}
		return []byte(s)
	}
	for _, n := range []int{0, 1, 64, 1023, 1024, 1025, 2048, 5000, 16383, 16384, 16385, 32768, 32769, 48 << 10,
		49153, 65536, 65537, 100001, 131072, 200 << 10} {
		for _, escaped := range []bool{false, true} {
			r.c.Reset(quoted(n, escaped), 0)
			got, want := "\xFD"+string(r.appendMediaHash(nil)), hash(string(data[:n]))
			if got != want || r.c.Pos() != r.c.Len() {
				t.Errorf("%d bytes, escaped: %v: %v, want %v", n, escaped, got, want)
			}
		}
	}
	doc, dst := quoted(len(data), true), make([]byte, 0, 100)
	if n := testing.AllocsPerRun(10, func() { r.c.Reset(doc, 0); r.appendMediaHash(dst) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestRepeatedMembersInParts checks that repeated members do not make it expensive to arrange a
// part or call.
func TestRepeatedMembersInParts(t *testing.T) {
	const n = 100_000
	r := mustScan(t, Chat, `{"model":"m","messages":[{"role":"user","content":[{`+strings.Repeat(`"url":"u",`+
		`"text":"t",`, n)+`"x":1}]},{"role":"assistant","tool_calls":[{`+
		strings.Repeat(`"z":1,"id":"i","name":"n",`, n)+`"x":1}]}]}`)
	if want := "\xFFuser\xFEt" + hash("u") + "\xFFassistant\xFA\xFCn\xFBi"; string(r.Text) != want {
		t.Errorf("got %.100q", r.Text)
	}
}

// TestDeepReversedContent checks that pieces of members in reverse order are moved once per level.
func TestDeepReversedContent(t *testing.T) {
	const levels = 50
	body := strings.Repeat(`[{"content":`, levels) + `"` + strings.Repeat("x", 1<<16) + `"` + strings.Repeat(`,`+
		`"text":"t"}]`, levels)
	r := mustScan(t, Chat, `{"model":"m","messages":[{"content":`+body+`,"role":"user"}]}`)
	want := "\xFFuser" + strings.Repeat("\xFEt", levels) + "\xFEx"
	if string(r.Text[:len(want)]) != want || r.FirstTurn != len(r.Text) {
		t.Errorf("got %.200q", r.Text)
	}
}
