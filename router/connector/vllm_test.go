package connector

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/scan"
)

// recorded is a hand-over between two real vLLM 0.32 servers.
type recorded struct {
	PrefillRequest  json.RawMessage `json:"prefill_request"`
	PrefillResponse json.RawMessage `json:"prefill_response"`
	DecodeRequest   json.RawMessage `json:"decode_request"`
	DecodeResponse  json.RawMessage `json:"decode_response"`
}

func golden(t *testing.T) (r recorded) {
	t.Helper()
	text, err := os.ReadFile("testdata/vllm_nixl.json")
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// edited returns body after the edits of edit.
func edited(t *testing.T, body []byte, edit func(e *scan.Edits)) map[string]any {
	t.Helper()
	var r scan.Request
	if err := scan.Scan(scan.Chat, body, &r); err != nil {
		t.Fatal(err)
	}
	var e scan.Edits
	e.Reset(&r, body)
	edit(&e)
	out := bytes.Join(e.Segments(nil), nil)
	if e.Err() != nil {
		t.Fatal(e.Err())
	}
	return object(t, out)
}

func object(t *testing.T, text []byte) (o map[string]any) {
	t.Helper()
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return o
}

// TestNIXLAsRecorded checks that both requests are those with which real servers handed over.
func TestNIXLAsRecorded(t *testing.T) {
	r := golden(t)
	client := object(t, r.DecodeRequest)
	delete(client, "kv_transfer_params")
	client["stream"], client["stop"], client["min_tokens"] = true, []any{"x"}, 3
	client["stream_options"] = map[string]any{"include_usage": true}
	body, err := json.Marshal(client)
	if err != nil {
		t.Fatal(err)
	}
	var h Handover
	got := edited(t, body, func(e *scan.Edits) { NIXL{}.Prefill(e, &h) })
	if want := object(t, r.PrefillRequest); !reflect.DeepEqual(got, want) {
		t.Errorf("P gets %v, want %v", got, want)
	}
	if err := (NIXL{}).Receive(&h, r.PrefillResponse); err != nil {
		t.Fatal(err)
	}
	got = edited(t, body, func(e *scan.Edits) { NIXL{}.Decode(e, &h) })
	client["kv_transfer_params"] = object(t, r.DecodeRequest)["kv_transfer_params"]
	again, err := json.Marshal(client)
	if err != nil {
		t.Fatal(err)
	}
	if want := object(t, again); !reflect.DeepEqual(got, want) {
		t.Errorf("D gets %v, want %v", got, want)
	}
	h.Reset()
	if len(h.params) != 0 {
		t.Error("the params outlive their use")
	}
}

// TestForcedToolIsNotCalledByP checks that a forced tool choice goes, and that others stay away.
func TestForcedToolIsNotCalledByP(t *testing.T) {
	body := `{"model":"m","messages":[],"tool_choice":"required","max_completion_tokens":50}`
	got := edited(t, []byte(body), firstToken)
	if got["tool_choice"] != "none" || got["max_completion_tokens"] != 1.0 || got["max_tokens"] != 1.0 {
		t.Errorf("%v", got)
	}
	got = edited(t, []byte(`{"model":"m","messages":[]}`), firstToken)
	if _, has := got["tool_choice"]; has {
		t.Errorf("%v", got)
	}
}

func TestGarbledPrefillAnswers(t *testing.T) {
	for answer, want := range map[string]error{
		``: errGarbled, `{`: errGarbled, `[]`: ErrNoParams, `{}`: ErrNoParams,
		`{"kv_transfer_params":null}`: ErrNoParams, `{"kv_transfer_params":"x"}`: errGarbled,
		`{"kv_transfer_params":[1]}`: errGarbled, `{"kv_transfer_params":{}`: errGarbled,
		`{"kv_transfer_params":{"a":1}}`:                                     nil,
		`{"kv_transfer_params":null,"choices":[{"finish_reason":"stop"}]}`:   ErrOver,
		`{"kv_transfer_params":null,"choices":[{"finish_reason":"length"}]}`: ErrNoParams,
		`{"choices":[{"finish_reason":"stop"`:                                errGarbled,
		`{"choices":{"finish_reason":"stop"}}`:                               ErrNoParams,
		`{"choices":[]}`:                                                     ErrNoParams, `{"choices":[7]}`: ErrNoParams,
	} {
		var h Handover
		if err := (NIXL{}).Receive(&h, []byte(answer)); err != want {
			t.Errorf("%s: %v, want %v", answer, err, want)
		}
	}
}

func TestObstacles(t *testing.T) {
	for body, want := range map[string]string{
		`{"n":2,"echo":false,"best_of":null}`: "",
		`{"best_of":3}`:                       "best_of",
		`{"echo":true}`:                       "echo",
		`{"prompt_logprobs":0}`:               "prompt_logprobs",
		`{"kv_transfer_params":{"a":1}}`:      "kv_transfer_params",
		`{"kv_transfer_params":null}`:         "",
		`{"echo":true,"bootstrap_room":3}`:    "bootstrap_room",
	} {
		body = strings.Replace(body, "{", `{"model":"m","messages":[],`, 1)
		var r scan.Request
		if err := scan.Scan(scan.Chat, []byte(body), &r); err != nil {
			t.Fatal(err)
		}
		own := want == "kv_transfer_params" || want == "bootstrap_room"
		if got, as := Obstacle(&r, []byte(body), scan.Chat); got != want || as != own {
			t.Errorf("%s: %q %v, want %q", body, got, as, want)
		}
		if got, as := Obstacle(&r, []byte(body), scan.Responses); got != "api" || !as {
			t.Errorf("responses: %q %v", got, as)
		}
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"kv_transfer_params":{"remote_block_ids":[[1,2]]}}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		var h Handover
		if err := (NIXL{}).Receive(&h, answer); err == nil && !json.Valid(h.params) {
			t.Errorf("%q is no JSON", h.params)
		}
	})
}
