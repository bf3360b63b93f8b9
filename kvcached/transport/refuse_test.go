package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// raw opens an exchange with the peer, for bytes that no Peer would send.
func raw(t *testing.T, p *Peer) exchange {
	t.Helper()
	for _, l := range p.lanes {
		if l != nil {
			x, err := l.(*streams).open(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
	}
	return nil
}

// answer reads the head of an answer.
func answer(t *testing.T, x exchange) wire.Frame {
	t.Helper()
	_ = x.SetReadDeadline(time.Now().Add(time.Minute))
	var f wire.Frame
	if err := x.frames().Next(&f); err != nil {
		t.Fatal(err)
	}
	return f
}

// errDone ends the use of a raw exchange, and of its connection.
var errDone = errors.New("done")

// halfClose ends the sending side. It is no error if the peer has closed already.
func halfClose(x exchange) {
	if c, ok := x.(*tlsExchange); ok {
		_ = c.CloseWrite()
	} else {
		_ = x.(*quicExchange).Close()
	}
}

func TestBadRequests(t *testing.T) {
	named := []byte(namespace)
	write := func(f wire.Frame, body string) []byte {
		if f.Version == 0 {
			f.Version = wire.Version
		}
		return append(f.Append(nil), body...)
	}
	endless := write(wire.Frame{Op: wire.Get}, "")
	binary.LittleEndian.PutUint64(endless[40:], 1<<63) // the namespace's length
	cut := write(wire.Frame{Op: wire.Get, Namespace: named}, "")
	put := wire.Frame{Op: wire.Put, Namespace: named, Len: 10, Total: 10, Body: 10}
	batch := func(op wire.Op, body []byte) []byte {
		return write(wire.Frame{Op: op, Body: uint64(len(body)), CRC: block.Sum(body)}, string(body))
	}
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
		p := s.peer(l)
		for name, c := range map[string]struct {
			bytes []byte
			want  wire.Status
		}{
			"version 0":          {write(wire.Frame{Version: 7, Op: wire.Get}, ""), wire.UnsupportedVersion},
			"version 2":          {write(wire.Frame{Version: 2, Op: wire.Get}, ""), wire.UnsupportedVersion},
			"unknown op":         {write(wire.Frame{Op: 99, Request: 5}, ""), wire.UnknownOp},
			"op 0":               {write(wire.Frame{}, ""), wire.UnknownOp},
			"oversized body":     {write(wire.Frame{Op: wire.Put, Namespace: named, Len: wire.MaxBody + 1, Total: wire.MaxBody + 1, Body: wire.MaxBody + 1}, ""), wire.TooLarge},
			"oversized batch":    {write(wire.Frame{Op: wire.Stat, Body: wire.MaxSmall + 1}, ""), wire.TooLarge},
			"endless namespace":  {endless, wire.BadFrame},
			"truncated head":     {cut[:60], wire.BadFrame},
			"truncated body":     {write(put, "12345"), wire.BadFrame},
			"no namespace":       {write(wire.Frame{Op: wire.Get}, ""), wire.BadFrame},
			"no such namespace":  {write(wire.Frame{Op: wire.Put, Namespace: []byte("rubbish"), Len: 3, Total: 3, Body: 3}, "abc"), wire.BadFrame},
			"get with a body":    {write(wire.Frame{Op: wire.Get, Namespace: named, Body: 3}, "abc"), wire.BadFrame},
			"lengths differ":     {write(wire.Frame{Op: wire.Put, Namespace: named, Len: 3, Total: 3, Body: 2}, "ab"), wire.BadFrame},
			"an answer":          {write(wire.Frame{Op: wire.Ping, Status: wire.Busy}, ""), wire.BadFrame},
			"put, wrong sum":     {write(put, "1234567890"), wire.Corrupt},
			"stat, wrong sum":    {write(wire.Frame{Op: wire.Stat, Body: 8}, "\x00\x00\x00\x00\x00\x00\x00\x01"), wire.Corrupt},
			"too many addresses": {batch(wire.Stat, binary.LittleEndian.AppendUint64(nil, wire.MaxBatch+1)), wire.TooLarge},
			"addresses missing":  {batch(wire.Delete, nil), wire.BadFrame},
			"no order":           {batch(wire.Expire, []byte("rubbish")), wire.BadFrame},
			"no announcement":    {batch(wire.Announce, []byte("rubbish")), wire.BadFrame},
		} {
			t.Run(name, func(t *testing.T) {
				x := raw(t, p)
				defer func() { x.release(errDone) }()
				if _, err := x.Write(c.bytes); err != nil {
					t.Fatal(err)
				}
				halfClose(x)
				if f := answer(t, x); f.Status != c.want || f.Version != wire.Version {
					t.Errorf("answered %s", f.Status)
				}
			})
		}
		if s.store.holds() != 0 || len(s.store.blocks) != 0 {
			t.Error("something was kept")
		}
		if err := p.Ping(t.Context()); err != nil {
			t.Error("afterwards:", err)
		}
	})
}

