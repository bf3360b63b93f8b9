//go:build linux

package lease_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/listen/listentest"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kvcached/lease"
	"github.com/cognitora/dataplane/kvcached/store"
	"golang.org/x/sys/unix"
)

func isReset(err error) bool { return errors.Is(err, unix.ECONNRESET) }

func TestClientsCanOnlyReadTheArena(t *testing.T) {
	n := serve(t, lease.Options{})
	payload := pattern(100_000, 1)
	a := n.fill(t, "a", payload)
	r := hello(t, n.path)
	size := int(r.welcome.ArenaSize)
	if _, err := unix.Mmap(r.arena, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err,
		unix.EPERM) {
		t.Error("mapped for writing:", err)
	}
	for what, err := range map[string]error{
		"cut":     unix.Ftruncate(r.arena, 0),
		"grown":   unix.Ftruncate(r.arena, int64(size)*2),
		"punched": unix.Fallocate(r.arena, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(size)),
	} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := unix.Pwrite(r.arena, []byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Error("written:", err)
	}
	m, err := unix.Mmap(r.arena, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	if err := unix.Mprotect(m, unix.PROT_READ|unix.PROT_WRITE); !errors.Is(err, unix.EACCES) {
		t.Error("made writable:", err)
	}
	g := r.get(a)
	if g.Status != frame.StatusOK || !bytes.Equal(m[g.Offset:][:g.Length], payload) || g.CRC != block.Sum(payload) {
		t.Errorf("%+v", g)
	}
	if left := time.Duration(g.DeadlineNS - frame.Monotonic()); left <= 0 || left > 5*time.Second {
		t.Error("lease lasts", left)
	}
	if g := r.get(addr("b")); g.Status != frame.StatusMiss {
		t.Errorf("%+v", g)
	}
}

// TestALeaseKeepsTheBytes deletes a leased block and puts others until the arena has been reused
// several times.
func TestALeaseKeepsTheBytes(t *testing.T) {
	n := serve(t, lease.Options{Lease: time.Minute})
	payload := pattern(1<<20, 1)
	a := n.fill(t, "a", payload)
	r := hello(t, n.path)
	m, err := unix.Mmap(r.arena, 0, int(r.welcome.ArenaSize), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	g := r.get(a)
	_, _ = n.store.Delete(context.Background(), a)
	other := pattern(1<<20, 2)
	for range 100 {
		_, _ = n.store.Delete(context.Background(), n.fill(t, "other", other))
	}
	if !bytes.Equal(m[g.Offset:][:g.Length], payload) {
		t.Error("bytes under a lease have changed")
	}
	r.release(g.Lease, g.Lease, 77)
	until(t, "released", func() bool {
		s := n.server.Stats()
		return s.Leases == 0 && s.Released == 1 && s.UnknownLeases == 2
	})
	if s := n.server.Stats(); s.LeasedBytes != 0 {
		t.Errorf("%+v", s)
	}
}

func TestLeasesEndByThemselves(t *testing.T) {
	n := serve(t, lease.Options{Lease: 50 * time.Millisecond, Grace: 20 * time.Millisecond})
	a := n.fill(t, "a", pattern(5000, 1))
	r := hello(t, n.path)
	g := r.get(a)
	renew := func() int64 {
		_, body := r.ask(frame.OpRenew, 1, binary.LittleEndian.AppendUint64(nil, g.Lease))
		return int64(frame.Lease(body, 0))
	}
	if first := renew(); first < g.DeadlineNS {
		t.Error("renewed to", first, "from", g.DeadlineNS)
	}
	until(t, "expired", func() bool { return n.server.Stats().Expired == 1 })
	if s := n.server.Stats(); s.Leases != 0 || s.LeasedBytes != 0 {
		t.Errorf("%+v", s)
	}
	if again := renew(); again != 0 {
		t.Error("a lease that has ended was renewed to", again)
	}
}

func TestProtocolErrors(t *testing.T) {
	n := serve(t, lease.Options{FrameTimeout: 200 * time.Millisecond})
	a := addr("a")
	greeting := func(min, max uint16) []byte { return frame.AppendHello(nil, &frame.Hello{Min: min, Max: max}) }
	for name, c := range map[string]struct {
		greeted bool
		bytes   []byte
		want    frame.Status
	}{
		"no hello":       {false, request(frame.OpGet, 1, frame.AppendAddr(nil, &a)), frame.StatusNoGreeting},
		"future version": {false, request(frame.OpHello, 0, greeting(2, 3)), frame.StatusVersion},
		"http":           {false, []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), frame.StatusBadFrame},
		"second hello":   {true, request(frame.OpHello, 0, greeting(1, 1)), frame.StatusBadFrame},
		"unknown op":     {true, request(77, 0, nil), frame.StatusUnknownOp},
		"oversized":      {true, []byte{0, 0, 1, 0}, frame.StatusBadFrame},
		"no segment":     {true, request(frame.OpCommit, 1, append(frame.AppendCommit(nil, &frame.Commit{Segment: 5}), 'x')), frame.StatusBadFrame},
		"no such drop":   {true, request(frame.OpUnstage, 0, []byte{1, 2, 3, 4}), frame.StatusBadFrame},
	} {
		t.Run(name, func(t *testing.T) {
			r := connect(t, n.path)
			if c.greeted {
				r = hello(t, n.path)
			}
			if _, err := r.conn.Write(c.bytes); err != nil {
				t.Fatal(err)
			}
			if got := r.refused(); got != c.want {
				t.Errorf("%v, not %v", got, c.want)
			}
		})
	}
	t.Run("truncated", func(t *testing.T) { // the rest never comes
		r := hello(t, n.path)
		_, _ = r.conn.Write(request(frame.OpGet, 1, frame.AppendAddr(nil, &a))[:50])
		if _, err := r.conn.Read(r.buf); err == nil {
			t.Error("answered")
		}
		until(t, "counted", func() bool { return n.server.Stats().Stalled == 1 })
	})
	t.Run("silent", func(t *testing.T) { // no hello ever
		r := connect(t, n.path)
		if _, err := r.conn.Read(r.buf); err == nil {
			t.Error("answered")
		}
	})
	until(t, "all gone", func() bool { return n.server.Stats().Clients == 0 })
}

func request(op frame.Op, count int, body []byte) []byte {
	return frame.End(append(frame.Append(nil, frame.Header{Op: op, Count: uint16(count), Seq: 1}), body...), 0)
}

// TestFramesInPieces sends frames byte by byte and several at once, long ones among them.
func TestFramesInPieces(t *testing.T) {
	n := serve(t, lease.Options{})
	a := n.fill(t, "a", pattern(5000, 1))
	r := hello(t, n.path)
	var all []byte
	for range 20 {
		all = frame.AppendAddr(all, &a)
	}
	long := request(frame.OpStat, 20, all)
	for _, b := range long {
		if _, err := r.conn.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if _, body, _ := r.receive(false); frame.ParseInfo(body, 19).Length != 5000 {
		t.Error("the last of 20")
	}
	joined := bytes.Join([][]byte{long, request(frame.OpPing, 0, nil), long, request(frame.OpGet, 1,
		all[:frame.AddrSize]), request(frame.OpPing, 0, nil)}, nil)
	if _, err := r.conn.Write(joined); err != nil {
		t.Fatal(err)
	}
	var got []frame.Op
	for rest, m := []byte(nil), 0; len(got) < 5; {
		h, _, err := frame.Answer(rest)
		if err == frame.ErrIncomplete {
			if m, err = r.conn.Read(r.buf); err != nil {
				t.Fatal(err)
			}
			rest = append(rest, r.buf[:m]...)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.Op)
		rest = rest[h.Size:]
	}
	if want := []frame.Op{frame.OpStat, frame.OpPing, frame.OpStat, frame.OpGet,
		frame.OpPing}; string(got2(got)) != string(got2(want)) {
		t.Error(got)
	}
}

func got2(ops []frame.Op) (b []byte) {
	for _, o := range ops {
		b = append(b, byte(o))
	}
	return b
}

// TestChecksumIsOfTheCopy changes staged bytes while the server copies them: the block and its
// checksum must agree.
func TestChecksumIsOfTheCopy(t *testing.T) {
	n := serve(t, lease.Options{})
	r := hello(t, n.path)
	const size = 1 << 20
	id, memory, _ := r.stage(size)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := byte(0); !stop.Load(); i++ {
			for at := 0; at < size; at += 512 {
				memory[at] = i
			}
		}
	}()
	for range 20 {
		info := r.commit(frame.Commit{Segment: id, Length: size}, "a", namespace)
		b, err := n.store.Get(context.Background(), addr("a"))
		if err != nil || info.Status != frame.StatusOK {
			t.Fatal(err, info.Status)
		}
		if sum := block.Sum(b.Bytes()); sum != info.CRC {
			t.Fatalf("%08x is stored, %08x was said", sum, info.CRC)
		}
		b.Release()
	}
	stop.Store(true)
	<-done
}

func TestCommit(t *testing.T) {
	n := serve(t, lease.Options{})
	r := hello(t, n.path)
	id, memory, fd := r.stage(300_000)
	if err := unix.Ftruncate(fd, 0); !errors.Is(err, unix.EPERM) {
		t.Error("a segment was cut:", err)
	}
	payload := pattern(200_000, 3)
	copy(memory[4096:], payload)
	if i := r.commit(frame.Commit{Segment: id, Offset: 4096, Length: 200_000, Flags: frame.CheckCRC,
		CRC: block.Sum(payload)}, "a", namespace); i.Status != frame.StatusOK || i.CRC != block.Sum(payload) ||
		i.Length != 200_000 {
		t.Errorf("%+v", i)
	}
	for what, c := range map[string]struct {
		commit frame.Commit
		ns     string
		want   frame.Status
	}{
		"wrong checksum":    {frame.Commit{Segment: id, Length: 10, Flags: frame.CheckCRC, CRC: 1}, namespace, frame.StatusCorrupt},
		"no namespace":      {frame.Commit{Segment: id, Length: 10}, "kv1;what", frame.StatusNamespace},
		"namespace of keys": {frame.Commit{Segment: id, Length: 10}, block.Namespace{Space: "resp.0"}.String(), frame.StatusNamespace},
	} {
		if i := r.commit(c.commit, "b", c.ns); i.Status != c.want {
			t.Errorf("%s: %v", what, i.Status)
		}
	}
	if g := r.get(addr("b")); g.Status != frame.StatusMiss {
		t.Error("a refused block is there")
	}
	a := addr("a")
	if _, body := r.ask(frame.OpDelete, 1, frame.AppendAddr(nil, &a)); body[0] != 0 ||
		r.get(a).Status != frame.StatusMiss {
		t.Error("not deleted")
	}
	r.send(frame.OpUnstage, 0, binary.LittleEndian.AppendUint32(nil, id))
	until(t, "segment gone", func() bool { return n.server.Stats().StagingBytes == 0 })
}

// TestNames commits objects with names. Another number of names than TOKENS / 16 - 1 is refused,
// and the connection goes on.
func TestNames(t *testing.T) {
	n := serve(t, lease.Options{})
	r := hello(t, n.path)
	id, _, _ := r.stage(1000)
	space := block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 64, TP: 1, PP: 1}
	odd := space
	odd.Tokens = 24
	names := []byte("name-onename-twoname-thr")
	for i, c := range []struct {
		ns    string
		names []byte
		want  frame.Status
	}{
		{space.String(), names, frame.StatusOK},
		{namespace, nil, frame.StatusOK},
		{space.String(), nil, frame.StatusOK},
		{space.String(), names[:16], frame.StatusNames},
		{namespace, names[:8], frame.StatusNames},
		{odd.String(), names[:8], frame.StatusNames},
		{space.String(), names, frame.StatusOK},
	} {
		q := frame.Commit{Segment: id, Length: 1000, Digest: block.Digest{byte(i)}, Namespace: []byte(c.ns),
			Names: c.names}
		_, body := r.ask(frame.OpCommit, q.Entries(), frame.AppendCommit(nil, &q))
		if got := frame.ParseInfo(body, 0).Status; got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
		info, err := n.store.Describe(t.Context(), block.Addr{Digest: q.Digest, Model: block.IDOf(c.ns)})
		if c.want == frame.StatusOK && (err != nil || !bytes.Equal(block.ParseNames(info.Item.Attr), c.names)) ||
			c.want != frame.StatusOK && !errors.Is(err, store.ErrMiss) {
			t.Errorf("%d: %+v %v", i, info, err)
		}
	}
	lie := frame.Commit{Segment: id, Length: 1000, Namespace: []byte("kv1"), Flags: 9 << 24}
	r.send(frame.OpCommit, lie.Entries(), frame.AppendCommit(nil, &lie))
	if status := r.refused(); status != frame.StatusBadFrame {
		t.Error("more names than bytes:", status)
	}
}

