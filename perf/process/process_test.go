package process

import (
	"bufio"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// childOf makes the test binary a program that writes to a connection on request.
const childOf = "TEST_PROCESS_CHILD"

func TestMain(m *testing.M) {
	if addr := os.Getenv(childOf); addr != "" {
		child(addr)
		return
	}
	goleak.VerifyTestMain(m)
}

// child connects to addr. The child answers each byte n with n system calls and a byte.
func child(addr string) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		os.Exit(1)
	}
	r := bufio.NewReader(c)
	for {
		n, err := r.ReadByte()
		if err != nil {
			return
		}
		for range n {
			_ = syscall.Getppid()
			contend()
		}
		if _, err := c.Write([]byte{n}); err != nil {
			return
		}
	}
}

// contend makes a system call that returns EAGAIN because a lock is no longer held.
var contend = func() {}

func TestUsage(t *testing.T) {
	self, err := Read(os.Getpid())
	if err != nil || self.RSS < 1<<20 {
		t.Fatalf("%+v, %v", self, err)
	}
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Start(dir, "sh", []string{"/bin/sh", "-c", "sh -c 'i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; " +
		"echo done >ready; exec sleep 60' & wait"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	if _, err := os.ReadFile(ready); err != nil { // returns once the grandchild's work is done
		t.Fatal(err)
	}
	u, err := p.Usage()
	if err != nil || u.CPU < 2*tick {
		t.Errorf("the work of a grandchild is not seen: %+v, %v", u, err)
	}
	p.Stop()
	if _, err := p.Usage(); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("after the end: %v", err)
	}
}

func TestHealth(t *testing.T) {
	p, err := Start(t.TempDir(), "false", []string{"/bin/sh", "-c", "echo not today; exit 3"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	err = p.WaitHealthy(context.Background(), "127.0.0.1:1", "/health")
	if err == nil || !strings.Contains(err.Error(), "not today") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a program that fails: %v", err)
	}
}

// TestKilled: reading a program that has ended fails with the way it ended.
func TestKilled(t *testing.T) {
	p, err := Start(t.TempDir(), "sleep", []string{"/bin/sleep", "60"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.done
	if _, err := p.Usage(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("a program that was killed: %v", err)
	}
}

func TestCountCalls(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p, err := Start(t.TempDir(), "child", []string{os.Args[0]}, []string{childOf + "=" + ln.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func(n byte) {
		if _, err := c.Write([]byte{n}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	ask(1) // the program runs
	for _, count := range []func() (Counting, error){
		func() (Counting, error) { return traceCalls(p.PID()) },
		func() (Counting, error) { return startStrace(p.PID()) },
	} {
		k, err := count()
		if err != nil {
			t.Logf("skipped: %v", err)
			continue
		}
		for range 20 {
			ask(50)
		}
		calls, err := k.Stop()
		// A call in progress at the beginning or end may be counted or not.
		near := func(n int64) bool { return n >= 18 && n <= 22 }
		if err != nil || !near(calls["write"]) || !near(calls["read"]-calls[Again]) ||
			calls["getppid"]+calls["call 110"] != 1000 {
			t.Errorf("%T: %v, %v", k, calls, err)
		}
	}
}

func TestParseStrace(t *testing.T) {
	calls, err := parseStrace("strace: Process 1 attached\n    calls    errors syscall\n--------- --------- " +
		"----------------\n     1000           getppid\n       21         5 read\n        3         3 " +
		"futex\n--------- --------- ----------------\n     1024         8 total\n")
	if err != nil || len(calls) != 4 || calls["read"] != 21 || calls.Useful() != 1019 ||
		calls.Useful("getppid", "futex") != 16 {
		t.Errorf("%v, %v", calls, err)
	}
	if s := calls.PerUnit(1000); s != "getppid 1.00 read 0.02 EAGAIN 0.01" {
		t.Error(s)
	}
	if _, err := parseStrace("strace: attach: ptrace(PTRACE_SEIZE, 1): Operation not permitted\n"); err == nil {
		t.Error("no table, no error")
	}
}
