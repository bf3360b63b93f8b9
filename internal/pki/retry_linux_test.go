package pki

import (
	"bytes"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// asNobody runs f on a thread without root's rights to files, which ends with it.
func asNobody(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		_ = syscall.Setfsuid(65534)
		f()
	}()
	<-done
}

// TestReadableLater checks that a key that could not be read is tried again: after new rights, and
// without any change of the files.
func TestReadableLater(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to read as another user")
	}
	for what, fix := range map[string]func(key string) error{
		"after chmod": func(key string) error { return os.Chmod(key, 0o644) }, "without a change": nil,
	} {
		dir := bootstrap(t, Options{})
		f := FilesIn(dir, Agent)
		id, c := load(t, dir, Agent), &clock{t: time.Now()}
		id.setClock(c)
		first := serial(id)
		if err := Bootstrap(dir, Options{Force: true}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			c.advance(CheckEvery)
			asNobody(func() { id.current() })
		}
		if id.Failures() != 1 || id.failed == "" {
			t.Fatalf("%s: %d failures: %q", what, id.Failures(), id.failed)
		}
		if fix != nil {
			if err := fix(f.Key); err != nil {
				t.Fatal(err)
			}
		}
		c.advance(CheckEvery)
		if serial(id) == first || id.failed != "" || id.Failures() != 1 {
			t.Errorf("%s: the new pair is not in use; %d failures: %q", what, id.Failures(), id.failed)
		}
	}
}

// TestSameTimes checks that files are loaded that have the size and the time of the former ones.
func TestSameTimes(t *testing.T) {
	dir := bootstrap(t, Options{})
	f := FilesIn(dir, Agent)
	when := time.Now().Add(-time.Hour)
	level := func() {
		for _, name := range []string{f.CA, f.Cert, f.Key} {
			text := readFile(t, name)
			text = append(text, bytes.Repeat([]byte("\n"), 4096-len(text))...)
			if err := os.WriteFile(name, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(name, when, when); err != nil {
				t.Fatal(err)
			}
		}
	}
	level()
	id, c := load(t, dir, Agent), &clock{t: time.Now()}
	id.setClock(c)
	first := serial(id)
	if err := Bootstrap(dir, Options{Force: true}); err != nil {
		t.Fatal(err)
	}
	level()
	c.advance(CheckEvery)
	if serial(id) == first {
		t.Error("the new pair is not in use")
	}
}
