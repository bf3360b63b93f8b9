package sse

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// reference parses a whole stream at once, line by line, in the words of the specification.
func reference(stream string) (events []string) {
	stream = strings.TrimPrefix(stream, "\ufeff")
	stream = strings.ReplaceAll(stream, "\r\n", "\n")
	stream = strings.ReplaceAll(stream, "\r", "\n")
	name, data, some := "", "", false
	lines := strings.Split(stream, "\n")
	for _, line := range lines[:len(lines)-1] { // the last line has no line end
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if some {
				events = append(events, name+"|"+data)
			}
			name, data, some = "", "", false
		case field == "event":
			name = value
		case field == "data" && some:
			data += "\n" + value
		case field == "data":
			data, some = value, true
		}
	}
	return events
}

// pieces cuts stream after each of the given offsets.
func pieces(stream string, cuts ...int) (out []string) {
	last := 0
	for _, c := range cuts {
		out, last = append(out, stream[last:c]), c
	}
	return append(out, stream[last:])
}

func scan(parts []string) (events []string) {
	var s Scanner
	for _, p := range parts {
		s.Feed([]byte(p), func(e Event) { events = append(events, string(e.Name)+"|"+string(e.Data)) })
	}
	return events
}

func filter(parts []string, show Show) string {
	var f Filter
	var out []byte
	for _, p := range parts {
		out, _ = f.Feed([]byte(p), out, show)
	}
	return string(append(out, f.Pending()...))
}

func all(e Event, out []byte) ([]byte, bool) { return append(out, e.Raw...), false }

// but forwards all events except those with this data.
func but(data string) Show {
	return func(e Event, out []byte) ([]byte, bool) {
		if string(e.Data) == data {
			return out, false
		}
		return all(e, out)
	}
}

// announced forwards all events, and a mark before an oversized one.
func announced(e Event, out []byte) ([]byte, bool) {
	if len(e.Raw) == 0 {
		return append(out, '<'), false
	}
	return but("b")(e, out)
}

var streams = map[string]string{
	"lf":          "data: a\n\ndata:b\n\n",
	"crlf":        "data: a\r\n\r\nevent: x\r\ndata: b\r\n\r\n",
	"cr":          "data: a\r\revent: x\rdata: b\r\r",
	"mixed":       "data: a\r\n\ndata: b\n\r\ndata: c\r\r\n\ndata: d\n\n",
	"multi-line":  "data: a\ndata:\ndata:  c\n\n",
	"bom":         "\ufeffdata: a\n\ndata: b\n\n",
	"comments":    ": ping\n\n: ping\ndata: a\n: pong\n\n",
	"no data":     "event: x\n\nid: 1\nretry: 5\n\ndata: a\n\n",
	"empty data":  "data\n\ndata:\n\n",
	"blank lines": "\n\n\ndata: a\n\n\n\n",
	"unfinished":  "data: a\n\ndata: b\n",
	"other":       "datax: a\ndata : b\nfoo\ndata: c\n\n",
	"nul":         "data: a\x00b\n\n",
	"empty":       "",
}

func TestStreamsAtEverySplit(t *testing.T) {
	for name, stream := range streams {
		want := fmt.Sprint(reference(stream))
		for i := 0; i <= len(stream); i++ {
			for j := i; j <= len(stream); j++ {
				parts := pieces(stream, i, j)
				if got := fmt.Sprint(scan(parts)); got != want {
					t.Fatalf("%s cut at %d and %d: events %q, want %q", name, i, j, got, want)
				}
				if got := filter(parts, all); got != stream {
					t.Fatalf("%s cut at %d and %d: forwarded %q, want %q", name, i, j, got, stream)
				}
			}
		}
	}
}

func TestFilterDropsOnlyWhatIsRefused(t *testing.T) {
	keep := but("usage")
	for _, eol := range []string{"\n", "\r\n", "\r"} {
		event := func(data string) string { return "id: 7" + eol + "data: " + data + eol + eol }
		comment := ": ping" + eol + eol
		stream := event("a") + event("usage") + comment + event("usage") + event("[DONE]")
		want := event("a") + comment + event("[DONE]")
		for i := 0; i <= len(stream); i++ {
			for j := i; j <= len(stream); j++ {
				if got := filter(pieces(stream, i, j), keep); got != want {
					t.Fatalf("line end %q cut at %d and %d: got %q, want %q", eol, i, j, got, want)
				}
			}
		}
	}
}