// TestBadAnswers: a damaged or lying answer is an error, never a block.
func TestBadAnswers(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
		p := s.peer(l)
		s.store.fill("b", 2<<20)
		s.store.mu.Lock()
		b := s.store.blocks[addr("b")]
		b.bytes = bytes.Clone(b.bytes)
		b.bytes[1<<20+5] ^= 1
		s.store.mu.Unlock()
		for _, hint := range []int{0, 2 << 20} {
			_, err := p.Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace, Hint: hint,
				Alloc: func(_ Found, n int) ([]byte, error) { return make([]byte, n), nil }})
			if !errors.Is(err, wire.Corrupt) {
				t.Error("a flipped bit:", err)
			}
		}
		s.store.hook(func(m *hooks) {
			m.onGet = func(context.Context, block.Addr) error { return errors.New("broken inside") }
		})
		if _, _, err := get(t.Context(), p, "b"); !errors.Is(err, wire.Internal) {
			t.Error(err)
		}
		s.store.hook(func(m *hooks) { m.onGet = func(context.Context, block.Addr) error { return wire.Busy } })
		if _, _, err := get(t.Context(), p, "b"); !errors.Is(err, wire.Busy) {
			t.Error(err)
		}
		s.store.hook(func(m *hooks) { m.onCreate = func(context.Context, Item, int) error { return wire.Quota } })
		if err := put(t.Context(), p, "c", make([]byte, 5<<20)); !errors.Is(err, wire.Quota) {
			t.Error(err)
		}
		if err := put(t.Context(), p, "c", make([]byte, wire.MaxBody+1)); !errors.Is(err, wire.TooLarge) {
			t.Error(err)
		}
	})
}

// blocked is a hook that waits until its context ends, or until let is closed.
type blocked struct{ entered, let, left chan struct{} }

func newBlocked() blocked {
	return blocked{make(chan struct{}, 10), make(chan struct{}), make(chan struct{}, 10)}
}

func (b blocked) wait(ctx context.Context, _ block.Addr) error {
	b.entered <- struct{}{}
	defer func() { b.left <- struct{}{} }()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-b.let:
		return nil
	}
}

func TestDeadline(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
		b := newBlocked()
		s.store.hook(func(m *hooks) { m.onGet = b.wait })
		x := raw(t, s.peer(l))
		f := wire.Frame{Version: wire.Version, Op: wire.Get, Namespace: []byte(namespace), DeadlineMS: 20}
		if _, err := x.Write(f.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if f := answer(t, x); f.Status != wire.Deadline {
			t.Errorf("answered %s", f.Status)
		}
		x.release(errDone)
		<-b.left
		<-b.entered
		// on a busy machine some requests do not reach the server
		for limit, came := 20*time.Millisecond, false; !came; limit = min(2*limit, 20*time.Second) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			if _, _, err := get(ctx, s.peer(l), "b"); !errors.Is(err, context.DeadlineExceeded) &&
				!errors.Is(err, wire.Deadline) {
				t.Error(err)
			}
			cancel()
			select {
			case <-b.entered:
				came = true
			default:
			}
		}
		<-b.left
	})
}

func TestCancel(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
		p := s.peer(l)
		want := s.store.fill("b", 16<<20)
		for _, hint := range []int{1, 16 << 20} {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := p.Get(ctx, Get{Addr: addr("b"), Namespace: namespace, Hint: hint,
				Alloc: func(_ Found, n int) ([]byte, error) {
					cancel()
					return make([]byte, n), nil
				}})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			eventually(t, "the server lets go", func() bool {
				return s.store.holds() == 0 && s.server.Stats().InFlight == 0
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.store.hook(func(m *hooks) { m.onCreate = func(context.Context, Item, int) error { cancel(); return nil } })
		if err := put(ctx, p, "c", want); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		s.store.hook(func(m *hooks) { m.onCreate = nil })
		eventually(t, "the server lets go", func() bool {
			return s.store.holds() == 0 && s.server.Stats().InFlight == 0
		})
		got, _, err := get(t.Context(), p, "b")
		if err != nil {
			t.Error(err)
		}
		same(t, "afterwards", got, want)
	})
}

// TestPeerStops: a peer that neither reads nor writes in the middle of a body delays only its own
// stream, for a while.
func TestPeerStops(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{Stall: time.Second}, PoolOptions{})
		p := s.peer(l)
		s.store.fill("b", 16<<20)
		reader, writer := raw(t, p), raw(t, p)
		a := addr("b")
		ask := wire.Frame{Version: wire.Version, Op: wire.Get, Digest: a.Digest, Namespace: []byte(namespace)}
		if _, err := reader.Write(ask.Append(nil)); err != nil {
			t.Fatal(err)
		}
		offer := wire.Frame{Version: wire.Version, Op: wire.Put, Namespace: []byte(namespace), Len: 1 << 20,
			Total: 1 << 20, Body: 1 << 20}
		if _, err := writer.Write(append(offer.Append(nil), "the beginning"...)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "both are under way", func() bool { return s.store.holds() == 2 })
		s.store.fill("small", 1000)
		for range 3 { // with QUIC on the same connection
			got, _, err := get(t.Context(), p, "small")
			if err != nil {
				t.Error(err)
			}
			same(t, "another stream", got, s.store.bytesOf("small"))
		}
		eventually(t, "both are given up", func() bool { return s.server.Stats().Stalled == 2 && s.store.holds() == 0 })
		reader.release(errDone)
		writer.release(errDone)
		got, _, err := get(t.Context(), p, "small")
		if err != nil {
			t.Error(err)
		}
		same(t, "afterwards", got, s.store.bytesOf("small"))
	})
}

