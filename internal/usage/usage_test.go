package usage

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// documents returns the JSON documents of a recorded answer: its body, or the data of each event.
func documents(t *testing.T, name string) (docs [][]byte) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	body := bytes.ReplaceAll(raw, []byte("\r\n"), []byte("\n"))
	if i := bytes.Index(body, []byte("\n\n")); bytes.HasPrefix(body, []byte("HTTP/")) {
		body = body[i+2:]
	}
	for _, line := range bytes.Split(body, []byte("\n")) {
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			docs = append(docs, data)
		} else if bytes.HasPrefix(line, []byte("{")) {
			docs = append(docs, line)
		}
	}
	return docs
}

func counts(prompt, completion, cached int64) Counts {
	c := Counts{Prompt: prompt, Completion: completion, HasPrompt: true, HasCompletion: completion >= 0}
	if completion < 0 {
		c.Completion = 0
	}
	if cached >= 0 {
		c.Cached, c.HasCached = cached, true
	}
	return c
}

func TestRecordedAnswers(t *testing.T) {
	for name, want := range map[string]Counts{
		"llama_chat2_repeat.http":      counts(78, 8, 77),
		"llama_chat_stream.http":       counts(78, 4, 77),
		"llama_completion.http":        counts(3, 4, 0),
		"llama_embeddings.http":        counts(5, -1, -1),
		"llama_messages.http":          counts(16, 4, 15),
		"llama_messages_stream.http":   counts(16, 3, 15),
		"llama_native_completion.http": counts(3, 4, 2),
		"llama_responses.http":         counts(16, 4, 15),
		"llama_responses_stream.http":  counts(16, 3, 15),
		"vllm_chat.json":               counts(103, 8, 0),
		"vllm_chat_stream.http":        counts(17, 4, 0),
	} {
		var got Counts
		any := false
		for _, doc := range documents(t, name) {
			any = Merge(doc, &got) || any
		}
		if got.Total, got.HasTotal = 0, false; !any || got != want {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

func TestTotal(t *testing.T) {
	for doc, want := range map[string]Counts{
		`{"usage":{"total_tokens":30}}`:                   {Total: 30, HasTotal: true},
		`{"usage":{"prompt_tokens":9,"total_tokens":30}}`: {Prompt: 9, HasPrompt: true, Total: 30, HasTotal: true},
		`{"usage":{"total_tokens":-1}}`:                   {}, `{"usage":{"total_tokens":null}}`: {},
	} {
		var got Counts
		if any := Merge([]byte(doc), &got); got != want || any != want.HasTotal {
			t.Errorf("%s: %+v, %v", doc, got, any)
		}
	}
}

func TestSpellings(t *testing.T) {
	for doc, want := range map[string]Counts{
		`{"usage":{"prompt_tokens":9,"completion_tokens":2}}`:                                                                  counts(9, 2, -1),
		`{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}}`:                                     counts(9, 2, -1),
		`{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":null}}}`:                   counts(9, 2, -1),
		`{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8.0}}}`:                    counts(9, 2, 8),
		`{"usage":{"input_tokens":5,"output_tokens":1,"cache_read_input_tokens":7,"cache_creation_input_tokens":11}}`:          counts(23, 1, 7),
		`{"usage":{"input_tokens":5,"output_tokens":1,"cache_read_input_tokens":null,"cache_creation_input_tokens":null}}`:     counts(5, 1, -1),
		`{"type":"response.completed","response":{"usage":{"input_tokens":5,"output_tokens":1,"input_tokens_details":null}}}`:  counts(5, 1, -1),
		`{"usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":500}}}`:                   counts(10, 2, 10),
		`{"timings":{"cache_n":4,"prompt_n":6,"predicted_n":2}}`:                                                               counts(10, 2, 4),
		`{"timings":{"prompt_n":6,"predicted_n":2}}`:                                                                           counts(6, 2, -1),
		`{"timings":{"cache_n":4,"prompt_n":6,"predicted_n":2},"usage":{"prompt_tokens":11,"completion_tokens":3}}`:            counts(11, 3, 4),
		`{"usage":{"prompt_tokens":1,"completion_tokens":1},"usage":{"prompt_tokens":9,"completion_tokens":2}}`:                counts(9, 2, -1),
		`{"\u0075sage":{"prompt_tokens":1},"usage":{"prompt_tokens":9,"completion_tokens":2}}`:                                 counts(9, 2, -1),
		`{"usage":{"prompt_tokens":9,"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":1}},"choices":[1]}`: counts(9, 2, -1),
	} {
		var got Counts
		if !Merge([]byte(doc), &got) || got != want {
			t.Errorf("%s: got %+v, want %+v", doc, got, want)
		}
	}
}

func TestNoEvidence(t *testing.T) {
	for _, doc := range []string{
		``, `null`, `[]`, `[DONE]`, `"usage"`, `{"usage":null}`, `{"usage":[1]}`, `{"usage":{}}`, `{"timings":3}`,
		`{"response":null,"usage":7}`,
		`{"usage":{"prompt_tokens":-1,"completion_tokens":"2"}}`, `{"usage":{"prompt_tokens":1.5}}`,
		`{"usage":{"prompt_tokens":9}`, `{"usage":{"prompt_tokens":9}} x`, `{"a":{"usage":{"prompt_tokens":9}}}`,
		`{"choices":[{"delta":{"content":"\"usage\":{\"prompt_tokens\":9}"}}]}`,
	} {
		got := counts(1, 2, 3)
		if Merge([]byte(doc), &got) || got != counts(1, 2, 3) {
			t.Errorf("%s: got %+v", doc, got)
		}
	}
}

func TestLaterEventsWin(t *testing.T) {
	var got Counts
	for _, doc := range []string{
		`{"type":"message_start","message":{"usage":{"input_tokens":5,"cache_read_input_tokens":20,"cache_creation_input_tokens":0,"output_tokens":1}}}`,
		`{"type":"message_delta","usage":{"input_tokens":5,"output_tokens":40}}`,
	} {
		Merge([]byte(doc), &got)
	}
	if got != counts(25, 40, 20) {
		t.Errorf("got %+v", got)
	}
}

func TestChoicesEmpty(t *testing.T) {
	for doc, want := range map[string]bool{
		`{"choices":[],"usage":{}}`: true, `{"usage":{},"choices": [ ] }`: true, `{"choices":[{"index":0}]}`: false,
		`{"choices":null}`:     false,
		`{"a":{"choices":[]}}`: false, `{"choices":[]`: false, `[]`: false, ``: false, `{"x":"\"choices\":[]"}`: false,
	} {
		if got := ChoicesEmpty([]byte(doc)); got != want {
			t.Errorf("%s: %v", doc, got)
		}
	}
}

func TestBlank(t *testing.T) {
	for doc, want := range map[string]string{
		`{"choices":[{"usage":1}],"usage":{"a":[1]},"x":2}`: `{"choices":[{"usage":1}],"x":2}`,
		`{"usage":null,"x":"\"usage\":1,"}`:                 `{"x":"\"usage\":1,"}`,
		` { "x" : 1 , "usage" : {} } `:                      `{"x":1}`, `{"usage":{}}`: `{}`,
		`{"usage":1,"usage":2,"x":3,"usage":4}`: `{"x":3}`, `{"us\u0061ge":1,"x":3}`: `{"x":3}`, `{}`: `{}`,
		`[1]`: `[1]`,
	} {
		got := []byte(doc)
		Blank(got)
		var tight bytes.Buffer
		if err := json.Compact(&tight, got); err != nil || tight.String() != want || len(got) != len(doc) {
			t.Errorf("%s: %s, %v", doc, got, err)
		}
	}
}

func TestResponseID(t *testing.T) {
	for doc, want := range map[string]string{
		`{"id":"resp_1","object":"response"}`: "resp_1", `{"output":[{"id":"msg_1"}],"id":"resp_2"}`: "resp_2",
		`{"type":"response.created","response":{"object":"response","id":"resp_3"}}`: "resp_3",
		`{"type":"response.created","response":{"id":"r-4"}}`:                        "r-4",
		`{"id":"chatcmpl-1"}`: "", `{"id":"chatcmpl-1","x":"resp_"}`: "", `{"response":{"id":null}}`: "",
		`{"id":"resp_1"`: "", `{"id":"resp_\u0031"}`: "", `{"item":{"id":"resp_1"}}`: "", `[DONE]`: "",
	} {
		if got := ResponseID([]byte(doc)); string(got) != want {
			t.Errorf("%s: %q", doc, got)
		}
	}
	for _, name := range []string{"llama_responses.http", "llama_responses_stream.http"} {
		if id := ResponseID(documents(t, name)[0]); !bytes.HasPrefix(id, []byte("resp_")) || len(id) != 37 {
			t.Errorf("%s: %q", name, id)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	whole, events := documents(t, "vllm_chat.json")[0], documents(t, "llama_responses_stream.http")
	var c Counts
	if n := testing.AllocsPerRun(50, func() {
		Merge(whole, &c)
		for _, e := range events {
			Merge(e, &c)
			ChoicesEmpty(e)
			Blank(e)
			ResponseID(e)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":1}},"timings":{"cache_n":4}}`))
	f.Add([]byte(`{"message":{"usage":{"input_tokens":5,"cache_read_input_tokens":20}},"choices":[],"id":"resp_1"}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		var c Counts
		got := Merge(doc, &c)
		if got != (c != Counts{}) || c.Prompt < 0 || c.Completion < 0 || c.Cached < 0 {
			t.Errorf("%q: %v %+v", doc, got, c)
		}
		ChoicesEmpty(doc)
		ResponseID(doc)
		if got {
			after := slices.Clone(doc)
			Blank(after)
			var was, is map[string]any
			if json.Unmarshal(doc, &was) != nil {
				return
			}
			delete(was, "usage")
			if err := json.Unmarshal(after, &is); err != nil || !reflect.DeepEqual(is, was) {
				t.Errorf("%q became %q: %v", doc, after, err)
			}
		}
	})
}

func BenchmarkMergeWithoutUsage(b *testing.B) {
	doc := []byte(`{"id":"chatcmpl-850760ed4c95caa5","object":"chat.completion.chunk","created":1795244673,"model":"tiny","choices":[{"index":0,"delta":{"content":" because"},"logprobs":null,"finish_reason":null,"token_ids":null}]}`)
	b.SetBytes(int64(len(doc)))
	var c Counts
	for b.Loop() {
		Merge(doc, &c)
	}
}

func BenchmarkMergeWholeAnswer(b *testing.B) {
	doc := []byte(`{"choices":[{"message":{"content":"` + strings.Repeat("word ", 400) +
		`"}}],"usage":{"prompt_tokens":9,"completion_tokens":400,"prompt_tokens_details":{"cached_tokens":1}}}`)
	b.SetBytes(int64(len(doc)))
	var c Counts
	for b.Loop() {
		Merge(doc, &c)
	}
}
