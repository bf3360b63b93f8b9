package members

import (
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/scan"
)

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
