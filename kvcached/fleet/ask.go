package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// askedAtOnce is the number of hosts that askAll asks at a time.
const askedAtOnce = 64

// askAll asks all other hosts, up to askedAtOnce at a time. The error of askAll names the hosts
// that could not be asked.
func (v *View) askAll(ctx context.Context, limit time.Duration,
	ask func(context.Context, *transport.Peer) error) error {
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	var mu sync.Mutex
	var failed error
	for _, m := range v.Others() {
		group.Go(func() error {
			if err := v.within(ctx, limit, &m, ask); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, fmt.Errorf("fleet: %s: %w", m.ID, err))
			}
			return nil
		})
	}
	_ = group.Wait()
	return failed
}

// Reachable tells for each block whether any host may have it. Each keeper is asked once. A Get of
// a block is a miss if Reachable returns false for the block.
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
