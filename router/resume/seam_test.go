package resume

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cognitora/dataplane/router/scan"
)

func quoted(s string) []byte {
	q, _ := json.Marshal(s)
	return q[1 : len(q)-1]
}

// TestSeam checks each division of a text into what the client has, what it lacks, and new pieces.
func TestSeam(t *testing.T) {
	const text = "the cat sät on \"the\" mat"
	for _, stops := range [][]string{{"cat"}, {"t s", "at s"}, {"\"the\""}, {"ä"}, {"never seen"}, {"on", "n \"t"}} {
		var list [][]byte
		for _, stop := range stops {
			list = append(list, []byte(stop))
		}
		for had := range len(text) {
			for old := had; old < len(text); old++ {
				if !utf8.RuneStart(text[had]) || !utf8.RuneStart(text[old]) {
					continue
				}
				var m seam
				m.begin(list, []byte(text[:had]), []byte(text[had:old]))
				want, reason, end := text[had:], "", len(text)+1
				for _, stop := range stops {
					if i := strings.Index(text, stop); i >= 0 && i < old && i+len(stop) > old && i+len(stop) < end {
						want, reason, end = text[had:max(had, i)], stop, i+len(stop)
					}
				}
				got, stopped := "", ""
				for at, next := old, 0; at < len(text) && stopped == ""; at = next {
					for next = at + 3; next < len(text) && !utf8.RuneStart(text[next]); next++ {
					}
					piece := text[at:min(next, len(text))]
					if !m.open {
						got += piece
						continue
					}
					shown, stop := m.pass(quoted(piece), next >= len(text))
					var said string
					json.Unmarshal([]byte(`"`+string(shown)+`"`), &said)
					json.Unmarshal([]byte(`"`+string(stop)+`"`), &stopped)
					got += said
				}
				if got != want || stopped != reason {
					t.Fatalf("%q, had %d, seam at %d: %q stopped by %q, want %q by %q", stops, had, old, got, stopped,
						want, reason)
				}
			}
		}
	}
}

// holds returns the characters that an engine holds back because of the value of stop.
func holds(stop string) int {
	n, _ := holdback([]byte(stop))
	return n
}

// TestLacking checks which text the client lacks of the tokens that it has.
func TestLacking(t *testing.T) {
	for _, c := range []struct {
		text, whole, stop, lacking string
		drop, ok                   bool
	}{
		{"hello w", "hello world", `"1234é"`, "orld", false, true},
		{"hello w", "ello world", `["x","12345"]`, "orld", false, true}, // the last ids only, or a lost blank
		{"", "abc", `"12345"`, "abc", false, true},
		{"hello w", "hello World", `"12345"`, "orld", false, false},
		{"hello", "hello wo\ufffd", `"12345"`, "", true, true},
		{"größ", "größe 日本", `"1234"`, " 日本", false, false},
		{"größe", "größe 日本", `"1234"`, " 日本", false, true},
	} {
		s := begun(t, Asked{Holdback: holds(c.stop)}, false)
		s.text = append(s.text, quoted(c.text)...)
		lacking, drop, ok := s.Lacking([]byte(c.whole))
		if ok != c.ok || drop != c.drop || ok && string(lacking) != c.lacking {
			t.Errorf("%+v: %q, %v, %v", c, lacking, drop, ok)
		}
	}
}