func TestEngineStreams(t *testing.T) {
	files, err := filepath.Glob("testdata/*.sse")
	if err != nil || len(files) != 3 {
		t.Fatalf("files %v, error %v", files, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		closed := 0
		new(Scanner).Feed(raw, func(e Event) {
			if e.Closes() {
				closed++
			}
		})
		if closed != 1 {
			t.Fatalf("%s: %d events close it", file, closed)
		}
		want := fmt.Sprint(reference(string(raw)))
		for i := range raw {
			if got := fmt.Sprint(scan(pieces(string(raw), i))); got != want {
				t.Fatalf("%s cut at %d: %s", file, i, got)
			}
		}
	}
}

func TestDone(t *testing.T) {
	done := 0
	var s Scanner
	s.Feed([]byte("data: {}\n\ndata: [DONE]\n\n"), func(e Event) {
		if e.IsDone() {
			done++
		}
	})
	if done != 1 || s.Events() != 2 {
		t.Fatalf("done %d, events %d", done, s.Events())
	}
}

func TestCloses(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       bool
	}{
		{"", "[DONE]", true},
		{"message_stop", `{"type":"message_stop"}`, true},
		{"", `{"type":"message_stop"}`, true},
		{"", `{"type": "response.completed","response":{}}`, true},
		{"response.incomplete", "{}", true},
		{"response.failed", "{}", true},
		{"error", "x", true},
		{"", `{"error":{"message":"x"}}`, true},
		{"", `{"choices":[{"delta":{"content":"[DONE]"}}]}`, false},
		{"message_delta", `{"type":"message_delta"}`, false},
		{"response.created", `{"type":"response.completed"}`, false},
		{"", `{"type":`, false},
		{"", "", false},
	} {
		if e := (Event{Name: []byte(c.name), Data: []byte(c.data)}); e.Closes() != c.want {
			t.Errorf("%q %q: %v", c.name, c.data, !c.want)
		}
	}
}

// TestLast: bytes without a closing blank line are an event only if they end at a line end.
func TestLast(t *testing.T) {
	for stream, want := range map[string]string{
		"data: a\n\n": "", "data: a\n\ndata: b\n": "b", "data: b\r": "b", "data: b": "", "event: b\n": "", "": "",
		"data: " + strings.Repeat("x", MaxEventBytes) + "\n": "",
	} {
		var s Scanner
		s.Feed([]byte(stream), func(Event) {})
		var f Filter
		f.Feed([]byte(stream), nil, all)
		a, okA := s.Last()
		b, okB := f.Last()
		if string(a.Data) != want || string(b.Data) != want || okA != (want != "") || okB != okA {
			t.Errorf("%.40q: %q %v, %q %v", stream, a.Data, okA, b.Data, okB)
		}
	}
}

// TestFilterRewrites: the replacement of an event may be longer or shorter. A late LF belongs to
// the original event.
func TestFilterRewrites(t *testing.T) {
	show := func(e Event, out []byte) ([]byte, bool) {
		switch string(e.Data) {
		case "long":
			return append(out, "data: something much longer\r\r"...), false
		case "gone":
			return out, false
		}
		return append(append(out, "data: x\n\n"...), e.Raw...), false
	}
	const stream = "data: long\r\n\r\n: c\n\ndata: gone\r\n\r\ndata: b\r\n\r\n"
	late := map[int]string{12: "\n"} // a piece ends with the CR, so its LF comes late
	for i := 0; i <= len(stream); i++ {
		want := "data: something much longer\r\r" + late[i-1] + ": c\n\ndata: x\n\ndata: b\r\n\r\n"
		if got := filter(pieces(stream, i), show); got != want {
			t.Fatalf("cut at %d: %q, want %q", i, got, want)
		}
	}
}

// TestFilterBlanks: bytes written to Data appear in Raw.
func TestFilterBlanks(t *testing.T) {
	show := func(e Event, out []byte) ([]byte, bool) {
		copy(e.Data, "----")
		return all(e, out)
	}
	const stream = "id: 1\ndata: 1234\n\n"
	for i := 0; i <= len(stream); i++ {
		if got := filter(pieces(stream, i), show); got != "id: 1\ndata: ----\n\n" {
			t.Fatalf("cut at %d: %q", i, got)
		}
	}
}

