package scan

import "github.com/cognitora/dataplane/internal/jsonscan"

// asked are the members of the root that make an engine compute the whole prompt.
type asked uint8

const (
	askedPrompt asked = 1 << iota // prompt_logprobs
	askedEcho
	askedAnswer // logprobs of a completion
	askedNone   // top_logprobs of a chat is null

	askedAnswers // no such member: n, best_of or n_cmpl
	askedMost    // no such member: n_predict
)

// ReadsNoCache says whether vLLM computes the whole prompt, whatever it has cached: for the log
// probabilities of the prompt's tokens. A completion's echo asks for them if logprobs is given, and
// a chat's echo unless top_logprobs is null. vLLM caches the blocks as always.
func (r *Request) ReadsNoCache() bool {
	a := r.root.asked
	switch {
	case a&askedPrompt != 0:
		return true
	case r.api == Completions:
		return a&(askedEcho|askedAnswer) == askedEcho|askedAnswer
	}
	return r.api == Chat && a&(askedEcho|askedNone) == askedEcho
}

// another reads a member of the root whose name the scan does not know otherwise.
func (r *Request) another(name []byte) {
	bit := r.askedBy(name)
	switch bit {
	case 0:
		r.root.transfers = r.root.transfers || isTransfer(name)
		r.root.priority = r.root.priority || string(name) == "priority"
		r.c.Skip()
		return
	case askedAnswers:
		r.choices()
		return
	case askedMost:
		r.maximum(false)
		return
	}
	kind := r.c.Kind()
	is := kind != jsonscan.Null
	switch {
	case bit == askedEcho && kind == jsonscan.Bool:
		is = r.c.Literal()
	case bit == askedNone:
		is = !is
		fallthrough
	default:
		r.c.Skip()
	}
	if r.root.asked &^= bit; is {
		r.root.asked |= bit
	}
}

// isTransfer says whether a member other than kv_transfer_params is one of TransferMembers.
func isTransfer(name []byte) bool {
	switch string(name) {
	case "ec_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_port", "bootstrap_room":
		return true
	}
	return false
}

// askedBy returns the bit of a member; 0: it has none.
func (r *Request) askedBy(name []byte) asked {
	if r.api != Completions && r.api != Chat && r.api != Responses {
		return 0
	}
	switch string(name) {
	case "n", "best_of", "n_cmpl":
		return askedAnswers
	case "n_predict":
		return askedMost
	case "prompt_logprobs":
		return askedPrompt
	case "echo":
		return askedEcho
	case "logprobs":
		if r.api == Completions {
			return askedAnswer
		}
	case "top_logprobs":
		if r.api == Chat {
			return askedNone
		}
	}
	return 0
}
