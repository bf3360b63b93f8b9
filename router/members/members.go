// Package members knows the members of a request's body that keep the router from using several
// nodes for the request, or from judging its answer. It knows those of vLLM, SGLang, TensorRT-LLM
// and llama.cpp.
//
// Bodies are the client's. The package reads them only as scanned by package scan.
package members

import (
	"bytes"
	"slices"

	"github.com/cognitora/dataplane/router/scan"
)

// Use is something that the router does with a request, besides asking one engine. A Use is a bit.
type Use uint8

// These are the uses.
const (
	HandOver Use = 1 << iota // one engine computes the prompt, and another one answers
	Resume                   // another engine goes on with a broken stream
	Judge                    // the log probabilities of the answer tell how sure the model is
)

// Class says what a member is about.
type Class string

// These are the classes. Metrics use the words.
const (
	Tools    Class = "tools"    // the answer may be a tool call
	Format   Class = "format"   // the answer has a given form, and so have its log probabilities
	Choices  Class = "choices"  // the answer is chosen among several, or there are several
	Echo     Class = "echo"     // the answer begins with the prompt
	Transfer Class = "transfer" // the client hands over blocks itself
	Other    Class = "other"
)

// Member is a member of a body that rules out some uses.
type Member struct {
	Name     string
	Class    Class
	bars     Use
	harmless []string                // values that rule out nothing, besides null
	fine     func(value []byte) bool // says whether the value rules out nothing; nil: see harmless
}

const all = HandOver | Resume | Judge

// table has every member that rules out something. The first one in the table is the reason that
// clients and metrics are told.
var table = [...]Member{
	{"tools", Tools, Judge, nil, nil}, {"functions", Tools, Judge, nil, nil},
	{"guided_json", Format, Resume | Judge, nil, nil}, {"guided_regex", Format, Resume | Judge, nil, nil},
	{"guided_choice", Format, Resume | Judge, nil, nil}, {"guided_grammar", Format, Resume | Judge, nil, nil},
	{"structured_outputs", Format, Resume | Judge, nil, nil}, {"structural_tag", Format, Resume | Judge, nil, nil},
	{"json_schema", Format, Resume | Judge, nil, nil}, {"regex", Format, Resume | Judge, nil, nil},
	{"ebnf", Format, Resume | Judge, nil, nil}, {"grammar", Format, Resume | Judge, []string{`""`}, nil},
	{"response_format", Format, Resume | Judge, nil, isText},

	{"kv_transfer_params", Transfer, HandOver | Resume, nil, nil},
	{"disaggregated_params", Transfer, HandOver | Resume, nil, nil},
	{"bootstrap_room", Transfer, HandOver | Resume, nil, nil},
	{"bootstrap_host", Transfer, HandOver | Resume, nil, nil},
	{"ec_transfer_params", Transfer, Resume, nil, nil},

	{"n", Choices, Resume | Judge, []string{"1"}, nil}, // for a hand-over see Sequences
	{"n_cmpl", Choices, Resume | Judge, []string{"1"}, nil},
	{"best_of", Choices, all, []string{"1"}, nil}, {"use_beam_search", Choices, all, []string{"false"}, nil},
	{"prompt", Choices, Judge, nil, isOne},

	{"echo", Echo, all, []string{"false"}, nil}, {"prompt_logprobs", Other, HandOver | Resume, nil, nil},
	{"n_predict", Other, Resume, nil, nil},
	{"suffix", Other, Resume, []string{`""`}, nil}, {"thinking_token_budget", Other, Resume, nil, nil},
	{"truncate_prompt_tokens", Other, Resume, nil, nil}, {"input_ids", Other, Resume, nil, nil},
	{"prompt_embeds", Other, Resume, nil, nil}, {"session_params", Other, Resume, nil, nil},
}

// Barring returns the member of body that rules out use, or nil. r is the scan of body.
func Barring(r *scan.Request, body []byte, use Use) *Member {
	for i := range table {
		if m := &table[i]; m.bars&use != 0 {
			if v := r.Find(body, m.Name); v != nil && m.Bars(v, use) && !(m.Class == Tools && noTools(r, body)) {
				return m
			}
		}
	}
	return nil
}

// noTools says whether the model must not call the tools of the body.
func noTools(r *scan.Request, body []byte) bool {
	return string(r.Find(body, "tool_choice")) == `"none"`
}

// Named returns the member with this name, or nil. Named does not know escapes.
func Named(name []byte) *Member {
	for i := range table {
		if m := &table[i]; m.Name == string(name) {
			return m
		}
	}
	return nil
}

// Bars says whether the member rules out use with this value, which is JSON. No empty value rules
// out a judgement.
func (m *Member) Bars(value []byte, use Use) bool {
	switch {
	case m.bars&use == 0, string(value) == "null", use == Judge && Empty(value):
		return false
	case m.fine != nil:
		return !m.fine(value)
	}
	return !slices.Contains(m.harmless, string(value))
}

// Empty says whether engines take a value as if the member were not there.
func Empty(value []byte) bool {
	switch string(value) {
	case "null", "[]", "{}", "false", `""`:
		return true
	}
	return false
}

// isText says whether a response_format asks for no form.
func isText(value []byte) bool {
	kind, _ := scan.Find(value, "type")
	return string(kind) == `"text"`
}

func isOne(value []byte) bool { return PromptOf(value) != Several }

// Prompt is the form of a completion's prompt.
type Prompt uint8

// These are the forms.
const (
	Unclear Prompt = iota // none of the others
	Text
	IDs     // a list of token ids
	Several // a list of texts or of lists, perhaps of one
)

// PromptOf returns the form of a prompt. PromptOf looks at the beginning of value.
func PromptOf(value []byte) Prompt {
	inner, list := bytes.CutPrefix(value, []byte("["))
	if inner = bytes.TrimLeft(inner, " \t\r\n"); len(inner) == 0 {
		return Unclear
	}
	switch first := inner[0]; {
	case list && (first == '"' || first == '['):
		return Several
	case list && first-'0' <= 9:
		return IDs
	case !list && first == '"':
		return Text
	}
	return Unclear
}

// adapterNames are the members by which a request chooses an adapter beside its model: those of
// SGLang, llama.cpp and TensorRT-LLM.
var adapterNames = [...]string{"lora_path", "lora", "lora_request"}

// Adapter returns the name of the first member of body that chooses an adapter, or "". r is the
// scan of body. A member counts with any value, as it may be there twice.
func Adapter(r *scan.Request, body []byte) string {
	for _, name := range adapterNames {
		if r.Find(body, name) != nil {
			return name
		}
	}
	return ""
}
