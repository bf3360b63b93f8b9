// Package connector speaks the wires by which two engines hand over the KV blocks of a prompt. One
// engine, P, computes the prompt. Another one, D, reads the blocks and answers. A Connector knows
// which members the bodies of both requests get, and what P's answer says about its blocks.
//
// The package sends nothing. Package leg picks the nodes and asks them.
package connector

import (
	"errors"
	"slices"

	"github.com/cognitora/dataplane/router/scan"
)

// Connector is one wire. A Connector has no state and is safe for concurrent use.
type Connector interface {
	// Name is the name of the connector in settings.
	Name() string
	// Together says that both engines are asked at once. Otherwise P answers before D is asked.
	Together() bool
	// Prefill edits the request's body for P.
	Prefill(e *scan.Edits, h *Handover)
	// Receive reads what D needs from P's answer, which has status 200. answer is not kept. Receive
	// is not called if both engines are asked at once.
	Receive(h *Handover, answer []byte) error
	// Decode edits the request's body for D.
	Decode(e *scan.Edits, h *Handover)
}

// connectors are all connectors, by name.
var connectors = [...]Connector{NIXL{}}

// Of returns the connector with this name, or nil.
func Of(name string) Connector {
	for _, c := range connectors {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// Names lists the names of all connectors.
func Names() (names []string) {
	for _, c := range connectors {
		names = append(names, c.Name())
	}
	return names
}

// Handover is one prompt on its way from P to D. The caller fills in the exported fields. A
// Handover serves one pair of requests. Reset makes it reusable.
type Handover struct {
	ID        uint64 // random; no two handovers have the same
	Bootstrap string // host:port at which P's engine meets D's; "": P has none
	Rank      int    // P's data-parallel rank
	Ranks     int    // P's number of ranks

	params []byte // JSON for D, from P's answer
}

// keptParams is the largest memory, in bytes, that a Handover keeps for the next one.
const keptParams = 256 << 10

// Reset forgets everything but memory.
func (h *Handover) Reset() {
	params := h.params[:0]
	if cap(params) > keptParams {
		params = nil
	}
	*h = Handover{params: params}
}

// ErrNoParams is returned by Receive if P's answer says nothing about blocks. P's engine probably
// has no connector.
var ErrNoParams = errors.New("the prefill node's answer has no transfer parameters")

// ErrOver is returned by Receive if the answer ends with the first token, so that there is nothing
// to hand over.
var ErrOver = errors.New("the answer ends with its first token")

// errGarbled is returned by Receive if P's answer is not the JSON object that it should be.
var errGarbled = errors.New("the prefill node's answer is no JSON object of the expected form")

// Obstacle says why a request must be computed by one engine; "" if there is no reason. The answer
// of a request with several choices, with log probabilities of its prompt or with the prompt itself
// needs the prompt's computation on the answering engine. r is the scan of body.
func Obstacle(r *scan.Request, body []byte, api scan.API) string {
	if api != scan.Chat && api != scan.Completions {
		return "api"
	}
	for _, m := range alone {
		if v := r.Find(body, m.name); v != nil && !slices.Contains(m.harmless, string(v)) {
			return m.name
		}
	}
	return ""
}

// alone are the members that keep a request on one engine, unless they have a harmless value.
var alone = [...]struct {
	name     string
	harmless []string
}{
	{"n", []string{"1", "null"}},
	{"best_of", []string{"1", "null"}},
	{"use_beam_search", []string{"false", "null"}},
	{"echo", []string{"false", "null"}},
	{"prompt_logprobs", []string{"null"}},
	{"kv_transfer_params", []string{"null"}}, // the client hands blocks over itself
	{"disaggregated_params", []string{"null"}},
	{"bootstrap_room", []string{"null"}},
	{"bootstrap_host", []string{"null"}},
}
