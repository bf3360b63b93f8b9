package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// locate asks the keepers of addresses for the holders: out[i] has the holders of addrs[i]. A
// keeper that does not answer in time counts as an error and as no holders.
func (v *View) locate(ctx context.Context, addrs []block.Addr) ([][]location, error) {
	out := make([][]location, len(addrs))
	r := v.roster.Load()
	asked := map[*Member][]int{}
	for i := range addrs {
		if m := r.keeper(&addrs[i]); m.ID == v.o.Self {
			out[i] = v.others(v.keeper.locate(&addrs[i]))
		} else {
			asked[m] = append(asked[m], i)
		}
	}
	if len(asked) == 0 {
		return out, nil
	}
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	var mu sync.Mutex
	var failed error
	for m, at := range asked {
		group.Go(func() error {
			if err := v.ask(ctx, m, addrs, at, out); err != nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
			return nil
		})
	}
	_ = group.Wait()
	return out, failed
}

// ask asks one keeper for the holders of addrs[i], for each i in at.
func (v *View) ask(ctx context.Context, m *Member, addrs []block.Addr, at []int, out [][]location) error {
	for len(at) > 0 {
		some := at[:min(len(at), wire.MaxBatch)]
		at = at[len(some):]
		question := make([]block.Addr, len(some))
		for i, from := range some {
			question[i] = addrs[from]
		}
		v.counts.located.Add(1)
		var l *wire.Locations
		err := v.within(ctx, v.o.LocateTimeout, m, func(ctx context.Context, peer *transport.Peer) (err error) {
			l, err = peer.Locate(ctx, question)
			return err
		})
		if err != nil {
			v.counts.locateErrors.Add(1)
			return fmt.Errorf("fleet: locations kept by %s: %w", m.ID, err)
		}
		for i, holders := range l.Holders {
			to := &out[some[i]]
			for _, h := range holders {
				*to = append(*to, location{l.Hosts[h.Host], uint32(h.Length)})
			}
			*to = v.others(*to)
		}
	}
	return nil
}

// others removes this host from a list of holders.
func (v *View) others(l []location) []location {
	for i := range l {
		if l[i].host == v.o.Self {
			return append(l[:i], l[i+1:]...)
		}
	}
	return l
}

// Locate answers Locate of another host. This method is part of transport.Registry.
func (v *View) Locate(_ context.Context, addrs []block.Addr) (*wire.Locations, error) {
	l := &wire.Locations{Holders: make([][]wire.Holder, len(addrs))}
	numbers := map[string]uint32{}
	for i := range addrs {
		for _, at := range v.keeper.locate(&addrs[i]) {
			n, known := numbers[at.host]
			if !known {
				if len(l.Hosts) == wire.MaxHosts {
					continue
				}
				n = uint32(len(l.Hosts))
				numbers[at.host] = n
				l.Hosts = append(l.Hosts, at.host)
			}
			l.Holders[i] = append(l.Holders[i], wire.Holder{Host: n, Tiers: 1, Length: uint64(at.length)})
		}
	}
	return l, nil
}

// Announce records an announcement of another host. This method is part of transport.Registry.
func (v *View) Announce(_ context.Context, a *wire.Announcement, snapshot bool) (wire.Receipt, error) {
	if a.Host == v.o.Self || v.roster.Load().member(a.Host) == nil {
		return wire.Receipt{}, wire.Forbidden // the host tries again, and etcd has listed it by then
	}
	return v.keeper.announce(a, snapshot), nil
}
