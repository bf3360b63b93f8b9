package resume

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/residue"
	"github.com/cognitora/dataplane/internal/room"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/scan"
)

// These are chunks of vLLM 0.32, with and without ids.
const (
	chatHead = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795816813,"model":"tiny",`
	roleOf   = chatHead + `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,` +
		`"finish_reason":null}],"prompt_token_ids":%s,"prompt_text":null}`
	tokenOf = chatHead + `"choices":[{"index":0,"delta":{"content":%s},"logprobs":null,"finish_reason":null,` +
		`"token_ids":%s}]}`
	lastOf = chatHead + `"choices":[{"index":0,"delta":{"content":%s},"logprobs":null,"finish_reason":"length",` +
		`"stop_reason":null,"token_ids":%s}]}`
	usageOf = chatHead + `"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,` +
		`"prompt_tokens_details":{"cached_tokens":%d,"created_cache_tokens":0}},"system_fingerprint":"vllm-0.32.0"}`
	textOf = `{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[{"index":0,"text":%s,` +
		`"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":%s,"token_ids":%s}]}`
)

// event returns an event with data, as package sse reports it.
func event(data string) sse.Event {
	raw := []byte("data: " + data + "\n\n")
	return sse.Event{Data: raw[6 : 6+len(data)], Raw: raw}
}

func begun(t testing.TB, a Asked, byText bool) *Stream {
	t.Helper()
	s := new(Stream)
	if !s.Begin(a, 100, room.New(1<<20), byText) {
		t.Fatal("no room")
	}
	return s
}

// feed passes chunks of the first leg and returns what the client gets.
func feed(s *Stream, chunks ...string) string {
	var out []byte
	for _, c := range chunks {
		out = s.First(event(c), out)
	}
	return string(out)
}

func streamOf(chunks ...string) string {
	var b strings.Builder
	for _, c := range chunks {
		b.WriteString("data: " + c + "\n\n")
	}
	return b.String()
}

// TestIDsAreTakenOut checks that the client sees what an engine sends that was not asked for ids.
func TestIDsAreTakenOut(t *testing.T) {
	f := fmt.Sprintf
	for name, c := range map[string]struct {
		with, without []string
		ids           []uint32
		text          int
	}{
		"chat": {
			[]string{f(roleOf, "[1,952,201]"), f(tokenOf, `" a"`, "[596]"), f(tokenOf, `"\u0005\""`, "[196]"),
				f(tokenOf, `"b\\"`, "[7]"), f(tokenOf, `"c"`, "[8,9]"), f(lastOf, `"d"`, "[229]"),
				f(usageOf, 3, 9, 6, 0)},
			[]string{f(roleOf, "null"), f(tokenOf, `" a"`, "null"), f(tokenOf, `"\u0005\""`, "null"),
				f(tokenOf, `"b\\"`, "null"), f(tokenOf, `"c"`, "null"), f(lastOf, `"d"`, "null"),
				f(usageOf, 3, 9, 6, 0)},
			[]uint32{1, 952, 201, 596, 196, 7, 8, 9, 229}, 3,
		},
		"completion": {
			[]string{f(textOf, `" a"`, "[1,4294967295]", "[3]"), f(textOf, `"b"`, "null", "[4]"),
				f(textOf, `""`, "null", "[5]")},
			[]string{f(textOf, `" a"`, "null", "null"), f(textOf, `"b"`, "null", "null"),
				f(textOf, `""`, "null", "null")},
			[]uint32{1, 1<<32 - 1, 3, 4, 5}, 2,
		},
		"chunks for ids only": {
			[]string{f(roleOf, "[1]"), strings.Replace(f(tokenOf, `""`, "[2]"), `"content":""`, "", 1),
				f(tokenOf, `"x"`, "[3]")},
			[]string{f(roleOf, "null"), f(tokenOf, `"x"`, "null")},
			[]uint32{1, 2, 3}, 1,
		},
	} {
		s := begun(t, Asked{}, false)
		got, want := feed(s, c.with...), streamOf(c.without...)
		if got != want || !slices.Equal(s.ids, c.ids) || s.prompt != c.text {
			t.Errorf("%s: ids %v, %d of the prompt, lost: %v\n%s\n%s", name, s.ids, s.prompt, s.Lost(), got, want)
		}
		asked := begun(t, Asked{IDs: true}, false)
		if got, want := feed(asked, c.with...), streamOf(c.with...); got != want || !slices.Equal(asked.ids, c.ids) {
			t.Errorf("%s, for a client that asked: ids %v\n%s", name, asked.ids, got)
		}
	}
}

