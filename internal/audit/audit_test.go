package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/logfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counts are what a test's log has lost and left out.
type counts struct{ lost, suppressed atomic.Int64 }

func (c *counts) options(to string) Options {
	return Options{
		To: to, Program: "test", RefusalsPerSecond: 3,
		Lost: func(n int, _ error) { c.lost.Add(int64(n)) }, Suppressed: func() { c.suppressed.Add(1) },
	}
}

func start(t *testing.T, o Options) *Log {
	t.Helper()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// lines returns the lines of a file, without their times.
func lines(t *testing.T, name string) (all []string) {
	t.Helper()
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(page)) {
		var v line
		if err := json.Unmarshal([]byte(text), &v); err != nil || v.Time == "" || !strings.HasSuffix(text, "\n") {
			t.Fatalf("%v: %q", err, text)
		}
		v.Time = ""
		short, _ := json.Marshal(&v)
		all = append(all, string(short)[len(`{"time":"",`):])
	}
	return all
}

func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit.log")
	var c counts
	l := start(t, c.options(name))
	l.Act(Act{Action: "reload", Outcome: "ok", By: "signal"})
	l.Refuse(Refusal{Reason: "unknown_key", Detail: "no\nsuch", Key: "id", Client: "10.0.0.1:5", Port: "serving",
		Asked: "chat"})
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Act(Act{Action: strings.Repeat("é", maxText)})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got := append(lines(t, name+".1"), lines(t, name)...)
	want := []string{
		`"event":"act","action":"reload","outcome":"ok","by":"signal"}`,
		`"event":"refusal","reason":"unknown_key","detail":"no\nsuch","key":"id","client":"10.0.0.1:5",` +
			`"port":"serving","asked":"chat"}`,
		`"event":"act","action":"` + strings.Repeat("é", maxText/2) + `"}`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || c.lost.Load() != 0 {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	l.Act(Act{Action: "late"})
	if err := l.Reopen(); err != logfile.ErrClosed || c.lost.Load() != 1 {
		t.Errorf("after Close: %v, %d lost", err, c.lost.Load())
	}
}

// TestRefusalsAreLimited checks that a flood of refusals has few lines, which tell its size, and
// takes no line of another reason.
func TestRefusalsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "audit.log")
		var c counts
		l := start(t, c.options(name))
		for range 100 {
			l.Refuse(Refusal{Reason: "no_key"})
		}
		l.Refuse(Refusal{Reason: "revoked_key"})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for range 4 {
			l.Refuse(Refusal{Reason: "no_key"})
		}
		l.Close()
		flood := []string{
			`"event":"refusal","reason":"no_key"}`, `"event":"refusal","reason":"no_key"}`,
			`"event":"refusal","reason":"no_key"}`, `"event":"refusal","reason":"revoked_key"}`,
			`"event":"refusal","reason":"no_key","suppressed":97}`, `"event":"refusal","reason":"no_key"}`,
			`"event":"refusal","reason":"no_key"}`, `"event":"refusal","reason":"no_key"}`,
			`"event":"refusal","reason":"no_key","suppressed":1}`,
		}
		if got := lines(t, name); fmt.Sprint(got) != fmt.Sprint(flood) || c.suppressed.Load() != 98 {
			t.Errorf("%q, %d suppressed", got, c.suppressed.Load())
		}
	})
}

// TestActsAreLimited checks that a flood of one client's acts takes no line of another client, of a
// refusal or of an operator's act.
func TestActsAreLimited(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit.log")
	var c counts
	o := c.options(name)
	o.RefusalsPerSecond = 1
	l := start(t, o)
	l.clients["a"] = &window{began: time.Now().Add(time.Hour), lines: 1} // a second that never ends
	for range 10 {
		l.Act(Act{Action: "FLUSHDB", By: "a", Limited: true})
	}
	l.Act(Act{Action: "FLUSHDB", By: "b", Limited: true})
	l.Act(Act{Action: "reload", By: "a"})
	l.Refuse(Refusal{Reason: "a"})
	l.Close()
	want := []string{
		`"event":"act","action":"FLUSHDB","by":"b"}`, `"event":"act","action":"reload","by":"a"}`,
		`"event":"refusal","reason":"a"}`, `"event":"act","by":"a","suppressed":10}`,
	}
	if got := lines(t, name); fmt.Sprint(got) != fmt.Sprint(want) || c.suppressed.Load() != 10 {
		t.Errorf("%q, %d suppressed", got, c.suppressed.Load())
	}
}

