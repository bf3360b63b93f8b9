package transport

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// grantSite is a site whose server grants blocks in far, and whose pool reads into near.
type grantSite struct {
	*site
	f                   *fabric
	near, far           []byte
	nearRails, farRails *Rails
	used                struct{ near, far int }
	mu                  sync.Mutex
}

// grantSiteOptions change the defaults.
type grantSiteOptions struct {
	server  ServerOptions
	pool    PoolOptions
	rails   func(near, far *RailsOptions)
	cards   int  // cards of each side; 0: 1
	old     bool // the owner does not know RDMA
	virtual bool // virtual time, in a bubble of synctest
}

const grantedMemory = 32 << 20

func newGrantSite(t *testing.T, o grantSiteOptions) *grantSite {
	t.Helper()
	l := &grantSite{f: newFabric(), near: memory(t, grantedMemory), far: memory(t, grantedMemory)}
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	var names [2][]string
	for i := range max(1, o.cards) {
		for side, name := range []string{"near", "far"} {
			name = fmt.Sprint(name, i)
			l.f.plug(name, fmt.Sprintf("10.0.%d.%d", i, side+1))
			names[side] = append(names[side], name)
		}
	}
	near := RailsOptions{Wanted: []string{AnyCard}, Present: l.f.present(names[0]...), Open: l.f.open, Memory: l.near,
		Trusted: trusted, Logger: quiet()}
	far := near
	far.Present, far.Memory = l.f.present(names[1]...), l.far
	if o.rails != nil {
		o.rails(&near, &far)
	}
	l.nearRails, l.farRails = newRails(t, near), newRails(t, far)
	t.Cleanup(func() {
		if cards, pairs := l.f.left(); cards != 0 || pairs != 0 {
			t.Errorf("%d cards and %d pairs are left open", cards, pairs)
		}
		for _, what := range l.f.misused {
			t.Error(what)
		}
		if l.site != nil && l.server.granter != nil && l.server.granter.pairs != 0 {
			t.Errorf("%d pairs count as made", l.server.granter.pairs)
		}
	})
	t.Cleanup(func() { _ = l.nearRails.Close(); _ = l.farRails.Close() })
	if o.server.Rails = l.farRails; near.Open == nil || o.old {
		o.server.Rails = nil
	}
	o.pool.Rails = l.nearRails
	if o.virtual {
		l.site, _ = simulated(t, o.server, o.pool)
	} else {
		o.pool.GrantIn = 20 * time.Second // enough for a busy machine
		l.site = newSite(t, o.server, o.pool)
	}
	return l
}

func newRails(t *testing.T, o RailsOptions) *Rails {
	t.Helper()
	r, err := NewRails(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// offer puts n bytes that are made from key into the store.
func (l *grantSite) offer(key string, n int) []byte {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.used.far
	if l.used.far += n; l.used.far > len(l.far) {
		l.t.Fatal("no memory is left")
	}
	payload := l.far[at:l.used.far:l.used.far]
	copy(payload, randomBytes(key, n))
	l.store.put(Item{Addr: addr(key), Namespace: namespace, Key: []byte(key), Attr: []byte("attr of " + key),
		Expires: 12345}, payload)
	return payload
}

// room returns memory that cards can read into.
func (l *grantSite) room(n int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used.near+n > len(l.near) {
		l.used.near = 0
	}
	at := l.used.near
	l.used.near += n
	return l.near[at : at+n]
}

func (l *grantSite) grantee(how OneSided) *Peer {
	l.t.Helper()
	p, err := l.pool.Peer(Target{Address: l.address, Lane: QUIC, Cards: how})
	if err != nil {
		l.t.Fatal(err)
	}
	return p
}

// read pulls a block into memory that cards can read into.
func (l *grantSite) read(ctx context.Context, p *Peer, key string) ([]byte, Found, error) {
	var buf []byte
	f, err := p.Get(ctx, Get{Addr: addr(key), Namespace: namespace, Alloc: func(_ Found, n int) ([]byte, error) {
		buf = l.room(n)
		return buf, nil
	}})
	return buf, f, err
}

// ready waits until RDMA reads the blocks of a peer.
func (l *grantSite) ready(p *Peer) {
	l.t.Helper()
	eventually(l.t, "a session", func() bool { return p.grantee.session() != nil })
}

// settled waits until no block is granted.
func (l *grantSite) settled() {
	l.t.Helper()
	eventually(l.t, "all grants end", func() bool { return l.server.GrantStats().Grants == 0 && l.store.holds() == 0 })
}

// memory returns memory for blocks, outside Go's heap.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}
