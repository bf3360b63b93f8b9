package front

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// TestHandoverPassesThrough: what a router and engines say about KV blocks passes byte for byte, in
// the request, in its head and in the answer. The NIXL exchange is one of vLLM 0.32.
func TestHandoverPassesThrough(t *testing.T) {
	golden, err := os.ReadFile("testdata/vllm-0.32-nixl.json")
	if err != nil {
		t.Fatal(err)
	}
	var nixl map[string]json.RawMessage
	if err := json.Unmarshal(golden, &nixl); err != nil ||
		!bytes.Contains(nixl["prefill_response"], []byte("remote_block_ids")) {
		t.Fatal(err)
	}
	var request, answer []byte
	var id string
	o := testOptions(t)
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) {
		request, _ = io.ReadAll(r.Body)
		id = r.Header.Get("X-Request-Id")
		w.Header().Set("Content-Type", "application/json")
		w.Write(answer)
	})
	_, url, client := serve(t, o)
	for name, c := range map[string][2]string{
		"nixl, prefill": {string(nixl["prefill_request"]), string(nixl["prefill_response"])},
		"nixl, decode":  {string(nixl["decode_request"]), string(nixl["decode_response"])},
		"mooncake": {`{"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-7"}}`,
			`{"kv_transfer_params":null}`},
		"sglang": {`{"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":9223372036854775807}`, `{}`},
		"trtllm": {`{"disaggregated_params":{"request_type":"context_only","disagg_request_id":9007199254740993}}`,
			`{"choices":[{"finish_reason":"length","disaggregated_params":{"opaque_state":"AAECAwQ=","first_gen_tokens":[1]}}]}`},
	} {
		answer = []byte(c[1])
		r, err := http.NewRequest("POST", url+"/v1/chat/completions", strings.NewReader(c[0]))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Request-Id", "leg-"+name)
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(got) != c[1] {
			t.Errorf("%s: the answer is %.200s, %v", name, got, err)
		}
		if string(request) != c[0] || id != "leg-"+name {
			t.Errorf("%s: the engine got %.200s of %q", name, request, id)
		}
	}
}
