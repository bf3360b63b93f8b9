package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// askedAtOnce is how many hosts are asked at a time when all are.
const askedAtOnce = 64

// askEach asks hosts at the same time. Its error is a *store.HostsError with those that could not
// be asked.
func (v *View) askEach(ctx context.Context, hosts []string, limit time.Duration,
	ask func(context.Context, *Member, *transport.Peer) error) error {
	r := v.roster.Load()
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	var mu sync.Mutex
	var failed store.HostsError
	for _, id := range hosts {
		m := r.member(id)
		if m == nil || m.ID == v.o.Self {
			continue // it has left
		}
		group.Go(func() error {
			err := v.within(ctx, limit, m, func(ctx context.Context, peer *transport.Peer) error {
				return ask(ctx, m, peer)
			})
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed.Hosts, failed.Err = append(failed.Hosts, m.ID), err
			}
			return nil
		})
	}
	_ = group.Wait()
	if err := ctx.Err(); err != nil && failed.Err != nil {
		return context.Cause(ctx)
	}
	if failed.Err == nil {
		return nil
	}
	slices.Sort(failed.Hosts)
	return &failed
}

// Reachable tells of each block whether it may be anywhere; each keeper is asked once. What it says
// no to is a miss.
func (v *View) Reachable(ctx context.Context, addrs []block.Addr, out []bool) error {
	infos := make([]store.Info, len(addrs))
	if err := v.Store.StatAll(ctx, addrs, infos); err != nil {
		return err
	}
	var missing []block.Addr
	var at []int
	for i := range infos {
		if out[i] = infos[i].Tiers != 0; !out[i] {
			missing, at = append(missing, addrs[i]), append(at, i)
		}
	}
	if v.alone() {
		return nil
	}
	located, err := v.locate(ctx, missing)
	for i := range located {
		out[at[i]] = err != nil || len(located[i]) > 0
	}
	return nil
}
