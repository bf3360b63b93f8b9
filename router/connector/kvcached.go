package connector

import (
	"strconv"
	"time"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/scan"
)

// KVCached is the connector of deploy/vllm. P answers first. Its blocks go to its host's cache
// daemon while it computes them, and D loads them from its own host's daemon. P's answer says how
// many tokens' blocks it stores, and in which namespace. D waits until they can be found, for
// storedWait at most, and computes the rest.
type KVCached struct{}

const (
	storedWait = time.Second      // from D's request on
	comingWait = 10 * time.Second // from P's request on
	maxStored  = 1 << 30          // tokens
	maxSpace   = 64               // bytes of the name of a namespace
)

// Name implements Connector.
func (KVCached) Name() string { return "kvcached" }

// Together implements Connector.
func (KVCached) Together() bool { return false }

// Many implements Connector. P's answer is about the blocks of one prompt.
func (KVCached) Many() bool { return false }

// Alone implements Connector.
func (KVCached) Alone() bool { return true }

// Prefill implements Connector.
func (KVCached) Prefill(e *scan.Edits, _ *Handover) {
	firstToken(e)
	e.Set("kv_transfer_params", storeAsk)
}

var storeAsk = []byte(`{"cgn_store":true}`)

// Receive implements Connector.
func (KVCached) Receive(h *Handover, answer []byte) error {
	v, err := scan.Find(answer, "kv_transfer_params")
	switch {
	case err != nil:
		return errGarbled
	case v == nil || string(v) == "null":
		return ErrNoParams
	}
	if c := jsonscan.New(v); c.Kind() != jsonscan.Object {
		return errGarbled
	}
	number, err := scan.Find(v, "cgn_tokens")
	if err != nil {
		return errGarbled
	}
	tokens, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil || tokens <= 0 || tokens > maxStored {
		return ErrNoParams
	}
	h.params = strconv.AppendInt(append(h.params[:0], `{"cgn_tokens":`...), tokens, 10)
	h.params = strconv.AppendInt(append(h.params, `,"cgn_wait_ms":`...), storedWait.Milliseconds(), 10)
	if space, err := scan.Find(v, "cgn_space"); err == nil && plainText(space) {
		h.params = append(append(h.params, `,"cgn_space":`...), space...)
	}
	h.params = append(h.params, '}')
	return nil
}

// Reserved says whether a client's kv_transfer_params have members by which only the router asks an
// engine to store a prompt's blocks, or to wait for them. Other values than JSON objects have none.
func Reserved(params []byte) bool {
	for _, name := range [...]string{"cgn_store", "cgn_tokens", "cgn_space", "cgn_wait_ms"} {
		if len(params) == 0 {
			return false
		}
		if v, err := scan.Find(params, name); v != nil || err != nil {
			return true
		}
	}
	return false
}

// plainText says whether v is a JSON string of at most maxSpace letters and digits.
func plainText(v []byte) bool {
	if len(v) < 2 || len(v)-2 > maxSpace || v[0] != '"' || v[len(v)-1] != '"' {
		return false
	}
	for _, c := range v[1 : len(v)-1] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// Decode implements Connector.
func (KVCached) Decode(e *scan.Edits, h *Handover) { e.Set("kv_transfer_params", h.params) }

// Coming implements Cacher.
func (KVCached) Coming() time.Duration { return comingWait }
