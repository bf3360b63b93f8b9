package kvcached

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
	"github.com/cognitora/dataplane/kvcached/store"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestExamine(t *testing.T) {
	dir := t.TempDir()
	c := valid(func(c *Config) {
		c.Daemon.Data = filepath.Join(dir, "new")
		c.Daemon.Sock, c.Daemon.Trace = filepath.Join(c.Daemon.Data, "kv.sock"), filepath.Join(c.Daemon.Data, "t")
	})
	c.RESP.Listen = "unix://" + filepath.Join(c.Daemon.Data, "resp.sock")
	if err := c.Examine(); err != nil {
		t.Error(err)
	}
	c.S3.Listen = "unix://" + filepath.Join(c.Daemon.Data, "no", "s3.sock")
	if err := c.Examine(); err == nil || !strings.Contains(err.Error(), "s3.listen: the socket cannot be made") {
		t.Errorf("a socket in a folder that nobody makes: %v", err)
	}
	c.Daemon.Sock, c.Daemon.Trace, c.SSD.KeyFile = filepath.Join(dir, "no", "s"), filepath.Join(dir, "no", "t"),
		filepath.Join(dir, "key")
	c.RESP.Users = []UserConfig{{Name: "x", PasswordFile: filepath.Join(dir, "password")}}
	c.S3.Keys = []KeyConfig{{Access: "x", SecretFile: write(t, filepath.Join(dir, "empty"), "\n")}}
	c.Daemon.Admin = "203.0.113.7:80"
	err := c.Examine()
	for _, want := range []string{"kvcached.sock", "kvcached.trace", "ssd.key_file", "resp.users[0].password_file",
		"s3.keys[0].secret_file", "kvcached.admin", "name a file that the daemon's user can read"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if _, err := os.Stat(c.Daemon.Data); !errors.Is(err, os.ErrNotExist) {
		t.Error("the directory was made")
	}
	c = valid(func(c *Config) { c.Daemon.Data, c.Daemon.SSD = "/proc/x", 0 })
	want := "kvcached.data: /proc is of a file system"
	if os.Geteuid() != 0 {
		want = "kvcached.data: /proc cannot be written to"
	}
	if err := c.Examine(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("/proc: %v", err)
	}
}

// TestTheWrongKeyIsFoundBeforeTheTierIsOpened checks that a start with a wrong key fails and
// changes nothing on SSD.
func TestTheWrongKeyIsFoundBeforeTheTierIsOpened(t *testing.T) {
	dir := t.TempDir()
	key := write(t, filepath.Join(dir, "key"), strings.Repeat("k", 32))
	c, log := settings(t, filepath.Join(dir, "data"), func(c *Config) { c.SSD.KeyFile = key })
	_, stop := begin(t, c)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	opened := strings.Count(log.String(), "opening the SSD tier")
	for _, file := range []string{"", write(t, filepath.Join(dir, "other"), strings.Repeat("o", 32))} {
		c.SSD.KeyFile = file
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), "ssd.key_file") ||
			strings.Contains(err.Error(), "kvcached.ram") {
			t.Errorf("key %q: %v", file, err)
		}
	}
	if strings.Count(log.String(), "opening the SSD tier") != opened {
		t.Error("the tier was opened")
	}
	c.SSD.KeyFile = key
	if err := c.Examine(); err != nil {
		t.Error(err)
	}
}

