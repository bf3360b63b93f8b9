package connector

import (
	"slices"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/scan"
)

// Obstacle says why a request must be computed by one engine; "" if there is no reason. The answer
// of a request with log probabilities of its prompt or with the prompt itself needs the prompt's
// computation on the answering engine. own says that even an engine that needs a P gets the request
// as it is: its API is not handed over, or the client does that itself. r is the scan of body.
func Obstacle(r *scan.Request, body []byte, api scan.API) (why string, own bool) {
	if api != scan.Chat && api != scan.Completions {
		return "api", true
	}
	for _, m := range alone {
		if v := r.Find(body, m.name); v != nil && !slices.Contains(m.harmless, string(v)) {
			return m.name, m.own
		}
	}
	return "", false
}

// alone are the members that keep a request on one engine, unless they have a harmless value.
var alone = [...]struct {
	name     string
	harmless []string
	own      bool // the client hands blocks over itself
}{
	{"kv_transfer_params", []string{"null"}, true},
	{"disaggregated_params", []string{"null"}, true},
	{"bootstrap_room", []string{"null"}, true},
	{"bootstrap_host", []string{"null"}, true},
	{"best_of", []string{"1", "null"}, false},
	{"use_beam_search", []string{"false", "null"}, false},
	{"echo", []string{"false", "null"}, false},
	{"prompt_logprobs", []string{"null"}, false},
}

// maxSequences bounds the sequences of a request that is handed over.
const maxSequences = 256

// Sequences returns how many answers the request asks for, prompts times choices; 0 if that is
// unclear, or more than a wire carries. r is the scan of body.
func Sequences(r *scan.Request, body []byte, api scan.API) int {
	choices, prompts := 1, 1
	if v := r.Find(body, "n"); v != nil && string(v) != "null" {
		n, err := strconv.Atoi(string(v))
		if err != nil || n < 1 || n > maxSequences {
			return 0
		}
		choices = n
	}
	if api == scan.Completions {
		prompts = promptsIn(r.Find(body, "prompt"))
	}
	if prompts*choices > maxSequences {
		return 0
	}
	return prompts * choices
}

// promptsIn counts the prompts of a completion, at most maxSequences and one more. A prompt is a
// text or a list of token ids.
func promptsIn(v []byte) (count int) {
	c := jsonscan.New(v)
	if c.Kind() != jsonscan.Array {
		return 1
	}
	for ok := c.Array(); ok && count <= maxSequences; ok = c.NextElement() {
		if k := c.Kind(); k != jsonscan.String && k != jsonscan.Array {
			return 1
		}
		c.Skip()
		count++
	}
	return count
}
