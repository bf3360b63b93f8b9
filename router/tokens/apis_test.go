package tokens

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// predicted lists the cases without exact ids, and why. All other cases are exact.
var predicted = map[string]error{
	"chat/null option": ErrOption, "chat/auto option": ErrOption, "chat/billed": ErrForm, "chat/odd numbers": ErrForm,
	"messages/thinking disabled": ErrOption, "messages/system later": ErrForm, "messages/image": ErrMedia,
	"messages/image of a tool": ErrMedia, "messages/reference": ErrForm,
	"messages/deferred": ErrForm, "messages/own tool": ErrForm, "messages/billed string": ErrForm,
	"responses/previous": ErrOption, "responses/truncated": ErrOption, "responses/continued": ErrOption,
	"responses/several parts": ErrForm, "responses/refusal": ErrForm,
	"responses/developer": ErrForm, "responses/own tool": ErrForm, "responses/custom tool": ErrForm,
	"responses/image": ErrMedia, "responses/null option": ErrOption,
}

// TestAPIs compares the prompts of all APIs' bodies with those of vLLM's own renderer.
func TestAPIs(t *testing.T) {
	doc, err := os.ReadFile("testdata/requests.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Path, Name string
		Body       json.RawMessage
		Text       *string
	}
	if err := json.Unmarshal(doc, &cases); err != nil {
		t.Fatal(err)
	}
	template, err := os.ReadFile("testdata/whole.jinja")
	if err != nil {
		t.Fatal(err)
	}
	m, err := Load(directory(t, readGolden(t), "llama3", string(template)), "")
	if err != nil {
		t.Fatal(err)
	}
	const bos = "<|endoftext|>"
	exact := 0
	for _, c := range cases {
		api := map[string]API{"/v1/chat/completions": Chat, "/v1/messages": Messages,
			"/v1/responses": Responses}[c.Path]
		name := map[API]string{Chat: "chat", Messages: "messages", Responses: "responses"}[api] + "/" + c.Name
		p, err := m.Prompt(api, c.Body, 1<<20)
		if want := predicted[name]; want != nil {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
			continue
		}
		if err == nil && p.Special {
			p.Text = bos + p.Text
		}
		exact++
		switch {
		case c.Text == nil && err == nil && name != "responses/untyped answer":
			t.Errorf("%s: %s, but the engine refuses it", name, p.Text)
		case c.Text != nil && (err != nil || p.Text != *c.Text):
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, p.Text, *c.Text)
		}
	}
	if exact < 35 || exact+len(predicted) != len(cases) {
		t.Errorf("%d exact, %d predicted of %d", exact, len(predicted), len(cases))
	}
}

// TestMalformed checks that a body that no API accepts has no prompt and causes no panic.
func TestMalformed(t *testing.T) {
	m := load(t, readGolden(t), chatML)
	for api, bodies := range map[API][]string{
		Messages: {
			`{}`, `{"messages":5}`, `{"messages":[]}`, `{"messages":[5]}`, `{"messages":[{"role":"user"}]}`,
			`{"messages":[{"role":"user","content":[5]}]}`, `{"messages":[{"role":"x","content":"a"}]}`,
			`{"messages":[{"role":"user","content":[{"type":"tool_use"}]}]}`,
			`{"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f","input":{}}]}]}`,
			`{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":[]}]}]}`,
			`{"messages":[{"role":"user","content":[{"type":"tool_result","content":5}]}]}`,
			`{"messages":[{"role":"user","content":"a"}],"system":5}`,
			`{"messages":[{"role":"user","content":"a"}],"system":[{"type":"image"}]}`,
			`{"messages":[{"role":"user","content":"a"}],"tools":[5]}`,
			`{"messages":[{"role":"user","content":"a"}],"tools":{}}`,
			`{"messages":[{"role":"user","content":"a"}],"thinking":5}`,
			`{"messages":[{"role":"user","content":"a"}],"output_config":5}`,
		},
		Responses: {
			`{}`, `{"input":5}`, `{"input":[]}`, `{"input":[5]}`, `{"input":[{"type":"item_reference","id":"x"}]}`,
			`{"input":[{"type":"function_call"}]}`, `{"input":[{"type":"function_call_output"}]}`,
			`{"input":[{"type":"reasoning"}]}`, `{"input":[{"role":"assistant"}]}`,
			`{"input":[{"role":"user","content":5}]}`, `{"input":"a","instructions":[]}`, `{"input":"a","tools":5}`,
			`{"input":"a","tools":[5]}`,
			`{"input":"a","tools":[{"type":"function"}]}`, `{"input":"a","reasoning":5}`,
			`{"input":"a","reasoning":{"effort":5}}`,
			`{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}","namespace":"n"}]}`,
			`{"input":[{"type":"reasoning","summary":[],"encrypted_content":"x"}]}`,
			`{"input":[{"type":"reasoning","summary":[{"type":"other","text":"x"}]}]}`,
		},
		Chat:        {`{}`, `{"messages":5}`, `{"messages":[5]}`, `{"messages":[{"role":"user","content":"a"}],"reasoning_effort":5}`, `{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":1}`},
		Completions: {`{"prompt":"a","add_special_tokens":"x"}`},
	} {
		for _, body := range bodies {
			if p, err := m.Prompt(api, []byte(body), 1<<20); err == nil {
				t.Errorf("%s: %q", body, p.Text)
			}
		}
	}
}

// TestOtherRenderers checks that a model is refused if engines render its chats without its
// template.
func TestOtherRenderers(t *testing.T) {
	g := readGolden(t)
	for _, c := range []struct{ file, content, want string }{
		{"config.json", `{"architectures":["GptOssForCausalLM"]}`, "harmony"}, {"config.json", `{"architectures":5}`, "config.json"}, {"config.json", `{"architectures":["LlamaForCausalLM"]}`, ""},
		{"tekken.json", `{}`, "--tokenizer-mode hf"},
	} {
		dir := directory(t, g, "llama3", chatML)
		write(t, dir, c.file, c.content)
		if _, err := Load(dir, ""); (err == nil) != (c.want == "") ||
			err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v", c.file, c.content, err)
		}
	}
}