func TestQuotas(t *testing.T) {
	n := serve(t, lease.Options{MaxLeases: 3, MaxLeased: 6 * 4096, MaxLeasedTotal: 9 * 4096, MaxStaging: 1 << 20,
		MaxStagingTotal: 1<<20 + 4096, MaxClientsPerProcess: 3})
	small, large := n.fill(t, "small", pattern(1000, 1)), n.fill(t, "large", pattern(19_000, 1))
	r, other := hello(t, n.path), hello(t, n.path)
	g := r.get(large)
	if g.Status != frame.StatusOK || r.get(large).Status != frame.StatusQuota {
		t.Error("bytes of one user")
	}
	if other.get(large).Status != frame.StatusQuota {
		t.Error("bytes of one user over two connections")
	}
	if a, b := r.get(small), r.get(small); a.Status != frame.StatusOK || b.Status != frame.StatusQuota {
		t.Error("six granules exactly", a.Status, b.Status)
	}
	r.release(g.Lease)
	if a, b, c := r.get(small), r.get(small), r.get(small); a.Status != frame.StatusOK || b.Status != frame.StatusOK ||
		c.Status != frame.StatusQuota {
		t.Error("three leases", a.Status, b.Status, c.Status)
	}
	r.stage(1 << 20)
	size := binary.LittleEndian.AppendUint64(nil, 8192)
	if h, _ := r.ask(frame.OpStage, 0, size); h.Status != frame.StatusQuota {
		t.Error("staging of one", h.Status)
	}
	if h, _ := other.ask(frame.OpStage, 0, size); h.Status != frame.StatusQuota {
		t.Error("staging in all", h.Status)
	}
	if h, _ := other.ask(frame.OpStage, 0, binary.LittleEndian.AppendUint64(nil,
		1<<40)); h.Status != frame.StatusTooLarge {
		t.Error("a huge segment", h.Status)
	}
	hello(t, n.path)
	if got := connect(t, n.path).refused(); got != frame.StatusBusy {
		t.Error("a fourth connection:", got)
	}
}

