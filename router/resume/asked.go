package resume

import (
	"bytes"

	"github.com/cognitora/dataplane/router/members"
	"github.com/cognitora/dataplane/router/scan"
)

// Asked is what a request says about its stream.
type Asked struct {
	API      scan.API
	IDs      bool // the client wants the ids of the tokens
	Usage    bool // the client wants the usage
	Logprobs bool // the client wants log probabilities
	Open     bool // the answer continues the last message
	Prompted bool // the prompt is a list of ids
	// Holdback is the number of characters that an engine holds back, because they may begin a stop
	// string: one less than the longest stop string has. With 0 no engine holds text back, and no
	// stop string lies across the seam between two engines.
	Holdback int
}

// Read reads what a request for a stream says. obstacle names the member of the body for which no
// engine can go on with the stream, or is "api" or "escape"; "" if there is none. r is the scan of
// body, for api.
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
			var ok bool
			if a.Holdback, ok = holdback(value); !ok {
				obstacle = "stop"
			}
		case "include_stop_str_in_output":
			included = string(value) == "true"
		case "continue_final_message":
			a.Open = string(value) == "true"
		case "prompt":
			form := members.PromptOf(value)
			if a.Prompted = form == members.IDs; !a.Prompted && form != members.Text {
				obstacle = "prompt"
			}
		default:
			if m := obstacleOf(name, value); m != "" {
				obstacle = m
			}
		}
		return obstacle == ""
	})
	if a.Holdback > 0 && included {
		obstacle = "include_stop_str_in_output"
	}
	return a, obstacle
}

// obstacleOf returns the name of a member with which no engine can go on, or "".
func obstacleOf(name, value []byte) string {
	if bytes.IndexByte(name, '\\') >= 0 {
		return "escape"
	}
	if m := members.Named(name); m != nil && m.Bars(value, members.Resume) {
		return m.Name
	}
	return ""
}
