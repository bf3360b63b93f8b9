package fleet

import (
	"context"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/kv/block"
)

// maxAwaits bounds the calls of Await that wait at a time. A host that is to store the blocks gets
// a place only if it has fewer than are free.
const maxAwaits = 128

// These constants bound how many of the missing addresses are looked up at a time, the first ones.
// An engine stores the blocks of a prompt in their order. So the first ones say whether more have
// come. The number grows fourfold from awaitFew to awaitWindow while all come.
const (
	awaitFew    = 4
	awaitWindow = 512
)

// Pauses between two lookups. They double from awaitFirst to awaitLast while nothing comes.
const (
	awaitFirst = 4 * time.Millisecond
	awaitLast  = 16 * time.Millisecond
)

// Await looks for blocks that hosts of the fleet are about to store, until all are found or the
// limit ends. addrs are in the order in which they are stored, and Await looks for the first few of
// the missing ones. take gets the numbers of those addrs that some host has. It removes from
// missing what needs no further lookup. An error of take or of this host's store ends Await. from
// is the host that is to store the blocks. Await waits for nothing if from has its share of
// maxAwaits places.
func (v *View) Await(ctx context.Context, from string, addrs []block.Addr, limit time.Duration,
	take func(at []int) (missing []int, err error)) error {
	if v.awaits.Take(from) {
		defer v.awaits.Give(from)
	} else {
		v.counts.awaitsRefused.Add(1)
		limit = 0
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	missing := make([]int, len(addrs))
	for i := range missing {
		missing[i] = i
	}
	few := awaitFew
	for pause := awaitFirst; ; pause = min(2*pause, awaitLast) {
		some := missing[:min(len(missing), few)]
		there, gone, err := v.reachable(ctx, addrs, some)
		if err != nil {
			return err
		}
		again, err := take(there)
		if err != nil {
			return err
		}
		came := len(there) - len(again)
		v.counts.awaited.Add(uint64(came))
		missing = append(append(gone, again...), missing[len(some):]...)
		if len(missing) == 0 {
			return nil
		}
		if came > 0 {
			pause = awaitFirst
		}
		if came == len(some) {
			few = min(4*few, awaitWindow)
			continue // there may be more
		}
		few = awaitFew
		if !await.For(waiting, pause) {
			v.counts.awaitedInVain.Add(uint64(len(missing)))
			return ctx.Err()
		}
	}
}

// reachable divides the numbers at of addrs into those that some host may have, and the others.
func (v *View) reachable(ctx context.Context, addrs []block.Addr, at []int) (there, gone []int, err error) {
	asked, found := make([]block.Addr, len(at)), make([]bool, len(at))
	for i, n := range at {
		asked[i] = addrs[n]
	}
	if err := v.Reachable(ctx, asked, found); err != nil {
		return nil, nil, err
	}
	for i, n := range at {
		if found[i] {
			there = append(there, n)
		} else {
			gone = append(gone, n)
		}
	}
	return there, gone, nil
}
