package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// grant asks for blocks in the peer's session, and returns the grant and each block's status.
func (l *grantSite) grant(ctx context.Context, p *Peer, keys ...string) (grant uint64, each []wire.Status, err error) {
	w := wire.Wanted{Session: p.grantee.session().id}
	for _, key := range keys {
		w.Addrs = append(w.Addrs, addr(key))
	}
	err = p.call(ctx, wire.Grant, 0, w.Append(nil), func(_ wire.Stamp, body []byte) error {
		a, err := wire.ParseGranted(body, len(keys), 1)
		if err != nil {
			return err
		}
		grant = a.Grant
		for i := range a.Blocks {
			each = append(each, a.Blocks[i].Status)
		}
		return nil
	})
	return grant, each, err
}

func count(all []wire.Status, of wire.Status) (n int) {
	for _, s := range all {
		if s == of {
			n++
		}
	}
	return n
}

// TestGrantWithoutRoom: blocks are not fetched if there is no room for them.
func TestGrantWithoutRoom(t *testing.T) {
	const size = 1 << 20
	l := newGrantSite(t, grantSiteOptions{server: ServerOptions{MaxInFlight: HostShare * 3 * size, Grant: time.Hour}})
	p := l.grantee(Trusted)
	l.ready(p)
	var keys []string
	for i := range 24 {
		keys = append(keys, fmt.Sprint("b", i))
		l.offer(keys[i], size)
	}
	var fetched atomic.Int64
	l.store.hook(func(h *hooks) {
		h.onGet = func(context.Context, block.Addr) error { fetched.Add(1); return nil }
	})
	for try, grants := range []int{3, 0} {
		_, each, err := l.grant(t.Context(), p, keys...)
		if err != nil || count(each, wire.OK) != grants || count(each, wire.Busy) != len(keys)-grants ||
			fetched.Load() != 3 || l.store.holds() != 3 {
			t.Errorf("try %d: %v %v, %d fetched, %d held", try, err, each, fetched.Load(), l.store.holds())
		}
	}
	if n := l.server.Stats().InFlight; n != 3*size {
		t.Errorf("%d bytes count", n)
	}
}

// TestReplacedMeanwhile: a block is not granted if its length has changed since it was counted.
func TestReplacedMeanwhile(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{})
	p := l.grantee(Trusted)
	l.ready(p)
	l.offer("b", 1000)
	l.store.hook(func(h *hooks) {
		h.onGet = func(context.Context, block.Addr) error { l.offer("b", 2000); return nil }
	})
	if _, each, err := l.grant(t.Context(), p, "b"); err != nil || each[0] != wire.ByStream || l.store.holds() != 0 ||
		l.server.Stats().InFlight != 0 {
		t.Errorf("%v %v, %d held", err, each, l.store.holds())
	}
}

// TestGrantedLeavesRoom: however many hosts have grants, streams have the other half.
func TestGrantedLeavesRoom(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{server: ServerOptions{MaxInFlight: 16 << 20}})
	const quarter = 4 << 20
	var held []func()
	for i := range HostShare {
		release, err := l.server.holdGranted(&host{}, quarter)
		if (err == nil) != (i < HostShare/GrantedShare) {
			t.Errorf("grantee %d: %v", i, err)
		}
		if err == nil {
			held = append(held, release)
		}
	}
	for i := range HostShare / GrantedShare {
		release, err := l.server.holdFor(&host{}, quarter)
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		held = append(held, release)
	}
	for _, release := range held {
		release()
	}
	if n, granted := l.server.Stats().InFlight, l.server.granter.bytes.Load(); n != 0 || granted != 0 {
		t.Errorf("%d bytes count, %d as granted", n, granted)
	}
}

// TestKeptGrant: a host that lets a grant run out has one grant at a time, until it gives one back.
func TestKeptGrant(t *testing.T) {
	o := grantSiteOptions{server: ServerOptions{Grant: time.Second}}
	inVirtualTime(t, o, func(t *testing.T, l *grantSite, p *Peer) {
		l.offer("b", 1000)
		grant := func(want wire.Status) (grant uint64) {
			t.Helper()
			grant, each, err := l.grant(t.Context(), p, "b")
			if err != nil || each[0] != want {
				t.Errorf("%v %v", err, each)
			}
			return grant
		}
		back := func(grants ...uint64) {
			t.Helper()
			body := (&wire.Returned{Session: p.grantee.session().id, Grants: grants}).Append(nil)
			if err := p.call(t.Context(), wire.Release, 0, body, func(wire.Stamp, []byte) error {
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		a, b := grant(wire.OK), grant(wire.OK)
		back(a)
		time.Sleep(2 * time.Second)
		if s := l.server.GrantStats(); s.Expired != 1 {
			t.Errorf("%+v", s)
		}
		back(b) // too late
		a = grant(wire.OK)
		grant(wire.ByStream)
		back(a)
		a, b = grant(wire.OK), grant(wire.OK)
		back(a, b)
	})
}

// TestLookupsGivenUp: lookups whose caller has left are not logged. Errors of the store are logged
// once.
func TestLookupsGivenUp(t *testing.T) {
	var log lines
	inVirtualTime(t, grantSiteOptions{server: ServerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))}},
		func(t *testing.T, l *grantSite, p *Peer) {
			var keys []string
			for i := range 32 {
				keys = append(keys, fmt.Sprint("b", i))
				l.offer(keys[i], 1000)
			}
			l.connectAll(p)
			l.store.hook(func(h *hooks) {
				h.onGet = func(ctx context.Context, _ block.Addr) error { <-ctx.Done(); return ctx.Err() }
			})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(25*time.Millisecond, cancel) // the lookup takes 10 ms
			if _, _, err := l.grant(ctx, p, keys...); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			time.Sleep(time.Second)
			if n := log.count("operation failed"); n != 0 {
				t.Errorf("%d lines", n)
			}
			l.store.hook(func(h *hooks) {
				h.onGet = func(context.Context, block.Addr) error { return errors.New("broken inside") }
			})
			if _, each, err := l.grant(t.Context(), p, keys...); err != nil || count(each, wire.Internal) != len(keys) {
				t.Error(err, each)
			}
			if n := log.count("operation failed"); n != 1 {
				t.Errorf("%d lines", n)
			}
		})
}
