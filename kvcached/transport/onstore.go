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

// Registry answers who has which block, and does what is done of the whole fleet. Its errors are
// those of a Handler.
type Registry interface {
	Locate(ctx context.Context, addrs []block.Addr) (*wire.Locations, error)
	Announce(ctx context.Context, a *wire.Announcement, snapshot bool) (wire.Receipt, error)
	Order(ctx context.Context, op wire.Op, o *wire.Order) (*wire.Reply, error)
}

// Fleet is a Registry that has a say in what is taken in.
type Fleet interface {
	Registry
	// Admit is asked before a block of a namespace is taken in; the function tells whether it is
	// barred since.
	Admit(namespace string) (barred func() bool)
}

// OnStore is the Handler of what this host has. Without a registry (nil), its operations are
// wire.UnknownOp.
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

func (noRegistry) Admit(string) func() bool { return nil }

func (noRegistry) Order(context.Context, wire.Op, *wire.Order) (*wire.Reply, error) {
	return nil, wire.UnknownOp
}

func (h onStore) Get(ctx context.Context, a block.Addr) (Block, error) {
	b, err := h.s.Get(ctx, a)
	if err != nil {
		return nil, asStatus(err)
	}
	return stored{b}, nil
}

// stored is a block of the store.
type stored struct{ *store.Block }

func (b stored) Found() Found {
	i := b.Info()
	return Found{Item: Item(i.Item), Length: i.Length, CRC: i.CRC}
}

func (h onStore) Create(ctx context.Context, it Item, length int) (Draft, error) {
	barred := h.Admit(it.Namespace)
	d, err := h.s.Create(ctx, store.Item(it), length)
	if err != nil {
		return nil, asStatus(err)
	}
	return drafted{d, barred}, nil
}

// drafted is a draft of the store.
type drafted struct {
	*store.Draft
	barred func() bool // nil: never
}

func (d drafted) Commit(ctx context.Context, c Commit) error {
	_, err := d.Draft.Commit(ctx, store.CommitOptions{Durable: c.Durable, CRC: c.CRC, CheckCRC: true,
		IfAbsent: c.IfAbsent, Unless: d.barred, Copy: RemoteOf(ctx).Role == pki.KVCached})
	if c.IfAbsent && errors.Is(err, store.ErrExists) {
		return nil // it stays, as was asked for, and is durable if that was
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

// statuses of the store's errors.
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
