package tokens

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

const chatML = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['content'] is string %}{{ " +
	"m['content'] }}{% else %}" +
	"{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}{{ " +
	"'<|im_end|>\\n' }}{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

// allOf is a template that writes out all its variables.
const allOf = "{{ bos_token }}{{ messages|tojson }}{{ tools|tojson }}{{ add_generation_prompt }}{{ enable_thinking }}"

func write(t testing.TB, directory, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func quoted(s string) string {
	return strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", "\\n").Replace(s)
}

// directory makes a directory with a model that has the given chat template.
func directory(t testing.TB, g *golden, variant, template string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "tokenizer.json", string(g.file(t, variant)))
	write(t, dir, "tokenizer_config.json",
		`{"bos_token":{"content":"<|begin_of_text|>"},"eos_token":"<|im_end|>","pad_token":null,"chat_template":"`+
			quoted(template)+`"}`)
	return dir
}

func load(t testing.TB, g *golden, template string) *Model {
	t.Helper()
	m, err := Load(directory(t, g, "llama3", template), "")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestChat(t *testing.T) {
	g := readGolden(t)
	whole, parts := load(t, g, allOf), load(t, g, chatML)
	if whole.chat.parts || !parts.chat.parts {
		t.Fatal("which templates take parts is not seen")
	}
	for _, c := range []struct {
		m          *Model
		body, want string
	}{
		{parts, `{"messages":[{"role":"user","content":"hi"}]}`, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
		{parts, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"input_text","text":"c"}]}],"add_generation_prompt":false}`, "<|im_start|>user\nabc<|im_end|>\n"},
		{parts, `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"I am"}],"add_generation_prompt":false,"continue_final_message":true}`,
			"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nI am"},
		{whole, `{"messages":[{"content":[{"type":"text","text":"a"},{"type":"text","text":null},{"type":"refusal","refusal":"b"}],"role":"user","name":"n"}],"chat_template_kwargs":{"enable_thinking":false}}`,
			`<|begin_of_text|>[{"role": "user", "content": "a\nb", "name": "n"}]nullTrueFalse`},
		{whole, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"type":"function","id":"c","function":{"name":"f","arguments":"{\"b\":1.50,\"a\":[]}"}}]},{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"é"}]}],` +
			`"tools":[{"function":{"strict":true,"parameters":{"z":1,"a":2},"name":"f"},"type":"function"}]}`,
			`<|begin_of_text|>[{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"arguments": {"b": 1.5, "a": []}, "name": "f"}, "type": "function"}]}, {"role": "tool", "content": "é", "tool_call_id": "c"}]` +
				`[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}, "strict": true}}]True`},
		{whole, `{"messages":[{"role":"assistant","content":"x","tool_calls":[],"reasoning":"r"}],"tools":[]}`,
			`<|begin_of_text|>[{"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"}]nullTrue`},
	} {
		p, err := c.m.Prompt(Chat, []byte(c.body), 1<<20)
		if err != nil || p.Text != c.want || p.Special {
			t.Errorf("%s: %v\n got %s\nwant %s", c.body, err, p.Text, c.want)
		}
	}
}

