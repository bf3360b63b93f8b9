package transport

import (
	"context"
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// Registry knows which host has which block, and carries out operations on the whole fleet. Its
// errors are those of a Handler.
type Registry interface {
	Locate(ctx context.Context, addrs []block.Addr) (*wire.Locations, error)
	Announce(ctx context.Context, a *wire.Announcement, snapshot bool) (wire.Receipt, error)
	Purge(ctx context.Context, list []byte) (blocks int, err error)
	Purges(ctx context.Context) (list []byte, fresh bool, err error)
}

// Fleet is a Registry that also decides whether a block may be stored.
type Fleet interface {
	Registry
	// Bars tells whether a block with a stamp is older than a purge.
	Bars(s wire.Stamp, namespace string, key []byte) bool
}

// OnStore returns a Handler of this host's blocks. The operations of a Registry return
// wire.UnknownOp if r is nil.
func OnStore(s *store.Store, r Fleet) Handler {
	if r == nil {
		r = noRegistry{}
	}
	return onStore{Fleet: r, s: s}
}

type onStore struct {
	Fleet
	s *store.Store
}

type noRegistry struct{}

func (noRegistry) Locate(context.Context, []block.Addr) (*wire.Locations, error) {
	return nil, wire.UnknownOp
}

func (noRegistry) Announce(context.Context, *wire.Announcement, bool) (wire.Receipt, error) {
	return wire.Receipt{}, wire.UnknownOp
}

func (noRegistry) Bars(wire.Stamp, string, []byte) bool { return false }

func (noRegistry) Purge(context.Context, []byte) (int, error) { return 0, wire.UnknownOp }

func (noRegistry) Purges(context.Context) ([]byte, bool, error) { return nil, false, wire.UnknownOp }

func (h onStore) Get(ctx context.Context, a block.Addr) (Block, error) {
	b, err := h.s.Get(ctx, a)
	if err != nil {
		return nil, asStatus(err)
	}
	return stored{b}, nil
}

// stored is a block in the store.
type stored struct{ *store.Block }

func (b stored) Found() Found {
	i := b.Info()
	return Found{Item: Item(i.Item), Length: i.Length, CRC: i.CRC}
}

func (h onStore) Create(ctx context.Context, it Item, length int) (Draft, error) {
	d, err := h.s.Create(ctx, store.Item(it), length)
	if err != nil {
		return nil, asStatus(err)
	}
	return drafted{d, h, it.Namespace, it.Key}, nil
}

// drafted is a draft in the store.
type drafted struct {
	*store.Draft
	h         onStore
	namespace string
	key       []byte
}

func (d drafted) Commit(ctx context.Context, c Commit) error {
	o := store.CommitOptions{Durable: c.Durable, CRC: c.CRC, CheckCRC: true, IfAbsent: c.IfAbsent}
	if RemoteOf(ctx).Role == pki.KVCached {
		o.Copy = true
		o.Unless = func() bool { return d.h.Bars(c.Stamp, d.namespace, d.key) }
	}
	_, err := d.Draft.Commit(ctx, o)
	if c.IfAbsent && errors.Is(err, store.ErrExists) {
		return nil // the existing block stays, and is durable if c.Durable
	}
	return asStatus(err)
}

func (h onStore) Stat(ctx context.Context, addrs []block.Addr, out []wire.Info) error {
	var some [32]store.Info
	for len(addrs) > 0 {
		n := min(len(addrs), len(some))
		clear(some[:n])
		if err := h.s.StatAll(ctx, addrs[:n], some[:n]); err != nil {
			return asStatus(err)
		}
		for i, info := range some[:n] {
			out[i] = wire.Info{Length: uint64(info.Length), CRC: info.CRC, Tiers: uint32(info.Tiers),
				Expires: info.Item.Expires}
		}
		addrs, out = addrs[n:], out[n:]
	}
	return nil
}

func (h onStore) Delete(ctx context.Context, addrs []block.Addr, out []bool) (err error) {
	for i, a := range addrs {
		if out[i], err = h.s.Delete(ctx, a); err != nil {
			return asStatus(err)
		}
	}
	return nil
}

func (h onStore) Expire(ctx context.Context, addrs []block.Addr, unixMS int64, out []bool) (err error) {
	for i, a := range addrs {
		if out[i], err = h.s.SetExpiry(ctx, a, unixMS); err != nil {
			return asStatus(err)
		}
	}
	return nil
}

// statuses translates the store's errors.
var statuses = []struct {
	err    error
	status wire.Status
}{
	{store.ErrMiss, wire.Miss}, {store.ErrFull, wire.Busy}, {store.ErrQuota, wire.Quota}, {store.ErrTooLarge, wire.TooLarge},
	{store.ErrCorrupt, wire.Corrupt}, {store.ErrClosed, wire.Busy},
}

func asStatus(err error) error {
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			return fmt.Errorf("%w: %w", s.status, err)
		}
	}
	return err
}
