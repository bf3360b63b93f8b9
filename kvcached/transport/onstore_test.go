package transport

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ssd"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/wire"
)

func openStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{RAM: 64 << 20, SSD: &ssd.Options{Dir: t.TempDir(), Cap: 256 << 20},
		Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestBetweenStores moves blocks from the arena of one store to that of another, both ways.
func TestBetweenStores(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		here, there := openStore(t), openStore(t)
		s := newSite(t, ServerOptions{Handler: OnStore(there, nil)},
			PoolOptions{Identity: identity(t, pkiDir, pki.Ctl)})
		p, ctx := s.peer(l), t.Context()
		for _, n := range []int{1, 65536, 1<<20 + 7, 5 << 20} {
			key, payload := fmt.Sprint(n), randomBytes(fmt.Sprint(n), n)
			it := Item{Addr: addr(key), Namespace: namespace, Key: []byte(key), Attr: []byte("attr"), Expires: 1 << 60}
			if err := p.Put(ctx, Put{Item: it, Payload: payload, CRC: block.Sum(payload), Durable: true}); err != nil {
				t.Fatal(err)
			}
			if err := p.Put(ctx, Put{Item: it, Payload: make([]byte, n), CRC: block.Sum(make([]byte, n)),
				IfAbsent: true}); err != nil {
				t.Error("a block that is there:", err)
			}
			var d *store.Draft
			f, err := p.Get(ctx, Get{Addr: it.Addr, Namespace: namespace, Hint: n,
				Alloc: func(f Found, n int) (_ []byte, err error) {
					if d, err = here.Create(ctx, store.Item(f.Item), n); err != nil {
						return nil, err
					}
					return d.Bytes(), nil
				}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Commit(ctx, store.CommitOptions{CRC: f.CRC, CheckCRC: true}); err != nil {
				t.Fatal(err)
			}
			b, err := here.Get(ctx, it.Addr)
			if err != nil {
				t.Fatal(err)
			}
			same(t, key, b.Bytes(), payload)
			if i := b.Info().Item; string(i.Key) != key || string(i.Attr) != "attr" || i.Expires != 1<<60 {
				t.Errorf("%+v", i)
			}
			b.Release()
		}
		addrs := []block.Addr{addr("65536"), addr("no such")}
		infos, gone := make([]wire.Info, 2), make([]bool, 2)
		if err := p.Stat(ctx, addrs, infos); err != nil || infos[0].Length != 65536 ||
			infos[0].Tiers != uint32(store.RAM|store.SSD) || infos[1].Tiers != 0 {
			t.Error(infos, err)
		}
		if err := p.Delete(ctx, addrs, gone); err != nil || !gone[0] || gone[1] {
			t.Error(gone, err)
		}
		if _, _, err := get(ctx, p, "65536"); !errors.Is(err, wire.Miss) {
			t.Error(err)
		}
		if err := put(ctx, p, "more than the arena", make([]byte, wire.MaxBody)); !errors.Is(err, wire.Busy) &&
			!errors.Is(err, wire.TooLarge) {
			t.Error(err)
		}
		if _, err := p.Locate(ctx, addrs); !errors.Is(err, wire.UnknownOp) {
			t.Error(err)
		}
	})
}

// TestExistingDurable: a durable Put of a block that exists only in RAM is answered once the block
// is on SSD.
func TestExistingDurable(t *testing.T) {
	there := openStore(t)
	s := newSite(t, ServerOptions{Handler: OnStore(there, nil)}, PoolOptions{Identity: identity(t, pkiDir, pki.Ctl)})
	p, payload := s.peer(TLS), []byte("payload")
	it := Item{Addr: addr("b"), Namespace: namespace, Key: []byte("b")}
	for _, durable := range []bool{false, true} {
		if err := p.Put(t.Context(), Put{Item: it, Payload: payload, CRC: block.Sum(payload), IfAbsent: true,
			Durable: durable}); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := there.Stat(t.Context(), it.Addr); err != nil || info.Tiers != store.RAM|store.SSD {
		t.Error(info.Tiers, err)
	}
}
