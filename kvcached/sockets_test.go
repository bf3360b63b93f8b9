package kvcached

import (
	"errors"
	"io/fs"
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