// TestUsers: the connections of one user share one quota of leases. Another user has a quota of its
// own.
func TestUsers(t *testing.T) {
	n := serve(t, lease.Options{MaxLeased: 6 * 4096, MaxLeasedTotal: 9 * 4096, AllowUIDs: []uint32{4242}})
	small, large := n.fill(t, "small", pattern(1000, 1)), n.fill(t, "large", pattern(19_000, 1))
	first := hello(t, n.path)
	if g := first.get(large); g.Status != frame.StatusOK {
		t.Fatal(g.Status)
	}
	greeted := func() *raw { return greet(t, wrap(t, listentest.DialAs(t, n.path, 4242, 4242))) }
	r, other := greeted(), greeted()
	if a, b := r.get(large), r.get(small); a.Status != frame.StatusQuota || b.Status != frame.StatusOK {
		t.Error("bytes in all", a.Status, b.Status)
	}
	until(t, "there are two users", func() bool { return n.server.Stats().Users == 2 })
	first.conn.Close()
	until(t, "the first user is gone, with what it held", func() bool { return n.server.Stats().Users == 1 })
	if a, b, c := other.get(large), other.get(small), r.get(small); a.Status != frame.StatusOK ||
		b.Status != frame.StatusQuota || c.Status != frame.StatusQuota {
		t.Error("bytes of one user", a.Status, b.Status, c.Status)
	}
}