// edited returns the body of the request that goes on.
func edited(t *testing.T, s *Stream, api scan.API, body string, by By) string {
	t.Helper()
	var r scan.Request
	if err := scan.Scan(api, []byte(body), &r); err != nil {
		t.Fatal(err)
	}
	if err := s.Cross(by, &r, []byte(body), nil, 0); err != nil {
		t.Fatal(err)
	}
	var c Continuation
	var e scan.Edits
	e.Reset(&r, []byte(body))
	if !c.Make(s, &r, []byte(body)) {
		t.Fatal("no room")
	}
	c.Edit(s, &e, &r, []byte(body), true)
	var out []byte
	for _, part := range e.Segments(nil) {
		out = append(out, part...)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(out, &members); err != nil || e.Err() != nil {
		t.Fatalf("%v, %v: %s", err, e.Err(), out)
	}
	if string(members["return_token_ids"]) != "true" {
		t.Errorf("no ids asked: %s", out)
	}
	delete(members, "return_token_ids")
	delete(members, "model")
	out, _ = json.Marshal(members)
	return string(out)
}

func TestBodies(t *testing.T) {
	f := fmt.Sprintf
	stream := func() *Stream {
		s := begun(t, Asked{API: scan.Chat}, true)
		feed(s, f(roleOf, "[1,2]"), f(tokenOf, `"a\n"`, "[3]"), f(tokenOf, `"b"`, "[4]"), f(tokenOf, `""`, "[5]"))
		return s
	}
	for _, c := range []struct {
		body, want string
		by         By
	}{
		{`{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":10,"min_tokens":1}`,
			`{"kv_transfer_params":{"prompt_token_ids":[1,2,3,4]},"max_tokens":8,` +
				`"messages":[{"role":"user","content":"x"}],"min_tokens":0}`, IDs},
		{`{"model":"m","messages":[],"max_completion_tokens":9,"max_tokens":null,"min_tokens":7}`,
			`{"kv_transfer_params":{"prompt_token_ids":[1,2,3,4]},"max_completion_tokens":7,"max_tokens":null,` +
				`"messages":[],"min_tokens":5}`, IDs},
		{`{"model":"m","messages":[{"role":"user","content":"x"}]}`,
			`{"add_generation_prompt":false,"continue_final_message":true,"messages":[` +
				`{"role":"user","content":"x"},{"role":"assistant","content":"a\nb"}]}`, Text},
		{`{"model":"m","messages":[],"max_tokens":10}`, `{"max_tokens":10,"messages":[]}`, Start},
	} {
		if got := edited(t, stream(), scan.Chat, c.body, c.by); got != c.want {
			t.Errorf("%v of %s:\n%s\n%s", c.by, c.body, got, c.want)
		}
	}
	for body, want := range map[string]string{
		`{"model":"m","prompt":"x y"}`:                    `{"max_tokens":15,"prompt":[1,3]}`,
		`{"model":"m","prompt":[7],"max_tokens":4}`:       `{"max_tokens":3,"prompt":[1,3]}`,
		`{"model":"m","prompt":"x","max_tokens":1,"n":1}`: `{"max_tokens":1,"n":1,"prompt":[1,3]}`,
	} {
		s := begun(t, Asked{API: scan.Completions}, false)
		feed(s, f(textOf, `"a"`, "[1]", "[3]"))
		if got := edited(t, s, scan.Completions, body, IDs); got != want {
			t.Errorf("%s:\n%s\n%s", body, got, want)
		}
	}
}

func TestObstacles(t *testing.T) {
	for more, want := range map[string]string{
		`"n":1,"echo":false,"best_of":null,"stop":null`: "", `"n":2`: "n", `"\u006e":2`: "escape",
		`"response_format":{"type":"json_object"}`: "response_format", `"response_format":{"type":"text"}`: "",
		`"response_format":null`: "", `"guided_choice":["a"]`: "guided_choice",
		`"structured_outputs":{}`: "structured_outputs", `"include_stop_str_in_output":true`: "",
		`"kv_transfer_params":{"a":1}`: "kv_transfer_params", `"logprobs":true`: "", `"tools":[{}]`: "",
		`"stop":"xy","include_stop_str_in_output":true`: "include_stop_str_in_output",
		`"stop":"x","include_stop_str_in_output":true`:  "", `"stop":"` + strings.Repeat("x", maxStops) + `"`: "stop",
	} {
		body := []byte(`{"model":"m","messages":[],"stream":true,` + more + `}`)
		var r scan.Request
		if err := scan.Scan(scan.Chat, body, &r); err != nil {
			t.Fatal(err)
		}
		if _, got := Read(&r, body, scan.Chat); got != want {
			t.Errorf("%s: %q, want %q", more, got, want)
		}
		if _, got := Read(&r, body, scan.Responses); got != "api" {
			t.Errorf("responses: %q", got)
		}
	}
	for more, want := range map[string]string{
		`"prompt":"x"`: "", `"prompt":[1,2]`: "", `"prompt":["x"]`: "prompt", `"prompt":[[1]]`: "prompt",
		`"prompt":"x","logprobs":1`: "logprobs", `"prompt":"x","suffix":"y"`: "suffix",
	} {
		body := []byte(`{"model":"m",` + more + `}`)
		var r scan.Request
		if err := scan.Scan(scan.Completions, body, &r); err != nil {
			t.Fatal(err)
		}
		if _, got := Read(&r, body, scan.Completions); got != want {
			t.Errorf("%s: %q, want %q", more, got, want)
		}
	}
	body := []byte(`{"model":"m","messages":[],"stop":["a","äbc"],"return_token_ids":true,` +
		`"logprobs":true,"continue_final_message":true,"stream_options":{"include_usage":true}}`)
	var r scan.Request
	if err := scan.Scan(scan.Chat, body, &r); err != nil {
		t.Fatal(err)
	}
	want := Asked{API: scan.Chat, IDs: true, Usage: true, Holdback: 2, Logprobs: true, Open: true}
	if got, _ := Read(&r, body, scan.Chat); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
