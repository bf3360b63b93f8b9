package netpath

import (
	"bytes"
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// TestCaches tests two daemons on a path with delay and loss.
func TestCaches(t *testing.T) {
	h := start(t)
	t.Run("Lanes", h.lanes)
	t.Run("Cancel", h.cancels)
	for _, d := range []*host{h.a, h.b} {
		within(t, soon, d.id+" knows the other one", func() bool { return d.metric(t, "fleet_members") == 2 })
	}
	t.Run("Fleet", h.fleet)
	t.Run("FleetCancel", h.fleetCancels)
}

// brings asks B for a block that A has. B gets the block from the cache named from; an empty from
// stands for any holder.
func (h *hosts) brings(ctx context.Context, a block.Addr, from string) (pb.Outcome, error) {
	r, err := h.b.Pull(ctx, &pb.PullRequest{Namespace: space, Layer: a.Layer, Digests: a.Digest[:], Peer: from})
	if err != nil {
		return 0, err
	}
	return pb.Outcome(r.Outcomes[0]), nil
}

// fleet: B finds blocks that were put into A, and fetches them over a path with loss.
func (h *hosts) fleet(t *testing.T) {
	h.Set(Conditions{Delay: delay, Loss: loss})
	for i, size := range append(sizes, 5<<20) { // B cannot guess a block's length from other blocks
		a, want := h.a.put(t, size)
		from := ""
		if i == len(sizes) {
			from = "a"
		}
		asked := 0
		took := within(t, patience, "B has the block", func() bool {
			asked++
			outcome, err := h.brings(t.Context(), a, from)
			if err != nil {
				t.Fatal(err)
			}
			return outcome == pb.Outcome_OUTCOME_OK
		})
		got, err := h.b.get(t.Context(), a)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %v", size, err)
		}
		t.Logf("%d bytes from %q in %v, asked for %d times; so far over QUIC %.0f bytes, over TLS %.0f", size, from,
			took, asked,
			h.b.metric(t, `pool_received_bytes_total{lane="quic"}`),
			h.b.metric(t, `pool_received_bytes_total{lane="tls"}`))
	}
}

// fleetCancels: if a client gives up its request for a block, both daemons give up the transfer.
func (h *hosts) fleetCancels(t *testing.T) {
	h.Set(slow)
	a, want := h.a.put(t, 8<<20)
	free, gaveUp := h.b.metric(t, "ram_free_bytes"), h.a.metric(t, "peer_gave_up_total")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		for {
			outcome, err := h.brings(ctx, a, "")
			if err != nil || outcome == pb.Outcome_OUTCOME_OK {
				ended <- err
				return
			}
		}
	}()
	within(t, soon, "the block begins to come", func() bool { return h.b.metric(t, "ram_held_bytes") >= 8<<20 })
	cancel()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("the pull ended with %v", err)
	}
	took := within(t, soon, "both give up", func() bool {
		return h.b.metric(t, "ram_held_bytes") == 0 && h.b.metric(t, "ram_free_bytes") == free &&
			h.a.metric(t, "ram_held_bytes") == 0 && h.a.metric(t, "peer_in_flight_bytes") == 0 &&
			h.a.metric(t, "peer_gave_up_total") > gaveUp
	})
	t.Logf("both sides were free within %v", took)
	h.Set(Conditions{})
	within(t, soon, "the block comes after all", func() bool {
		outcome, err := h.brings(t.Context(), a, "")
		if err != nil {
			t.Fatal(err)
		}
		return outcome == pb.Outcome_OUTCOME_OK
	})
	if got, err := h.b.get(t.Context(), a); err != nil || !bytes.Equal(got, want) {
		t.Error(err)
	}
}
