package push

import (
	"context"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/load"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// follower is one router's stream. The fields below wake are guarded by server.mu.
type follower struct {
	server    *Server
	wake      chan struct{}  // signalled when there is an answer to send; never blocks
	told      []load.Reading // readings of the last answer
	toldAt    time.Time      // when a change was last sent; zero: nothing was sent
	moved     bool           // true if the latest readings differ from told
	unmoved   time.Time      // time of the last unchanged look before the change; zero: none
	coalesced uint64         // changed looks that a later look replaced before they were sent
}

// offer stores the latest readings. before is the time of the previous look.
func (f *follower) offer(all []load.Reading, before time.Time) {
	switch {
	case f.toldAt.IsZero():
		await.Wake(f.wake)
		return
	case !differ(all, f.told):
		f.moved = false
		return
	case !f.moved:
		f.unmoved = before
	default:
		f.coalesced++
		f.server.coalesced.Add(1)
	}
	f.moved = true
	await.Wake(f.wake)
}

// wait returns true when an answer is due. The first answer is due as soon as there are readings.
// An answer with a change is due MinInterval after the last answer with a change. Without a change
// an answer is due keepInterval after the request.
func (f *follower) wait(ctx context.Context, asked time.Time) bool {
	timer := time.NewTimer(keepInterval)
	defer timer.Stop()
	for {
		left, due := f.due(time.Now(), asked)
		if due {
			return true
		}
		timer.Reset(left)
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
		case <-f.wake:
		}
	}
}

// due tells whether an answer is due now, or how long to wait for an answer if nothing changes.
func (f *follower) due(now, asked time.Time) (left time.Duration, due bool) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	left = keepInterval - now.Sub(asked)
	switch {
	case f.toldAt.IsZero() && len(f.server.last) > 0:
		left = 0
	case f.moved:
		left = MinInterval - now.Sub(f.toldAt)
	}
	return left, left <= 0
}

// answer builds an answer with the latest readings, and remembers them as told.
func (f *follower) answer(now, asked time.Time) *pb.FollowResponse {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	latest := f.server.last
	answer := &pb.FollowResponse{
		Nodes:     make([]*pb.NodeLoad, len(latest)),
		HeldUs:    *load.Micros(asked, now),
		Coalesced: f.coalesced,
	}
	for i := range latest {
		answer.Nodes[i] = latest[i].Load.Message(latest[i].Node, now)
		if f.moved && (i >= len(f.told) || latest[i].Load.Moved(&f.told[i].Load)) {
			answer.Nodes[i].UnmovedUs = load.Micros(f.unmoved, now)
		}
	}
	if f.moved || f.toldAt.IsZero() {
		f.toldAt = now
	}
	f.told, f.moved = append(f.told[:0], latest...), false
	return answer
}

// differ tells whether any node's load differs between all and told.
func differ(all, told []load.Reading) bool {
	if len(all) != len(told) {
		return true
	}
	for i := range all {
		if all[i].Load.Moved(&told[i].Load) {
			return true
		}
	}
	return false
}
