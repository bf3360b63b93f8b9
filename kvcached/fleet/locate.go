package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// found is what a keeper says of one address.
type found struct {
	holders []location // without this host
	partial bool       // there may be others: the keeper has not answered, or has not been told everything yet
}

// certain tells whether nobody else can have the block.
func (f *found) certain() bool { return !f.partial && len(f.holders) < wire.MaxHolders-1 }

// locate asks the keepers of addresses who has the blocks; out[i] is about addrs[i]. A keeper that
// does not answer in time knows of nobody, and is an error too.
func (v *View) locate(ctx context.Context, addrs []block.Addr) ([]found, error) {
	out := make([]found, len(addrs))
	r := v.roster.Load()
	asked := map[*Member][]int{}
	for i := range addrs {
		if m := r.keeper(&addrs[i]); m.ID == v.o.Self {
			out[i].partial = !v.keeper.certain() // before the question: what is told in between is not missed
			out[i].holders = v.others(v.keeper.locate(&addrs[i]))
		} else {
			asked[m] = append(asked[m], i)
		}
	}
	if len(asked) == 0 {
		return out, nil
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for m, at := range asked {
		wg.Go(func() {
			if err := v.ask(ctx, m, addrs, at, out); err != nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return out, failed
}

// notAll stands among the hosts of an answer for those that the keeper has not been told of yet.
const notAll = ""

// ask asks one keeper about addrs[i] for each i in at.
func (v *View) ask(ctx context.Context, m *Member, addrs []block.Addr, at []int, out []found) error {
	for _, i := range at {
		out[i].partial = true
	}
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
		partial := slices.Contains(l.Hosts, notAll)
		for i, holders := range l.Holders {
			to := &out[some[i]]
			for _, h := range holders {
				to.holders = append(to.holders, location{l.Hosts[h.Host], uint32(h.Length)})
			}
			to.holders, to.partial = v.others(to.holders), partial
		}
	}
	return nil
}

// others leaves out this host.
func (v *View) others(l []location) []location {
	for i := range l {
		if l[i].host == v.o.Self {
			return append(l[:i], l[i+1:]...)
		}
	}
	return l
}

// Locate answers another host; it is transport.Registry's.
func (v *View) Locate(_ context.Context, addrs []block.Addr) (*wire.Locations, error) {
	l := &wire.Locations{Holders: make([][]wire.Holder, len(addrs))}
	numbers := map[string]uint32{}
	if !v.keeper.certain() || !v.keeps(addrs) {
		l.Hosts = append(l.Hosts, notAll)
	}
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

// keeps tells whether this host keeps the addresses, as who asks for their locations believes. Of
// many only as many are looked at as take no time: one that is another's is enough.
func (v *View) keeps(addrs []block.Addr) bool {
	const looks = 1 << 16 // at a member for an address
	r := v.roster.Load()
	for i := range addrs[:min(len(addrs), max(looks/len(r.members), 1))] {
		if r.keeper(&addrs[i]).ID != v.o.Self {
			return false
		}
	}
	return true
}

// Announce takes in what another host has; it is transport.Registry's.
func (v *View) Announce(_ context.Context, a *wire.Announcement, snapshot bool) (wire.Receipt, error) {
	if a.Host == v.o.Self || v.roster.Load().member(a.Host) == nil {
		return wire.Receipt{}, wire.Forbidden // it will try again, and be known by then
	}
	return v.keeper.announce(a, snapshot), nil
}