// TestReasonsAreBounded checks that many reasons take no more memory and lines than some.
func TestReasonsAreBounded(t *testing.T) {
	var c counts
	o := c.options(filepath.Join(t.TempDir(), "audit.log"))
	o.RefusalsPerSecond = 1
	l := start(t, o)
	now := time.Now()
	for i := range 10 * maxReasons {
		l.admit(l.reasons, fmt.Sprint(i), now)
	}
	if n := len(l.reasons); n > maxReasons+1 {
		t.Errorf("%d reasons", n)
	}
	if w := l.reasons["other"]; w == nil || w.lines != 1 || w.suppressed != 9*maxReasons-1 {
		t.Errorf("%+v", w)
	}
}

func TestSyslog(t *testing.T) {
	at := filepath.Join(t.TempDir(), "log")
	listen := func() *net.UnixConn {
		conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	read := func(conn *net.UnixConn, want string) {
		t.Helper()
		b := make([]byte, 4096)
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := conn.Read(b)
		if err != nil || !strings.HasPrefix(string(b[:n]), "<85>") || !strings.Contains(string(b[:n]), " test[") ||
			!strings.Contains(string(b[:n]), want) {
			t.Errorf("%v, %q", err, b[:n])
		}
	}
	conn := listen()
	var c counts
	o := c.options("syslog")
	o.socket = at
	l := start(t, o)
	l.Act(Act{Action: "first"})
	read(conn, `"action":"first"`)
	conn.Close() // the syslog starts anew
	os.Remove(at)
	conn = listen()
	l.Act(Act{Action: "second"})
	read(conn, `"action":"second"`)
	conn.Close()
	os.Remove(at)
	l.Act(Act{Action: "third"})
	if l.Close(); c.lost.Load() != 1 {
		t.Errorf("%d lost without a syslog", c.lost.Load())
	}
	if _, err := New(o); err == nil {
		t.Error("a syslog that is not there was opened")
	}
}

// stuck is a sink whose writes hang until free is closed.
type stuck struct{ begun, free chan struct{} }

func (s stuck) Write(b []byte) (int, error) {
	s.begun <- struct{}{}
	<-s.free
	return len(b), nil
}
func (stuck) Reopen() error { return nil }
func (stuck) Close() error  { return nil }

// TestWriterThatHangs checks that nobody waits for a writer that hangs, in a line or in a summary.
func TestWriterThatHangs(t *testing.T) {
	for _, text := range []string{"line", "summary"} {
		t.Run(text, func(t *testing.T) {
			var c counts
			s := stuck{make(chan struct{}, 9), make(chan struct{})}
			l := &Log{o: c.options("-"), reasons: map[string]*window{}}
			if text == "summary" {
				l.reasons["a"] = &window{suppressed: 1}
			}
			l.queue = logfile.New[[]byte](writer{s, l}, 2)
			if text == "line" {
				l.Act(Act{Action: "first"})
			}
			<-s.begun
			l.Refuse(Refusal{Reason: "b"})
			var all sync.WaitGroup
			for range 9 {
				all.Go(func() { l.Act(Act{Action: "a"}) })
			}
			if all.Wait(); c.lost.Load() != 8 {
				t.Errorf("%d lost", c.lost.Load())
			}
			close(s.free)
			l.Close()
		})
	}
}

// TestCloseOfAWriterThatHangs checks that each line is counted as lost, the one in the write too.
func TestCloseOfAWriterThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c counts
		s := stuck{make(chan struct{}, 9), make(chan struct{})}
		l := &Log{o: c.options("-"), reasons: map[string]*window{}}
		l.queue = logfile.New[[]byte](writer{s, l}, 9)
		for range 5 {
			l.Act(Act{Action: "a"})
		}
		<-s.begun
		if err := l.Close(); err != logfile.ErrStuck || c.lost.Load() != 5 {
			t.Errorf("%v, %d lost", err, c.lost.Load())
		}
		close(s.free)
	})
}

// TestSyslogThatTakesNothing checks that a line costs one wait.
func TestSyslogThatTakesNothing(t *testing.T) {
	at := filepath.Join(t.TempDir(), "log")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := &syslog{at: at}
	if err := s.dial(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	was := s.conn
	for range 100000 {
		if _, err = s.Write([]byte("a line")); err != nil {
			break
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || s.conn != was {
		t.Errorf("%v, dialed again: %t", err, s.conn != was)
	}
}

func TestNil(t *testing.T) {
	var none *Log
	none.Act(Act{})
	none.Refuse(Refusal{})
	if none.Reopen() != nil || none.Close() != nil {
		t.Error("a nil log fails")
	}
}

func TestOpenErrors(t *testing.T) {
	for _, to := range []string{"", filepath.Join(t.TempDir(), "none", "x"), t.TempDir()} {
		if _, err := New(Options{To: to}); err == nil {
			t.Errorf("%q was opened", to)
		}
	}
}
