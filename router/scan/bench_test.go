package scan

import (
	"strings"
	"testing"
)

const paragraph = `The \"router\" keeps the cache and the cache keeps the router because the worker is often away.\nThe engine would never ask the model for it again; größer, 日本.\n`

// chatBody is a conversation of about size bytes as openai-python writes it: messages, model, then tools.
func chatBody(size int) []byte {
	turn := `{"role": "user", "content": "` + strings.Repeat(paragraph, 4) + `"}, {"role": "assistant", "content": "` + strings.Repeat(paragraph, 4) + `"}`
	turns := make([]string, max(1, size/len(turn)))
	for i := range turns {
		turns[i] = turn
	}
	return []byte(`{"messages": [{"role": "system", "content": "Be brief."}, ` + strings.Join(turns, ", ") +
		`], "model": "qwen", "max_tokens": 64, "stream": true, "tools": [{"type": "function", "function": {"name": "f", "description": "Looks it up.", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}}]}`)
}

func TestNoAllocation(t *testing.T) {
	bodies := map[API][]byte{
		Chat:        chatBody(220 << 10),
		Completions: []byte(`{"model":"m","prompt":[[1,2],[3.0]]}`),
		Responses:   []byte(`{"input":"hi","instructions":"be","mod\u0065l":"m\u006f"}`),
	}
	for _, c := range canonicalCases {
		if c.api == Messages || c.api == Embeddings {
			bodies[c.api] = []byte(`{` + c.members + `,"model":"m"}`)
		}
	}
	image := []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image\/png;base64,` + strings.Repeat("iVBORw0K", 20000) + `"}}]}]}`)
	var r Request
	var edits []Edit
	var parts [][]byte
	name := []byte("alias")
	run := func(api API, body []byte) {
		r.Reset()
		if err := Scan(api, body, &r); err != nil {
			t.Fatal(err)
		}
		edits = r.EditIncludeUsage(r.EditModel(edits[:0], name))
		parts = Splice(parts[:0], body, edits)
	}
	for api, body := range bodies {
		run(api, body)
		if n := testing.AllocsPerRun(20, func() { run(api, body) }); n != 0 {
			t.Errorf("%v: %v allocations", api, n)
		}
	}
	run(Chat, image)
	if n := testing.AllocsPerRun(20, func() { run(Chat, image) }); n != 0 {
		t.Errorf("image: %v allocations", n)
	}
}

func TestNoAllocationMultipart(t *testing.T) {
	contentType, body := form(t, [][2]string{{"model", "whisper"}, {"stream", "true"}}, make([]byte, 100<<10))
	head := []byte(contentType)
	var r Request
	if n := testing.AllocsPerRun(20, func() {
		r.Reset()
		if err := ScanMultipart(head, body, &r); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func benchmarkScan(b *testing.B, body []byte) {
	var r Request
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r.Reset()
		if err := Scan(Chat, body, &r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkScanChat2KB(b *testing.B)   { benchmarkScan(b, chatBody(2<<10)) }
func BenchmarkScanChat220KB(b *testing.B) { benchmarkScan(b, chatBody(220<<10)) }
