package connector

import (
	"slices"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/scan"
)

// TRTLLM is TensorRT-LLM with schedule style context_first. P answers first. D gets the
// disaggregated_params of P's answer, P's usage and the prompt's token ids.
//
// P makes the answer's first token, so P's body has everything that the answer depends on. P keeps
// no blocks of an answer that ends with its first token.
type TRTLLM struct{}

// Name implements Connector.
func (TRTLLM) Name() string { return "trtllm" }

// Together implements Connector.
func (TRTLLM) Together() bool { return false }

// Many implements Connector.
func (TRTLLM) Many() bool { return false }

// Alone implements Connector.
func (TRTLLM) Alone() bool { return true }

// Prefill implements Connector. The engine itself stops after the first token.
func (TRTLLM) Prefill(e *scan.Edits, h *Handover) { contextOnly(e, h, contextFirst) }

// These are the values of schedule_style.
const (
	contextFirst    = `,"schedule_style":0`
	generationFirst = `,"schedule_style":1`
)

// contextOnly makes the body that of a P.
func contextOnly(e *scan.Edits, h *Handover, style string) {
	e.Replace("stream", no)
	e.Remove("stream_options")
	b := append(make([]byte, 0, 128), `{"request_type":"context_only","disagg_request_id":`...)
	b = append(strconv.AppendUint(b, h.globalID(), 10), style...)
	e.Set("disaggregated_params", append(b, '}'))
}

// globalID returns the id of the handover in TensorRT-LLM's range for ids of several engines. An
// engine gives its own requests ids below 1<<40.
func (h *Handover) globalID() uint64 { return h.ID | 1<<40 }

// Receive implements Connector.
func (TRTLLM) Receive(h *Handover, answer []byte) error {
	choice, err := firstChoice(answer)
	if err != nil {
		return err
	}
	params, _ := scan.Find(choice, "disaggregated_params")
	switch reason, _ := scan.Find(choice, "finish_reason"); string(reason) {
	case `"length"`, `"not_finished"`:
	case "":
		return errGarbled
	default:
		return ErrOver
	}
	if params == nil || string(params) == "null" {
		return ErrNoParams
	}
	usage, _ := scan.Find(answer, "usage")
	if h.params, err = generationParams(h.params[:0], params, usage); err != nil {
		return err
	}
	h.prompt = h.prompt[:0]
	ids, _ := scan.Find(answer, "prompt_token_ids")
	if c := jsonscan.New(ids); c.Kind() == jsonscan.Array {
		h.prompt = append(h.prompt, ids...)
	}
	return nil
}

// firstChoice returns the only element of the answer's choices.
func firstChoice(answer []byte) ([]byte, error) {
	choices, err := scan.Find(answer, "choices")
	if err != nil || choices == nil {
		return nil, errGarbled
	}
	c := jsonscan.New(choices)
	if c.Kind() != jsonscan.Array || !c.Array() {
		return nil, errGarbled
	}
	kind, start := c.Kind(), c.Pos()
	c.Skip()
	end := c.Pos()
	if kind != jsonscan.Object || c.NextElement() || c.Failed() {
		return nil, errGarbled
	}
	return choices[start:end], nil
}

// generationParams appends D's disaggregated_params to b, made of P's.
func generationParams(b, params, usage []byte) ([]byte, error) {
	b = append(b, `{"request_type":"generation_only"`...)
	b = append(b, contextFirst...)
	c := jsonscan.New(params)
	if c.Kind() != jsonscan.Object {
		return nil, errGarbled
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		name := c.RawKey()
		c.Kind()
		start := c.Pos()
		if c.Skip(); c.Failed() || slices.Contains(replaced, string(name)) {
			continue
		}
		b = append(append(append(b, `,"`...), name...), `":`...)
		b = append(b, params[start:c.Pos()]...)
	}
	if c.End(); c.Failed() {
		return nil, errGarbled
	}
	if u := jsonscan.New(usage); u.Kind() == jsonscan.Object {
		b = append(append(b, `,"ctx_usage":`...), usage...)
	}
	return append(b, '}'), nil
}

// replaced are the members of P's disaggregated_params that D gets with other values.
var replaced = []string{"request_type", "schedule_style", "ctx_usage"}

// Decode implements Connector.
func (TRTLLM) Decode(e *scan.Edits, h *Handover) {
	e.Set("disaggregated_params", h.params)
	switch {
	case len(h.prompt) == 0:
	case h.API == scan.Completions:
		e.Set("prompt", h.prompt)
	default:
		e.Set("prompt_token_ids", h.prompt)
	}
}

// Free implements Freer. The answer is one token in one piece.
func (TRTLLM) Free(e *scan.Edits) {
	e.Replace("stream", no)
	e.Remove("stream_options")
	e.Remove("min_tokens")
	e.Remove("max_completion_tokens") // an alias of max_tokens; the engine refuses both together
	e.Set("max_tokens", one)
}

// TRTLLMGeneration is TensorRT-LLM with schedule style generation_first. D tells P where to write
// the blocks, so D must have its request before P answers. P's server says how D reaches P.
type TRTLLMGeneration struct{}

// Name implements Connector.
func (TRTLLMGeneration) Name() string { return "trtllm-generation-first" }

// Together implements Connector.
func (TRTLLMGeneration) Together() bool { return true }

// Many implements Connector.
func (TRTLLMGeneration) Many() bool { return false }

// Alone implements Connector.
func (TRTLLMGeneration) Alone() bool { return true }

// Source implements Asker.
func (TRTLLMGeneration) Source() (path string, bootstrap bool) { return "/server_info", false }

// Learn implements Asker. ctx_info_endpoint is a list in doc and its first element in D's request.
func (TRTLLMGeneration) Learn(h *Handover, doc []byte) error {
	endpoint, err := scan.Find(doc, "disaggregated_params", "ctx_info_endpoint")
	if err != nil {
		return errNoFacts
	}
	c := jsonscan.New(endpoint)
	if c.Kind() == jsonscan.Array && c.Array() && c.Kind() == jsonscan.String {
		start := c.Pos()
		c.Skip()
		endpoint = endpoint[start:c.Pos()]
	}
	if c = jsonscan.New(endpoint); c.Kind() != jsonscan.String {
		return errNoFacts
	}
	h.facts = append(append(h.facts[:0], `,"ctx_info_endpoint":`...), endpoint...)
	if rank, _ := scan.Find(doc, "disaggregated_params", "ctx_dp_rank"); rank != nil {
		h.facts = append(append(h.facts, `,"ctx_dp_rank":`...), rank...)
	}
	return nil
}

// Prefill implements Connector.
func (TRTLLMGeneration) Prefill(e *scan.Edits, h *Handover) { contextOnly(e, h, generationFirst) }

// Receive implements Connector.
func (TRTLLMGeneration) Receive(*Handover, []byte) error { return nil }

// Decode implements Connector.
func (TRTLLMGeneration) Decode(e *scan.Edits, h *Handover) {
	b := append(make([]byte, 0, 256), `{"request_type":"generation_only","ctx_request_id":`...)
	b = strconv.AppendUint(b, h.globalID(), 10)
	b = strconv.AppendUint(append(b, `,"disagg_request_id":`...), h.globalID(), 10)
	b = append(append(b, generationFirst...), h.facts...)
	e.Set("disaggregated_params", append(b, '}'))
}
