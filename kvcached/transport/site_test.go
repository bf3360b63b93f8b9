package transport

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// pkiDir has the fleet's certificates, foreignDir those of another fleet.
var pkiDir, foreignDir string

func TestMain(m *testing.M) {
	for _, dir := range []*string{&pkiDir, &foreignDir} {
		var err error
		if *dir, err = os.MkdirTemp("", "kv-transport-"); err == nil {
			err = pki.Bootstrap(*dir, pki.Options{})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	_, _ = os.RemoveAll(pkiDir), os.RemoveAll(foreignDir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func identity(t testing.TB, dir string, role pki.Role) *pki.Identity {
	t.Helper()
	id, err := pki.Load(pki.FilesIn(dir, role))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// namespace of all blocks of the tests.
const namespace = "key1;test;"

func addr(key string) block.Addr { return block.OfKey(block.IDOf(namespace), []byte(key)) }

// mapStore is a Handler on a map. It calls its hooks first.
type mapStore struct {
	mu        sync.Mutex
	blocks    map[block.Addr]*mapBlock
	held      int // unreleased blocks and drafts
	announced []*wire.Announcement

	on hooks
}

type hooks struct {
	onGet    func(ctx context.Context, a block.Addr) error
	onCreate func(ctx context.Context, it Item, n int) error
}

func (s *mapStore) hooks() hooks {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on
}

// hook sets hooks.
func (s *mapStore) hook(set func(h *hooks)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set(&s.on)
}

type mapBlock struct {
	found Found
	bytes []byte
	store *mapStore
}

func newMapStore() *mapStore { return &mapStore{blocks: map[block.Addr]*mapBlock{}} }

// fill puts n bytes made from key and seed.
func (s *mapStore) fill(key string, n int) []byte {
	payload := randomBytes(key, n)
	s.put(Item{Addr: addr(key), Namespace: namespace, Key: []byte(key), Attr: []byte("attr of " + key), Expires: 12345},
		payload)
	return payload
}

func randomBytes(key string, n int) []byte {
	var seed [32]byte
	copy(seed[:], key)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

func (s *mapStore) put(it Item, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks[it.Addr] = &mapBlock{Found{Item: it, Length: len(payload), CRC: block.Sum(payload)}, payload, s}
}

func (s *mapStore) bytesOf(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.blocks[addr(key)]; b != nil {
		return b.bytes
	}
	return nil
}

func (s *mapStore) hold(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held += n
}

func (s *mapStore) holds() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

func (s *mapStore) Get(ctx context.Context, a block.Addr) (Block, error) {
	if on := s.hooks().onGet; on != nil {
		if err := on(ctx, a); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.blocks[a]
	if b == nil {
		return nil, wire.Miss
	}
	s.held++
	return b, nil
}

func (b *mapBlock) Bytes() []byte { return b.bytes }
func (b *mapBlock) Found() Found  { return b.found }
func (b *mapBlock) Release()      { b.store.hold(-1) }

type mapDraft struct {
	s      *mapStore
	it     Item
	bytes  []byte
	filled int
}

func (s *mapStore) Create(ctx context.Context, it Item, n int) (Draft, error) {
	if on := s.hooks().onCreate; on != nil {
		if err := on(ctx, it, n); err != nil {
			return nil, err
		}
	}
	s.hold(1)
	return &mapDraft{s: s, it: it, bytes: make([]byte, n)}, nil
}

func (d *mapDraft) Bytes() []byte { return d.bytes }
func (d *mapDraft) Filled(n int)  { d.filled += n }

func (d *mapDraft) Commit(_ context.Context, c Commit) error {
	if d.filled != len(d.bytes) || block.Sum(d.bytes) != c.CRC {
		return wire.Corrupt
	}
	if c.IfAbsent && d.s.bytesOf(string(d.it.Key)) != nil {
		return nil
	}
	d.s.put(d.it, d.bytes)
	return nil
}

func (d *mapDraft) Abort() { d.s.hold(-1) }

func (s *mapStore) Stat(_ context.Context, addrs []block.Addr, out []wire.Info) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, a := range addrs {
		if b := s.blocks[a]; b != nil {
			out[i] = wire.Info{Length: uint64(len(b.bytes)), CRC: b.found.CRC, Tiers: 1}
		}
	}
	return nil
}

func (s *mapStore) Delete(_ context.Context, addrs []block.Addr, out []bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, a := range addrs {
		_, out[i] = s.blocks[a]
		delete(s.blocks, a)
	}
	return nil
}

func (s *mapStore) Locate(_ context.Context, addrs []block.Addr) (*wire.Locations, error) {
	l := &wire.Locations{Hosts: []string{"here:1"}, Holders: make([][]wire.Holder, len(addrs))}
	for i, a := range addrs {
		if b := s.blocks[a]; b != nil {
			l.Holders[i] = []wire.Holder{{Tiers: 1, Length: uint64(len(b.bytes))}}
		}
	}
	return l, nil
}

func (s *mapStore) Announce(_ context.Context, a *wire.Announcement, _ bool) (wire.Receipt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announced = append(s.announced, a)
	return wire.Receipt{Epoch: a.Epoch, Version: a.Version + uint64(len(a.Changes))}, nil
}

func (s *mapStore) Expire(context.Context, []block.Addr, int64, []bool) error { return nil }

func (s *mapStore) Purge(_ context.Context, list []byte) (int, error) { return len(list), nil }

func (s *mapStore) Purges(context.Context) ([]byte, bool, error) {
	return make([]byte, wire.MaxPurges-1), true, nil
}

// heard returns the host of the first announcement.
func (s *mapStore) heard() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.announced[0].Host
}

// site is a server on loopback sockets with a pool that reaches it.
type site struct {
	t       testing.TB
	store   *mapStore
	server  *Server
	pool    *Pool
	address string
}

// quiet returns a log for programs under test.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// sockets returns a UDP and a TCP socket with one address.
func sockets(t testing.TB, address string) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 20 {
		tcp, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		udp, err := net.ListenPacket("udp", tcp.Addr().String())
		if err == nil {
			return udp, tcp
		}
		_ = tcp.Close()
	}
	t.Fatal("no port that is free for both UDP and TCP")
	return nil, nil
}

func newSite(t testing.TB, so ServerOptions, po PoolOptions) *site {
	t.Helper()
	s := &site{t: t, store: newMapStore()}
	if so.Handler == nil {
		so.Handler = s.store
	}
	s.serve(so, "127.0.0.1:0")
	t.Cleanup(func() {
		closeServer(t, s.server)
		if n := s.store.holds(); n != 0 {
			t.Errorf("%d blocks or drafts are still held", n)
		}
	})
	s.pool = newPool(t, po) // closed first, because a server waits for repeated requests
	return s
}

func newPool(t testing.TB, po PoolOptions) *Pool {
	t.Helper()
	if po.Identity == nil {
		po.Identity = identity(t, pkiDir, pki.KVCached)
	}
	if po.Logger == nil {
		po.Logger = quiet()
	}
	p, err := NewPool(po)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func (s *site) serve(so ServerOptions, address string) {
	s.t.Helper()
	udp, tcp := sockets(s.t, address)
	so.UDP, so.TCP = []net.PacketConn{udp}, tcp
	if so.Identity == nil {
		so.Identity = identity(s.t, pkiDir, pki.KVCached)
	}
	if so.Logger == nil {
		so.Logger = quiet()
	}
	var err error
	if s.server, err = NewServer(so); err != nil {
		s.t.Fatal(err)
	}
	s.address = tcp.Addr().String()
}

func closeServer(t testing.TB, s *Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
}

func (s *site) peer(l Lane) *Peer {
	s.t.Helper()
	p, err := s.pool.Peer(Target{Address: s.address, Lane: l})
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// get pulls a block into fresh memory.
func get(ctx context.Context, p *Peer, key string) ([]byte, Found, error) {
	return getOf(ctx, p, key, 0)
}

// getOf is get for a block of known length; 0: unknown.
func getOf(ctx context.Context, p *Peer, key string, length int) ([]byte, Found, error) {
	var buf []byte
	f, err := p.Get(ctx, Get{Addr: addr(key), Namespace: namespace, Hint: length,
		Alloc: func(_ Found, n int) ([]byte, error) {
			buf = make([]byte, n)
			return buf, nil
		}})
	return buf, f, err
}

func put(ctx context.Context, p *Peer, key string, payload []byte) error {
	return p.Put(ctx, Put{Item: Item{Addr: addr(key), Namespace: namespace, Key: []byte(key)}, Payload: payload,
		CRC: block.Sum(payload)})
}

func same(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes, want %d others", what, len(got), len(want))
	}
}

// onBothLanes runs a test over each lane.
func onBothLanes(t *testing.T, fn func(t *testing.T, l Lane)) {
	for _, l := range slices.Backward([]Lane{TLS, QUIC}) {
		t.Run(string(l), func(t *testing.T) { fn(t, l) })
	}
}

// eventually waits for another goroutine.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(end) {
			t.Fatal("waited for a minute: ", what)
		}
		runtime.Gosched()
	}
}

// Ping sends an empty request.
func (p *Peer) Ping(ctx context.Context) error {
	return p.call(ctx, wire.Ping, 0, nil, func(wire.Stamp, []byte) error { return nil })
}
