package connector

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"testing"

	"github.com/cognitora/dataplane/router/scan"
)

// documented is a hand-over in a file of testdata.
type documented struct {
	Handover struct {
		ID          uint64 `json:"id"`
		Bootstrap   string `json:"bootstrap"`
		Rank        int    `json:"rank"`
		Ranks       int    `json:"ranks"`
		DecodeRank  int    `json:"decode_rank"`
		DecodeRanks int    `json:"decode_ranks"`
		Sequences   int    `json:"sequences"`
		Completion  bool   `json:"completion"`
	} `json:"handover"`
	Client          json.RawMessage `json:"client"`
	Facts           json.RawMessage `json:"facts"`
	PrefillRequest  json.RawMessage `json:"prefill_request"`
	PrefillResponse json.RawMessage `json:"prefill_response"`
	DecodeRequest   json.RawMessage `json:"decode_request"`
}

func documentedIn(t *testing.T, file string) (d documented) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *documented) start() Handover {
	x := d.Handover
	h := Handover{ID: x.ID, Bootstrap: x.Bootstrap, Rank: x.Rank, Ranks: x.Ranks, API: scan.Chat,
		DecodeRank: x.DecodeRank, DecodeRanks: x.DecodeRanks, Sequences: x.Sequences}
	if x.Completion {
		h.API = scan.Completions
	}
	return h
}

// body returns the client's body after the edits of edit. Numbers keep their digits.
func (d *documented) body(t *testing.T, api scan.API, edit func(e *scan.Edits)) any {
	t.Helper()
	var r scan.Request
	if err := scan.Scan(api, d.Client, &r); err != nil {
		t.Fatal(err)
	}
	var e scan.Edits
	e.Reset(&r, d.Client)
	edit(&e)
	out := bytes.Join(e.Segments(nil), nil)
	if e.Err() != nil {
		t.Fatal(e.Err())
	}
	return exact(t, out)
}