// TestFilterEnds: after the callback reports enough, the rest of the piece is not parsed.
func TestFilterEnds(t *testing.T) {
	var f Filter
	show := func(e Event, out []byte) ([]byte, bool) {
		out, _ = all(e, out)
		return out, string(e.Data) == "b"
	}
	for range 2 {
		out, enough := f.Feed([]byte("data: a\n\ndata: b\n\ndata: c\n\ndata: d"), nil, show)
		if string(out) != "data: a\n\ndata: b\n\n" || !enough {
			t.Fatalf("%q %v", out, enough)
		}
		f.Reset()
	}
}

func TestCommentsAreNoEvents(t *testing.T) {
	var s Scanner
	s.Feed([]byte(": ping\n\n: ping\n\n"), func(Event) { t.Fatal("a comment is no event") })
	if s.Events() != 0 {
		t.Fatalf("%d events", s.Events())
	}
}

func TestOversizedEvents(t *testing.T) {
	huge := "data: " + strings.Repeat("x", MaxEventBytes) + "\n\n"
	stream := "data: a\n\n" + huge + "data: b\n\n"
	for _, size := range []int{1 << 10, 32<<10 - 1, len(stream)} {
		var s Scanner
		var f Filter
		var got []string
		var out []byte
		for rest := []byte(stream); len(rest) > 0; {
			p := rest[:min(size, len(rest))]
			rest = rest[len(p):]
			s.Feed(p, func(e Event) { got = append(got, string(e.Data)) })
			out, _ = f.Feed(p, out, announced)
			if len(s.cut.held) > MaxEventBytes+size {
				t.Fatal("the buffer grew past its bound")
			}
		}
		if fmt.Sprint(got) != "[a b]" || s.Skipped() != 1 || f.Skipped() != 1 {
			t.Fatalf("size %d: events %v, skipped %d and %d", size, got, s.Skipped(), f.Skipped())
		}
		if string(out) != "data: a\n\n<"+huge {
			t.Fatalf("size %d: forwarded %d bytes", size, len(out))
		}
	}
}

func TestTornAndPending(t *testing.T) {
	var f Filter
	out, _ := f.Feed([]byte("data: a\n\ndata: {\"par"), nil, all)
	if string(out) != "data: a\n\n" || string(f.Pending()) != "data: {\"par" || f.Torn() {
		t.Fatalf("out %q, pending %q, torn %v", out, f.Pending(), f.Torn())
	}
	f.Reset()
	f.Feed(bytes.Repeat([]byte("x"), MaxEventBytes+1), nil, all)
	if !f.Torn() || len(f.Pending()) != 0 {
		t.Fatal("an oversized event is forwarded as it comes")
	}
}

func TestNoAllocations(t *testing.T) {
	stream := []byte("event: m\ndata: {\"a\":1}\n\n: ping\n\ndata: x\ndata: y\r\n\r\n")
	var s Scanner
	var f Filter
	out := make([]byte, 0, 1024)
	ignore := func(Event) {}
	got := testing.AllocsPerRun(1000, func() {
		for _, cut := range []int{0, 5, 20, 40} {
			s.Feed(stream[:cut], ignore)
			s.Feed(stream[cut:], ignore)
			out, _ = f.Feed(stream[:cut], out[:0], all)
			out, _ = f.Feed(stream[cut:], out, all)
		}
	})
	if got != 0 {
		t.Fatalf("%v allocations", got)
	}
}

func FuzzScanner(f *testing.F) {
	for _, stream := range streams {
		f.Add([]byte(stream), uint16(1), uint16(7))
	}
	f.Fuzz(func(t *testing.T, stream []byte, a, b uint16) {
		i := int(a) % (len(stream) + 1)
		j := i + int(b)%(len(stream)-i+1)
		parts := pieces(string(stream), i, j)
		if got, want := fmt.Sprint(scan(parts)), fmt.Sprint(reference(string(stream))); got != want {
			t.Fatalf("%q cut at %d and %d: %q, want %q", stream, i, j, got, want)
		}
		if got := filter(parts, all); got != string(stream) {
			t.Fatalf("%q cut at %d and %d: forwarded %q", stream, i, j, got)
		}
	})
}

func BenchmarkFilter(b *testing.B) {
	event := []byte("data: {\"id\":\"chatcmpl-850760ed4c95caa5\",\"object\":\"chat.completion.chunk\",\"created\":1795244673,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" because\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n")
	var f Filter
	var out []byte
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		out, _ = f.Feed(event, out[:0], all)
	}
}
