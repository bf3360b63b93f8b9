package connector

import (
	"testing"

	"github.com/cognitora/dataplane/router/scan"
)

// TestKVCachedParams checks what both engines are told, and which answers of P are of use.
func TestKVCachedParams(t *testing.T) {
	body := []byte(`{"model":"m","messages":[],"stream":true,"max_tokens":9}`)
	var h Handover
	got := edited(t, body, func(e *scan.Edits) { KVCached{}.Prefill(e, &h) })
	if p := got["kv_transfer_params"].(map[string]any); len(p) != 1 || p["cgn_store"] != true ||
		got["max_tokens"] != 1.0 || got["stream"] != false {
		t.Errorf("P gets %v", got)
	}
	answer := `{"kv_transfer_params":{"cgn_tokens":1472,"cgn_space":"00c0ffee","other":[1]}}`
	if err := (KVCached{}).Receive(&h, []byte(answer)); err != nil {
		t.Fatal(err)
	}
	got = edited(t, body, func(e *scan.Edits) { KVCached{}.Decode(e, &h) })
	if p := got["kv_transfer_params"].(map[string]any); len(p) != 3 || p["cgn_tokens"] != 1472.0 ||
		p["cgn_space"] != "00c0ffee" || p["cgn_wait_ms"] != 1000.0 || got["max_tokens"] != 9.0 ||
		got["stream"] != true {
		t.Errorf("D gets %v", got)
	}
	for answer, want := range map[string]error{
		``: errGarbled, `{`: errGarbled, `{}`: ErrNoParams, `{"kv_transfer_params":null}`: ErrNoParams,
		`{"kv_transfer_params":[1]}`: errGarbled, `{"kv_transfer_params":"x"}`: errGarbled,
		`{"kv_transfer_params":{}}`:                                     ErrNoParams,
		`{"kv_transfer_params":{"cgn_tokens":0}}`:                       ErrNoParams,
		`{"kv_transfer_params":{"cgn_tokens":-1}}`:                      ErrNoParams,
		`{"kv_transfer_params":{"cgn_tokens":"64"}}`:                    ErrNoParams,
		`{"kv_transfer_params":{"cgn_tokens":64.5}}`:                    ErrNoParams,
		`{"kv_transfer_params":{"cgn_tokens":99999999999999999999}}`:    ErrNoParams,
		`{"kv_transfer_params":{"cgn_tokens":1073741825}}`:              ErrNoParams,
		`{"kv_transfer_params":{"cgn_tokens":64,"cgn_wait_ms":999999}}`: nil,
		`{"kv_transfer_params":{"cgn_tokens":64,"cgn_space":7}}`:        nil,
		`{"kv_transfer_params":{"cgn_tokens":64,"cgn_space":"a\"b"}}`:   nil,
	} {
		var h Handover
		if err := (KVCached{}).Receive(&h, []byte(answer)); err != want {
			t.Errorf("%s: %v, want %v", answer, err, want)
		} else if err == nil && string(h.params) != `{"cgn_tokens":64,"cgn_wait_ms":1000}` {
			t.Errorf("%s: D gets %s", answer, h.params)
		}
	}
}
