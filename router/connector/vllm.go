package connector

import (
	"strconv"
	"time"

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
// for its lease, 30 s by default.
type NIXL struct{}

// Name implements Connector.
func (NIXL) Name() string { return "nixl" }

// Together implements Connector.
func (NIXL) Together() bool { return false }

// Many implements Connector. P's answer is about the blocks of one prompt.
func (NIXL) Many() bool { return false }

// Alone implements Connector.
func (NIXL) Alone() bool { return true }

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

// Begin implements Lender. D tells P of its requests at most every sixth of the lease.
func (NIXL) Begin(lease time.Duration) time.Duration { return lease * 2 / 3 }

// ends says whether an answer's only choice ended of itself, and not because of max_tokens. vLLM
// keeps no blocks then.
func ends(answer []byte) bool {
	choice, err := firstChoice(answer)
	if err != nil {
		return false
	}
	reason, err := scan.Find(choice, "finish_reason")
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

// Mooncake is vLLM's MooncakeConnector. Both engines get an id of the transfer. D also gets the
// address of P's bootstrap server and the id of the engine behind P's rank. Once P has computed the
// prompt, it writes the blocks to D.
type Mooncake struct{}

// Name implements Connector.
func (Mooncake) Name() string { return "mooncake" }

// Together implements Connector.
func (Mooncake) Together() bool { return true }

// Many implements Connector.
func (Mooncake) Many() bool { return false }

// Alone implements Connector.
func (Mooncake) Alone() bool { return true }

// Source implements Asker.
func (Mooncake) Source() (path string, bootstrap bool) { return "/query", true }

// Learn implements Asker. doc has an object for each data-parallel rank, by its number.
func (Mooncake) Learn(h *Handover, doc []byte) error {
	id, err := scan.Find(doc, strconv.Itoa(h.Rank), "engine_id")
	if c := jsonscan.New(id); err != nil || c.Kind() != jsonscan.String {
		return errNoFacts
	}
	h.facts = append(h.facts[:0], id...)
	return nil
}

// Prefill implements Connector.
func (Mooncake) Prefill(e *scan.Edits, h *Handover) {
	firstToken(e)
	e.Set("kv_transfer_params", append(mooncakeTransfer(`{"do_remote_decode":true,"do_remote_prefill":false`, h), '}'))
}

// Receive implements Connector.
func (Mooncake) Receive(*Handover, []byte) error { return nil }

// Decode implements Connector.
func (Mooncake) Decode(e *scan.Edits, h *Handover) {
	b := mooncakeTransfer(`{"do_remote_decode":false,"do_remote_prefill":true`, h)
	b = append(append(b, `,"remote_engine_id":`...), h.facts...)
	b = jsonscan.AppendQuoted(append(b, `,"remote_bootstrap_addr":`...), "http://"+h.Bootstrap)
	e.Set("kv_transfer_params", append(b, '}'))
}

// mooncakeTransfer returns the beginning of the parameters, with the id of the transfer.
func mooncakeTransfer(begin string, h *Handover) []byte {
	b := append(make([]byte, 0, 256), begin...)
	b = strconv.AppendUint(append(b, `,"transfer_id":"xfer-`...), h.ID, 16)
	return append(b, '"')
}
