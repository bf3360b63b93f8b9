//go:build linux

package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/race"
	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kvcached/lease"
	"golang.org/x/sys/unix"
)

// holdRole gets leases and a staged block, and keeps both.
func holdRole(path string) error {
	c, err := client.Dial(context.Background(), path)
	if err != nil {
		return err
	}
	for range 10 {
		if _, err := c.Get(context.Background(), addr("a")); err != nil {
			return err
		}
	}
	_, err = c.PutFrom(context.Background(), item("staged"), 1<<20, func([]byte) error {
		ready()
		return errors.New("nothing is put")
	})
	return err
}

func TestAKilledClientHoldsNothing(t *testing.T) {
	n := serve(t, lease.Options{Lease: time.Hour})
	n.fill(t, "a", pattern(100_000, 1))
	cmd := start(t, "hold", n.path)
	if s := n.server.Stats(); s.Leases != 10 || s.LeasedBytes != 10*25*4096 || s.HitBytes != 10*100_000 ||
		s.StagingBytes < 1<<20 ||
		s.Clients != 1 {
		t.Fatalf("%+v", s)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "taken back", func() bool { return n.server.Stats().Clients == 0 })
	if s := n.server.Stats(); s.Leases != 0 || s.LeasedBytes != 0 || s.StagingBytes != 0 || s.TakenBack != 10 {
		t.Errorf("%+v", s)
	}
}

// strangerRole expects to be refused three times.
func strangerRole(path string) error {
	for range 3 {
		if _, err := client.Dial(context.Background(), path); !errors.Is(err, client.ErrDenied) {
			return fmt.Errorf("a stranger got in: %w", err)
		}
	}
	ready()
	return nil
}

// TestStrangers: the file's mode keeps another user out. If the mode lets that user pass, the
// server refuses the user by its id.
func TestStrangers(t *testing.T) {
	if race.Enabled {
		t.Skip("six processes that start slowly under the race detector")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process of another user")
	}
	var log bytes.Buffer
	n := serve(t, lease.Options{AllowUIDs: []uint32{4242}, AllowGIDs: []uint32{4343},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	program := filepath.Join(filepath.Dir(n.path), "program")
	for dir := filepath.Dir(n.path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	as := func(uid, gid uint32, groups ...uint32) func(*exec.Cmd) {
		return func(c *exec.Cmd) {
			c.Path, c.Dir = program, "/"
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: groups}}
		}
	}
	start(t, "stranger", n.path, as(65534, 65534))
	if n.server.Stats().Denied != 0 {
		t.Error("the mode let a stranger connect")
	}
	if err := os.Chmod(n.path, 0o666); err != nil {
		t.Fatal(err)
	}
	start(t, "stranger", n.path, as(65534, 65534))
	if lines := strings.Count(log.String(), "refused a connection"); n.server.Stats().Denied != 3 || lines != 1 {
		t.Errorf("%d log lines, %+v", lines, n.server.Stats())
	}
	n.fill(t, "a", pattern(100_000, 1))
	start(t, "hold", n.path, as(4242, 65534))
	start(t, "hold", n.path, as(65534, 4343))
	start(t, "hold", n.path, as(65534, 65534, 4343, 77))
	start(t, "hold", n.path, as(65534, 65534, 0)) // the group of the socket's file
	if s := n.server.Stats(); s.Denied != 3 || s.Leases != 40 {
		t.Errorf("%+v", s)
	}
}

// TestAClientThatDoesNotRead: a client sends requests and reads no answers. Another client is
// served meanwhile.
func TestAClientThatDoesNotRead(t *testing.T) {
	n := serve(t, lease.Options{WriteTimeout: 300 * time.Millisecond, MaxLongFrames: 2})
	a := n.fill(t, "a", pattern(5000, 1))
	slow, other := hello(t, n.path), hello(t, n.path)
	ask := request(frame.OpStat, 100, bytes.Repeat(frame.AppendAddr(nil, &a), 100))
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := slow.conn.Write(ask); err != nil {
				ended <- err
				return
			}
		}
	}()
	for {
		select {
		case <-ended:
			if s := n.server.Stats(); s.Stalled != 1 {
				t.Errorf("%+v", s)
			}
			return
		default:
			g := other.get(a)
			if g.Status != frame.StatusOK {
				t.Fatal(g.Status)
			}
			other.release(g.Lease)
		}
	}
}

// idleClients is how many connections idleRole has.
var idleClients = 10_000

func init() {
	if race.Enabled {
		idleClients = 500
	}
}

// idleRole has many idle connections.
func idleRole(path string) error {
	greeting := request(frame.OpHello, 0, frame.AppendHello(nil, &frame.Hello{Min: 1, Max: 1, Have: 1}))
	b := make([]byte, 256)
	for range idleClients {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		for err = unix.EAGAIN; err == unix.EAGAIN; { // the backlog is full
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		}
		if err == nil {
			_, err = unix.Write(fd, greeting)
		}
		if err == nil {
			_, err = unix.Read(fd, b) // which drops the arena's descriptor
		}
		if err != nil {
			return err
		}
	}
	ready()
	return nil
}