// TestClosedByTheServer: a lease of a connection that the server ended lasts to its deadline.
func TestClosedByTheServer(t *testing.T) {
	n := serve(t, lease.Options{Lease: 300 * time.Millisecond, Grace: 10 * time.Millisecond})
	a := n.fill(t, "a", pattern(5000, 1))
	r := hello(t, n.path)
	g := r.get(a)
	_, _ = r.conn.Write(request(77, 0, nil))
	_ = r.refused()
	ended := int64(0)
	until(t, "the lease ends", func() bool { ended = frame.Monotonic(); return n.server.Stats().Leases == 0 })
	if ended < g.DeadlineNS {
		t.Error("ended", time.Duration(g.DeadlineNS-ended), "before its deadline")
	}
	until(t, "the connection is forgotten", func() bool { return n.server.Stats().Clients == 0 })
}

func TestShutdownWaitsForLeases(t *testing.T) {
	n := serve(t, lease.Options{Lease: time.Minute})
	a := n.fill(t, "a", pattern(5000, 1))
	r := hello(t, n.path)
	g := r.get(a)
	down := make(chan error, 1)
	go func() { down <- n.server.Shutdown(context.Background()) }()
	until(t, "refused", func() bool {
		g := r.get(a)
		if g.Status == frame.StatusOK {
			r.release(g.Lease)
		}
		return g.Status == frame.StatusClosed
	})
	r.release(g.Lease)
	if err := <-down; err != nil {
		t.Error(err)
	}
}

func TestSocketRights(t *testing.T) {
	n := serve(t, lease.Options{})
	info, err := os.Stat(n.path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Fatal(info.Mode(), err)
	}
	if _, err := listen.OpenUnix(n.path, 0o660, -1); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error("bound twice:", err)
	}
}
