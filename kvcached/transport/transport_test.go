package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

func TestRoundTrips(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{Identity: identity(t, pkiDir, pki.Ctl)})
		p, ctx := s.peer(l), t.Context()
		for _, n := range []int{0, 1, 100, 4096, 65536, 1 << 20, 3<<20 + 17} {
			key := fmt.Sprint("block of ", n)
			want := s.store.fill(key, n)
			for range 3 { // the last time with a known length
				got, f, err := get(ctx, p, key)
				if err != nil {
					t.Fatal(n, err)
				}
				same(t, key, got, want)
				if f.Length != n || f.CRC != block.Sum(want) || string(f.Item.Attr) != "attr of "+key ||
					f.Item.Expires != 12345 || string(f.Item.Key) != key {
					t.Errorf("%s was found as %+v", key, f)
				}
			}
			if err := put(ctx, p, "copy of "+key, want); err != nil {
				t.Fatal(n, err)
			}
			same(t, "copy of "+key, s.store.bytesOf("copy of "+key), want)
		}
		if _, _, err := get(ctx, p, "nothing"); !errors.Is(err, wire.Miss) {
			t.Error("a block that is not there:", err)
		}
		batch(t, s, p)
		if err := p.Ping(ctx); err != nil {
			t.Error(err)
		}
		stats := s.server.Stats()
		if stats.Ops[wire.Put] != 7 || stats.Statuses[wire.Miss] == 0 || stats.InFlight != 0 || stats.Sent == 0 ||
			stats.Received == 0 {
			t.Errorf("%+v", stats)
		}
	})
}

func batch(t *testing.T, s *site, p *Peer) {
	ctx := t.Context()
	addrs := []block.Addr{addr("no such"), addr("block of 100"), addr("block of 4096")}
	infos, gone := make([]wire.Info, 3), make([]bool, 3)
	if err := p.Stat(ctx, addrs, infos); err != nil || infos[0].Tiers != 0 || infos[1].Length != 100 ||
		infos[2].Length != 4096 {
		t.Error(infos, err)
	}
	if l, err := p.Locate(ctx, addrs); err != nil || len(l.Holders[0]) != 0 ||
		l.Hosts[l.Holders[2][0].Host] != "here:1" {
		t.Error(l, err)
	}
	a := &wire.Announcement{Host: "there:1", Epoch: 5, Version: 6,
		Changes: []wire.Change{{Addr: addrs[0], Tiers: 1, Length: 7}}}
	if r, err := p.Announce(ctx, a, true); err != nil || r != (wire.Receipt{Epoch: 5, Version: 7}) ||
		s.store.heard() != "there:1" {
		t.Error(r, err)
	}
	if err := p.Expire(ctx, addrs, 5); err != nil {
		t.Error(err)
	}
	if n, err := p.Purge(ctx, make([]byte, wire.MaxPurges)); err != nil || n != wire.MaxPurges {
		t.Error(n, err)
	}
	if list, fresh, err := p.Purges(ctx); err != nil || !fresh || len(list) != wire.MaxPurges-1 {
		t.Error(len(list), err)
	}
	if err := p.Delete(ctx, addrs, gone); err != nil || gone[0] || !gone[1] || !gone[2] ||
		s.store.bytesOf("block of 100") != nil {
		t.Error(gone, err)
	}
}

