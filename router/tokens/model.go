package tokens

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cognitora/dataplane/internal/jinja"
)

// Model makes the prompts of one model. Model holds the model's tokenizer and chat template. Model
// is immutable and safe for concurrent use.
type Model struct {
	tokenizer *Tokenizer
	chat      *chatTemplate // nil: the model has none, and its chats are not exact
	tools     *chatTemplate // for requests with tools, if the template differs
	specials  *jinja.Dict   // bos_token and similar, for the template
}

type chatTemplate struct {
	*jinja.Template
	parts bool // the template iterates over the parts of a message's content
}

// These constants bound the files, in bytes.
const (
	maxTokenizer = 128 << 20
	maxSmall     = 8 << 20
)

// ErrNotFollowed says that engines can use the files of a model, but that the package cannot make
// the same tokens of every prompt.
var ErrNotFollowed = errors.New("its prompts cannot be tokenised exactly")

// notFollowed adds ErrNotFollowed to an error, unless the file is no JSON.
func notFollowed(err error) error {
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		return err
	}
	return fmt.Errorf("%w; %w", err, ErrNotFollowed)
}

// Load reads tokenizer.json, tokenizer_config.json, chat_template.jinja and config.json of a
// directory. template, if not empty, is the file of the engine's chat template (vLLM:
// --chat-template). The error names the file and the fix. The error is ErrNotFollowed if the files
// are fine, but not those of a model whose tokens the package can make.
func Load(directory, template string) (*Model, error) {
	if err := checkEngine(directory); err != nil {
		return nil, err
	}
	path := filepath.Join(directory, "tokenizer.json")
	doc, err := readFile(path, maxTokenizer)
	if err != nil {
		return nil, fmt.Errorf("%w; name the directory with the model's tokenizer.json, as the engine has it", err)
	}
	m := &Model{specials: &jinja.Dict{}}
	if m.tokenizer, err = Parse(doc); err != nil {
		return nil, notFollowed(fmt.Errorf("%s: %w", path, err))
	}
	path = filepath.Join(directory, "tokenizer_config.json")
	doc, err = readFile(path, maxSmall)
	if err != nil {
		return nil, fmt.Errorf("%w; it belongs beside tokenizer.json", err)
	}
	var c config
	if err := json.Unmarshal(doc, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := m.configure(&c); err != nil {
		return nil, notFollowed(fmt.Errorf("%s: %w", path, err))
	}
	return m, m.readTemplates(directory, template, path, &c)
}

// Version returns a text that changes with the sizes and times of the files that Load reads for the
// same arguments.
func Version(directory, template string) string {
	paths := []string{template}
	for _, name := range [...]string{"tekken.json", "config.json", "tokenizer.json", "tokenizer_config.json",
		"chat_template.jinja"} {
		paths = append(paths, filepath.Join(directory, name))
	}
	var b strings.Builder
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			fmt.Fprintf(&b, "%s %d %d\n", path, info.Size(), info.ModTime().UnixNano())
		}
	}
	return b.String()
}

func readFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(doc)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return doc, err
}

// renderers are vLLM's renderers for models whose chats it renders without their template.
var renderers = map[string]string{
	"GptOssForCausalLM": "harmony", "DeepseekV32ForCausalLM": "deepseek_v32", "DeepseekV4ForCausalLM": "deepseek_v4",
	"DeepseekV4ForConditionalGeneration": "deepseek_v4",
	"DeepseekV41ForCausalLM":             "deepseek_v41", "KimiK3ForConditionalGeneration": "kimi_k3",
	"InklingForCausalLM": "inkling", "InklingForConditionalGeneration": "inkling",
}

