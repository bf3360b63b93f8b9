package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/cognitora/dataplane/internal/logfile"
)

// buffer is a file in memory. A test can make its writes fail or wait.
type buffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	fail error
	hold chan struct{}
}

func (b *buffer) Write(p []byte) (int, error) {
	if b.hold != nil {
		<-b.hold
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return 0, b.fail
	}
	return b.b.Write(p)
}

func (*buffer) Reopen() error { return nil }
func (*buffer) Close() error  { return nil }

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) lines() int { return strings.Count(b.String(), "\n") }

func open(t *testing.T, o Options) *Logger {
	t.Helper()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLine(t *testing.T) {
	var out buffer
	l := open(t, Options{sink: &out})
	id := []byte("req-1")
	l.Log(&Entry{Time: time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC), RequestID: id,
		Model: "llama", Node: "n1", Method: "POST",
		API: "/v1/chat/completions", End: "ok", Status: 200, TTFT: 123456789, Duration: 2 * time.Second,
		Expected:         98765432,
		PromptTokens:     100,
		CompletionTokens: 20, CachedTokens: 64, OverlapMatched: 4, OverlapTotal: 6, Attempts: 2,
		Bytes: 512, Stream: true})
	copy(id, "XXXXX") // Log has copied id, so the caller may change it
	l.Log(&Entry{TTFT: -1, PromptTokens: -1, CompletionTokens: -1, CachedTokens: -1, Status: 404})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want := `{"time":"2026-03-04T05:06:07.089Z","id":"req-1","method":"POST","api":"/v1/chat/completions","model":"llama","node":"n1",` +
		`"status":200,"end":"ok","stream":true,"ttft_seconds":0.123457,"expected_ttft_seconds":0.098765,"duration_seconds":2,"prompt_tokens":100,"completion_tokens":20,` +
		`"cached_tokens":64,"overlap_matched":4,"overlap_total":6,"attempts":2,"bytes":512}` + "\n" +
		`{"time":"0001-01-01T00:00:00.000Z","status":404,"stream":false,"duration_seconds":0,"overlap_matched":0,"overlap_total":0,"attempts":0,"bytes":0}` + "\n"
	if out.String() != want {
		t.Errorf("got  %s\nwant %s", out.String(), want)
	}
}

func TestTextsAreEscapedAndCut(t *testing.T) {
	for _, s := range []string{"a\"b\\c", "\x00\x1f\x7f\n\r\t", "h\u00e9llo \u4e16\u754c \U0001F600 \u2028",
		"bad\xff\xc3(", "</script>", strings.Repeat("\u4e16", 100)} {
		var r record
		r.set(&Entry{RequestID: []byte(s), Model: s, Node: s, API: s, End: s, Method: s, Duration: math.MaxInt64})
		line := r.appendJSON(nil)
		var got map[string]any
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%q: %v in %s", s, err, line)
		}
		if want := string([]rune(s[:min(len(s), 128)])); got["model"] != want {
			t.Errorf("%q became %q, want %q", s, got["model"], want)
		}
		if !utf8.Valid(line) || bytes.Count(line, []byte("\n")) != 1 {
			t.Errorf("%q: %q is no single line of UTF-8", s, line)
		}
	}
}

func TestLinesAreWrittenWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		l := open(t, Options{sink: &out})
		for range 3 {
			l.Log(&Entry{})
			time.Sleep(200 * time.Millisecond)
		}
		if out.lines() != 0 {
			t.Error("every line is a write")
		}
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()
		if n := out.lines(); n != 3 {
			t.Errorf("%d lines after a second, want 3", n)
		}
		l.Log(&Entry{})
		time.Sleep(time.Second)
		synctest.Wait()
		if n := out.lines(); n != 4 {
			t.Errorf("%d lines, want 4", n)
		}
		l.Close()
	})
}

func TestFullQueueDropsTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dropped atomic.Int64
		out := buffer{hold: make(chan struct{})}
		l := open(t, Options{sink: &out, Queue: 4, Dropped: func() { dropped.Add(1) }})
		l.Log(&Entry{Status: 1})
		time.Sleep(time.Second)
		synctest.Wait() // the writer now hangs in Write
		for i := range 10 {
			l.Log(&Entry{Status: 2 + i})
		}
		if n := dropped.Load(); n != 6 {
			t.Errorf("%d dropped, want 6", n)
		}
		close(out.hold)
		l.Close()
		for i := 1; i <= 5; i++ {
			if !strings.Contains(out.String(), fmt.Sprintf(`"status":%d,`, i)) {
				t.Errorf("line %d is missing", i)
			}
		}
		if out.lines() != 5 {
			t.Errorf("%d lines", out.lines())
		}
		l.Log(&Entry{})
		if dropped.Load() != 7 {
			t.Error("logging after Close is not counted as dropped")
		}
	})
}

