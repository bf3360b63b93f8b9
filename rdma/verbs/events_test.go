//go:build linux && cgo && rdma

package verbs

import (
	"errors"
	"runtime"
	"testing"

	"github.com/cognitora/dataplane/rdma"
)

// TestCompletionsFail: if the card reports an error of a completion queue, the pair of that queue
// is broken, and no other. Here the queue overflows.
func TestCompletionsFail(t *testing.T) {
	d := opened(t)
	from, into := registeredIn(t, d, 1<<20), registeredIn(t, d, 1<<20)
	r, w := connected(t, d, d, rdma.PairOptions{MaxReads: 16, MaxWindows: 1})
	parts, err := r.parts(nil, []rdma.Read{{Into: into[:64], From: granted(t, w, from)[0].Key()}})
	if err != nil {
		t.Fatal(err)
	}
	id := r.chains.take(0).id
	// takes completions from another queue, so that nobody takes those of r
	elsewhere := &queue{c: r.q.c, cq: paired(t, d, rdma.PairOptions{}).cq, state: ready}
	for ctx, over := within(t), false; !over; runtime.Gosched() {
		select {
		case <-r.Broken():
			over = true
		case <-ctx.Done():
			t.Fatal("the pair does not say that it is broken")
		default:
			_, _ = elsewhere.reads(id, parts) // refused while the queue is full
		}
	}
	if err := r.Read(within(t), []rdma.Read{{Into: into[:64]}}); !errors.Is(err, rdma.ErrBroken) {
		t.Errorf("a read through it: %v", err)
	}
	if w.isBroken() {
		t.Error("the other side is broken as well")
	}
}
