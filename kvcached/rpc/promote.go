package rpc

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/kv/block"
)

// promoteAtOnce is how many blocks a Promote reads from SSD at a time.
const promoteAtOnce = 8

// promote brings blocks of this host into RAM.
func (s *service) promote(ctx context.Context, addrs []block.Addr, out []Outcome) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(promoteAtOnce, len(addrs)) {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(addrs) {
					return nil
				}
				err := s.o.Store.Warm(ctx, addrs[i])
				if out[i] = outcomeOf(err); out[i] == 0 {
					return err
				}
				if out[i] == Failed {
					s.log.Warn("a block cannot be promoted", "error", err)
				}
			}
		})
	}
	return group.Wait()
}