// TestIdleClients: many idle connections cost little memory. They cost other clients nothing.
func TestIdleClients(t *testing.T) {
	if testing.Short() {
		t.Skip("10,000 connections")
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil && limit.Max < uint64(idleClients)+1000 {
		t.Skip("needs a limit of 11,000 open files")
	}
	n := serve(t, lease.Options{MaxClientsPerProcess: idleClients})
	a := n.fill(t, "a", pattern(5000, 1))
	before := memory()
	start(t, "idle", n.path)
	if got := n.server.Stats().Clients; got != int64(idleClients) {
		t.Fatal(got, "clients")
	}
	each := float64(memory()-before) / float64(idleClients)
	t.Logf("%.0f bytes of the server's memory for each idle client", each)
	if each > 8<<10 && !race.Enabled {
		t.Error("more than 8 KiB")
	}
	other := hello(t, n.path)
	for range 100 {
		g := other.get(a)
		if g.Status != frame.StatusOK {
			t.Fatal(g.Status)
		}
		other.release(g.Lease)
	}
}

// memory is what the Go runtime has in use, heap and stacks.
func memory() uint64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse + m.MSpanInuse
}

// TestAllocations: this package allocates nothing for a request. The store's Get and Create
// allocate one Block and one Draft.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	n := serve(t, lease.Options{})
	a := n.fill(t, "a", pattern(5000, 1))
	r := hello(t, n.path)
	one := frame.AppendAddr(nil, &a)
	many := bytes.Repeat(one, 64)
	var release [8]byte
	id, _, _ := r.stage(100_000)
	commit := append(frame.AppendCommit(nil, &frame.Commit{Segment: id, Length: 100_000, Digest: addr("b").Digest}),
		namespace...)
	named := frame.Commit{Segment: id, Length: 100_000, Digest: addr("b").Digest, Namespace: []byte(wideNamespace),
		Names: bytes.Repeat([]byte("name"), 14)}
	namedCommit := frame.AppendCommit(nil, &named)
	for name, c := range map[string]struct {
		limit float64
		do    func()
	}{
		"get and release": {1, func() {
			_, body := r.ask(frame.OpGet, 1, one)
			copy(release[:], body)
			r.send(frame.OpRelease, 1, release[:])
		}},
		"stat":              {0, func() { r.ask(frame.OpStat, 1, one) }},
		"stat of many":      {0, func() { r.ask(frame.OpStat, 64, many) }},
		"touch of many":     {0, func() { r.send(frame.OpTouch, 64, many); r.ask(frame.OpPing, 0, nil) }},
		"commit":            {1, func() { r.ask(frame.OpCommit, len(namespace), commit) }},
		"commit with names": {1, func() { r.ask(frame.OpCommit, named.Entries(), namedCommit) }},
	} {
		for range 10 {
			c.do()
		}
		if got := testing.AllocsPerRun(200, c.do); got > c.limit {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

// BenchmarkCommit measures the commit of a small block over the socket.
func BenchmarkCommit(b *testing.B) {
	n := serve(b, lease.Options{})
	r := hello(b, n.path)
	id, _, _ := r.stage(4000)
	q := append(frame.AppendCommit(nil, &frame.Commit{Segment: id, Length: 4000, Digest: addr("b").Digest}),
		namespace...)
	b.ReportAllocs()
	for b.Loop() {
		r.ask(frame.OpCommit, len(namespace), q)
	}
}

// FuzzConversation sends any bytes after a hello. The server answers or ends the connection, and
// goes on serving.
func FuzzConversation(f *testing.F) {
	// at thousands of connections a second, the server sees their ends late
	n := serve(f, lease.Options{Lease: time.Second, MaxClientsPerProcess: 1 << 13})
	a := n.fill(f, "a", pattern(5000, 1))
	get := request(frame.OpGet, 1, frame.AppendAddr(nil, &a))
	f.Add(get)
	f.Add(append(get, request(frame.OpRelease, 2, make([]byte, 16))...))
	f.Add(request(frame.OpStage, 0, []byte{0, 0, 1, 0, 0, 0, 0, 0}))
	commit := append(frame.AppendCommit(nil, &frame.Commit{Segment: 1, Length: 100}), namespace...)
	f.Add(append(request(frame.OpStage, 0, []byte{0, 0, 1, 0, 0, 0, 0, 0}), request(frame.OpCommit, len(namespace),
		commit)...))
	f.Add([]byte(strings.Repeat("\x10\x00\x00\x00", 40)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := hello(t, n.path)
		_, _ = r.conn.Write(b)
		_ = r.conn.CloseWrite()
		for {
			if _, err := r.conn.Read(r.buf); err != nil {
				break
			}
		}
		hello(t, n.path).get(a)
	})
}
