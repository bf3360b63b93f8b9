package kvcached

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/listen"
)

func TestUnixSocketsAreForTheGroup(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c, _ := settings(t, dir, func(c *Config) {
		c.Daemon.Group = os.Getgid()
		c.RESP.Listen, c.S3.Listen = "unix://"+filepath.Join(dir, "resp.sock"), "unix://"+filepath.Join(dir, "s3.sock")
	})
	d, stop := begin(t, c)
	sock, lease := c.Sockets()
	for _, path := range []string{sock, lease, strings.TrimPrefix(d.At("resp"), "unix://"),
		strings.TrimPrefix(d.At("s3"), "unix://")} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != 0o660|fs.ModeSocket {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if info, err := os.Stat(c.Daemon.Data); err != nil || info.Mode().Perm() != 0o710 {
		t.Errorf("the group cannot enter the data directory, or others can read it: %v, %v", info.Mode(), err)
	}
	c.Daemon.Group = 1<<31 - 7
	if got := strings.Join(c.advise(), " "); !strings.Contains(got, "this host has no group") {
		t.Errorf("an unknown group: %q", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for part, err := range map[string]error{"kvcached.socket_group: ": listen.ErrGroup,
		"x (--x) unix:///s: ": fs.ErrPermission} {
		if got := socketError("x", "--x", "/s", err); !strings.HasPrefix(got.Error(), part) || !errors.Is(got, err) {
			t.Error(got)
		}
	}
}

// TestGroupRightsStay checks that a data directory in which a group has rights stays as it is.
func TestGroupRightsStay(t *testing.T) {
	for _, c := range []struct {
		before, after fs.FileMode
		says          string
	}{
		{0o700, 0o710, "may enter"},
		{0o704, 0o714, "may enter"},
		{0o710, 0o710, ""},
		{0o750, 0o750, ""},
		{0o740, 0o740, "chmod g+x"},
		{0o770 | fs.ModeSetgid, 0o770 | fs.ModeSetgid, ""},
	} {
		dir := t.TempDir()
		if err := os.Chmod(dir, c.before); err != nil {
			t.Fatal(err)
		}
		config, _ := settings(t, dir, func(c *Config) { c.Daemon.Group = os.Getgid() })
		var log strings.Builder
		d := &Daemon{config: &config, log: slog.New(slog.NewTextHandler(&log, nil))}
		err := d.letGroupIn()
		info, statErr := os.Stat(dir)
		if err != nil || statErr != nil || info.Mode() != c.after|fs.ModeDir {
			t.Errorf("%v became %v: %v %v", c.before, info.Mode(), err, statErr)
		}
		if c.says == "" && log.Len() > 0 || !strings.Contains(log.String(), c.says) {
			t.Errorf("%v: %q", c.before, log.String())
		}
	}
}

// TestRunDirIsMade checks that a daemon without sock makes the default directory if it can, and
// leaves a directory as it is that exists.
func TestRunDirIsMade(t *testing.T) {
	usual := runDir
	t.Cleanup(func() { runDir = usual })
	run := t.TempDir()
	runDir = filepath.Join(run, "cognitora")
	for _, mode := range []fs.FileMode{0o750, 0o755} {
		c, _ := settings(t, t.TempDir(), func(c *Config) { c.Daemon.Sock, c.Daemon.Group = "", os.Getgid() })
		if err := c.Examine(); err != nil {
			t.Error(err)
		}
		_, stop := begin(t, c)
		sock, lease := c.Sockets()
		for _, path := range []string{sock, lease} {
			if info, err := os.Lstat(path); err != nil || filepath.Dir(path) != runDir {
				t.Errorf("%s: %v, %v", path, info, err)
			}
		}
		if info, err := os.Stat(runDir); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if err := os.Chmod(runDir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	runDir = "/proc/cognitora" // nobody makes a directory there
	c, _ := settings(t, t.TempDir(), func(c *Config) { c.Daemon.Sock = "" })
	if sock, _ := c.Sockets(); filepath.Dir(sock) != c.Daemon.Data {
		t.Error(sock)
	}
}
