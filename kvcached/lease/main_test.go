//go:build linux

package lease_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kvcached/lease"
	"github.com/cognitora/dataplane/kvcached/store"
	"go.uber.org/goleak"
)

// roleVar tells this program to be a child of a test.
const roleVar = "CGN_LEASE_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		if err := roles[role](os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, role, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// roles are the roles of a child. A role gets a socket's path, prints "ready" and runs until its
// input ends.
var roles = map[string]func(path string) error{
	"serve": serveRole, "echo": echoRole, "hold": holdRole, "stranger": strangerRole, "idle": idleRole,
}

func ready() {
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func serveRole(path string) error {
	st, err := store.Open(context.Background(), store.Options{RAM: 256 << 20})
	if err != nil {
		return err
	}
	s, err := lease.New(st, lease.Options{})
	if err != nil {
		return err
	}
	l, err := listen.OpenUnix(path, 0o660, -1)
	if err != nil {
		return err
	}
	go func() { _ = s.Serve(l) }()
	ready()
	return s.Close()
}

func echoRole(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 4096)
			for {
				if n, err := c.Read(b); n != 88 || err != nil {
					break
				}
				if _, err := c.Write(b[:56]); err != nil {
					break
				}
			}
		}
	}()
	ready()
	return l.Close()
}

// start runs a child in a role until the test ends, and returns when it is ready.
func start(t testing.TB, role, path string, configure ...func(*exec.Cmd)) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], path)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	for _, f := range configure {
		f(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("child %s said %q: %v", role, line, err)
	}
	return cmd
}

// child starts a serving role on a socket of its own.
func child(t testing.TB, role string) (path string) {
	path = filepath.Join(t.TempDir(), role)
	start(t, role, path)
	return path
}

var namespace = block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 16, TP: 1,
	PP: 1}.String()

// wideNamespace has objects of 128 tokens.
var wideNamespace = block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 128, TP: 1,
	PP: 1}.String()

func addr(name string) block.Addr {
	return block.Addr{Digest: block.Seed(name, "", ""), Model: block.IDOf(namespace), Layer: block.LayerAll}
}

func item(name string) client.Item { return client.Item{Addr: addr(name), Namespace: namespace} }

// pattern is a payload of n bytes that differs from seed to seed and from place to place.
func pattern(n int, seed uint64) []byte {
	b := make([]byte, n+7)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := 0; i < n; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b[i:], x)
	}
	return b[:n]
}

func put(t testing.TB, c *client.Client, name string, payload []byte) block.Addr {
	t.Helper()
	info, err := c.Put(context.Background(), item(name), payload)
	if err != nil || info.Length != len(payload) || info.CRC != block.Sum(payload) {
		t.Fatalf("put %s: %+v %v", name, info, err)
	}
	return addr(name)
}