// TestHow checks which way is open after which chunks.
func TestHow(t *testing.T) {
	f := fmt.Sprintf
	role, word := f(roleOf, "[1,2]"), f(tokenOf, `"a"`, "[3]")
	reasoning := strings.Replace(word, "content", "reasoning", 1)
	tool := strings.Replace(word, `"content":"a"`, `"tool_calls":[{"index":0}]`, 1)
	for name, c := range map[string]struct {
		chunks []string
		text   bool
		by     By
		why    Why
	}{
		"nothing":          {nil, false, Start, Possible},
		"role":             {[]string{role}, false, Start, Possible},
		"token":            {[]string{role, word}, false, IDs, Possible},
		"held back":        {[]string{role, f(tokenOf, `""`, "[3]")}, false, Start, Possible},
		"end":              {[]string{role, word, f(lastOf, `"b"`, "[4]")}, false, End, Possible},
		"tool":             {[]string{role, word, tool}, true, None, Tool},
		"reasoning":        {[]string{role, reasoning}, true, None, Reasoning},
		"behind reasoning": {[]string{role, reasoning, word}, true, IDs, Possible},
		"reasoning without ids": {[]string{f(roleOf, "null"), strings.Replace(reasoning, "[3]", "null", 1),
			f(tokenOf, `"a"`, "null")}, true, None, Unknown},
		"no ids":                 {[]string{f(roleOf, "null"), f(tokenOf, `"a"`, "null")}, false, None, Unknown},
		"no ids, but text":       {[]string{f(roleOf, "null"), f(tokenOf, `"a"`, "null")}, true, Text, Possible},
		"one id missing":         {[]string{role, word, f(tokenOf, `"b"`, "null")}, false, None, Unknown},
		"no prompt":              {[]string{f(roleOf, "null"), word}, false, None, Unknown},
		"another choice":         {[]string{role, strings.Replace(word, `"index":0`, `"index":1`, 1)}, true, None, Unread},
		"no chunk":               {[]string{role, `{"x":1}`}, true, None, Unread},
		"an id that is too long": {[]string{role, f(tokenOf, `"a"`, "[4294967296]")}, true, None, Unread},
		"a fraction":             {[]string{role, f(tokenOf, `"a"`, "[1.5]")}, true, None, Unread},
	} {
		s := begun(t, Asked{}, c.text)
		feed(s, c.chunks...)
		if by, why := s.How(); by != c.by || why != c.why {
			t.Errorf("%s: %v, %q", name, by, why)
		}
	}
}

// TestFormsHaveNothingOfAStream checks that the number of forms does not grow with that of streams.
func TestFormsHaveNothingOfAStream(t *testing.T) {
	was := forms.all.Load()
	forms.all.Store(nil)
	defer forms.all.Store(was)
	f := fmt.Sprintf
	for i := range 2 * maxForms {
		for _, tail := range []string{
			f(`"system_fingerprint":"b-%d"}`, i), f(`"trace": "t-%d"}`, i), f(`"sent":%d}`, 1<<20+i),
			f(`"tags":["t-%d"]}`, i),
		} {
			s := begun(t, Asked{}, true)
			feed(s, chatHead+`"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],`+tail)
			if s.form != nil || s.Lost() != Possible {
				t.Fatalf("%s: %v", tail, s.Lost())
			}
		}
	}
	s := begun(t, Asked{}, false)
	if feed(s, f(roleOf, "[1]"), f(tokenOf, `"a"`, "[3]")); s.form == nil || len(*forms.all.Load()) != 1 {
		t.Errorf("the usual chunk has no form")
	}
}

