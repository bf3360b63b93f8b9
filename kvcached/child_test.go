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

// child is host b as a process of its own, and where its RESP and S3 are.
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

// What is changed of child and its settings, in builds that have more to test.
var (
	childCommand  = func(*exec.Cmd) {}
	childSettings = func(*Config) {}
)

// childDaemon is the process of child.
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
