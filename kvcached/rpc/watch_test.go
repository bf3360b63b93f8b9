package rpc

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// view is the knowledge of a client that only watches.
type view struct {
	stream  pb.Kv_WatchClient
	epoch   uint64
	due     uint64
	resets  int
	synced  bool
	engines map[uint32]string
	blocks  map[uint32]map[string]position // by holder and digest
}

type position struct {
	tiers          byte
	number         uint32
	leader, parent uint64
}

func watch(t testing.TB, ctx context.Context, c pb.KvClient, r *pb.WatchRequest) *view {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	t.Cleanup(cancel)
	v := &view{engines: map[uint32]string{}, blocks: map[uint32]map[string]position{}}
	v.stream = ok[pb.Kv_WatchClient](t)(c.Watch(ctx, r))
	return v
}

// read takes in one message.
func (v *view) read() error {
	m, err := v.stream.Recv()
	if err != nil {
		return err
	}
	v.epoch = m.Epoch
	switch m.Part {
	case pb.WatchResponse_PART_RESET:
		v.resets, v.due, v.synced = v.resets+1, m.Last+1, false
		clear(v.engines)
		clear(v.blocks)
	case pb.WatchResponse_PART_CHANGES, pb.WatchResponse_PART_SYNCED:
		if v.due != 0 && m.First != v.due {
			return fmt.Errorf("change %d came, %d was due", m.First, v.due)
		}
		v.due = m.Last + 1
		v.synced = v.synced || m.Part == pb.WatchResponse_PART_SYNCED
	}
	for _, h := range m.Holders {
		v.engines[h.Number] = h.Engine
	}
	for i := range m.GetBlocks().GetHolder() {
		b := m.Blocks
		if _, known := v.engines[b.Holder[i]]; !known {
			return fmt.Errorf("holder %d is not known", b.Holder[i])
		}
		if v.blocks[b.Holder[i]] == nil {
			v.blocks[b.Holder[i]] = map[string]position{}
		}
		key := fmt.Sprint(m.Namespaces[b.Namespace[i]], b.Layer[i], b.Digests[8*i:8*i+8])
		if b.Tiers[i] == 0 {
			delete(v.blocks[b.Holder[i]], key)
			continue
		}
		v.blocks[b.Holder[i]][key] = position{b.Tiers[i], b.Position[i], binary.LittleEndian.Uint64(b.Leaders[8*i:]),
			binary.LittleEndian.Uint64(b.Parents[8*i:])}
	}
	for _, n := range m.Gone {
		delete(v.engines, n)
		delete(v.blocks, n)
	}
	return nil
}

func (v *view) count() (n int) {
	for _, b := range v.blocks {
		n += len(b)
	}
	return n
}

// until reads until something is so.
func (v *view) until(t testing.TB, is func() bool) {
	t.Helper()
	for !is() {
		if err := v.read(); err != nil {
			t.Fatalf("%v, with %d blocks of %d holders, synced %v, change %d due", err, v.count(), len(v.engines),
				v.synced, v.due)
		}
	}
}

func TestWatch(t *testing.T) {
	f := start(t, Options{})
	chain := chainOf("p", 40)
	store := func(i int) {
		h := header(chain[i], block.Digest{}, 10)
		if i > 0 {
			h.Parent = chain[i-1][:]
		}
		ok[*pb.PutResponse](t)(put(t, f.client, &pb.PutHeader{Block: h}, pattern(10), 10))
	}
	for i := range 20 {
		store(i)
	}
	v := watch(t, t.Context(), f.client, &pb.WatchRequest{})
	v.until(t, func() bool { return v.synced })
	if v.count() != 20 || v.resets != 1 || v.epoch != f.residency.Epoch() {
		t.Fatalf("%d blocks after %d resets", v.count(), v.resets)
	}
	for i := 20; i < 40; i++ {
		store(i)
	}
	ok[*pb.DeleteResponse](t)(f.client.Delete(t.Context(), &pb.DeleteRequest{Namespace: llama, Layer: block.LayerAll,
		Digests: join(chain[39])}))
	ok[*pb.ReportResponse](t)(f.client.Report(t.Context(), &pb.ReportRequest{Engine: "node-1", Epoch: 1, Fresh: true,
		Events: []*pb.ReportEvent{
			{Kind: pb.ReportEvent_KIND_STORED, Namespace: llama, Medium: pb.Tier_TIER_DEVICE, Digests: join(chain...)},
		}}))
	v.until(t, func() bool { return v.count() == 39+40 })
	for number, engine := range v.engines {
		tiers := byte(pb.Tier_TIER_HOST)
		if engine == "node-1" {
			tiers = byte(pb.Tier_TIER_DEVICE)
		}
		for i, d := range chain[:39] {
			p := v.blocks[number][fmt.Sprint(llama, uint32(block.LayerAll), d[:8])]
			want := position{tiers, uint32(i + 1), binary.LittleEndian.Uint64(chain[i-i%16][:]), 0}
			if i > 0 {
				want.parent = binary.LittleEndian.Uint64(chain[i-1][:])
			}
			if p != want {
				t.Fatalf("block %d of %q: %+v, want %+v", i, engine, p, want)
			}
		}
	}
	ok[*pb.ReportResponse](t)(f.client.Report(t.Context(), &pb.ReportRequest{Engine: "node-1", Epoch: 2, Fresh: true}))
	v.until(t, func() bool { return v.count() == 39 && len(v.engines) == 2 })

	// A watcher that comes back continues where it was.
	again := watch(t, t.Context(), f.client, &pb.WatchRequest{Epoch: v.epoch, After: v.due - 1})
	ok[*pb.DeleteResponse](t)(f.client.Delete(t.Context(), &pb.DeleteRequest{Namespace: llama, Layer: block.LayerAll,
		Digests: join(chain[0])}))
	if err := again.read(); err != nil || again.resets != 0 || again.due != v.due+1 {
		t.Errorf("%v, %d resets, %d is due", err, again.resets, again.due)
	}
	v.until(t, func() bool { return v.count() == 38 })
	f.stop()
	for err := error(nil); ; err = v.read() {
		if err != nil {
			wantCode(t, "the end", err, codes.Unavailable)
			break
		}
	}
}