// TestFullFormsTakeNoLock checks that a chunk of an unknown form waits for no other stream once no
// form can be added.
func TestFullFormsTakeNoLock(t *testing.T) {
	was := forms.all.Load()
	full := make([]*form, maxForms)
	for i := range full {
		full[i] = new(form)
	}
	forms.all.Store(&full)
	defer forms.all.Store(was)
	forms.adding.Lock()
	defer forms.adding.Unlock()
	s := begun(t, Asked{}, false)
	word := fmt.Sprintf(tokenOf, `"a"`, "[3]")
	if feed(s, fmt.Sprintf(roleOf, "[1]"), word, word); s.form != nil || len(s.ids) != 3 {
		t.Errorf("form %v, ids %v", s.form, s.ids)
	}
}

// TestLostStreamsPassUnread checks that the chunks of an engine without ids pass as they are.
func TestLostStreamsPassUnread(t *testing.T) {
	f := fmt.Sprintf
	s := begun(t, Asked{}, false)
	if feed(s, f(roleOf, "null"), f(tokenOf, `"a"`, "null")); s.Lost() != Unknown || s.form != nil {
		t.Fatalf("%v, form %v", s.Lost(), s.form)
	}
	rest := []string{"no chunk", f(tokenOf, `"b"`, "null")}
	if got, want := feed(s, rest...), streamOf(rest...); got != want {
		t.Errorf("%s\n%s", got, want)
	}
	s = begun(t, Asked{}, false)
	feed(s, f(roleOf, "[1]"), f(tokenOf, `"a"`, "null")) // ids may follow
	if got, want := feed(s, f(tokenOf, `"b"`, "[3]")), streamOf(f(tokenOf, `"b"`, "null")); got != want {
		t.Errorf("%s\n%s", got, want)
	}
}

// TestMemoryIsShared checks the bound on all streams together, and that it is given back.
func TestMemoryIsShared(t *testing.T) {
	m := room.New(4096)
	a, b := new(Stream), new(Stream)
	if !a.Begin(Asked{}, 1000, m, false) || b.Begin(Asked{}, 3500, m, false) || !b.Begin(Asked{}, 1500, m, false) {
		t.Fatal("bodies do not count")
	}
	word := fmt.Sprintf(tokenOf, `"a"`, "[3]")
	feed(a, fmt.Sprintf(roleOf, "[1]"))
	for range 500 {
		feed(a, word)
	}
	if a.Lost() != Full || m.Used() > 4096 {
		t.Errorf("%v with %d bytes", a.Lost(), m.Used())
	}
	if got := feed(a, word); !strings.Contains(got, `"token_ids":null`) {
		t.Errorf("the client sees %s", got)
	}
	a.Free()
	b.Reset()
	a.Reset()
	if m.Used() != 0 {
		t.Errorf("%d bytes are not given back", m.Used())
	}
}