func TestRanges(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
		p := s.peer(l)
		want := s.store.fill("b", 5<<20+3)
		for _, c := range []struct{ offset, length, hint int }{
			{0, 10, 0}, {5, 4 << 20, 0}, {5<<20 + 2, 1, 0}, {5 << 20, 100, 0}, {6 << 20, 5, 0}, {7, 0, 0},
			{0, 0, 1 << 20}, {0, 0, 64 << 20}, {3, 0, 9 << 20}, // wrong hints
		} {
			end := len(want)
			if c.length != 0 {
				end = min(end, c.offset+c.length)
			}
			part := want[min(c.offset, len(want)):max(end, min(c.offset, len(want)))]
			var buf []byte
			f, err := p.Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace, Offset: c.offset, Length: c.length,
				Hint:  c.hint,
				Alloc: func(_ Found, n int) ([]byte, error) { buf = make([]byte, n); return buf, nil }})
			if err != nil || f.Length != len(want) || f.CRC != block.Sum(part) {
				t.Errorf("%+v: %+v %v", c, f, err)
			}
			same(t, fmt.Sprint(c), buf, part)
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{TLSConns: 4})
		p := s.peer(l)
		var all sync.WaitGroup
		for i := range 32 {
			all.Go(func() {
				key := fmt.Sprint(i)
				want := randomBytes(key, 1000+i*40_000)
				if err := put(t.Context(), p, key, want); err != nil {
					t.Error(err)
					return
				}
				got, _, err := get(t.Context(), p, key)
				if err != nil {
					t.Error(err)
				}
				same(t, key, got, want)
			})
		}
		all.Wait()
		if stats := s.pool.Stats(); stats.QUIC.Dials > 4 || stats.TLS.Dials > 4 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestRangesRefused(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{})
	p := s.peer(TLS)
	for _, c := range []struct {
		g    Get
		want error
	}{
		{Get{Namespace: namespace, Offset: -1}, wire.BadFrame}, {Get{Namespace: namespace, Length: -1}, wire.BadFrame},
		{Get{Namespace: namespace, Hint: -1}, wire.BadFrame}, {Get{Namespace: namespace, Offset: wire.MaxBody + 1}, wire.TooLarge},
		{Get{Namespace: namespace, Hint: 1 << 62}, wire.TooLarge}, {Get{}, wire.BadFrame},
	} {
		if _, err := p.Get(t.Context(), c.g); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c.g, err)
		}
	}
}

// TestAllocFails: the caller's error comes back, and the connection stays usable.
func TestAllocFails(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
		p, full := s.peer(l), errors.New("full")
		s.store.fill("b", 4<<20)
		for _, hint := range []int{0, 4 << 20} {
			_, err := p.Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace, Hint: hint,
				Alloc: func(Found, int) ([]byte, error) { return nil, full }})
			if !errors.Is(err, full) {
				t.Error(err)
			}
		}
		if _, _, err := get(t.Context(), p, "b"); err != nil {
			t.Error(err)
		}
	})
}

func TestDefaultAllow(t *testing.T) {
	all := []wire.Op{wire.Ping, wire.Get, wire.Put, wire.Stat, wire.Delete, wire.Locate, wire.Announce,
		wire.Expire, wire.Purge}
	const everything = "ping get put stat delete locate announce expire purge "
	for role, want := range map[pki.Role]string{
		pki.Ctl: everything, pki.KVCached: everything,
		pki.Router: "ping get stat locate ", pki.Agent: "ping get stat locate ", pki.Etcd: "", "": "", "other": "",
	} {
		var got string
		for _, op := range all {
			if DefaultAllow(role, op) {
				got += op.String() + " "
			}
		}
		if got != want {
			t.Errorf("%q may %s, want %s", role, got, want)
		}
	}
}

func TestRoles(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{Identity: identity(t, pkiDir, pki.Router)})
		s.store.fill("b", 100)
		s.store.fill("large", 3<<20)
		p := s.peer(l)
		for range 2 {
			if _, _, err := get(t.Context(), p, "b"); err != nil {
				t.Error(err)
			}
			if err := put(t.Context(), p, "c", make([]byte, 100)); !errors.Is(err, wire.Forbidden) {
				t.Error("put:", err)
			}
			if err := put(t.Context(), p, "c", make([]byte, 9<<20)); !errors.Is(err, wire.Forbidden) {
				t.Error("large put:", err)
			}
			if err := p.Delete(t.Context(), []block.Addr{addr("b")}, make([]bool, 1)); !errors.Is(err, wire.Forbidden) {
				t.Error("delete:", err)
			}
		}
		if s.store.bytesOf("c") != nil || s.store.bytesOf("b") == nil {
			t.Error("it was done")
		}
	})
}

