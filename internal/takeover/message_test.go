package takeover

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzParse: a parsed message is written and parsed again as the same message.
func FuzzParse(f *testing.F) {
	for _, m := range []message{
		{Kind: kindHello, Protocol: 1, Version: "v1"},
		{Kind: kindOffer, Protocol: 1, PID: 3, Sockets: []resource{{"router.listen", "[::]:80"}, {"router.admin", "unix:///x"}}},
		{Kind: kindRefused, Reason: "no"},
	} {
		line, err := appendMessage(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.TrimSuffix(line, []byte("\n")))
	}
	f.Add([]byte(`{"kind":"bye"}`))
	f.Add([]byte(`{"kind":"offer","sockets":[{},{},{},{},{},{},{},{},{}]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parse(line)
		if err != nil {
			return
		}
		first, err := appendMessage(nil, m)
		if err != nil {
			return // quotes have made it too long
		}
		again, err := parse(first[:len(first)-1])
		if err != nil {
			t.Fatalf("%q: %v", first, err)
		}
		if second, err := appendMessage(nil, again); err != nil || !bytes.Equal(first, second) {
			t.Errorf("%q, then %q: %v", first, second, err)
		}
	})
}

func TestDefaultSocket(t *testing.T) {
	for _, c := range []struct{ listen, runtime, xdg, want string }{
		{"127.0.0.1:8080", "/run/r:/run/s", "/x", "/run/r/p-127.0.0.1:8080.sock"},
		{"[::]:http", "", "/x", "/x/p/p-[::]:http.sock"},
		{"unix:///srv/a.sock", "/run/r", "", "/run/r/p--srv-a.sock.sock"},
		{"127.0.0.1:0", "/run/r", "", ""},
		{"unix:///" + strings.Repeat("a", 100), "/run/r", "", ""},
	} {
		env := map[string]string{"RUNTIME_DIRECTORY": c.runtime, "XDG_RUNTIME_DIR": c.xdg}
		if got := DefaultSocket("p", c.listen, func(name string) string { return env[name] }); got != c.want {
			t.Errorf("%s: %q, want %q", c.listen, got, c.want)
		}
	}
}

func TestTheDirectoryIsNobodyElses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "er")
	if err := Examine(filepath.Join(dir, "s")); err != nil {
		t.Errorf("a directory that is yet to be made: %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("examining has made it")
	}
	if err := prepare(filepath.Join(dir, "s")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if err := os.Chmod(dir, 0o720); err != nil {
		t.Fatal(err)
	}
	if err := prepare(filepath.Join(dir, "s")); err == nil || !strings.Contains(err.Error(), "others can write") {
		t.Errorf("a directory of a group: %v", err)
	}
	if err := Examine(filepath.Join(dir, "s")); err == nil || !strings.Contains(err.Error(), "others can write") {
		t.Errorf("a directory of a group, examined: %v", err)
	}
}
