package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// Bounds of a purge.
const (
	purgeWithin = 50 * time.Second
	askWithin   = 5 * time.Second        // limit of a request for a list of purges
	readWithin  = 500 * time.Millisecond // limit of the read of etcd's list before the answer to such a request
	// pause and number of tries for a host that is not known yet or has not read etcd's list yet
	purgeAgain = 100 * time.Millisecond
	purgeTries = 50
)

// Register is the fleet's list of purges in etcd. An error says that etcd does not answer, or that
// its value is not a list.
type Register interface {
	// Append adds a purge to etcd's list and carries it out on this host. Append returns the new
	// list and the hosts that etcd lists at that moment.
	Append(ctx context.Context, s purge.Selector) (*Appended, error)
	// Refresh carries out the purges of etcd's list on this host.
	Refresh(ctx context.Context) error
}

// Appended is a purge that has been added to etcd's list.
type Appended struct {
	List   *purge.List
	Here   purge.Done // outcome on this host, without Host
	Caches []Member
}

// PurgeAll carries out a purge on all hosts and returns the outcome of each. The first outcome is
// this host's. The error says that etcd does not answer and no host was purged. Errors of single
// hosts are in the outcomes.
func (v *View) PurgeAll(ctx context.Context, s purge.Selector) ([]purge.Done, error) {
	added, err := v.o.Register.Append(ctx, s)
	if err != nil {
		return nil, err
	}
	added.Here.Host = v.o.Self
	out := []purge.Done{added.Here}
	for _, m := range added.Caches {
		switch {
		case m.ID == v.o.Self:
		case m.Address == "":
			out = append(out, purge.Done{Host: m.ID, Err: purge.ErrNoAddress})
		default:
			out = append(out, purge.Done{Host: m.ID})
		}
	}
	text := added.List.Encode()
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i := 1; i < len(out); i++ {
		if out[i].Err != nil {
			continue
		}
		group.Go(func() error {
			out[i].Blocks, out[i].Err = v.purgeAt(ctx, out[i].Host, text)
			return nil
		})
	}
	_ = group.Wait()
	return out, nil
}

// purgeAt makes another host carry out a list.
func (v *View) purgeAt(ctx context.Context, id string, text []byte) (blocks int, err error) {
	ctx, cancel := context.WithTimeout(ctx, purgeWithin)
	defer cancel()
	for range purgeTries {
		m := v.roster.Load().member(id)
		if m == nil {
			err = fmt.Errorf("%w: %s", ErrUnknownHost, id)
		} else {
			err = v.within(ctx, purgeWithin, m, func(ctx context.Context, peer *transport.Peer) (err error) {
				blocks, err = peer.Purge(ctx, text)
				return err
			})
		}
		if !errors.Is(err, ErrUnknownHost) && !errors.Is(err, wire.Busy) || !await.For(ctx, purgeAgain) {
			break
		}
	}
	return blocks, err
}

// take carries out a list from another host. If the two lists number purges differently, take reads
// etcd's list first and then tries again.
func (v *View) take(ctx context.Context, list *purge.List) (blocks int, err error) {
	blocks, err = v.o.Ledger.Take(ctx, list)
	if errors.Is(err, purge.ErrHistory) {
		if err = v.o.Register.Refresh(ctx); err == nil {
			blocks, err = v.o.Ledger.Take(ctx, list)
		}
	}
	log := v.o.Logger.With("blocks", blocks, "revision", list.Revision, "asked_by", transport.RemoteOf(ctx).Host)
	if err != nil {
		log.Warn("blocks could not all be purged for the fleet", "error", err)
	} else {
		log.Info("blocks purged for the fleet")
	}
	return blocks, err
}

// Purge carries out a list from another host. This method is part of transport.Handler.
func (v *View) Purge(ctx context.Context, list []byte) (blocks int, err error) {
	parsed, err := purge.Parse(list)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", wire.BadFrame, err)
	}
	if blocks, err = v.take(ctx, parsed); err != nil {
		return blocks, fmt.Errorf("%w: %w", wire.Busy, err)
	}
	return blocks, nil
}

// Purges answers another host's question for the list. This method is part of transport.Handler.
func (v *View) Purges(ctx context.Context) (list []byte, fresh bool, err error) {
	reading, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	fresh = v.refresh(reading) == nil && !v.hidden()
	return v.o.Ledger.List().Encode(), fresh, nil
}

// refreshes shares one read of etcd's list among the hosts that ask for the list.
type refreshes struct {
	reading *semaphore.Weighted // of 1; held during a read
	mu      sync.Mutex
	next    *refreshed // the next read, which has not begun; nil: nobody waits for one
}

// refreshed is one read. err and ended are valid once done is closed.
type refreshed struct {
	done  chan struct{}
	err   error
	ended bool // the read ended with the question that began it, so it tells the others nothing
}

// refresh carries out etcd's list. The read begins after the call of refresh, because a purge may
// have been added just before the call. So a question never joins a read that has begun, as it
// would with singleflight. All questions during one read share the next read.
func (v *View) refresh(ctx context.Context) error {
	r := &v.refreshes
	for {
		r.mu.Lock()
		read := r.next
		first := read == nil
		if first {
			read = &refreshed{done: make(chan struct{})}
			r.next = read
		}
		r.mu.Unlock()
		if first {
			v.readList(ctx, read)
			return read.err
		}
		if err := await.Closed(ctx, read.done); err != nil {
			return err
		}
		if !read.ended {
			return read.err
		}
	}
}

// readList carries out a read for the question with that ctx.
func (v *View) readList(ctx context.Context, read *refreshed) {
	r := &v.refreshes
	read.err = r.reading.Acquire(ctx, 1)
	r.mu.Lock()
	r.next = nil
	r.mu.Unlock()
	if read.err == nil {
		read.err = v.o.Register.Refresh(ctx)
		r.reading.Release(1)
	}
	read.ended = read.err != nil && ctx.Err() != nil
	close(read.done)
}

// PurgesOf asks another host for its list of purges. The host need not be in the fleet now. fresh
// says that the host has just read etcd's list.
func (v *View) PurgesOf(ctx context.Context, m *Member) (list *purge.List, fresh bool, err error) {
	peer, err := v.o.Pool.Peer(m.Target())
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	text, fresh, err := peer.Purges(ctx)
	if err != nil {
		return nil, false, err
	}
	list, err = purge.Parse(text)
	return list, fresh, err
}

// Stamp names the last purge that this host has carried out on all its blocks.
func (v *View) Stamp() wire.Stamp { return wire.Stamp(v.o.Ledger.Stamp()) }

// Bars tells whether a block with a stamp is older than a purge that names it. This method is part
// of transport.Fleet.
func (v *View) Bars(s wire.Stamp, namespace string, key []byte) bool {
	return v.o.Ledger.Bars(purge.Stamp(s), namespace, key)
}
