package connector

import (
	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/scan"
)

var (
	one       = []byte("1")
	no        = []byte("false")
	noneValue = []byte(`"none"`)
)

// firstToken edits a body for a vLLM server that only computes the prompt. The answer is one token
// in one piece. Limits and stop strings of the real answer do not apply. A tool that must be called
// does not fit into one token; with "none" the tools stay in the prompt.
func firstToken(e *scan.Edits) {
	e.Replace("stream", no)
	e.Set("max_tokens", one)
	e.Replace("max_completion_tokens", one)
	e.Remove("stream_options")
	e.Remove("min_tokens")
	e.Remove("stop")
	e.Replace("tool_choice", noneValue)
}

// NIXL is vLLM's NixlConnector. P answers first, and its answer has kv_transfer_params, which D
// gets unchanged. D reads the blocks of P's memory by them, once. P keeps blocks that nobody reads
// for about 30 s.
type NIXL struct{}

// Name implements Connector.
func (NIXL) Name() string { return "nixl" }

// Together implements Connector.
func (NIXL) Together() bool { return false }

// Prefill implements Connector.
func (NIXL) Prefill(e *scan.Edits, _ *Handover) {
	firstToken(e)
	e.Set("kv_transfer_params", nixlAsk)
}

var nixlAsk = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,` +
	`"remote_block_ids":null,"remote_host":null,"remote_port":null}`)

// Receive implements Connector.
func (NIXL) Receive(h *Handover, answer []byte) error {
	return h.take(answer, "kv_transfer_params")
}

// Decode implements Connector.
func (NIXL) Decode(e *scan.Edits, h *Handover) { e.Set("kv_transfer_params", h.params) }

// ends says whether an answer's only choice ended of itself, and not because of max_tokens. vLLM
// keeps no blocks then.
func ends(answer []byte) bool {
	choices, err := scan.Find(answer, "choices")
	if err != nil || choices == nil {
		return false
	}
	c := jsonscan.New(choices)
	if c.Kind() != jsonscan.Array || !c.Array() || c.Kind() != jsonscan.Object {
		return false
	}
	start := c.Pos()
	c.Skip()
	if c.Failed() {
		return false
	}
	reason, err := scan.Find(choices[start:c.Pos()], "finish_reason")
	return err == nil && string(reason) == `"stop"`
}

// take copies the member of that name at the root of answer, which must be an object.
func (h *Handover) take(answer []byte, name string) error {
	v, err := scan.Find(answer, name)
	switch {
	case err != nil:
		return errGarbled
	case v != nil && string(v) != "null":
	case ends(answer):
		return ErrOver
	default:
		return ErrNoParams
	}
	if c := jsonscan.New(v); c.Kind() != jsonscan.Object {
		return errGarbled
	}
	h.params = append(h.params[:0], v...)
	return nil
}