// TestMemoryOfContinuations checks that the body of a further leg, and the text at its seam, count.
func TestMemoryOfContinuations(t *testing.T) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"stop":"` + strings.Repeat("s", 100) + `"}`)
	var r scan.Request
	if err := scan.Scan(scan.Chat, body, &r); err != nil {
		t.Fatal(err)
	}
	for _, by := range []By{IDs, Text} {
		const limit = 1 << 16
		m, s, c := room.New(limit), new(Stream), new(Continuation)
		s.Begin(Asked{API: scan.Chat, Holdback: 99}, len(body), m, true)
		feed(s, fmt.Sprintf(roleOf, "[1,22]"), fmt.Sprintf(tokenOf, `"abc"`, "[333]"))
		before := m.Used()
		if err := s.Cross(by, &r, body, []byte("d"), 0); err != nil || m.Used() < before+2*99 {
			t.Errorf("%v: %v, %d bytes after %d", by, err, m.Used(), before)
		}
		before = m.Used()
		for range 2 { // the second value takes the place of the first
			if !c.Make(s, &r, body) || m.Used() != before+int64(cap(c.value)) || len(c.value) != cap(c.value) {
				t.Errorf("%v: %d bytes after %d for %s", by, m.Used(), before, c.value)
			}
		}
		rest := limit - m.Used()
		m.Take(rest)
		if c := new(Continuation); c.Make(s, &r, body) || s.Lost() != Full || c.value != nil {
			t.Errorf("%v without room: %v", by, s.Lost())
		}
		m.Give(rest)
		if s.Reset(); m.Used() != 0 {
			t.Errorf("%v: %d bytes are not given back", by, m.Used())
		}
	}
	m, s := room.New(1<<16), new(Stream)
	s.Begin(Asked{API: scan.Chat, Holdback: 99}, len(body), m, false)
	feed(s, fmt.Sprintf(roleOf, "[1,22]"), fmt.Sprintf(tokenOf, `"abc"`, "[333]"))
	m.Take(1<<16 - m.Used())
	if err := s.Cross(IDs, &r, body, nil, 0); err == nil || s.Lost() != Full {
		t.Errorf("a seam without room: %v, %v", err, s.Lost())
	}
}

// TestStopsThatHoldNothingBack checks that a stop string of one character changes nothing: the last
// token of an answer, which is half a character, is generated again.
func TestStopsThatHoldNothingBack(t *testing.T) {
	f := fmt.Sprintf
	for stop, left := range map[string]bool{
		`null`: true, `""`: true, `[""]`: true, `"\n"`: true, `["\n"]`: true, `["é",""]`: true,
		`"\n\n"`: false, `["\n","éa"]`: false,
	} {
		body := []byte(f(`{"model":"m","messages":[],"max_tokens":3,"stop":%s}`, stop))
		var r scan.Request
		if err := scan.Scan(scan.Chat, body, &r); err != nil {
			t.Fatal(err)
		}
		a, obstacle := Read(&r, body, scan.Chat)
		s := begun(t, a, false)
		feed(s, f(roleOf, "[1,2]"), f(tokenOf, `"a"`, "[3]"), f(tokenOf, `"b"`, "[4]"), f(tokenOf, `""`, "[5]"))
		if got := s.Left(&r, body); obstacle != "" || got != left || s.Lacks() == left || s.texts == left {
			t.Errorf("stop %s: a token is left: %v; %q, %+v", stop, got, obstacle, a)
		}
	}
}

// later continues a stream of three tokens by way of by.
func later(t *testing.T, a Asked, body string, by By) *Stream {
	t.Helper()
	f := fmt.Sprintf
	s := begun(t, a, true)
	if feed(s, f(roleOf, "[1,2]")); by != Start {
		feed(s, f(tokenOf, `"a"`, "[3]"), f(tokenOf, `"b"`, "[4]"), f(tokenOf, `""`, "[5]"))
	}
	cross(t, s, body, by)
	return s
}

func cross(t *testing.T, s *Stream, body string, by By) {
	t.Helper()
	var r scan.Request
	if err := scan.Scan(scan.Chat, []byte(body), &r); err != nil {
		t.Fatal(err)
	}
	if got, why := s.How(); got != by && by != Text {
		t.Fatalf("%v, %v", got, why)
	}
	if err := s.Cross(by, &r, []byte(body), nil, 0); err != nil {
		t.Fatal(err)
	}
}

const plainBody = `{"model":"m","messages":[]}`

// TestOneStream checks that the chunks of the second engine become chunks of the client's stream.
func TestOneStream(t *testing.T) {
	f := fmt.Sprintf
	s := later(t, Asked{Usage: true}, plainBody, IDs)
	other := func(c string) string {
		return strings.Replace(strings.Replace(c, "chatcmpl-1", "chatcmpl-2", 1), "1795816813", "1795816999", 1)
	}
	var out []byte
	for _, c := range []string{
		f(roleOf, "[1,2,3,4]"), f(tokenOf, `"c"`, "[5]"), f(lastOf, `"d"`, "[6]"), f(usageOf, 4, 6, 2, 3),
	} {
		var v Verdict
		if out, v = s.Later(event(other(c)), out); v != GoOn {
			t.Fatalf("%v at %s", v, c)
		}
	}
	want := streamOf(f(tokenOf, `"c"`, "null"), f(lastOf, `"d"`, "null"), f(usageOf, 2, 6, 4, 2))
	if string(out) != want || !slices.Equal(s.ids, []uint32{1, 2, 3, 4, 5, 6}) {
		t.Errorf("ids %v\n%s\n%s", s.ids, out, want)
	}
	if by, _ := s.How(); by != End || s.Tokens() != 4 {
		t.Errorf("%v, %d tokens", by, s.Tokens())
	}
}

// TestOtherPromptIsNoContinuation checks that nothing is shown of an engine that begins elsewhere.
func TestOtherPromptIsNoContinuation(t *testing.T) {
	f := fmt.Sprintf
	for _, first := range []string{
		f(roleOf, "[1,2,3]"), f(roleOf, "[1,2,3,4,5]"), f(roleOf, "[1,2,3,5]"), f(roleOf, "[]"),
		f(tokenOf, `"c"`, "[5]"),
		`{"x":1}`,
	} {
		s := later(t, Asked{}, plainBody, IDs)
		if out, v := s.Later(event(first), nil); v != Wrong || len(out) > 0 {
			t.Errorf("%s: %v, %s", first, v, out)
		}
		if by, _ := s.How(); by != Text { // the engine may still go on by text
			t.Errorf("%s: then by %v", first, by)
		}
	}
	s := later(t, Asked{}, plainBody, IDs)
	out, v := s.Later(event(f(roleOf, "null")), nil) // an engine that sends no ids
	if v == GoOn {
		out, v = s.Later(event(f(tokenOf, `"Once"`, "null")), out)
	}
	if v != Wrong || len(out) > 0 {
		t.Errorf("%v, %s", v, out)
	}
}

// TestRoles checks that the client gets no second role.
func TestRoles(t *testing.T) {
	for delta, want := range map[string]string{
		`{"role":"assistant","content":null}`:           "",
		`{"role":"assistant","content":""}`:             "",
		`{"role":"assistant","content":"c"}`:            `{"content":"c"}`,
		`{"content":"c","role":"assistant"}`:            `{"content":"c"}`,
		`{"content":"c","role":"assistant","x":null}`:   `{"content":"c","x":null}`,
		`{ "role" : "assistant" , "content" : "c" }`:    `{ "content" : "c" }`,
		`{"reasoning":null,"role":"assistant"}`:         "",
		`{"content":"c","tool_calls":[],"role":"user"}`: `{"content":"c","tool_calls":[]}`,
	} {
		s := later(t, Asked{}, plainBody, Text)
		chunk := chatHead + `"choices":[{"index":0,"delta":` + delta + `,"finish_reason":null}]}`
		shown := ""
		if want != "" {
			shown = streamOf(chatHead + `"choices":[{"index":0,"delta":` + want + `,"finish_reason":null}]}`)
		}
		if out, v := s.Later(event(chunk), nil); string(out) != shown || v != GoOn {
			t.Errorf("%s: %v\n%s\n%s", delta, v, out, shown)
		}
	}
}

// TestClose checks the end that the router writes itself.
func TestClose(t *testing.T) {
	f := fmt.Sprintf
	s := begun(t, Asked{Usage: true}, false)
	feed(s, f(roleOf, "[1,2]"), f(tokenOf, `"a"`, "[3]"), f(lastOf, `"b"`, "[4]"))
	want := streamOf(chatHead+`"choices":[],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2}}`,
		"[DONE]")
	if got := string(s.Close(nil)); got != want {
		t.Errorf("%s\n%s", got, want)
	}
	feed(s, f(usageOf, 2, 4, 2, 0))
	if got := string(s.Close(nil)); got != "data: [DONE]\n\n" {
		t.Errorf("a second usage: %s", got)
	}
}

// TestNoUsageOfALostStream checks that a stream that meets a stop string has no usage from the
// router once its ids are no longer kept.
func TestNoUsageOfALostStream(t *testing.T) {
	f := fmt.Sprintf
	for _, freed := range []bool{false, true} {
		s := later(t, Asked{Usage: true, Holdback: 1}, `{"model":"m","messages":[],"stop":"bc"}`, IDs)
		out, _ := s.Later(event(f(roleOf, "[1,2,3,4,5]")), nil)
		if s.lose(Full); freed {
			s.Free()
		}
		if n := s.Tokens(); n < 0 {
			t.Errorf("%d tokens", n)
		}
		if c := s.Counts(); c.Completion < 0 || freed && c.HasPrompt {
			t.Errorf("counts %+v", c)
		}
		word := strings.Replace(f(tokenOf, `"c"`, "[6]"), `"token_ids"`, `"stop_reason":null,"token_ids"`, 1)
		out, v := s.Later(event(word), out)
		if v != Over || strings.Contains(string(out), "usage") || !strings.HasSuffix(string(out), "data: [DONE]\n\n") {
			t.Errorf("%v: %s", v, out)
		}
	}
}

// These are chunks whose names do not stand before their choices, as llama.cpp sends them.
var unnamed = []string{
	`{"choices":[{"index":0,"delta":{"content":"c"},"finish_reason":null}],"created":1,"id":"x","model":"m",` +
		`"object":"chat.completion.chunk"}`,
	`{"id":"x","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"content":"c"},` +
		`"finish_reason":null}],"model":"m"}`,
	`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"c"},` +
		`"finish_reason":null}],"id":"y"}`,
	`{"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"c"},` +
		`"finish_reason":null}]}`,
}

