package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// twoStores is a pair of hosts. Blocks of the far store are read into the near one.
type twoStores struct {
	t         *testing.T
	near, far *store.Store
	peer      *Peer
	pool      *Pool
	server    *Server

	nearRails, farRails *Rails
}

const churnRAM = 8 << 20

func openChurned(t *testing.T, ram int64) *store.Store {
	s, err := store.Open(t.Context(), store.Options{RAM: ram, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func whole(s *store.Store) []byte { return s.Arena().Slice(0, int(s.Arena().Size())) }

func newTwoStores(t *testing.T, near, far RailsOptions, po PoolOptions, grant time.Duration) *twoStores {
	return newTwoStoresOf(t, churnRAM, near, far, po, grant)
}

func newTwoStoresOf(t *testing.T, ram int64, near, far RailsOptions, po PoolOptions, grant time.Duration) *twoStores {
	s := &twoStores{t: t, near: openChurned(t, ram), far: openChurned(t, ram)}
	near.Memory, far.Memory = whole(s.near), whole(s.far)
	near.Logger, far.Logger = quiet(), quiet()
	nearRails, farRails := newRails(t, near), newRails(t, far)
	t.Cleanup(func() { _ = nearRails.Close(); _ = farRails.Close() })
	po.Rails, s.nearRails, s.farRails = nearRails, nearRails, farRails
	if po.GrantIn == 0 {
		po.GrantIn = 20 * time.Second // enough for a busy machine
	}
	l := newSite(t, ServerOptions{Handler: OnStore(s.far, nil), Rails: farRails, Grant: grant}, po)
	s.pool, s.server = l.pool, l.server
	var err error
	if s.peer, err = l.pool.Peer(Target{Address: l.address, Lane: QUIC, Cards: Trusted}); err != nil {
		t.Fatal(err)
	}
	return s
}

// set writes a block of n bytes that are made from its key and version.
func (s *twoStores) set(key int, version uint64, n int) error {
	d, err := s.far.Create(s.t.Context(), store.Item{Addr: addr(strconv.Itoa(key)), Namespace: namespace,
		Key: []byte(strconv.Itoa(key))}, n)
	if err != nil {
		return err
	}
	defer d.Abort()
	fillFor(d.Bytes(), key, version)
	_, err = d.Commit(s.t.Context(), store.CommitOptions{})
	return err
}

func fillFor(b []byte, key int, version uint64) {
	binary.LittleEndian.PutUint64(b, version)
	x := version*0x9e3779b97f4a7c15 + uint64(key)
	for at := 8; at+8 <= len(b); at += 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(b[at:], x)
	}
}

// isFor tells whether b is some version of a key.
func isFor(b []byte, key int) bool {
	want := make([]byte, len(b))
	fillFor(want, key, binary.LittleEndian.Uint64(b))
	return string(want) == string(b)
}

// pull reads a block into the near store, as the fleet does, and tells whether it existed.
func (s *twoStores) pull(ctx context.Context, key int) (bool, error) {
	a := addr(strconv.Itoa(key))
	var d *store.Draft
	defer func() {
		if d != nil {
			d.Abort()
		}
	}()
	found, err := s.peer.Get(ctx, Get{Addr: a, Namespace: namespace, Alloc: func(f Found, n int) (_ []byte, err error) {
		if d, err = s.near.Create(ctx, store.Item(f.Item), n); err != nil {
			return nil, err
		}
		return d.Bytes(), nil
	}})
	if err != nil {
		return false, err
	}
	if !isFor(d.Bytes(), key) {
		s.t.Errorf("key %d has bytes that nobody has written", key)
	}
	_, err = d.Commit(ctx, store.CommitOptions{CRC: found.CRC, CheckCRC: true})
	return err == nil, err
}

// churn sets, deletes and reads random keys for a while. There are far more keys than the arena
// holds, so memory is reused all the time.
func (s *twoStores) churn(lasts time.Duration, seed uint64) (pulled, missed, other int64) {
	const keys = 400
	stop := time.Now().Add(lasts)
	var good, miss, rest atomic.Int64
	var all sync.WaitGroup
	for w := range 2 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for version := uint64(w); time.Now().Before(stop); version += 2 {
				key := r.IntN(keys)
				if r.IntN(8) == 0 {
					_, _ = s.far.Delete(s.t.Context(), addr(strconv.Itoa(key)))
				} else if err := s.set(key, version, 8*(1+r.IntN(16<<10))); err != nil &&
					!errors.Is(err, store.ErrFull) {
					s.t.Error(err)
				}
			}
		})
	}
	for w := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(100+w)))
			for time.Now().Before(stop) {
				ctx, cancel := context.WithTimeout(s.t.Context(), time.Duration(1+r.IntN(2000))*time.Millisecond)
				got, err := s.pull(ctx, r.IntN(keys))
				cancel()
				switch {
				case got:
					good.Add(1)
				case errors.Is(err, wire.Miss):
					miss.Add(1)
				default:
					rest.Add(1)
				}
			}
		})
	}
	all.Wait()
	return good.Load(), miss.Load(), rest.Load()
}

// soak returns the duration of a test that finds more the longer it runs.
func soak(short time.Duration) time.Duration {
	if text := os.Getenv("CGN_SOAK"); text != "" {
		if n, err := strconv.Atoi(text); err == nil && n > 1 {
			return time.Duration(n) * time.Second
		}
		return time.Minute
	}
	return short
}

// TestBlocksReusedUnderReaders: memory is evicted, deleted and rewritten while it is read. Grants
// end under slow reads, pairs break, and the card goes and comes back. Every read is a miss, or
// some version of its key.
func TestBlocksReusedUnderReaders(t *testing.T) {
	f := newFabric()
	f.plug("near0", "10.0.0.1")
	f.plug("far0", "10.0.0.2")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	options := func(name string) RailsOptions {
		return RailsOptions{Wanted: []string{name}, Present: f.present(name), Open: f.open, Trusted: trusted,
			Poll: 20 * time.Millisecond}
	}
	s := newTwoStores(t, options("near0"), options("far0"), PoolOptions{ListenUDP: func() (net.PacketConn, error) {
		return net.ListenPacket("udp", "127.0.0.1:0")
	}}, 200*time.Millisecond)
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	var n atomic.Uint64
	f.set(func() {
		f.reading = func(rdma.Read) {
			switch i := n.Add(1); {
			case i%300 == 0: // longer than a grant lasts
				time.Sleep(300 * time.Millisecond)
			case i%20 == 0:
				time.Sleep(time.Duration(i%7) * time.Millisecond)
			}
		}
	})
	end, disturbed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(disturbed)
		tick := time.NewTicker(700 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				f.unplug("far0")
				f.plug("far0", "10.0.0.2")
			}
		}
	}()
	good, miss, rest := s.churn(soak(3*time.Second), seed)
	r := s.pool.Stats().RDMA
	for range 20 { // several attempts, for a busy machine
		if r.Reads > 0 && r.Broken > 0 {
			break
		}
		more, _, _ := s.churn(3*time.Second, seed)
		good, r = good+more, s.pool.Stats().RDMA
	}
	close(end)
	<-disturbed
	t.Logf("%d blocks read, %d misses, %d given up; %+v", good, miss, rest, r)
	if r.Reads == 0 || good == 0 || r.Broken == 0 {
		t.Error("nothing was disturbed, or nothing read")
	}
	if r.Corrupt != 0 {
		t.Error("blocks change while they are granted")
	}
	eventually(t, "all grants end", func() bool {
		return s.server.GrantStats().Grants == 0 && s.far.Stats().RAM.Held == 0
	})
}
