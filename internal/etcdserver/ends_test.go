package etcdserver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childDir makes a test process start etcd in this directory and print the result. An etcd that
// fails leaves goroutines until its process ends.
const childDir = "ETCDSERVER_TEST_DIR"

// TestChild is the process that inChild starts, not a test.
func TestChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("run by other tests only")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if os.Getenv("ETCDSERVER_TEST_LEAVE") != "" {
		cancel()
	}
	_, err := StartContext(ctx, dir, "127.0.0.1:0")
	fmt.Println("said:", err)
	os.Exit(0)
}

// inChild starts etcd in a process of its own, after the shell command first, and returns the
// printed result.
func inChild(t *testing.T, first, dir string, env ...string) string {
	t.Helper()
	c := exec.Command("/bin/sh", "-c", first+` && exec "$0" -test.run '^TestChild$'`, os.Args[0])
	c.Env = append(append(os.Environ(), childDir+"="+dir), env...)
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "said:") {
		t.Fatalf("the process that starts etcd: %v\n%s", err, out)
	}
	return string(out)
}

func TestTooFewOpenFilesAreNamed(t *testing.T) {
	if said := inChild(t, "ulimit -n 150", t.TempDir()); !strings.Contains(said, "150, and 256 are needed") ||
		!strings.Contains(said, "ulimit -n") {
		t.Error(said)
	}
}

func TestWhatEndsEtcdIsAnError(t *testing.T) {
	want := map[string]string{"log": "its data cannot be read", "database": "failed to open database"}
	for kind, pattern := range map[string]string{"log": "member/member/wal/*.wal",
		"database": "member/member/snap/db"} {
		dir := t.TempDir()
		start(t, dir, "127.0.0.1:0").Close()
		files, _ := filepath.Glob(filepath.Join(dir, pattern))
		if len(files) == 0 {
			t.Fatalf("no %s in %s", pattern, dir)
		}
		for _, name := range files {
			if err := os.WriteFile(name, bytes.Repeat([]byte("damaged"), 20000), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		said := inChild(t, "true", dir)
		t.Log(kind, said)
		if !strings.Contains(said, "said: embedded etcd on") || !strings.Contains(said, want[kind]) {
			t.Errorf("a damaged %s: %s", kind, said)
		}
	}
}

// TestAStartThatWaitsIsLeft: StartContext gives up while bbolt waits without a limit for the lock
// of its file.
func TestAStartThatWaitsIsLeft(t *testing.T) {
	dir := t.TempDir()
	start(t, dir, "127.0.0.1:0").Close()
	db, err := os.OpenFile(filepath.Join(dir, "member/member/snap/db"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := syscall.Flock(int(db.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if said := inChild(t, "true", dir, "ETCDSERVER_TEST_LEAVE=1"); !strings.Contains(said, context.Canceled.Error()) {
		t.Error(said)
	}
}
