package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// TestNoticesOfALane checks that a lane gives each waiting key once, in order and in batches. All
// lanes together have one bound.
func TestNoticesOfALane(t *testing.T) {
	n := newNotices()
	lane := func(i int) block.Addr { return block.Addr{Layer: uint32(i)} } // the digest selects the lane
	for range 2 {
		for i := range maxNotices {
			if !n.add(lane(i), notice{what: set}) {
				t.Fatalf("notice %d is lost", i)
			}
		}
	}
	if n.add(lane(maxNotices), notice{}) {
		t.Error("more notices than the bound wait")
	}
	l := &n.lanes[0]
	first := n.take(l)
	for i := range noticeBatch {
		if first[lane(i)].what != set || !n.bars(lane(i)) {
			t.Fatalf("key %d is not in the first batch", i)
		}
	}
	n.done(first)
	if n.bars(lane(0)) || len(first) != noticeBatch || n.waiting() != maxNotices-noticeBatch {
		t.Errorf("%d in a batch, %d wait", len(first), n.waiting())
	}
	for n.waiting() > 0 {
		n.done(n.take(l))
	}
	if l.queue != nil || len(n.barred) > 0 {
		t.Errorf("%d in the queue, %d barred", len(l.queue), len(n.barred))
	}
}

// TestExpiriesOfABatch checks that keys of one lane get their expiries on another host, those with
// the same moment by one request.
func TestExpiriesOfABatch(t *testing.T) {
	a, b := start(t, "a", Options{}), start(t, "b", Options{})
	meet(a, b)
	at := time.Now().Add(time.Hour).UnixMilli()
	batch := map[block.Addr]notice{}
	const each, moments = 20, 5
	for i := range each * moments {
		k := key(fmt.Sprint(i))
		if _, err := b.Store.Put(t.Context(), store.Item{Addr: k, Namespace: keys.String()}, []byte("v"),
			false); err != nil {
			t.Fatal(err)
		}
		batch[k] = notice{expiry: true, expires: at + int64(i%moments)}
	}
	silent(t, a, b)
	if err := a.send(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for i := range each * moments {
		info, err := b.Store.Stat(t.Context(), key(fmt.Sprint(i)))
		if err != nil || info.Item.Expires != at+int64(i%moments) {
			t.Errorf("key %d: %d, %v", i, info.Item.Expires-at, err)
		}
	}
	count := func() uint64 { return b.server.Stats().Ops[wire.Expire] } // a request counts after its answer
	eventually(t, "all requests are counted", func() bool { return count() >= moments })
	if n := count(); n != moments {
		t.Errorf("%d requests", n)
	}
}
