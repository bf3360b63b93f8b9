package holdings

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/cognitora/dataplane/kv/block"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// stuck is a daemon that answers after a time. 0: never.
type stuck struct {
	cognitorav1.KvClient
	after time.Duration
	asked atomic.Int64
}

func (c *stuck) BatchLookup(ctx context.Context, _ *cognitorav1.BatchLookupRequest, _ ...grpc.CallOption) (
	*cognitorav1.BatchLookupResponse, error) {
	if c.asked.Add(1); c.after == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(c.after)
	return &cognitorav1.BatchLookupResponse{Tiers: []byte{0}}, nil
}

// TestSlowHostsHoldUpNoOthers: promotions to a daemon that does not answer leave the workers to
// others. A few wait for it, and further ones are dropped and counted.
func TestSlowHostsHoldUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{Promote: PromoteDisk})
		m.spaces.heard(namespace.String(), block.LayerAll)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		ask := func(c *stuck, n int) *cache {
			to := newCache(m, "host", nil, "")
			to.client.Store(new(cognitorav1.KvClient(c)))
			for range n {
				q := Query{hosts: []int32{1}, asked: []*cache{to}, reads: make([][]name, 1)}
				p := m.Promotion(&q, 0, "m", Wait{})
				p.Add(new([32]byte))
				m.Ask(p)
				synctest.Wait()
			}
			return to
		}
		slow, well := &stuck{}, &stuck{after: time.Second}
		ask(slow, promoteLater+11)
		ask(well, promoteLater+1)
		if n := m.Stats().PromotionsDropped; n != 10 || slow.asked.Load() != 1 {
			t.Errorf("%d are dropped, %d asked", n, slow.asked.Load())
		}
		time.Sleep(time.Duration(promoteLater+1)*time.Second + 1)
		if n := well.asked.Load(); n != promoteLater+1 || slow.asked.Load() != 1 {
			t.Errorf("%d and %d are asked", n, slow.asked.Load())
		}
		time.Sleep(promoteWithin * (promoteLater + 1))
		if s := m.Stats(); s.PromotionsFailed != promoteLater+1 || len(m.promoter.now.free) != promotions {
			t.Errorf("%+v", s)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// hung is a daemon that does not answer.
type hung struct {
	cognitorav1.KvClient
	asked atomic.Int64
}

func (c *hung) Promote(ctx context.Context, r *cognitorav1.PromoteRequest, _ ...grpc.CallOption) (
	*cognitorav1.TransferResponse, error) {
	c.asked.Add(1)
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestStuckHostsLeavePlaces: neither a daemon that does not answer nor a host that stores nothing
// takes all places of promotions with a wait. Those without a place are dropped and counted, and
// all places come back.
func TestStuckHostsLeavePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{Promote: PromoteFleet})
		m.spaces.heard(namespace.String(), block.LayerAll)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		client, dropped := &hung{}, uint64(0)
		ask := func(asked, from string, n int) (got int) {
			to := newCache(m, asked, nil, "")
			to.client.Store(new(cognitorav1.KvClient(client)))
			for range n {
				q := Query{hosts: []int32{1}, asked: []*cache{to}, reads: make([][]name, 1)}
				p := m.Promotion(&q, 0, "m", Wait{For: time.Second, From: from, Ended: t.Context()})
				if p == nil {
					dropped++
					continue
				}
				p.Add(new([32]byte))
				m.Ask(p)
				got++
			}
			synctest.Wait()
			return got
		}
		for range 2 {
			var got []int
			for _, c := range []struct{ asked, from string }{{"stuck", "a"}, {"stuck", "b"}, {"c", "a"}, {"c", "b"}} {
				got = append(got, ask(c.asked, c.from, waitings))
			}
			if !slices.Equal(got, []int{waitings / 2, 0, 0, waitings / 4}) || client.asked.Load() != 3*waitings/4 ||
				m.Stats().PromotionsDropped != dropped {
				t.Errorf("%v, %d are asked, %+v", got, client.asked.Load(), m.Stats())
			}
			client.asked.Store(0)
			time.Sleep(time.Second + comingSlack + 1)
			if n := m.promoter.asked.Held() + m.promoter.from.Held(); n != 0 ||
				len(m.promoter.next.free) != waitings {
				t.Errorf("%d places are held at the end", n)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestTurns: promotions of a cache run one after another, in their order.
func TestTurns(t *testing.T) {
	var turns turns
	all := make([]Promotion, promoteLater+2)
	var got []turn
	for i := range all {
		got = append(got, turns.take(&all[i]))
	}
	if got[0] != runs || slices.Contains(got[1:promoteLater+1], runs) || got[promoteLater+1] != tooMany {
		t.Errorf("%v", got)
	}
	for i := range promoteLater {
		if turns.next() != &all[i+1] {
			t.Errorf("place %d", i)
		}
	}
	if turns.next() != nil || turns.take(&all[0]) != runs {
		t.Error("the cache is not free")
	}
}
