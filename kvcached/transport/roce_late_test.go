//go:build linux && cgo && rdma

package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/rdma"
)

// lateCard makes windows so late, while late is set, that their caller gives up.
type lateCard struct {
	rdma.Device
	late *atomic.Bool
}

type latePair struct {
	rdma.Pair
	late *atomic.Bool
}

// defaultGrantIn is how long a reader waits for a grant by default.
var defaultGrantIn = PoolOptions{}.withDefaults().GrantIn

func (d lateCard) Pair(o rdma.PairOptions) (rdma.Pair, error) {
	p, err := d.Device.Pair(o)
	if err != nil {
		return nil, err
	}
	return latePair{p, d.late}, nil
}

func (p latePair) Grant(ctx context.Context, mems [][]byte) ([]rdma.Window, error) {
	if p.late.Load() {
		<-time.After(defaultGrantIn * 6 / 5)
		ctx = &endsMeanwhile{Context: ctx}
	}
	return p.Pair.Grant(ctx, mems)
}

// endsMeanwhile is a context that has ended, but says at the first call that it has not.
type endsMeanwhile struct {
	context.Context
	looked atomic.Bool
}

func (c *endsMeanwhile) Value(any) any { return nil } // hides the context from context.Cause

func (c *endsMeanwhile) Err() error {
	if !c.looked.Swap(true) {
		return nil
	}
	return c.Context.Err()
}

// TestRoCELateGrants: with windows, and the default time for a grant, a late owner makes blocks
// come by a stream, and the session stays.
func TestRoCELateGrants(t *testing.T) {
	var late atomic.Bool
	near := roceRails(t, true)
	far := near
	far.Open = func(name string) (rdma.Device, error) {
		d, err := near.Open(name)
		if err != nil {
			return nil, err
		}
		return lateCard{d, &late}, nil
	}
	s := newTwoStores(t, near, far, PoolOptions{GrantIn: defaultGrantIn}, time.Hour)
	s.awaitCards("a session")
	const keys = 32
	for key := range keys {
		if err := s.set(key, 1, 64<<10); err != nil {
			t.Fatal(err)
		}
	}
	late.Store(true)
	for range 5 {
		var all sync.WaitGroup
		for key := range keys {
			all.Go(func() {
				if there, err := s.come(t.Context(), key); !there || err != nil {
					t.Error(key, err)
				}
			})
		}
		all.Wait()
	}
	late.Store(false)
	awaited(t, "what was granted late is taken back", func() bool {
		return s.server.GrantStats().Grants == 0 && s.far.Stats().RAM.Held == 0
	})
	reads := s.pool.Stats().RDMA.Reads
	awaited(t, "a block is read by RDMA again", func() bool {
		if there, err := s.come(t.Context(), 1); !there || err != nil {
			t.Fatal(err)
		}
		return s.pool.Stats().RDMA.Reads > reads
	})
	r, o := s.pool.Stats().RDMA, s.server.GrantStats()
	if r.Fallbacks["no_grant"] == 0 || r.Broken != 0 || r.Sessions != 1 || o.Sessions != 1 || o.Open != 1 {
		t.Errorf("%+v %+v", r, o)
	}
	t.Logf("%+v %+v", r, o)
}
