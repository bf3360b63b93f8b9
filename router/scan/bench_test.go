package scan

import (
	"bytes"
	"strings"
	"testing"
)

const paragraph = `The \"router\" keeps the cache and the cache keeps the router because the worker is often ` +
	`away.\nThe engine would never ask the model for it again; größer, 日本.\n`

// chatBody is a conversation of about size bytes in openai-python's form: messages, model, then
// tools.
func chatBody(size int) []byte {
	turn := `{"role": "user", "content": "` + strings.Repeat(paragraph, 4) + `"}, {"role": "assistant", ` +
		`"content": "` + strings.Repeat(paragraph, 4) + `"}`
	turns := make([]string, max(1, size/len(turn)))
	for i := range turns {
		turns[i] = turn
	}
	return []byte(`{"messages": [{"role": "system", "content": "Be brief."}, ` + strings.Join(turns, ", ") +
		`], "model": "qwen", "max_tokens": 64, "stream": true, "tools": [{"type": "function", ` +
		`"function": {"name": "f", "description": "Looks it up.", ` +
		`"parameters": {"type": "object", "properties": {"q": {"type": "string"}}, ` +
		`"required": ["q"]}}}]}`)
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
	image := []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":` +
		`"data:image\/png;base64,` + strings.Repeat("iVBORw0K", 20000) + `"}}]}]}`)
	var r Request
	var edits Edits
	var parts [][]byte
	run := func(api API, body []byte) {
		r.Reset()
		if err := Scan(api, body, &r); err != nil {
			t.Fatal(err)
		}
		edits.Reset(&r, body)
		edits.Model("alias")
		edits.IncludeUsage()
		parts = edits.Segments(parts[:0])
		edits.Reset(&r, body)
		prefillEdits(&edits)
		parts = edits.Segments(parts[:0])
		if osl := r.Find(body, "nvext", "agent_hints", "osl"); edits.Err() != nil || osl != nil {
			t.Fatal(edits.Err(), osl)
		}
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

// prefillEdits makes the edits of a request's prefill leg.
func prefillEdits(e *Edits) {
	e.Model("alias")
	e.Set("stream", falseValue)
	e.Set("max_tokens", one)
	e.Replace("max_completion_tokens", one)
	e.Remove("stream_options")
	e.Remove("min_tokens")
	e.Remove("stop")
	e.Set("kv_transfer_params", transfer)
}

var (
	one      = []byte("1")
	transfer = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null}`)
)

// BenchmarkEdits makes the segments of a body with a stream's edits, and with a prefill leg's.
func BenchmarkEdits(b *testing.B) {
	for name, body := range map[string][]byte{"2KB": chatBody(2 << 10), "220KB": chatBody(220 << 10)} {
		var r Request
		if err := Scan(Chat, body, &r); err != nil {
			b.Fatal(err)
		}
		edit := func(b *testing.B, ask func(*Edits)) {
			var e Edits
			var parts [][]byte
			b.ReportAllocs()
			for b.Loop() {
				r.index.state = notIndexed
				e.Reset(&r, body)
				ask(&e)
				parts = e.Segments(parts[:0])
			}
		}
		b.Run(name+"/stream", func(b *testing.B) { edit(b, func(e *Edits) { e.Model("alias"); e.IncludeUsage() }) })
		b.Run(name+"/prefill", func(b *testing.B) { edit(b, prefillEdits) })
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

// BenchmarkMemo scans a conversation whose first nine tenths were seen before.
func BenchmarkMemo(b *testing.B) {
	body := chatBody(220 << 10)
	turns := bytes.Index(body, []byte(`], "model"`))
	at := bytes.Index(body[turns*9/10:], []byte(`{"role": "user"`)) + turns*9/10
	m := NewMemo(8 << 20)
	var r Request
	if err := m.Scan(Chat, body, &r); err != nil {
		b.Fatal(err)
	}
	m.Keep(&r)
	seen := append(append([]byte{}, body[:at]...), `{"role":"user",`+
		`"content":"other"}`+string(body[at:])[bytes.IndexByte(body[at:], '}')+1:]...)
	b.SetBytes(int64(len(seen)))
	b.ReportAllocs()
	for b.Loop() {
		r.Reset()
		if err := m.Scan(Chat, seen, &r); err != nil || r.Skipped < len(seen)/2 {
			b.Fatal(err, r.Skipped)
		}
	}
}
