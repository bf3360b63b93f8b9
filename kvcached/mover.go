package kvcached

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	rpcstatus "google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/rpc"
	"github.com/cognitora/dataplane/kvcached/store"
)

// movesAtOnce is the number of blocks that one call of Promote, Push or Pull moves at a time.
const movesAtOnce = 8

// mover is the rpc.Fleet of a daemon.
type mover struct{ view *fleet.View }

// mover returns nil if there is no fleet.
func (d *Daemon) mover() rpc.Fleet {
	if v := d.view.Load(); v != nil {
		return mover{v}
	}
	return nil
}

// pulled returns the measured speed of pulls; nil: there is no fleet.
func (d *Daemon) pulled() func() float64 {
	if v := d.view.Load(); v != nil {
		return v.PulledPerSecond
	}
	return nil
}

// Promote brings blocks into RAM, from SSD or from other hosts. With a wait it also brings blocks
// that hosts store meanwhile.
func (m mover) Promote(ctx context.Context, namespace string, addrs []block.Addr, wait rpc.Wait,
	out []rpc.Outcome) error {
	m.view.Know(namespace)
	if wait.For == 0 {
		return each(ctx, addrs, out, m.warm)
	}
	for i := range out {
		out[i] = rpc.Miss
	}
	return m.view.Await(ctx, wait.From, addrs, wait.For, func(at []int) (missing []int, err error) {
		some, came := make([]block.Addr, len(at)), make([]rpc.Outcome, len(at))
		for i, n := range at {
			some[i] = addrs[n]
		}
		if err := each(ctx, some, came, m.warm); err != nil {
			return nil, err
		}
		for i, n := range at {
			if out[n] = came[i]; came[i] == rpc.Miss {
				missing = append(missing, n)
			}
		}
		return missing, nil
	})
}

// warm brings one block into RAM.
func (m mover) warm(ctx context.Context, a block.Addr) error {
	return nobodyHas(m.view.Warm(ctx, a))
}

// nobodyHas makes a miss of the error that the holder has just left the fleet, where any holder
// would do.
func nobodyHas(err error) error {
	if errors.Is(err, fleet.ErrUnknownHost) {
		return store.ErrMiss
	}
	return err
}

// Push sends blocks to another host.
func (m mover) Push(ctx context.Context, peer, _ string, addrs []block.Addr, out []rpc.Outcome) error {
	return each(ctx, addrs, out, func(ctx context.Context, a block.Addr) error { return m.view.Push(ctx, a, peer) })
}

// Pull brings blocks from another host. An empty peer stands for any host that has the block.
func (m mover) Pull(ctx context.Context, peer, namespace string, addrs []block.Addr, out []rpc.Outcome) error {
	m.view.Know(namespace)
	return each(ctx, addrs, out, func(ctx context.Context, a block.Addr) error {
		err := m.view.Pull(ctx, a, peer)
		if peer == "" {
			return nobodyHas(err)
		}
		return err
	})
}

// each moves blocks, movesAtOnce at a time, and records the outcome of each. An error says that no
// block can be moved.
func each(ctx context.Context, addrs []block.Addr, out []rpc.Outcome,
	move func(context.Context, block.Addr) error) error {
	group, life := errgroup.WithContext(ctx)
	group.SetLimit(movesAtOnce)
	for i, a := range addrs {
		if life.Err() != nil {
			break
		}
		group.Go(func() (err error) {
			out[i], err = outcome(move(life, a))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// outcome returns the outcome of one block. An error that outcome returns ends the moves of all
// blocks.
func outcome(err error) (rpc.Outcome, error) {
	switch {
	case err == nil:
		return rpc.OK, nil
	case errors.Is(err, fleet.ErrUnknownHost):
		return 0, rpcstatus.Errorf(codes.NotFound, "peer: %v; give one of the hosts that cgn-ctl kv peers lists", err)
	case errors.Is(err, store.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return 0, err
	case errors.Is(err, store.ErrMiss):
		return rpc.Miss, nil
	case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrQuota):
		return rpc.Full, nil
	}
	return rpc.Failed, nil
}
