package holdings

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/cognitora/dataplane/kv/block"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// later is a daemon that gets all objects but some of a namespace after a minute, and those of the
// other ranks then. For other namespaces it has no room.
type later struct {
	cognitorav1.KvClient
	ranks []string
	lacks int
	now   atomic.Int64 // calls that have not been answered
	early atomic.Int64 // calls for a further rank before the first one has its objects
}

var errNoRoom = errors.New("no room")

func (c *later) Promote(ctx context.Context, r *cognitorav1.PromoteRequest, _ ...grpc.CallOption) (
	*cognitorav1.TransferResponse, error) {
	switch r.Namespace {
	case c.ranks[0]:
		defer c.now.Add(-1)
		if c.now.Add(1) != 1 {
			return nil, errNoRoom
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Minute):
		}
	case c.ranks[1], c.ranks[2], c.ranks[3]:
		c.early.Add(c.now.Load())
	default:
		return nil, errNoRoom
	}
	return &cognitorav1.TransferResponse{Ok: uint32(len(r.Digests)/32 - c.lacks)}, nil
}

// TestAwaitsOneRank: one rank at a time waits for the objects of a namespace, and an error in
// another namespace ends no wait. A failed hand-over ends it.
func TestAwaitsOneRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{})
		good, bad := namespace, namespace
		good.TP, bad.DType = 4, "fp8"
		m.spaces.heard(good.String(), block.LayerAll)
		m.spaces.heard(bad.String(), block.LayerAll)
		s := space{Namespace: good}
		const objects = 2*comingObjects + 10
		for _, c := range []struct {
			lacks, n int
			ends     bool
			err      error
			took     time.Duration
		}{
			{n: 4 * objects, took: 3 * time.Minute},
			{lacks: 1, n: 4 * (comingObjects - 1), err: errNoRoom, took: time.Minute},
			{ends: true, took: time.Second},
		} {
			client := &later{ranks: s.ranks(), lacks: c.lacks}
			ctx, end := context.WithCancel(t.Context())
			if c.ends {
				time.AfterFunc(time.Second, end)
			}
			p := &Promotion{Last: objects - 1, Wait: Wait{For: time.Hour, Ended: ctx}, model: "m"}
			for i := range objects {
				p.Add(&[32]byte{byte(i)})
			}
			began := time.Now()
			n, err := m.awaits(t.Context(), client, p)
			if took := time.Since(began); n != c.n || !errors.Is(err, c.err) || took != c.took ||
				client.early.Load() != 0 {
				t.Errorf("%+v: %d objects in %v, %d calls too early: %v", c, n, took, client.early.Load(), err)
			}
			end()
		}
	})
}