func TestCertificates(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
		s.store.fill("b", 100)
		wrongServer := newSite(t, ServerOptions{Identity: identity(t, pkiDir, pki.Agent)}, PoolOptions{})
		onlyCA, err := pki.Load(pki.Files{CA: pki.FilesIn(pkiDir, pki.KVCached).CA})
		if err != nil {
			t.Fatal(err)
		}
		// knows the server's CA, but has a certificate of another fleet
		foreign, err := pki.Load(pki.Files{CA: pki.FilesIn(pkiDir, pki.KVCached).CA,
			Cert: pki.FilesIn(foreignDir, pki.KVCached).Cert, Key: pki.FilesIn(foreignDir, pki.KVCached).Key})
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			id   *pki.Identity
			site *site
			name string
		}{
			"client without certificate": {id: onlyCA, site: s},
			"client of another fleet":    {id: foreign, site: s},
			"server of another fleet":    {id: identity(t, foreignDir, pki.KVCached), site: s},
			"server of another role":     {site: wrongServer},
			"server of another name":     {site: s, name: "elsewhere"},
		} {
			p, err := newPool(t, PoolOptions{Identity: c.id}).Peer(Target{Address: c.site.address, Lane: l,
				Name: c.name})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := get(t.Context(), p, "b"); !errors.Is(err, ErrHandshake) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := s.server.Stats().Ops; n != [wire.Ops]uint64{} {
			t.Errorf("operations were answered: %v", n)
		}
	})
}

// TestRefusedAfterHandshake: the server refuses a client's certificate after the client's part of
// the handshake. The client's next call reports that, whichever it is.
func TestRefusedAfterHandshake(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{})
	foreign, err := pki.Load(pki.Files{CA: pki.FilesIn(pkiDir, pki.KVCached).CA,
		Cert: pki.FilesIn(foreignDir, pki.KVCached).Cert, Key: pki.FilesIn(foreignDir, pki.KVCached).Key})
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPool(t, PoolOptions{Identity: foreign}).Peer(Target{Address: s.address, Lane: QUIC})
	if err != nil {
		t.Fatal(err)
	}
	l := p.lanes[overQUIC].(*streams).opener.(*quicLane)
	c, _, err := l.connection(t.Context(), l.slots[0])
	if err == nil {
		<-c.Context().Done()
		_, err = c.OpenStreamSync(t.Context())
		err = broken(err)
	}
	if !errors.Is(err, ErrHandshake) {
		t.Error(err)
	}
}

func TestPoolBounds(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{MaxPeers: 1})
	first := s.peer(TLS)
	if err := first.Ping(context.Background()); err != nil {
		t.Fatal(err)
	}
	second := s.peer(QUIC)
	if err := second.Ping(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := first.Ping(context.Background()); !errors.Is(err, ErrClosed) {
		t.Error("a peer that had to make room:", err)
	}
	if stats := s.pool.Stats(); stats.Evicted != 1 || stats.Peers != 1 {
		t.Errorf("%+v", stats)
	}
	s.pool.Forget(Target{Address: s.address, Lane: QUIC})
	if err := second.Ping(context.Background()); !errors.Is(err, ErrClosed) {
		t.Error("a peer that was forgotten:", err)
	}
	second = s.peer(QUIC)
	_ = s.pool.Close()
	if err := second.Ping(context.Background()); !errors.Is(err, ErrClosed) {
		t.Error("a peer of a closed pool:", err)
	}
	if _, err := s.pool.Peer(Target{Address: s.address}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	for _, bad := range []string{"", "nowhere"} {
		if _, err := newPool(t, PoolOptions{}).Peer(Target{Address: bad}); err == nil {
			t.Errorf("%q is no address", bad)
		}
	}
}