func TestWriteErrorsAreReportedAndSurvived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("disk full")
		var lost atomic.Int64
		out := buffer{fail: full}
		l := open(t, Options{sink: &out, Failed: func(err error, lines int) {
			if errors.Is(err, full) {
				lost.Add(int64(lines))
			}
		}})
		l.Log(&Entry{})
		l.Log(&Entry{})
		time.Sleep(time.Second)
		synctest.Wait()
		if lost.Load() != 2 {
			t.Errorf("%d lost, want 2", lost.Load())
		}
		out.mu.Lock()
		out.fail = nil
		out.mu.Unlock()
		l.Log(&Entry{Status: 7})
		if err := l.Close(); err != nil || out.lines() != 1 {
			t.Errorf("%v, %d lines", err, out.lines())
		}
	})
}

// TestCloseOfAFileThatHangs checks that each line is counted once as lost, those in the buffer too.
func TestCloseOfAFileThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int64
		out := buffer{hold: make(chan struct{}), fail: errors.New("gone")}
		l := open(t, Options{sink: &out, Queue: 8, Failed: func(_ error, lines int) { lost.Add(int64(lines)) }})
		l.Log(&Entry{})
		l.Log(&Entry{})
		time.Sleep(time.Second)
		synctest.Wait() // the writer now hangs in Write
		for range 3 {
			l.Log(&Entry{})
		}
		if err := l.Close(); err != logfile.ErrStuck || lost.Load() != 5 {
			t.Errorf("%v, %d lost", err, lost.Load())
		}
		close(out.hold)
		synctest.Wait()
		if lost.Load() != 5 {
			t.Errorf("%d lost of 5", lost.Load())
		}
	})
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l := open(t, Options{Path: path})
	l.Log(&Entry{Status: 1})
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Log(&Entry{Status: 2})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{path + ".1": `"status":1,`, path: `"status":2,`} {
		if b, err := os.ReadFile(name); err != nil || strings.Count(string(b), "\n") != 1 ||
			!strings.Contains(string(b), want) {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if err := l.Reopen(); err != logfile.ErrClosed {
		t.Errorf("after Close: %v", err)
	}
}

func TestReopenKeepsTheOldFileOnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "access.log")
	l := open(t, Options{Path: path})
	moved := dir + ".moved"
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if l.Reopen() == nil {
		t.Error("reopened in a folder that is gone")
	}
	l.Log(&Entry{Status: 3})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(filepath.Join(moved, "access.log")); !strings.Contains(string(b), `"status":3,`) {
		t.Errorf("%q", b)
	}
}

func TestOpenErrors(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no path was taken")
	}
	if _, err := New(Options{Path: filepath.Join(t.TempDir(), "none", "x")}); err == nil {
		t.Error("a missing folder was taken")
	}
}

func TestLogInParallel(t *testing.T) {
	var out buffer
	var dropped atomic.Int64
	l := open(t, Options{sink: &out, Queue: 64, Dropped: func() { dropped.Add(1) }})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			e := Entry{RequestID: []byte(strings.Repeat(string(rune('a'+w)), 100)), Model: "m"}
			for range 500 {
				l.Log(&e)
			}
		})
	}
	wg.Wait()
	l.Close()
	if n := out.lines() + int(dropped.Load()); n != 4000 {
		t.Errorf("%d lines and %d dropped, want 4000", out.lines(), dropped.Load())
	}
	for line := range strings.Lines(out.String()) {
		var got struct{ ID string }
		if err := json.Unmarshal([]byte(line), &got); err != nil || strings.Trim(got.ID, got.ID[:1]) != "" {
			t.Fatalf("%v in %s", err, line)
		}
	}
}

func TestLogAllocatesNothing(t *testing.T) {
	l := open(t, Options{sink: &discard{}})
	defer l.Close()
	e := Entry{RequestID: []byte("id"), Model: "model", Node: "node", TTFT: 12345}
	if n := testing.AllocsPerRun(2000, func() { l.Log(&e) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

type discard struct{ buffer }

func (*discard) Write(p []byte) (int, error) { return len(p), nil }

func BenchmarkLog(b *testing.B) {
	l, err := New(Options{sink: &discard{}})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	e := Entry{Time: time.Now(), RequestID: []byte("0123456789abcdef0123456789abcdef"), Model: "llama-3.1-8b",
		Node: "gpu-17", Method: "POST", API: "/v1/chat/completions", TTFT: 12345678}
	b.ReportAllocs()
	for b.Loop() {
		l.Log(&e)
	}
}