// TestNamesStandBeforeChoices checks that no chunk can lack or repeat what names its stream: an
// engine that writes that elsewhere neither begins nor continues a stream that goes on.
func TestNamesStandBeforeChoices(t *testing.T) {
	for _, c := range unnamed {
		s := begun(t, Asked{}, true)
		if got := feed(s, c); got != streamOf(c) || s.Lost() != Unread {
			t.Errorf("%v: %s", s.Lost(), got)
		}
		for _, by := range []By{Start, Text} {
			s := later(t, Asked{}, plainBody, by)
			if out, v := s.Later(event(c), nil); v != Wrong || len(out) > 0 || s.Lost() != Refused {
				t.Errorf("%v: %v, %v, %s", by, v, s.Lost(), out)
			}
		}
	}
}

// TestNothingIsAllocated: a chunk costs no allocation, whatever its form.
func TestNothingIsAllocated(t *testing.T) {
	f := fmt.Sprintf
	s := begun(t, Asked{}, false)
	feed(s, f(roleOf, "[1,2]"))
	events := []sse.Event{
		event(f(tokenOf, `"a"`, "[3]")), event(f(tokenOf, `"a"`, "[3]")), event(f(tokenOf, `"a\""`, "[3]")),
		event(f(textOf, `"b"`, "null", "[4]")), event(f(usageOf, 2, 4, 2, 0)),
	}
	out := make([]byte, 0, 4096)
	s.ids = slices.Grow(s.ids, 4096)
	if n := testing.AllocsPerRun(100, func() {
		for _, e := range events {
			out = s.First(e, out[:0])
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNothingOutlivesAStream checks that Reset clears every field but memory.
func TestNothingOutlivesAStream(t *testing.T) {
	s := new(Stream)
	residue.Mark(s, []string{"memory"})
	s.Reset()
	if left := residue.Left(s); left != nil {
		t.Errorf("left of a stream: %v", left)
	}
}

// FuzzFirst checks that any chunks leave valid chunks for the client, and that the known form of a
// chunk changes nothing.
func FuzzFirst(f *testing.F) {
	p := fmt.Sprintf
	f.Add(p(tokenOf, `"a"`, "[3]"), p(tokenOf, `"b"`, "[4,5]"))
	f.Add(p(tokenOf, `"a"`, "null"), p(tokenOf, `"\""`, "null"))
	f.Add(p(textOf, `"a"`, "[1]", "[3]"), p(textOf, `"b\\"`, "null", "[4]"))
	f.Add(p(usageOf, 1, 2, 3, 4), `{"choices":[{"delta":{"role":"x","content":"token_ids\":[1]"}}]}`)
	f.Fuzz(func(t *testing.T, one, two string) {
		if strings.ContainsAny(one+two, "\r\n") || one == "" || two == "" {
			return
		}
		known, unknown := begun(t, Asked{}, true), begun(t, Asked{}, true)
		for _, c := range []string{one, two, one, two, two} {
			unknown.form = nil
			a, b := known.First(event(c), nil), unknown.First(event(c), nil)
			if !bytes.Equal(a, b) || !slices.Equal(known.ids, unknown.ids) ||
				string(known.text) != string(unknown.text) {
				t.Fatalf("%q: %q, %q", c, a, b)
			}
			data := bytes.TrimSuffix(bytes.TrimPrefix(a, []byte("data: ")), []byte("\n\n"))
			if len(a) > 0 && json.Valid([]byte(c)) && !json.Valid(data) {
				t.Fatalf("%q became %q", c, data)
			}
		}
		for _, by := range []By{Start, IDs, Text} {
			s := later(t, Asked{Usage: true}, plainBody, by)
			if by == IDs {
				s.checked = true
			}
			s.seam.begin([][]byte{[]byte("ab")}, []byte("a"), []byte("x"))
			for _, c := range []string{one, two} {
				out, _ := s.Later(event(c), nil)
				for part := range bytes.SplitSeq(bytes.TrimSuffix(out, []byte("\n\n")), []byte("\n\n")) {
					data := bytes.TrimPrefix(part, []byte("data: "))
					if len(data) > 0 && string(data) != "[DONE]" && json.Valid([]byte(c)) && !json.Valid(data) {
						t.Fatalf("%q became %q", c, data)
					}
				}
			}
		}
	})
}

// BenchmarkMany reads the chunks of as many streams in turn as a busy router has, whose memory is
// in no cache.
func BenchmarkMany(b *testing.B) {
	for _, n := range []int{512, 8192} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := make([]*Stream, n)
			for i := range all {
				all[i] = begun(b, Asked{}, false)
				feed(all[i], fmt.Sprintf(roleOf, "[1,2]"))
			}
			e, out := event(fmt.Sprintf(tokenOf, `" word"`, "[20201]")), make([]byte, 0, 1024)
			for i := 0; b.Loop(); i++ {
				s := all[i%n]
				if out = s.First(e, out[:0]); len(s.ids) > 200 {
					s.ids = s.ids[:2]
				}
			}
		})
	}
}

func BenchmarkFirst(b *testing.B) {
	for name, last := range map[string]string{"known form": "null", "parsed": `"x"`} {
		b.Run(name, func(b *testing.B) {
			s := begun(b, Asked{}, false)
			feed(s, fmt.Sprintf(roleOf, "[1,2]"))
			chunk := fmt.Sprintf(tokenOf, `" word"`, "[20201]")
			chunk = strings.Replace(chunk, `"logprobs":null`, `"logprobs":`+last, 1)
			e, out := event(chunk), make([]byte, 0, 1024)
			for b.Loop() {
				out = s.First(e, out[:0])
				s.ids = s.ids[:2]
			}
		})
	}
}
