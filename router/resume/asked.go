package resume

import (
	"bytes"
	"slices"

	"github.com/cognitora/dataplane/router/scan"
)

// Asked is what a request says about its stream.
type Asked struct {
	API      scan.API
	IDs      bool // the client wants the ids of the tokens
	Usage    bool // the client wants the usage
	Stops    bool // there are stop strings
	Logprobs bool // the client wants log probabilities
	Open     bool // the answer continues the last message
	Prompted bool // the prompt is a list of ids
}

// Read reads what a request for a stream says. obstacle names the member of the body for which no
// engine can go on with the stream; "" if there is none. r is the scan of body, for api.
func Read(r *scan.Request, body []byte, api scan.API) (a Asked, obstacle string) {
	a = Asked{API: api, Usage: r.IncludeUsage}
	if api != scan.Chat && api != scan.Completions {
		return a, "api"
	}
	included := false
	r.Members(body, func(name, value []byte) bool {
		switch string(name) {
		case "return_token_ids":
			a.IDs = string(value) == "true"
		case "logprobs":
			a.Logprobs = string(value) != "null" && string(value) != "false"
			if a.Logprobs && api == scan.Completions {
				obstacle = "logprobs" // their offsets begin anew
			}
		case "stop":
			a.Stops = value[0] == '"' && len(value) > 2 || value[0] == '[' && bytes.IndexByte(value, '"') > 0
		case "include_stop_str_in_output":
			included = string(value) == "true"
		case "continue_final_message":
			a.Open = string(value) == "true"
		case "prompt":
			if a.Prompted = value[0] == '['; !onePrompt(value) {
				obstacle = "prompt"
			}
		case "response_format":
			if kind, _ := scan.Find(value, "type"); string(value) != "null" && string(kind) != `"text"` {
				obstacle = "response_format"
			}
		default:
			if m := obstacleOf(name, value); m != "" {
				obstacle = m
			}
		}
		return obstacle == ""
	})
	if a.Stops && included {
		obstacle = "include_stop_str_in_output"
	}
	return a, obstacle
}

// onePrompt says whether the prompt of a completion is one text or one list of ids.
func onePrompt(value []byte) bool {
	list := bytes.TrimLeft(bytes.TrimPrefix(value, []byte("[")), " \t\r\n")
	return value[0] == '"' || len(list) < len(value) && len(list) > 0 && list[0]-'0' <= 9
}

// obstacleOf returns the name of a member with another value than a harmless one, or "".
func obstacleOf(name, value []byte) string {
	if bytes.IndexByte(name, '\\') >= 0 {
		return "a name with an escape"
	}
	for i := range obstacles {
		if o := &obstacles[i]; o.name == string(name) {
			if string(value) == "null" || slices.Contains(o.harmless, string(value)) {
				return ""
			}
			return o.name
		}
	}
	return ""
}

// obstacles are the members of a body for which no engine can go on, unless they are null or have a
// harmless value: several choices, guided decoding, what a hand-over of the client needs, and what
// counts from the beginning of the answer or the prompt.
var obstacles = [...]struct {
	name     string
	harmless []string
}{
	{"n", []string{"1"}}, {"best_of", []string{"1"}}, {"use_beam_search", []string{"false"}},
	{"echo", []string{"false"}}, {"suffix", []string{`""`}}, {"prompt_logprobs", nil},
	{"structured_outputs", nil}, {"structural_tag", nil}, {"guided_json", nil}, {"guided_regex", nil},
	{"guided_choice", nil}, {"guided_grammar", nil}, {"json_schema", nil}, {"regex", nil}, {"ebnf", nil},
	{"grammar", []string{`""`}}, {"thinking_token_budget", nil}, {"truncate_prompt_tokens", nil},
	{"kv_transfer_params", nil}, {"ec_transfer_params", nil}, {"disaggregated_params", nil},
	{"bootstrap_host", nil}, {"bootstrap_room", nil}, {"input_ids", nil}, {"prompt_embeds", nil},
	{"session_params", nil},
}