func exact(t *testing.T, text []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// TestWiresAsDocumented checks the bodies of both engines against the files of testdata.
func TestWiresAsDocumented(t *testing.T) {
	for file, c := range map[string]Connector{
		"vllm_mooncake.json": Mooncake{}, "sglang.json": SGLang{}, "sglang_batch.json": SGLang{},
		"trtllm.json": TRTLLM{}, "trtllm_generation_first.json": TRTLLMGeneration{},
	} {
		d := documentedIn(t, file)
		h := d.start()
		if asker, ok := c.(Asker); ok {
			if err := asker.Learn(&h, d.Facts); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
		got := d.body(t, h.API, func(e *scan.Edits) { c.Prefill(e, &h) })
		if want := exact(t, d.PrefillRequest); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: P gets\n%v\nwant\n%v", file, got, want)
		}
		if !c.Together() {
			if err := c.Receive(&h, d.PrefillResponse); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
		got = d.body(t, h.API, func(e *scan.Edits) { c.Decode(e, &h) })
		if want := exact(t, d.DecodeRequest); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: D gets\n%v\nwant\n%v", file, got, want)
		}
		if h.Reset(); len(h.params)+len(h.prompt)+len(h.facts) != 0 {
			t.Errorf("%s: what was learned outlives its use", file)
		}
		if of := Of(c.Name()); of != c {
			t.Errorf("%s is %v", c.Name(), of)
		}
	}
}

// TestTokensOfACompletion checks that TensorRT-LLM's D gets the token ids as its prompt, and that
// it generates one token if it shall only read the blocks.
func TestTokensOfACompletion(t *testing.T) {
	d := documentedIn(t, "trtllm.json")
	d.Client = []byte(`{"model":"m","prompt":"tell me","stream":true,"max_completion_tokens":7,"min_tokens":4}`)
	h := d.start()
	h.API = scan.Completions
	if err := (TRTLLM{}).Receive(&h, d.PrefillResponse); err != nil {
		t.Fatal(err)
	}
	got := d.body(t, h.API, func(e *scan.Edits) {
		TRTLLM{}.Decode(e, &h)
		TRTLLM{}.Free(e)
	}).(map[string]any)
	delete(got, "disaggregated_params")
	want := exact(t, []byte(`{"model":"m","prompt":[1,887,29871,310,278],"stream":false,"max_tokens":1}`))
	if !reflect.DeepEqual(any(got), want) {
		t.Errorf("%v", got)
	}
}

func TestAnswersOfTRTLLM(t *testing.T) {
	answer := func(choice string) string { return `{"choices":[` + choice + `],"usage":{"prompt_tokens":3}}` }
	const params = `"disaggregated_params":{"request_type":"context_only","ctx_request_id":7}`
	for text, want := range map[string]error{
		``: errGarbled, `{`: errGarbled, `{}`: errGarbled, `[]`: errGarbled, `{"choices":{}}`: errGarbled,
		answer(``): errGarbled, answer(`{}`): errGarbled, answer(`7`): errGarbled,
		answer(`{"finish_reason":"length"},{"finish_reason":"length"}`):             errGarbled,
		answer(`{"finish_reason":"length"}`):                                        ErrNoParams,
		answer(`{"finish_reason":"length","disaggregated_params":null}`):            ErrNoParams,
		answer(`{"finish_reason":"length","disaggregated_params":[1]}`):             errGarbled,
		answer(`{"finish_reason":"stop",` + params + `}`):                           ErrOver,
		answer(`{"finish_reason":"tool_calls"}`):                                    ErrOver,
		answer(`{"finish_reason":"length",` + params + `}`):                         nil,
		answer(`{"finish_reason":"not_finished",` + params + `}`):                   nil,
		answer(`{"finish_reason":"length","disaggregated_params":{}}`):              nil,
		answer(`{"finish_reason":"length","disaggregated_params":{"ctx_usage":4}}`): nil,
	} {
		var h Handover
		if err := (TRTLLM{}).Receive(&h, []byte(text)); err != want {
			t.Errorf("%s: %v, want %v", text, err, want)
		} else if err == nil && !json.Valid(h.params) {
			t.Errorf("%s: %s", text, h.params)
		}
	}
}

func TestFactsThatHelpNot(t *testing.T) {
	for _, c := range []Asker{Mooncake{}, TRTLLMGeneration{}} {
		for _, doc := range []string{``, `{}`, `[]`, `{"0":{}}`, `{"0":{"engine_id":4}}`, `{"1":{"engine_id":"a"}}`,
			`{"disaggregated_params":{}}`, `{"disaggregated_params":{"ctx_info_endpoint":[]}}`,
			`{"disaggregated_params":{"ctx_info_endpoint":[7]}}`,
			`{"disaggregated_params":{"ctx_info_endpoint":null}}`} {
			var h Handover
			if err := c.Learn(&h, []byte(doc)); err != errNoFacts {
				t.Errorf("%s, %s: %v", c.Name(), doc, err)
			}
		}
	}
}

// TestRooms checks that a room belongs to P's rank, for ids at the ends of the range too.
func TestRooms(t *testing.T) {
	for _, id := range []uint64{0, 1, 7, 1 << 40, math.MaxInt64 - 1, math.MaxInt64} {
		for _, ranks := range []int{0, 1, 2, 3, 8} {
			for rank := range max(ranks, 1) {
				h := Handover{ID: id, Rank: rank, Ranks: ranks, Sequences: 5}
				first := h.room()
				last := first + uint64(4*max(ranks, 1))
				if last > math.MaxInt64 || first%uint64(max(ranks, 1)) != uint64(rank) {
					t.Errorf("id %d, rank %d of %d: rooms %d to %d", id, rank, ranks, first, last)
				}
			}
		}
	}
}

func FuzzContextAnswer(f *testing.F) {
	f.Add([]byte(`{"choices":[{"finish_reason":"length","disaggregated_params":{"ctx_request_id":7}}],"usage":{}}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		h := Handover{API: scan.Completions}
		if err := (TRTLLM{}).Receive(&h, answer); err == nil && !json.Valid(h.params) {
			t.Errorf("%q is no JSON", h.params)
		}
		if (Mooncake{}).Learn(&h, answer) == nil && !json.Valid(h.facts) {
			t.Errorf("%q is no JSON", h.facts)
		}
		if (TRTLLMGeneration{}).Learn(&h, answer) == nil && !json.Valid([]byte(`{"a":1`+string(h.facts)+`}`)) {
			t.Errorf("%q is no part of an object", h.facts)
		}
	})
}