// checkEngine refuses a model for which the engine uses more than tokenizer.json and the template.
func checkEngine(directory string) error {
	path := filepath.Join(directory, "tekken.json")
	if _, err := os.Stat(path); err == nil {
		return notFollowed(fmt.Errorf("%s: engines use it instead of tokenizer.json and the template (with vLLM's "+
			"--tokenizer-mode hf they do not: then name a directory without it)", path))
	}
	path = filepath.Join(directory, "config.json")
	doc, err := readFile(path, maxSmall)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var c struct{ Architectures []string }
	if err == nil {
		err = json.Unmarshal(doc, &c)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, a := range c.Architectures {
		if by := renderers[a]; by != "" {
			return notFollowed(fmt.Errorf("%s: chats of %s are not rendered by a template (vLLM: %s)", path, a, by))
		}
	}
	return nil
}

// config holds the relevant members of a tokenizer_config.json.
type config struct {
	Class        string          `json:"tokenizer_class"`
	AddBOS       *bool           `json:"add_bos_token"`
	AddEOS       *bool           `json:"add_eos_token"`
	BOS          specialToken    `json:"bos_token"`
	EOS          specialToken    `json:"eos_token"`
	Unknown      specialToken    `json:"unk_token"`
	Separator    specialToken    `json:"sep_token"`
	Padding      specialToken    `json:"pad_token"`
	ChatTemplate json.RawMessage `json:"chat_template"`
	Added        map[string]struct {
		Content string `json:"content"`
	} `json:"added_tokens_decoder"`
}

// specialToken is written as its text, or as an object with the text.
type specialToken string

func (s *specialToken) UnmarshalJSON(doc []byte) error {
	var full struct{ Content string }
	if len(doc) > 0 && doc[0] == '{' {
		err := json.Unmarshal(doc, &full)
		*s = specialToken(full.Content)
		return err
	}
	return json.Unmarshal(doc, (*string)(s))
}

// configure applies the members of tokenizer_config.json that transformers uses, except the chat
// template.
func (m *Model) configure(c *config) error {
	for _, s := range []struct {
		name  string
		token specialToken
	}{{"bos_token", c.BOS}, {"eos_token", c.EOS}, {"unk_token", c.Unknown}, {"sep_token", c.Separator},
		{"pad_token", c.Padding}} {
		if s.token != "" {
			m.specials.Set(s.name, string(s.token))
		}
	}
	known := map[string]bool{}
	for _, a := range m.tokenizer.added.all {
		known[a.Content] = true
	}
	for id, a := range c.Added {
		if !known[a.Content] {
			return fmt.Errorf("added_tokens_decoder[%s] is %q, which tokenizer.json does not have among its "+
				"added_tokens", id, a.Content)
		}
	}
	if c.AddEOS != nil && *c.AddEOS && len(m.tokenizer.after) == 0 {
		return errors.New("add_eos_token is set, but tokenizer.json adds none")
	}
	if c.AddBOS == nil || !*c.AddBOS || len(m.tokenizer.before) > 0 || c.BOS == "" {
		return nil
	}
	if c.Class != "LlamaTokenizer" && c.Class != "LlamaTokenizerFast" {
		return fmt.Errorf("add_bos_token is set, but tokenizer.json adds none, and what %s does is not known", c.Class)
	}
	for _, a := range m.tokenizer.added.all { // this tokenizer class adds the token itself
		if a.Content == string(c.BOS) {
			m.tokenizer.before = []uint32{a.ID}
			return nil
		}
	}
	return fmt.Errorf("bos_token is %q, which tokenizer.json does not have among its added_tokens", c.BOS)
}

// readTemplates finds the chat templates: in a file of its own, in chat_template.jinja, or in
// tokenizer_config.json.
func (m *Model) readTemplates(directory, own, configPath string, c *config) error {
	path := cmp.Or(own, filepath.Join(directory, "chat_template.jinja"))
	doc, err := readFile(path, maxSmall)
	if err == nil {
		m.chat, err = parseTemplate(path, string(doc))
		return err
	}
	if own != "" || !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("chat template: %w", err)
	}
	if len(c.ChatTemplate) == 0 || string(c.ChatTemplate) == "null" {
		return nil
	}
	var one string
	if json.Unmarshal(c.ChatTemplate, &one) == nil {
		m.chat, err = parseTemplate(configPath+": chat_template", one)
		return err
	}
	var several []struct{ Name, Template string }
	if err := json.Unmarshal(c.ChatTemplate, &several); err != nil {
		return fmt.Errorf("%s: chat_template: %w", configPath, err)
	}
	for _, t := range several {
		parsed, err := parseTemplate(configPath+": chat_template "+t.Name, t.Template)
		switch {
		case t.Name != "default" && t.Name != "tool_use":
		case err != nil:
			return err
		case t.Name == "default":
			m.chat = parsed
		default:
			m.tools = parsed
		}
	}
	return nil
}

func parseTemplate(path, source string) (*chatTemplate, error) {
	t, err := jinja.Parse(source)
	if err != nil {
		return nil, notFollowed(fmt.Errorf("%s: %w", path, err))
	}
	return &chatTemplate{t, t.TakesParts()}, nil
}
