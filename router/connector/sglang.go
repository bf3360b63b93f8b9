package connector

import (
	"math"
	"net"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/scan"
)

// SGLang is SGLang's disaggregation with a bootstrap server. Both engines get the address of P's
// bootstrap server and the number of a room, in which they meet; with several sequences a list of
// each. The rank of P that computes the prompt follows from the room.
//
// P makes the answer's first token, so P's body has everything that the answer depends on.
type SGLang struct{}

// Name implements Connector.
func (SGLang) Name() string { return "sglang" }

// Together implements Connector.
func (SGLang) Together() bool { return true }

// Many implements Connector.
func (SGLang) Many() bool { return true }

// Alone implements Connector. An engine that decodes refuses a request without a room.
func (SGLang) Alone() bool { return false }

// Prefill implements Connector. The answer is no stream, so that a failure is its status.
func (SGLang) Prefill(e *scan.Edits, h *Handover) {
	e.Replace("stream", no)
	e.Remove("stream_options")
	meet(e, h)
	if h.Ranks > 1 {
		e.Set("routed_dp_rank", strconv.AppendInt(nil, int64(h.Rank), 10))
	}
}

// Receive implements Connector.
func (SGLang) Receive(*Handover, []byte) error { return nil }

// Decode implements Connector.
func (SGLang) Decode(e *scan.Edits, h *Handover) {
	meet(e, h)
	if h.Ranks > 1 {
		e.Set("disagg_prefill_dp_rank", strconv.AppendInt(nil, int64(h.Rank), 10))
	}
	if h.DecodeRanks > 1 {
		e.Set("routed_dp_rank", strconv.AppendInt(nil, int64(h.DecodeRank), 10))
	}
}

// meet says where and in which rooms the engines meet.
func meet(e *scan.Edits, h *Handover) {
	host, port, _ := net.SplitHostPort(h.Bootstrap)
	room := h.room()
	e.Set("bootstrap_host", perSequence(h, func(b []byte, _ int) []byte { return jsonscan.AppendQuoted(b, host) }))
	e.Set("bootstrap_port", perSequence(h, func(b []byte, _ int) []byte { return append(b, port...) }))
	e.Set("bootstrap_room", perSequence(h, func(b []byte, i int) []byte {
		return strconv.AppendUint(b, room+uint64(i*max(h.Ranks, 1)), 10)
	}))
}

// room returns the first room. The rooms of the other sequences follow at distances of the number
// of P's ranks, and all of them are below 1<<63.
func (h *Handover) room() uint64 {
	ranks := uint64(max(h.Ranks, 1))
	id := h.ID % (math.MaxInt64 - ranks*uint64(h.Sequences+1))
	return id - id%ranks + uint64(h.Rank)
}

// perSequence returns the value for the only sequence, or the list of values for all of them.
func perSequence(h *Handover, value func(b []byte, i int) []byte) (b []byte) {
	if h.Sequences <= 1 {
		return value(nil, 0)
	}
	for i := range h.Sequences {
		b = value(append(b, ','), i)
	}
	b[0] = '['
	return append(b, ']')
}