// TestExamineLooksIntoTheDirectory checks that Examine and a start reject the same directories in
// the same words. Each problem is one line.
func TestExamineLooksIntoTheDirectory(t *testing.T) {
	page := func(text string) string { return text + strings.Repeat("\x00", 4096-len(text)) }
	for name, c := range map[string]struct{ file, text, want string }{
		"a newer version":  {"ssd/FORMAT", page("cgn-kvcached ssd\nversion 3\nkey none\n"), "kvcached.data: ssd: the directory's format is not this version's: "},
		"no version":       {"ssd/FORMAT", page("cgn-kvcached ssd\nversion 0\nkey none\n"), "kvcached.data: ssd: the directory's format is not this version's: "},
		"an empty FORMAT":  {"ssd/FORMAT", "", "kvcached.data: ssd: the file that tells the directory's format is damaged: "},
		"a garbled FORMAT": {"ssd/FORMAT", page("x"), "kvcached.data: ssd: the file that tells the directory's format is damaged: "},
		"no FORMAT":        {"ssd/segment-00000001.cgnkv", "", "kvcached.data: ssd: the directory's format is not this version's: DIR/ssd holds segments but no file FORMAT; put it back from a copy, or give another --data DIR, "},
		"a file as ssd":    {"ssd", "", "kvcached.data: "},
		"empty purges":     {"purges.json", "", "kvcached.data: DIR/purges.json is no list of purges: it is not whole JSON; put it back from a copy, "},
		"cut purges":       {"purges.json", `{"history":1`, "kvcached.data: DIR/purges.json is no list of purges: it is not whole JSON; "},
		"other purges":     {"purges.json", `{"history":1,"revision":0,"purges":[{}]}`, "kvcached.data: DIR/purges.json is no list of purges: purges[0]: "},
		"a file as data":   {"", "", "kvcached.data: "},
		"sealed":           {"ssd/FORMAT", page("cgn-kvcached ssd\nversion 2\nkey 0123456789abcdef\n"), "ssd.key_file: "},
	} {
		data := filepath.Join(t.TempDir(), "d")
		write(t, filepath.Join(data, c.file), c.text)
		conf := valid(func(v *Config) { v.Daemon.Data, v.Daemon.Sock = data, "" })
		c.want = strings.Replace(c.want, "DIR", data, 1)
		err := conf.Examine()
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q in one line", name, err, c.want)
		}
		if err != nil && !strings.HasPrefix(c.want, "ssd.key_file") && strings.Contains(err.Error(), "key_file") {
			t.Errorf("%s: %v tells of a key", name, err)
		}
		if _, started := New(*conf); started == nil || err != nil && started.Error() != err.Error() {
			t.Errorf("%s: a start says %v", name, started)
		}
	}
}

func TestExamineHoldsTheCertificateToRoleAndCA(t *testing.T) {
	fleet, foreign := t.TempDir(), t.TempDir()
	for _, dir := range []string{fleet, foreign} {
		if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	own, router, other := pki.FilesIn(fleet, pki.KVCached), pki.FilesIn(fleet, pki.Router),
		pki.FilesIn(foreign, pki.KVCached)
	for _, c := range []struct {
		name string
		tls  TLSConfig
		want string
	}{
		{"its own", TLSConfig{own.CA, own.Cert, own.Key}, ""},
		{"a router's", TLSConfig{own.CA, router.Cert, router.Key}, `tls.cert: pki: `},
		{"of another CA", TLSConfig{own.CA, other.Cert, other.Key}, "is no certificate of the CA in " + own.CA},
		{"another's key", TLSConfig{own.CA, own.Cert, router.Key}, "tls.cert"},
		{"for engines alone", TLSConfig{"", router.Cert, router.Key}, ""},
	} {
		conf := valid(func(v *Config) { v.Daemon.Data, v.Daemon.Sock, v.TLS = t.TempDir(), "", c.tls })
		err := conf.Examine()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if c.want == "" {
			continue
		}
		if _, newErr := New(*conf); newErr == nil || newErr.Error() != err.Error() {
			t.Errorf("%s: a start says %v", c.name, newErr)
		}
	}
}

func TestErrorsOfAStartNameTheSetting(t *testing.T) {
	c := valid(func(*Config) {})
	for want, err := range map[string]error{
		"kvcached.ram: ": fmt.Errorf("store: %w", ram.ErrArena),
		"ssd.key_file: ": fmt.Errorf("store: %w", &ssd.KeyError{}),
		"kvcached.data: the disk of /tmp/data is full": fmt.Errorf("store: %w", syscall.ENOSPC),
		"kvcached.data: store: open /x": &fs.PathError{Op: "store: open", Path: "/x",
			Err: syscall.EACCES},
		"kvcached.ssd: ": errors.New("store: x"),
	} {
		if got := storeError(c, err); !strings.HasPrefix(got.Error(), want) {
			t.Errorf("%v, want %q", got, want)
		}
	}
	sock := filepath.Join(t.TempDir(), "s")
	l, err := listen.OpenUnix(sock, 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, _, err = openFor("resp.listen", "--resp", "unix://"+sock, -1)
	want := fmt.Sprintf("resp.listen (--resp) unix://%s: the socket is in use by ", sock)
	if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "stop that program") {
		t.Errorf("a taken socket: %v", err)
	}
}

func TestMemory(t *testing.T) {
	const info = "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:    524288 kB\nHugePages_Total:       0\n"
	for _, c := range []struct {
		name      string
		files     map[string]string
		limit     config.Size
		source    string
		available config.Size
	}{
		{"nothing known", nil, 0, "MemTotal", 0},
		{"a host", map[string]string{"proc/meminfo": info}, 1 << 30, "MemTotal", 512 << 20},
		{"version 2", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
			"sys/fs/cgroup/a/memory.max": "1000\n",
		}, 1000, "/sys/fs/cgroup/a/memory.max", 512 << 20},
		{"version 2, in a container", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "2000\n",
		}, 2000, "/sys/fs/cgroup/memory.max", 512 << 20},
		{"version 1", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "5:devices:/x\n4:memory:/x\n0::/\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "3000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712\n",
		}, 3000, "/sys/fs/cgroup/memory/x/memory.limit_in_bytes", 512 << 20},
		{"version 1, in a container", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "4:memory:/docker/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "4000\n",
		}, 4000, "/sys/fs/cgroup/memory/memory.limit_in_bytes", 512 << 20},
		{"a limit above the host's", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "2147483648\n",
		}, 1 << 30, "MemTotal", 512 << 20},
	} {
		root := t.TempDir()
		for name, text := range c.files {
			write(t, filepath.Join(root, name), text)
		}
		if m := hostMemory(root); m.limit != c.limit || !strings.Contains(m.source, c.source) ||
			m.available != c.available {
			t.Errorf("%s: %+v", c.name, m)
		}
	}
	m := memory{1 << 30, "the host's", 512 << 20}
	if err := m.check(1<<30 + 1); err == nil || !strings.Contains(err.Error(), "1.0 GiB, which is the host's") {
		t.Errorf("above the limit: %v", err)
	}
	if err := m.check(1 << 30); err != nil {
		t.Error(err)
	}
	for ram, want := range map[config.Size]string{1 << 29: "available now", 900 << 20: "the host's", 400 << 20: ""} {
		if got := strings.Join(m.advise(ram), ""); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q", ram, got)
		}
	}
}

