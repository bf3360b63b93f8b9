package batch

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

// TestFilesOfOthers checks that a run leaves files alone that no run has written, and that it makes
// none when it refuses.
func TestFilesOfOthers(t *testing.T) {
	name := file(t, many(2, 1)...)
	dir := filepath.Dir(name)
	at := func(name string) string { return filepath.Join(dir, name) }
	answer := recordStart + `x","custom_id":"q","response":{"status_code":200,"body":{}},"error":null}` + "\n"
	content := map[string]string{"key": "secret", "key.json": recordStart, "notes": "notes", "answers": answer}
	for name, text := range content {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ want, args string }{
		{"is no line of an output file", "--out notes"},
		{"is no file of requests that failed", "--errors notes"},
		{"is no file of requests that failed", "--errors answers"},
		{"is the same file as", "--api-key-file key --out key"},
		{"is the same file as", "--api-key-file key.json --out key.json"},
		{"is the same file as", "--api-key-file key.json --errors key.json"},
		{"nowhere does not exist", "--errors nowhere/x"},
		{"is no regular file", "--errors pipe"},
		{"is no regular file", "--out pipe"},
		{"is a pipe", "--api-key-file pipe"},
	} {
		args := strings.Fields(c.args)
		for i := 1; i < len(args); i += 2 {
			args[i] = at(args[i])
		}
		args = append([]string{name, "--url", "http://127.0.0.1:1"}, args...)
		if _, _, err := ctl(t, t.Context(), nil, args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
		if _, err := os.Stat(at("a.out.jsonl")); err == nil && strings.Contains(c.args, "--errors") {
			t.Errorf("%s: an output was made", c.args)
		}
	}
	for name, text := range content {
		if page, err := os.ReadFile(at(name)); err != nil || string(page) != text {
			t.Errorf("%s has %q, %v", name, page, err)
		}
	}
	if _, _, err := ctl(t, t.Context(), nil, at("pipe")); err == nil || !strings.Contains(err.Error(), "is a pipe") {
		t.Errorf("requests from a pipe: %v", err)
	}
}

// TestAddresses checks that an address may end with /v1, and a file may begin with a mark.
func TestAddresses(t *testing.T) {
	url := endpoint(t, func(w http.ResponseWriter, _ string, _ int) { _, _ = w.Write([]byte("{}")) })
	for _, end := range []string{"", "/", "/v1", "/v1/"} {
		name := file(t, "\ufeff"+line("a", 1))
		if s, _, err := ctl(t, t.Context(), nil, name, "--url", url+end); err != nil || s.Answered != 1 {
			t.Errorf("%s: %+v, %v", end, s, err)
		}
	}
	env := map[string]string{keyVariable: "a\nb"}
	_, _, err := ctl(t, t.Context(), env, file(t, line("a", 1)), "--url", url)
	if err == nil || !strings.HasPrefix(err.Error(), keyVariable+" does not hold one key") {
		t.Errorf("a malformed key: %v, hint %q", err, ctltest.Hint(err))
	}
}