func TestBusy(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{MaxOps: 1, MaxInFlight: 1 << 20}, PoolOptions{})
		p := s.peer(l)
		b := newBlocked()
		s.store.hook(func(m *hooks) { m.onGet = b.wait })
		s.store.fill("b", 10)
		done := make(chan error)
		go func() { _, _, err := get(t.Context(), p, "b"); done <- err }()
		<-b.entered
		// QUIC has one stream per connection here, so this needs another connection.
		if err := put(t.Context(), p, "c", []byte("x")); !errors.Is(err, wire.Busy) {
			t.Error("a second operation:", err)
		}
		close(b.let)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := s.server.hold(1); err != nil {
			t.Fatal(err)
		}
		if err := put(t.Context(), p, "large", make([]byte, 2<<20)); !errors.Is(err, wire.Busy) {
			t.Error("more in flight than allowed:", err)
		}
		if s.server.Stats().Statuses[wire.Busy] != 2 {
			t.Errorf("%+v", s.server.Stats())
		}
	})
}

func TestTooManyConnections(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{MaxConnections: 1}, PoolOptions{Stripes: 1})
		first, err := newPool(t, PoolOptions{Stripes: 1}).Peer(Target{Address: s.address, Lane: l})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := first.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.peer(l).Ping(t.Context()); err == nil {
			t.Error("a second connection was served")
		}
		if s.server.Stats().RefusedConns == 0 {
			t.Errorf("%+v", s.server.Stats())
		}
		if err := first.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// looking is a context that counts how often somebody looks whether it has ended.
type looking struct {
	context.Context
	looks atomic.Int64
}

func (l *looking) Done() <-chan struct{} {
	l.looks.Add(1)
	return l.Context.Done()
}

// TestCloseWaitsForReaders: a server that closes waits until a peer has read its last answer. By
// TLS the kernel has the answer, so nothing must wait for it.
func TestCloseWaitsForReaders(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{})
	s.server.confirm = 0 // an answer with a client's own key makes it wait anyway
	want := s.store.fill("b", 50_000)
	p := s.peer(QUIC)
	var got []byte
	read, done := make(chan struct{}), make(chan error)
	go func() {
		_, err := p.Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace, Hint: len(want),
			Alloc: func(_ Found, n int) ([]byte, error) {
				<-read
				got = make([]byte, n)
				return got, nil
			}})
		done <- err
	}()
	eventually(t, "the answer is on its way", func() bool { return s.server.count.sent.Load() == 50_000 })
	ctx := &looking{Context: t.Context()}
	var closed atomic.Bool
	var closing sync.WaitGroup
	closing.Go(func() {
		if err := s.server.Close(ctx); err != nil {
			t.Error(err)
		}
		closed.Store(true)
	})
	eventually(t, "it waits for longer than answers may take", func() bool {
		return closed.Load() || ctx.looks.Load() > int64(4*lingerFor/closeLook)
	})
	if closed.Load() {
		t.Error("it closes although the answer was not read")
	}
	close(read)
	if err := <-done; err != nil {
		t.Error(err)
	}
	same(t, "the answer", got, want)
	closing.Wait()
}

// TestCloseWaits: running operations are finished, and new ones refused.
func TestCloseWaits(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
		p := s.peer(l)
		want := s.store.fill("b", 200_000) // one operation
		b := newBlocked()
		s.store.hook(func(m *hooks) { m.onGet = b.wait })
		done := make(chan error)
		var got []byte
		go func() {
			var err error
			got, _, err = get(t.Context(), p, "b")
			done <- err
		}()
		<-b.entered
		closed := make(chan struct{})
		go func() { defer close(closed); closeServer(t, s.server) }()
		eventually(t, "it closes", s.server.closing.Load)
		close(b.let)
		if err := <-done; err != nil {
			t.Error(err)
		}
		same(t, "finished", got, want)
		<-closed
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Ping(ctx); err == nil || errors.Is(err, io.EOF) && ctx.Err() == nil {
			t.Error("served after Close:", err)
		}
	})
}