// TestAdviseDisk checks the warning about an SSD tier larger than its filesystem, with and without
// the directory.
func TestAdviseDisk(t *testing.T) {
	dir := t.TempDir()
	for _, data := range []string{dir, filepath.Join(dir, "not", "yet")} {
		if got := strings.Join(adviseDisk(data, 1<<60), ""); !strings.HasPrefix(got, "kvcached.ssd: ") ||
			!strings.Contains(got, "--ssd") {
			t.Errorf("%q", got)
		}
		if got := strings.Join(adviseDisk(data, 9e15), ""); !strings.HasPrefix(got,
			"kvcached.ssd: 9000TB (8381903.2 GiB) is more than the ") || strings.Contains(got, "MiB") {
			t.Errorf("%q", got)
		}
		if got := adviseDisk(data, 1); got != nil {
			t.Errorf("%q", got)
		}
	}
}

// smallFilesystem mounts a tmpfs of the given size.
func smallFilesystem(t *testing.T, size string) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a filesystem of its own")
	}
	dir = t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "none", dir).CombinedOutput(); err != nil {
		t.Skipf("tmpfs cannot be mounted here: %s", out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return dir
}

// TestAFullFilesystemIsTold checks that a warning tells of a filesystem on which a start fails.
func TestAFullFilesystemIsTold(t *testing.T) {
	dir := smallFilesystem(t, "8m")
	c, log := settings(t, filepath.Join(dir, "d"), nil)
	d, err := New(c)
	if err == nil {
		d.Close()
	}
	if said := log.String(); err == nil || !strings.Contains(err.Error(), "needs 16 MiB free") ||
		!strings.Contains(said, "for the SSD tier, which needs 16 MiB to start") ||
		strings.Contains(said, "works with smaller segments") {
		t.Error(err, log)
	}
}

// TestASmallFilesystemIsTold checks that /readyz names the limit of a filesystem with less room
// than kvcached.ssd.
func TestASmallFilesystemIsTold(t *testing.T) {
	dir := smallFilesystem(t, "64m")
	c, log := settings(t, filepath.Join(dir, "d"), func(c *Config) { c.Daemon.SSD = 1 << 30 })
	d, stop := begin(t, c)
	for i := range 64 {
		it := store.Item{Addr: testAddr(i), Namespace: testSpace.String()}
		draft, err := d.store.Create(t.Context(), it, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		draft.Filled(1 << 20)
		if _, err := draft.Commit(t.Context(), store.CommitOptions{Durable: true}); err != nil {
			t.Fatal(i, err)
		}
	}
	s := d.status().SSD
	if s == nil || s.Bytes != 1<<30 || s.Limit == 0 || s.Limit >= 64<<20 {
		t.Errorf("%+v", s)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Contains(text, "the disk failed") ||
		!strings.Contains(text, "less room than the tier may use") {
		t.Error(text)
	}
}
