package keys

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// add adds a key to a file.
func add(t testing.TB, name string) (*Record, string) {
	t.Helper()
	r, text := key(t)
	if err := Edit(name, func(all []*Record) ([]*Record, error) { return append(all, r), nil }); err != nil {
		t.Fatal(err)
	}
	return r, text
}

func TestEdit(t *testing.T) {
	name := filepath.Join(t.TempDir(), "keys.json")
	var together sync.WaitGroup
	for range 20 {
		together.Go(func() { add(t, name) })
	}
	together.Wait()
	doc, err := ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	all, err := ParseFile(doc)
	if err != nil || len(all) != 20 {
		t.Errorf("%d keys, %v", len(all), err)
	}
	open, err := os.Open(name) // a reader during an edit
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	add(t, name)
	if was, err := io.ReadAll(open); err != nil || !bytes.Equal(was, doc) {
		t.Errorf("a reader finds an edit half done: %s, %v", was, err)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	for cut := range doc { // a file that was cut is never taken for one with fewer keys
		if cut < len(doc)-2 {
			if _, err := ParseFile(doc[:cut]); err == nil {
				t.Fatalf("the first %d of %d bytes are taken", cut, len(doc))
			}
		}
	}
}

// TestModes: a file that others can read, or that its group can change, is refused.
func TestModes(t *testing.T) {
	name := filepath.Join(t.TempDir(), "keys.json")
	add(t, name)
	for mode, good := range map[os.FileMode]bool{
		0o600: true, 0o400: true, 0o640: true, 0o440: true, 0o644: false, 0o604: false, 0o660: false, 0o602: false,
	} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		_, err := ReadFile(name)
		if (err == nil) != good || err != nil && !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("%#o: %v", mode, err)
		}
	}
}

// TestOddFiles checks that a pipe is refused without a wait, that a link is not taken for the lock,
// and that an edit that fails leaves nothing behind.
func TestOddFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(pipe); err == nil || !strings.Contains(err.Error(), "is a pipe") {
		t.Errorf("a pipe: %v", err)
	}
	name := filepath.Join(dir, "keys.json")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), name+".lock"); err != nil {
		t.Fatal(err)
	}
	same := func(all []*Record) ([]*Record, error) { return all, nil }
	if err := Edit(name, same); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link for the lock: %v", err)
	}
}

// TestFollowFile: the set follows the file, and stays while the file is bad.
func TestFollowFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "keys.json")
	_, first := add(t, name)
	synctest.Test(t, func(t *testing.T) {
		changes := 0
		f := &Follower{Set: new(Set), File: name, Log: slog.New(slog.DiscardHandler), Changed: func() { changes++ }}
		if err := f.Load(); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		counts := func(what, text string, want Refusal) {
			t.Helper()
			time.Sleep(fileEvery + time.Millisecond)
			synctest.Wait()
			if why := find(t, f.Set, text, time.Now()); why != want {
				t.Errorf("%s: %v", what, why)
			}
		}
		counts("at the start", first, None)
		r, second := add(t, name)
		counts("a new key", second, None)
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"", string(whole[:len(whole)/2]), `{"keys":[{}]}`} {
			if err := os.WriteFile(name, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			counts("a bad file", second, None)
			if f.Problem() == "" {
				t.Errorf("%.20q is no problem", bad)
			}
		}
		if err := os.WriteFile(name, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		counts("the file as before", second, None)
		if f.Problem() != "" {
			t.Error(f.Problem())
		}
		if err := Edit(name, func(all []*Record) ([]*Record, error) {
			now := time.Now()
			for _, x := range all {
				if x.ID == r.ID {
					x.Revoked = &now
				}
			}
			return all, nil
		}); err != nil {
			t.Fatal(err)
		}
		counts("a revoked key", second, Revoked)
		counts("the other", first, None)
		stop()
		if err := <-done; err != nil || changes != 3 {
			t.Errorf("%v, %d changes", err, changes)
		}
	})
}