// TestNotExact checks that an unsupported prompt is refused, not guessed.
func TestNotExact(t *testing.T) {
	m := load(t, readGolden(t), "{{ messages[0].content }}{% if stop %}{{ raise_exception('no') }}{% endif %}")
	for body, want := range map[string]error{
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}`: ErrMedia,
		`{"messages":[{"role":"user","content":"x"}],"chat_template":"{{ 1 }}"}`:                  ErrOption,
		`{"messages":[{"role":"user","content":"x"}],"truncate_prompt_tokens":5}`:                 ErrOption,
		`{"messages":[{"role":"developer","content":"x"}]}`:                                       ErrForm,
		`{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"tools":[]}}`:        ErrOption,
		`{"messages":[]}`: ErrBody,
		`{"messages":[{"role":"user","content":5}]}`:                                                                ErrBody,
		`{"messages":[{"role":"user","content":"x"}],"continue_final_message":true}`:                                ErrBody,
		`{"messages":[{"role":"user","content":"x "}],"continue_final_message":true,"add_generation_prompt":false}`: ErrOption,
		`[]`: ErrBody,
	} {
		if _, err := m.Prompt(Chat, []byte(body), 1<<20); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", body, err, want)
		}
	}
	s := NewSet(map[string]*Model{"m": m}, 1<<20, 100)
	for body, want := range map[string]Outcome{
		`{"messages":[{"role":"user","content":"x"}]}`:                                      Exact,
		`{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"stop":true}}`: Template,
		`{"messages":[{"role":"user","content":"` + strings.Repeat("x", 100) + `"}]}`:       Large,
		`{"messages":[{"role":"user","content":"x"}],"prompt_embeds":"y"}`:                  Option,
	} {
		if r := s.Make("m", Chat, []byte(body), 0, nil); r.Outcome != want || (want == Exact) != (len(r.IDs) > 0) {
			t.Errorf("%s: %v", body, r)
		}
	}
	if s.Has("other") || (*Set)(nil).Has("m") {
		t.Error("a model that is not configured is tokenised")
	}
}

func TestCompletion(t *testing.T) {
	m := load(t, readGolden(t), chatML)
	for body, want := range map[string]Prompt{
		`{"prompt":"a\u00e9"}`:                        {Text: "aé", Special: true},
		`{"prompt":["x"],"add_special_tokens":false}`: {Text: "x"},
	} {
		if p, err := m.Prompt(Completions, []byte(body), 1<<20); err != nil || p != want {
			t.Errorf("%s: %+v %v", body, p, err)
		}
	}
	for _, body := range []string{`{"prompt":["a","b"]}`, `{"prompt":[1,2]}`, `{}`, `{"prompt":"a","suffix":"b"}`} {
		if _, err := m.Prompt(Completions, []byte(body), 1<<20); err == nil {
			t.Error(body)
		}
	}
	s := NewSet(map[string]*Model{"m": m}, 1<<20, 1<<10)
	r := s.Make("m", Completions, []byte(`{"prompt":"a"}`), 0, nil)
	if !slices.Equal(r.IDs, m.tokenizer.Encode(nil, "a", true)) || r.Turn != 0 {
		t.Error(r)
	}
}

// TestTurns checks that all turns of a conversation have the same key.
func TestTurns(t *testing.T) {
	s := NewSet(map[string]*Model{"m": load(t, readGolden(t), chatML)}, 1<<20, 1<<12)
	key := func(messages string) uint64 {
		return s.Make("m", Chat, []byte(`{"messages":[{"role":"system","content":"s"},`+messages+`]}`), 0, nil).Turn
	}
	first := key(`{"role":"user","content":"a"}`)
	later := key(`{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}`)
	if first == 0 || later != first || key(`{"role":"user","content":"b"}`) == first {
		t.Error("turns of one conversation have other keys, or those of two the same")
	}
	if want := xxhash.Sum64String("\x00s\x00a"); first != want {
		t.Errorf("the key is %x, and %x in other routers", first, want)
	}
}

// TestRefused checks that an unsupported feature is refused at loading. The error names the
// feature's place and the fix.
func TestRefused(t *testing.T) {
	g := readGolden(t)
	good := string(g.file(t, "qwen"))
	for what, c := range map[string]struct{ from, to, want string }{
		"sentencepiece": {`"byte_fallback":false`, `"byte_fallback":true`, "byte_fallback"},
		"unigram":       {`"type":"BPE"`, `"type":"Unigram"`, "only byte-level BPE"},
		"dropout":       {`"dropout":null`, `"dropout":0.1`, "dropout"},
		"normalizer":    {`"type":"NFC"`, `"type":"NFKC"`, "normalizer: type \"NFKC\""},
		"single word":   {`"single_word":false`, `"single_word":true`, "single_word"},
		"pattern":       {`\\s+(?!\\S)`, `\\s+(?<!\\S)`, "pre_tokenizer: Split"},
		"behavior":      {`"behavior":"Isolated"`, `"behavior":"MergedWithNext"`, "MergedWithNext"},
		"no bytes":      {`"type":"ByteLevel","use_regex":false`, `"type":"Metaspace"`, "Metaspace"},
		"post":          {`"post_processor":{"add_prefix_space":false,"trim_offsets":true,"type":"ByteLevel"`, `"post_processor":{"type":"RobertaProcessing"`, "RobertaProcessing"},
		"no JSON":       {good, `{`, "tokenizer.json"},
	} {
		bad := strings.Replace(good, c.from, c.to, 1)
		if what == "post" {
			at := strings.Index(good, `"post_processor":{`)
			bad = good[:at] + strings.Replace(good[at:], `"type":"ByteLevel"`, `"type":"RobertaProcessing"`, 1)
		}
		if what == "no bytes" {
			at := strings.Index(good, `"pre_tokenizer":{`)
			bad = good[:at] + strings.Replace(good[at:], `"ByteLevel"`, `"Metaspace"`, 1)
		}
		if bad == good {
			t.Errorf("%s: nothing was changed", what)
		}
		dir := directory(t, g, "qwen", chatML)
		write(t, dir, "tokenizer.json", bad)
		if _, err := Load(dir, ""); err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "tokenizer.json") {
			t.Errorf("%s: %v", what, err)
		}
	}
	dir := directory(t, g, "qwen", "a\n{% include 'x' %}")
	if _, err := Load(dir, ""); err == nil ||
		!strings.Contains(err.Error(), `line 2 of the template: the tag "include" is not supported`) {
		t.Error(err)
	}
	write(t, dir, "chat_template.jinja", "{{ 1 }}")
	if m, err := Load(dir, ""); err != nil || m.chat == nil {
		t.Error("chat_template.jinja does not come first: ", err)
	}
	for _, missing := range []string{"tokenizer_config.json", "tokenizer.json"} {
		if err := os.Remove(filepath.Join(dir, missing)); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir, ""); err == nil || !strings.Contains(err.Error(), missing) {
			t.Error(missing, err)
		}
	}
	if _, err := Load(directory(t, g, "qwen", chatML), filepath.Join(dir, "none.jinja")); err == nil ||
		!strings.Contains(err.Error(), "none.jinja") {
		t.Error(err)
	}
}

func FuzzTokenizer(f *testing.F) {
	g := readGolden(f)
	for name := range g.Variants {
		f.Add(g.file(f, name), "Don't  cache 12345\n<|im_start|>")
	}
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{},"merges":[["a"]]}}`), "")
	f.Fuzz(func(t *testing.T, doc []byte, text string) {
		if tok, err := Parse(doc); err == nil {
			tok.Encode(nil, text, true)
		}
	})
}

// FuzzEncode checks that the ids are the same with and without chunks, and that no text is lost.
func FuzzEncode(f *testing.F) {
	g := readGolden(f)
	var all []*Tokenizer
	for _, name := range []string{"gpt2", "llama3", "o200k", "deepseek", "qwen"} {
		all = append(all, g.tokenizer(f, name))
	}
	for _, text := range g.Texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := NewCache(1 << 16)
		for _, tok := range all {
			want := tok.Encode(nil, text, true)
			for range 2 {
				if got, _, ok := c.Encode(tok, nil, text, 0, true); ok && !slices.Equal(got, want) {
					t.Fatalf("%q: chunks have other ids", text)
				}
			}
		}
	})
}

func FuzzRequest(f *testing.F) {
	m := load(f, readGolden(f), chatML)
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"tools":[{"type":"function","function":{"name":"f"}}]}`), byte(Chat))
	f.Add([]byte(`{"prompt":["x"],"add_special_tokens":false}`), byte(Completions))
	doc, err := os.ReadFile("testdata/requests.json")
	if err != nil {
		f.Fatal(err)
	}
	var cases []struct{ Body json.RawMessage }
	if err := json.Unmarshal(doc, &cases); err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		f.Add([]byte(c.Body), byte(Responses))
		f.Add([]byte(c.Body), byte(Messages))
	}
	f.Fuzz(func(t *testing.T, body []byte, api byte) {
		NewSet(map[string]*Model{"m": m}, 1<<12, 1<<16).Make("m", API(api%4), body, 0, nil)
	})
}
