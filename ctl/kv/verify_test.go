package kv

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

func TestKVVerify(t *testing.T) {
	data := t.TempDir()
	dir := filepath.Join(data, "ssd")
	tier, err := ssd.Open(t.Context(), ssd.Options{Dir: dir, Cap: 128 << 20,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	space := block.Namespace{Space: "resp.0"}
	mark := []byte("these bytes are found in the segment ")
	for i := range 5 {
		key := []byte{byte('a' + i)}
		r := ssd.Record{Addr: block.OfKey(space.ID(), key), Namespace: space.String(), Key: key}
		if err := tier.Write(context.Background(), r, append(mark, key...), true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ctl(t, nil, "kv", "verify", data); err == nil {
		t.Errorf("while it is open: %v", err)
	}
	if err := tier.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := ctl(t, nil, "kv", "verify", data, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, `"live_blocks": 5`, `"bad": 0`)

	if !flip(t, dir, append(mark, 'c')) {
		t.Fatal("the payload is in no segment")
	}
	out, err = ctl(t, nil, "kv", "verify", data, "-o", "json")
	if err == nil || !strings.Contains(err.Error(), "damaged in ") {
		t.Errorf("%v", err)
	}
	ctltest.Want(t, out, `"lost_blocks": 1`, "checksum is wrong")
	wrong := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(wrong, []byte(strings.Repeat("k", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl(t, nil, "kv", "verify", data, "--key-file", wrong); err == nil ||
		!strings.Contains(err.Error(), "is not sealed") || !strings.Contains(err.Error(), "leave out --key-file") {
		t.Errorf("with a key for what has none: %v", err)
	}
	if _, err := ctl(t, nil, "kv", "verify", t.TempDir()); err == nil || !strings.Contains(err.Error(), "--data") {
		t.Errorf("of nothing: %v", err)
	}
}

// TestKVVerifyOfARunningDaemon: the error does not name flags that verify does not have.
func TestKVVerifyOfARunningDaemon(t *testing.T) {
	data := t.TempDir()
	if err := os.Mkdir(filepath.Join(data, "ssd"), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := kvcached.LockDir(data)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	_, err = ctl(t, nil, "kv", "verify", data)
	if err == nil || !strings.Contains(err.Error(), "in use") || strings.Contains(err.Error(), "--data") ||
		!strings.Contains(ctltest.Hint(err), "stop that daemon") {
		t.Errorf("%v, hint %q", err, ctltest.Hint(err))
	}
}

// TestKVVerifyFindsWhatIsGone: a truncated segment, a missing segment, and a damaged index are
// found.
func TestKVVerifyFindsWhatIsGone(t *testing.T) {
	for what, spoil := range map[string]func(t *testing.T, dir string) error{
		"5 of 5 live blocks have no sound record": func(t *testing.T, dir string) error {
			return os.Truncate(segmentIn(t, dir), 4096)
		},
		"5 of 5 live blocks": func(t *testing.T, dir string) error {
			return os.Remove(segmentIn(t, dir))
		},
		"damaged in 1 place; the next start drops all blocks": func(_ *testing.T, dir string) error {
			return os.RemoveAll(filepath.Join(dir, ssd.RowsDir))
		},
	} {
		data := t.TempDir()
		dir := filepath.Join(data, "ssd")
		tier, err := ssd.Open(t.Context(), ssd.Options{Dir: dir, Cap: 128 << 20, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		space := block.Namespace{Space: "resp.0"}
		for i := range 5 {
			key := []byte{byte('a' + i)}
			if err := tier.Write(t.Context(), ssd.Record{Addr: block.OfKey(space.ID(), key), Namespace: space.String(),
				Key: key}, key, true); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(tier.Close(), spoil(t, dir)); err != nil {
			t.Fatal(err)
		}
		out, err := ctl(t, nil, "kv", "verify", data)
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q: %v\n%s", what, err, out)
		}
	}
}

// TestKVVerifyOfASealedDirectory: the error says which flag is missing, or has the wrong key.
func TestKVVerifyOfASealedDirectory(t *testing.T) {
	data := t.TempDir()
	key, other := filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "other")
	text := strings.Repeat("k", 32)
	tier, err := ssd.Open(t.Context(), ssd.Options{Dir: filepath.Join(data, "ssd"), Cap: 128 << 20, Key: []byte(text),
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tier.Close(), os.WriteFile(key, []byte(text), 0o600),
		os.WriteFile(other, []byte(strings.Repeat("o", 32)), 0o600)); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"": "is sealed, and no key is given; give the daemon's ssd.key_file " +
		"with --key-file", other: "is sealed with another key; give", key: ""} {
		args := []string{"kv", "verify", data}
		if flag != "" {
			args = append(args, "--key-file", flag)
		}
		if _, err := ctl(t, nil, args...); (err == nil) != (want == "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("--key-file %q: %v, want %q", flag, err, want)
		}
	}
}

// TestKVVerifyOfADamagedCheckpointCopy: the copy is named, and not changed.
func TestKVVerifyOfADamagedCheckpointCopy(t *testing.T) {
	data := t.TempDir()
	dir := filepath.Join(data, "ssd")
	tier, err := ssd.Open(t.Context(), ssd.Options{Dir: dir, Cap: 128 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	space := block.Namespace{Space: "resp.0"}
	if err := tier.Write(t.Context(), ssd.Record{Addr: block.OfKey(space.ID(), []byte("k")), Namespace: space.String(),
		Key: []byte("k")}, []byte("v"), true); err != nil {
		t.Fatal(err)
	}
	<-tier.Ready() // a Close before it writes no checkpoint
	if err := tier.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "CHECKPOINT")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text[20] ^= 1
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := ctl(t, nil, "kv", "verify", data)
	if err == nil || !strings.Contains(err.Error(), "damaged in 1 place") {
		t.Errorf("%v", err)
	}
	ctltest.Want(t, out, name+": ssd: the copy of the checkpoint is damaged; the next start writes it again")
	if after, err := os.ReadFile(name); err != nil || string(after) != string(text) {
		t.Errorf("verify has changed it: %v", err)
	}
}

// segmentIn returns the only segment that contains records.
func segmentIn(t *testing.T, dir string) (found string) {
	t.Helper()
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range names {
		if filepath.Ext(e.Name()) == ".cgnkv" {
			found = filepath.Join(dir, e.Name())
		}
	}
	if found == "" {
		t.Fatal(names)
	}
	return found
}

// flip changes a bit after the first occurrence of text in a file below dir.
func flip(t *testing.T, dir string, text []byte) (done bool) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || done {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		at := strings.Index(string(content), string(text))
		if at < 0 {
			return nil
		}
		content[at+len(text)-1] ^= 1
		done = true
		return os.WriteFile(name, content, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return done
}
