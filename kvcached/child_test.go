package kvcached

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
)

// child starts host b as a process of its own and returns the addresses of its RESP and S3 servers.
func (s site) child(t *testing.T, dir string) (resp, s3 string, kill func()) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), "CGN_TEST_DAEMON="+dir, "CGN_TEST_ETCD="+s.etcd, "CGN_TEST_PKI="+s.pki)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	childCommand(child)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	t.Cleanup(kill)
	if _, err := fmt.Fscanln(bufio.NewReader(out), &resp, &s3); err != nil {
		t.Fatal(err)
	}
	return resp, s3, kill
}

// Hooks by which builds with more tests change child's command and settings.
var (
	childCommand  = func(*exec.Cmd) {}
	childSettings = func(*Config) {}
)

// childDaemon is the main function of child's process.
func childDaemon(dir string) {
	var t testing.T
	s := site{etcd: os.Getenv("CGN_TEST_ETCD"), pki: os.Getenv("CGN_TEST_PKI")}
	c, _ := settings(&t, dir, s.join("b", func(c *Config) {
		c.Daemon.Heartbeat = config.Duration(time.Second)
		childSettings(c)
	}))
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	d, err := New(c)
	if err != nil {
		panic(err)
	}
	fmt.Println(d.At("resp"), d.At("s3"))
	panic(d.Run(context.Background(), context.Background()))
}
