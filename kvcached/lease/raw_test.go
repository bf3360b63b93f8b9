//go:build linux

package lease_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kvcached/lease"
	"github.com/cognitora/dataplane/kvcached/store"
	"golang.org/x/sys/unix"
)

// node is a server of this process.
type node struct {
	path   string
	store  *store.Store
	server *lease.Server
}

func serve(t testing.TB, o lease.Options) *node {
	t.Helper()
	st, err := store.Open(context.Background(), store.Options{RAM: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s, err := lease.New(st, o)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{filepath.Join(t.TempDir(), "lease.sock"), st, s}
	l, err := listen.OpenUnix(n.path, 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != lease.ErrClosed {
			t.Error(err)
		}
		_ = st.Close()
	})
	return n
}

// fill puts a block into the store directly, not over the socket.
func (n *node) fill(t testing.TB, name string, payload []byte) block.Addr {
	t.Helper()
	a := addr(name)
	d, err := n.store.Create(context.Background(), store.Item{Addr: a, Namespace: namespace}, len(payload))
	if err != nil {
		t.Fatal(err)
	}
	copy(d.Bytes(), payload)
	if _, err := d.Commit(context.Background(), store.CommitOptions{}); err != nil {
		t.Fatal(err)
	}
	return a
}

// until waits for a condition that the server brings about.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// raw speaks frames by hand.
type raw struct {
	t       testing.TB
	conn    *net.UnixConn
	seq     uint64
	buf     []byte
	out     []byte
	welcome frame.Welcome
	arena   int // descriptor
}

func connect(t testing.TB, path string) *raw {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	return wrap(t, c)
}

func wrap(t testing.TB, c *net.UnixConn) *raw {
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return &raw{t: t, conn: c, buf: make([]byte, frame.MaxFrame), arena: -1}
}

// hello connects and greets.
func hello(t testing.TB, path string) *raw {
	t.Helper()
	return greet(t, connect(t, path))
}

func greet(t testing.TB, r *raw) *raw {
	t.Helper()
	r.send(frame.OpHello, 0, frame.AppendHello(nil, &frame.Hello{Min: 1, Max: 1}))
	_, body, fd := r.receive(true)
	r.welcome, r.arena = frame.ParseWelcome(body), fd
	t.Cleanup(func() { unix.Close(fd) })
	return r
}

func (r *raw) send(op frame.Op, count int, body []byte) {
	r.t.Helper()
	r.seq++
	r.out = frame.Append(r.out[:0], frame.Header{Op: op, Count: uint16(count), Seq: r.seq})
	r.out = frame.End(append(r.out, body...), 0)
	if _, err := r.conn.Write(r.out); err != nil {
		r.t.Fatal(err)
	}
}

// receive reads one answer, and a descriptor if one must come with the answer. The socket must hold
// nothing else.
func (r *raw) receive(withFile bool) (h frame.Header, body []byte, fd int) {
	r.t.Helper()
	fd = -1
	n, err := 0, error(nil)
	if withFile {
		oob := make([]byte, unix.CmsgSpace(4))
		var m int
		n, m, _, _, err = r.conn.ReadMsgUnix(r.buf, oob)
		if msgs, _ := unix.ParseSocketControlMessage(oob[:m]); len(msgs) == 1 {
			fds, _ := unix.ParseUnixRights(&msgs[0])
			fd = fds[0]
		}
	}
	for err == nil {
		if h, body, err = frame.Answer(r.buf[:n]); err != frame.ErrIncomplete {
			break
		}
		var m int
		m, err = r.conn.Read(r.buf[n:])
		n += m
	}
	if err != nil || int(h.Size) != n || withFile && fd < 0 {
		r.t.Fatalf("answer of %d bytes, descriptor %d: %v", n, fd, err)
	}
	return h, body, fd
}

func (r *raw) ask(op frame.Op, count int, body []byte) (frame.Header, []byte) {
	r.t.Helper()
	r.send(op, count, body)
	h, answer, _ := r.receive(false)
	if h.Op == op && h.Seq != r.seq {
		r.t.Fatalf("%+v answers request %d", h, r.seq)
	}
	return h, answer
}

func (r *raw) get(a block.Addr) frame.Grant {
	r.t.Helper()
	_, body := r.ask(frame.OpGet, 1, frame.AppendAddr(nil, &a))
	return frame.ParseGrant(body, 0)
}

func (r *raw) release(ids ...uint64) {
	var b []byte
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint64(b, id)
	}
	r.send(frame.OpRelease, len(ids), b)
}

// refused reads the error frame with which the server ends the connection.
func (r *raw) refused() frame.Status {
	r.t.Helper()
	h, _, _ := r.receive(false)
	if h.Op != frame.OpError {
		r.t.Fatalf("%+v, not an error", h)
	}
	if n, err := r.conn.Read(r.buf); n != 0 || err != io.EOF && !isReset(err) {
		r.t.Fatal("the connection stays open after an error: ", n, err)
	}
	return h.Status
}

// stage asks for a segment and maps it.
func (r *raw) stage(size int) (id uint32, memory []byte, fd int) {
	r.t.Helper()
	r.send(frame.OpStage, 0, binary.LittleEndian.AppendUint64(nil, uint64(size)))
	h, body, fd := r.receive(true)
	if h.Status != frame.StatusOK {
		r.t.Fatal(h.Status)
	}
	id, mapped := frame.ParseStaged(body)
	memory, err := unix.Mmap(fd, 0, int(mapped), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = unix.Munmap(memory)
		unix.Close(fd)
	})
	return id, memory, fd
}

func (r *raw) commit(c frame.Commit, name, ns string) frame.Info {
	r.t.Helper()
	c.Digest, c.Layer, c.Namespace = addr(name).Digest, addr(name).Layer, []byte(ns)
	_, body := r.ask(frame.OpCommit, len(ns), frame.AppendCommit(nil, &c))
	return frame.ParseInfo(body, 0)
}