// TestWatchSlowly: one watcher does not read while another one does. Watchers end in all possible
// ways.
func TestWatchSlowly(t *testing.T) {
	f := start(t, Options{Watchers: 3})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow := watch(t, ctx, f.dial(t), &pb.WatchRequest{})
	quick := watch(t, ctx, f.client, &pb.WatchRequest{})
	leaving := watch(t, ctx, f.client, &pb.WatchRequest{})
	for _, v := range []*view{slow, quick, leaving} {
		v.until(t, func() bool { return v.synced })
	}
	_, err := watch(t, ctx, f.client, &pb.WatchRequest{}).stream.Recv()
	wantCode(t, "one too many", err, codes.ResourceExhausted)
	chain := chainOf("p", 4000)
	number := uint64(0)
	for round := range 20 { // more changes than the ring has
		kind := pb.ReportEvent_KIND_STORED + pb.ReportEvent_Kind(round%2)
		for from := 0; from < len(chain); from += 2000 {
			number++
			r := &pb.ReportRequest{Engine: "e", Epoch: 1, Number: number, Fresh: number == 1, Events: []*pb.ReportEvent{
				{Kind: kind, Namespace: llama, Medium: pb.Tier_TIER_DEVICE, Digests: join(chain[from : from+2000]...)},
			}}
			ok[*pb.ReportResponse](t)(f.client.Report(ctx, r))
		}
		want := (1 - round%2) * len(chain)
		quick.until(t, func() bool { return quick.count() == want })
	}
	number++
	ok[*pb.ReportResponse](t)(f.client.Report(ctx, &pb.ReportRequest{Engine: "e", Epoch: 1, Number: number,
		Events: []*pb.ReportEvent{
			{Kind: pb.ReportEvent_KIND_STORED, Namespace: llama, Medium: pb.Tier_TIER_DEVICE, Digests: join(chain[:7]...)},
		}}))
	for _, v := range []*view{slow, quick} {
		v.until(t, func() bool { return v.synced && v.due == f.residency.Stats().Changes+1 })
		if v.count() != 7 {
			t.Errorf("%d blocks", v.count())
		}
	}
	if slow.resets < 2 || quick.resets != 1 {
		t.Errorf("the slow one was told anew %d times, the quick one %d", slow.resets, quick.resets)
	}
	cancel()
	eventually(t, "watchers are gone", func() bool { return f.residency.Stats().Watchers == 0 && len(f.watchers) == 0 })
	for status.Code(err) != codes.Canceled {
		err = leaving.read()
	}
}

// TestAnEndedWatchIsNoFailure: a watch that its client ends does not count as failed.
func TestAnEndedWatchIsNoFailure(t *testing.T) {
	f := start(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	v := watch(t, ctx, f.client, &pb.WatchRequest{})
	v.until(t, func() bool { return v.synced })
	cancel()
	for deadline := time.Now().Add(time.Minute); len(f.watchers) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the watch goes on")
		}
	}
	f.stop()
	if st := f.Stats(); st.Calls["Watch"] != 1 || st.Failed["Watch"] != 0 {
		t.Errorf("%d of %d failed", st.Failed["Watch"], st.Calls["Watch"])
	}
}

// TestWatchCounts: Watch leaves out blocks that do not count in the overlap, unless they are
// requested.
func TestWatchCounts(t *testing.T) {
	f := start(t, Options{})
	chain := chainOf("p", 1)
	for _, layer := range []uint32{0, 1, 2, block.LayerAll} {
		f.residency.Apply(&residency.Change{
			Addr: block.Addr{Digest: chain[0], Model: block.IDOf(llama), Layer: layer}, Namespace: llama,
			Tier: residency.Host, Present: true,
		})
	}
	for all, want := range map[bool]int{false: 2, true: 4} {
		v := watch(t, t.Context(), f.client, &pb.WatchRequest{All: all})
		v.until(t, func() bool { return v.synced })
		if v.count() != want {
			t.Errorf("all %v: %d blocks", all, v.count())
		}
	}
}
