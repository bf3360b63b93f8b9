package rpc

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ssd"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

func TestPutAndGet(t *testing.T) {
	f := start(t, Options{})
	chain := chainOf("p", 8)
	for i, c := range []struct{ size, piece int }{
		{0, 1}, {1, 1}, {100, 7}, {4096, 4096}, {1 << 20, 1 << 20}, {1<<20 + 1, 1 << 19}, {8<<20 + 3, 1 << 20}, {64 << 20, 1 << 20},
	} {
		payload := pattern(c.size)
		h := &pb.PutHeader{Block: header(chain[i], block.Digest{}, c.size), CheckCrc: true}
		h.Block.Crc32C, h.Block.Attr = block.Sum(payload), []byte("attr")
		if i > 0 {
			h.Block.Parent = chain[i-1][:]
		}
		done := ok[*pb.PutResponse](t)(put(t, f.client, h, payload, c.piece))
		if done.Tiers != uint32(pb.Tier_TIER_HOST) || done.Crc32C != block.Sum(payload) {
			t.Errorf("%d bytes: %v", c.size, done)
		}
		head, data, err := get(t, f.client, &pb.GetRequest{Namespace: llama, Layer: block.LayerAll,
			Digest: chain[i][:]})
		if err != nil || !bytes.Equal(data, payload) {
			t.Fatalf("%d bytes: %d came back, %v", c.size, len(data), err)
		}
		if head.Length != uint32(c.size) || head.Crc32C != done.Crc32C || !bytes.Equal(head.Parent, h.Block.Parent) ||
			string(head.Attr) != "attr" {
			t.Errorf("%v", head)
		}
	}
	_, data, err := get(t, f.client, &pb.GetRequest{Namespace: llama, Layer: block.LayerAll, Digest: chain[2][:],
		Offset: 90, Length: 50})
	if err != nil || !bytes.Equal(data, pattern(100)[90:]) {
		t.Errorf("a range: %d bytes, %v", len(data), err)
	}
	_, _, err = get(t, f.client, &pb.GetRequest{Namespace: llama, Layer: block.LayerAll, Digest: chain[2][:],
		Offset: 101})
	wantCode(t, "a range beyond", err, codes.OutOfRange)
	_, _, err = get(t, f.client, &pb.GetRequest{Namespace: llama, Layer: 1, Digest: chain[2][:]})
	wantCode(t, "a miss", err, codes.NotFound)
	if held := f.store.Stats().RAM.Held; held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
}

func TestPutRefused(t *testing.T) {
	f := start(t, Options{})
	d := chainOf("p", 1)[0]
	for name, c := range map[string]struct {
		change  func(*pb.PutHeader)
		payload int
		code    codes.Code
		says    string
	}{
		"too short":  {nil, 9, codes.InvalidArgument, "has 9 bytes, header.block.length is 10"},
		"too long":   {nil, 11, codes.InvalidArgument, "beyond header.block.length"},
		"crc":        {func(h *pb.PutHeader) { h.CheckCrc = true }, 10, codes.InvalidArgument, "crc32c"},
		"no block":   {func(h *pb.PutHeader) { h.Block = nil }, 10, codes.InvalidArgument, "header.block is missing"},
		"too large":  {func(h *pb.PutHeader) { h.Block.Length = 64<<20 + 1 }, 10, codes.InvalidArgument, "at most 67108864"},
		"digest":     {func(h *pb.PutHeader) { h.Block.Digest = h.Block.Digest[1:] }, 10, codes.InvalidArgument, "digest has 31 bytes"},
		"parent":     {func(h *pb.PutHeader) { h.Block.Parent = []byte{1} }, 10, codes.InvalidArgument, "parent has 1 bytes"},
		"namespace":  {func(h *pb.PutHeader) { h.Block.Namespace = "kv1;" }, 10, codes.InvalidArgument, "namespace"},
		"keys":       {func(h *pb.PutHeader) { h.Block.Namespace = "key1;resp.0;" }, 10, codes.InvalidArgument, "through RESP or S3"},
		"attr":       {func(h *pb.PutHeader) { h.Block.Attr = make([]byte, 2049) }, 10, codes.InvalidArgument, "attr has 2049"},
		"expires":    {func(h *pb.PutHeader) { h.Block.ExpiresUnixMs = -1 }, 10, codes.InvalidArgument, "expires_unix_ms"},
		"no SSD":     {func(h *pb.PutHeader) { h.Durable = true }, 10, codes.FailedPrecondition, "SSD"},
		"what is it": {nil, 10, codes.OK, ""},
	} {
		h := &pb.PutHeader{Block: header(d, block.Digest{}, 10)}
		if c.change != nil {
			c.change(h)
		}
		for _, piece := range []int{3, 100} {
			_, err := put(t, f.client, h, pattern(c.payload), piece)
			wantCode(t, name, err, c.code)
			if err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	_, err := put(t, f.client, &pb.PutHeader{Block: header(d, block.Digest{}, 10), IfAbsent: true}, pattern(10), 10)
	wantCode(t, "if absent", err, codes.AlreadyExists)
	if st := f.store.Stats().RAM; st.Held != 0 || st.Blocks != 1 {
		t.Errorf("%+v", st)
	}
}

func TestLookups(t *testing.T) {
	f := start(t, Options{})
	chain := chainOf("p", 1000)
	for i, d := range chain[:300] {
		if i == 7 {
			continue
		}
		ok[*pb.PutResponse](t)(put(t, f.client, &pb.PutHeader{Block: header(d, block.Digest{}, 100+i)}, pattern(100+i),
			4096))
	}
	report := &pb.ReportRequest{Engine: "node-1", Epoch: 1, Fresh: true, Events: []*pb.ReportEvent{
		{Kind: pb.ReportEvent_KIND_STORED, Namespace: llama, Medium: pb.Tier_TIER_DEVICE, Digests: join(chain[:7]...)},
	}}
	ok[*pb.ReportResponse](t)(f.client.Report(t.Context(), report))
	out := ok[*pb.BatchLookupResponse](t)(f.client.BatchLookup(t.Context(),
		&pb.BatchLookupRequest{Namespace: llama, Layer: block.LayerAll, Digests: join(chain...)}))
	if len(out.Tiers) != 1000 || len(out.Lengths) != 1000 || out.Leading != 7 {
		t.Fatalf("%d tiers, %d lengths, %d leading", len(out.Tiers), len(out.Lengths), out.Leading)
	}
	for i := range chain {
		tiers, length := pb.Tier(0), 0
		if i < 300 && i != 7 {
			tiers, length = pb.Tier_TIER_HOST, 100+i
		}
		if i < 7 {
			tiers |= pb.Tier_TIER_DEVICE
		}
		if out.Tiers[i] != byte(tiers) || out.Lengths[i] != uint32(length) {
			t.Fatalf("block %d: tiers %b, %d bytes", i, out.Tiers[i], out.Lengths[i])
		}
	}
	one := ok[*pb.LookupResponse](t)(f.client.Lookup(t.Context(),
		&pb.LookupRequest{Namespace: llama, Layer: block.LayerAll, Digest: chain[8][:]}))
	if one.Tiers != uint32(pb.Tier_TIER_HOST) || one.Length != 108 || one.Crc32C != block.Sum(pattern(108)) ||
		one.Uses != 0 {
		t.Errorf("%v", one)
	}
	if miss := ok[*pb.LookupResponse](t)(f.client.Lookup(t.Context(),
		&pb.LookupRequest{Namespace: llama, Digest: chain[8][:]})); miss.Tiers != 0 {
		t.Errorf("%v", miss)
	}
}

func TestMalformed(t *testing.T) {
	f := start(t, Options{})
	d := chainOf("p", 1)[0]
	soon := time.Now().Add(time.Hour).UnixMilli()
	long := make([]byte, 32*(MaxBatch+1))
	ctx := t.Context()
	e := func(_ any, err error) error { return err }
	for what, c := range map[string]struct {
		err  error
		says string
	}{
		"lookup digest":   {e(f.client.Lookup(ctx, &pb.LookupRequest{Namespace: llama})), "digest has 0 bytes"},
		"lookup space":    {e(f.client.Lookup(ctx, &pb.LookupRequest{Namespace: "x", Digest: d[:]})), "namespace"},
		"batch empty":     {e(f.client.BatchLookup(ctx, &pb.BatchLookupRequest{Namespace: llama})), "digests is empty"},
		"batch cut":       {e(f.client.BatchLookup(ctx, &pb.BatchLookupRequest{Namespace: llama, Digests: long[:33]})), "multiple of 32"},
		"batch long":      {e(f.client.BatchLookup(ctx, &pb.BatchLookupRequest{Namespace: llama, Digests: make([]byte, 32*(MaxLookup+1))})), "at most 32768"},
		"delete long":     {e(f.client.Delete(ctx, &pb.DeleteRequest{Namespace: llama, Digests: long})), "at most 4096"},
		"pin owner":       {e(f.client.Pin(ctx, &pb.PinRequest{Namespace: llama, Digests: d[:], UntilUnixMs: soon})), "owner"},
		"pin past":        {e(f.client.Pin(ctx, &pb.PinRequest{Namespace: llama, Digests: d[:], Owner: "o"})), "until_unix_ms"},
		"pin far":         {e(f.client.Pin(ctx, &pb.PinRequest{Namespace: llama, Digests: d[:], Owner: "o", UntilUnixMs: soon + 24*3600e3})), "until_unix_ms"},
		"unpin owner":     {e(f.client.Unpin(ctx, &pb.UnpinRequest{Namespace: llama, Digests: d[:], Owner: strings.Repeat("o", 65)})), "owner"},
		"purge nothing":   {e(f.client.Purge(ctx, &pb.PurgeRequest{})), "give namespace"},
		"purge both":      {e(f.client.Purge(ctx, &pb.PurgeRequest{Model: "m", Everything: true})), "everything alone"},
		"purge namespace": {e(f.client.Purge(ctx, &pb.PurgeRequest{Namespace: "m"})), "namespace"},
		"list limit":      {e(f.client.List(ctx, &pb.ListRequest{Limit: MaxList + 1})), "limit is 1001"},
		"list namespace":  {e(f.client.List(ctx, &pb.ListRequest{Namespace: "m"})), "namespace"},
		"push peer":       {e(f.client.Push(ctx, &pb.PushRequest{Namespace: llama, Digests: d[:]})), "peer is empty"},
		"report engine":   {e(f.client.Report(ctx, &pb.ReportRequest{})), "engine"},
		"report kind":     {e(f.client.Report(ctx, &pb.ReportRequest{Engine: "e", Events: []*pb.ReportEvent{{Kind: 257, Digests: d[:]}}})), "kind 257"},
		"report digests":  {e(f.client.Report(ctx, &pb.ReportRequest{Engine: "e", Events: []*pb.ReportEvent{{Kind: 1}}})), "digests is empty"},
	} {
		wantCode(t, what, c.err, codes.InvalidArgument)
		if c.err != nil && !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	_, err := f.client.Report(ctx, &pb.ReportRequest{Engine: "e", Epoch: 2, Number: 3})
	wantCode(t, "a gap", err, codes.FailedPrecondition)
	ok[*pb.ReportResponse](t)(f.client.Report(ctx, &pb.ReportRequest{Engine: "e", Epoch: 2, Fresh: true}))
	_, err = f.client.Report(ctx, &pb.ReportRequest{Engine: "e", Epoch: 1, Fresh: true})
	wantCode(t, "an old start", err, codes.Aborted)
	_, err = f.client.Pull(ctx, &pb.PullRequest{Namespace: llama, Digests: d[:]})
	wantCode(t, "no fleet", err, codes.FailedPrecondition)
}

func TestManage(t *testing.T) {
	f := start(t, Options{})
	chain := chainOf("p", 50)
	for _, d := range chain {
		ok[*pb.PutResponse](t)(put(t, f.client, &pb.PutHeader{Block: header(d, block.Digest{}, 10)}, pattern(10), 10))
	}
	ctx, absent := t.Context(), chainOf("q", 1)[0]
	some := join(chain[0], absent, chain[1])
	pinned := ok[*pb.PinResponse](t)(f.client.Pin(ctx, &pb.PinRequest{Namespace: llama, Layer: block.LayerAll,
		Digests: some, Owner: "o", UntilUnixMs: time.Now().Add(time.Hour).UnixMilli()}))
	if pinned.Ok != 2 || !bytes.Equal(pinned.Outcomes, []byte{byte(OK), byte(Miss), byte(OK)}) ||
		f.store.Stats().RAM.Pins != 2 {
		t.Errorf("%v with %d pins", pinned, f.store.Stats().RAM.Pins)
	}
	theirs := block.Addr{Digest: chain[0], Model: block.IDOf(llama), Layer: block.LayerAll}
	if err := f.store.Pin(ctx, theirs, "o", time.Now().Add(time.Hour).UnixMilli()); err != nil {
		t.Fatal(err)
	}
	ok[*pb.UnpinResponse](t)(f.client.Unpin(ctx, &pb.UnpinRequest{Namespace: llama, Layer: block.LayerAll,
		Digests: some, Owner: "o"}))
	if n := f.store.Stats().RAM.Pins; n != 1 {
		t.Errorf("%d pins are left, want that of an owner on another socket", n)
	}
	asked := f.store.Stats()
	warm := ok[*pb.TransferResponse](t)(f.client.Promote(ctx,
		&pb.PromoteRequest{Namespace: llama, Layer: block.LayerAll, Digests: some}))
	if warm.Ok != 2 || !bytes.Equal(warm.Outcomes, pinned.Outcomes) {
		t.Errorf("%v", warm)
	}
	if now := f.store.Stats(); now.Hits != asked.Hits || now.Misses != asked.Misses {
		t.Errorf("a promotion counts as %d hits and %d misses", now.Hits-asked.Hits, now.Misses-asked.Misses)
	}
	seen, pages := map[string]bool{}, 0
	for cursor := uint64(0); ; pages++ {
		page := ok[*pb.ListResponse](t)(f.client.List(ctx, &pb.ListRequest{Namespace: llama, Cursor: cursor,
			Limit: 10}))
		for _, b := range page.Blocks {
			seen[string(b.Digest)] = true
		}
		if cursor = page.Next; cursor == 0 {
			break
		}
	}
	if len(seen) != len(chain) || pages < 2 {
		t.Errorf("%d blocks on %d pages", len(seen), pages)
	}
	gone := ok[*pb.DeleteResponse](t)(f.client.Delete(ctx, &pb.DeleteRequest{Namespace: llama, Layer: block.LayerAll,
		Digests: some}))
	if gone.Ok != 2 || !bytes.Equal(gone.Outcomes, pinned.Outcomes) {
		t.Errorf("%v", gone)
	}
	st := ok[*pb.StatsResponse](t)(f.client.Stats(ctx, &pb.StatsRequest{}))
	for name, want := range map[string]int64{"store_puts": 50, "store_deletes": 2, "rpc_calls_put": 50,
		"rpc_calls_batch_lookup": 0, "residency_own_blocks": 48, "store_ram_blocks": 48, "rpc_connections": 1} {
		if got, ok := st.Values[name]; !ok || got != want {
			t.Errorf("%s is %d (%v), want %d", name, got, ok, want)
		}
	}
	if len(st.Namespaces) != 1 || st.Namespaces[0].RamBlocks != 48 || st.Epoch != f.residency.Epoch() {
		t.Errorf("%v", st)
	}
	for model, want := range map[string]uint64{"other": 0, "llama": 48} {
		if n := ok[*pb.PurgeResponse](t)(f.client.Purge(ctx, &pb.PurgeRequest{Model: model})); n.Blocks != want {
			t.Errorf("%s: %d blocks", model, n.Blocks)
		}
	}
}

// TestStalledPut: a client reserves memory and sends no more. The memory is freed.
func TestStalledPut(t *testing.T) {
	f := start(t, Options{TransferTime: 300 * time.Millisecond, Transfers: 1})
	d := chainOf("p", 1)[0]
	stream := ok[grpc.ClientStreamingClient[pb.PutRequest, pb.PutResponse]](t)(f.client.Put(t.Context()))
	if err := stream.Send(&pb.PutRequest{Header: &pb.PutHeader{Block: header(d, block.Digest{}, 10<<20)},
		Data: pattern(1000)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "room is reserved", func() bool { return f.store.Stats().RAM.Held > 0 })
	_, err := put(t, f.client, &pb.PutHeader{Block: header(d, block.Digest{}, 10)}, pattern(10), 10)
	wantCode(t, "one too many", err, codes.ResourceExhausted)
	wantCode(t, "the stalled Put", stream.RecvMsg(new(pb.PutResponse)), codes.DeadlineExceeded)
	eventually(t, "the room is given back", func() bool { return f.store.Stats().RAM.Held == 0 })
}

// slowFleet lets Promotes wait until they are cancelled.
type slowFleet struct {
	Fleet
	waits atomic.Int64
}

func (f *slowFleet) Promote(ctx context.Context, _ string, _ []block.Addr, wait Wait, _ []Outcome) error {
	if wait.For > 0 {
		f.waits.Add(1)
		<-ctx.Done()
	}
	return ctx.Err()
}

// TestWaitsLeaveTransfersRoom: Promotes with a wait take no place of other transfers.
func TestWaitsLeaveTransfersRoom(t *testing.T) {
	fleet := &slowFleet{}
	f := start(t, Options{Fleet: fleet, Transfers: 1, Waits: 2})
	d := chainOf("p", 1)[0]
	r := &pb.PromoteRequest{Namespace: llama, Layer: block.LayerAll, Digests: d[:], WaitMs: 60_000}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range 2 {
		all.Go(func() { _, _ = f.client.Promote(ctx, r) })
	}
	eventually(t, "both wait", func() bool { return fleet.waits.Load() == 2 })
	long := &pb.PromoteRequest{Namespace: llama, Layer: block.LayerAll, Digests: d[:], WaitMs: 1,
		From: strings.Repeat("a", maxFrom+1)}
	_, err := f.client.Promote(t.Context(), long)
	wantCode(t, "a long name of a host", err, codes.InvalidArgument)
	_, err = f.client.Promote(t.Context(), r)
	wantCode(t, "one too many", err, codes.ResourceExhausted)
	ok[*pb.PutResponse](t)(put(t, f.client, &pb.PutHeader{Block: header(d, block.Digest{}, 10)}, pattern(10), 10))
	r = &pb.PromoteRequest{Namespace: llama, Layer: block.LayerAll, Digests: d[:]}
	ok[*pb.TransferResponse](t)(f.client.Promote(t.Context(), r))
}

// TestCancelledPut: a client reserves memory and cancels. The memory is freed.
func TestCancelledPut(t *testing.T) {
	f := start(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	stream := ok[grpc.ClientStreamingClient[pb.PutRequest, pb.PutResponse]](t)(f.client.Put(ctx))
	if err := stream.Send(&pb.PutRequest{Header: &pb.PutHeader{Block: header(chainOf("p", 1)[0], block.Digest{},
		10<<20)}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "room is reserved", func() bool { return f.store.Stats().RAM.Held > 0 })
	cancel()
	eventually(t, "the room is given back", func() bool {
		return f.store.Stats().RAM.Held == 0 && len(f.transfers) == 0
	})
}

// TestStalledGet: a block is released if its reader does not read.
func TestStalledGet(t *testing.T) {
	f := start(t, Options{TransferTime: 300 * time.Millisecond})
	d := chainOf("p", 1)[0]
	it := store.Item{Addr: block.Addr{Digest: d, Model: block.IDOf(llama), Layer: block.LayerAll}, Namespace: llama}
	ok[store.Info](t)(f.store.Put(t.Context(), it, pattern(64<<20), false))
	ok[grpc.ServerStreamingClient[pb.GetResponse]](t)(f.client.Get(t.Context(),
		&pb.GetRequest{Namespace: llama, Layer: block.LayerAll, Digest: d[:]}))
	eventually(t, "the block is held", func() bool {
		return f.store.Stats().RAM.Held > 0 || f.methods[pb.Kv_Get_FullMethodName].failed.Load() > 0
	})
	eventually(t, "the block is let go", func() bool { return f.store.Stats().RAM.Held == 0 && len(f.transfers) == 0 })
}

func TestSocketMode(t *testing.T) {
	f := start(t, Options{})
	info, err := os.Stat(f.path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestDisk stores durably, and finds and promotes blocks after a restart.
func TestDisk(t *testing.T) {
	dir, chain := t.TempDir(), chainOf("p", 20)
	f := startWith(t, Options{}, store.Options{SSD: &ssd.Options{Dir: dir, Cap: 256 << 20}})
	for i, d := range chain {
		h := header(d, block.Digest{}, 5000)
		if i > 0 {
			h.Parent = chain[i-1][:]
		}
		done := ok[*pb.PutResponse](t)(put(t, f.client, &pb.PutHeader{Block: h, Durable: true}, pattern(5000), 5000))
		if done.Tiers != uint32(pb.Tier_TIER_HOST|pb.Tier_TIER_DISK) {
			t.Fatalf("%v", done)
		}
	}
	f.stop()
	if err := f.store.Close(); err != nil {
		t.Fatal(err)
	}
	f = startWith(t, Options{}, store.Options{SSD: &ssd.Options{Dir: dir, Cap: 256 << 20}})
	ctx, digests := t.Context(), join(chain...)
	tiers := func() byte {
		r := ok[*pb.BatchLookupResponse](t)(f.client.BatchLookup(ctx,
			&pb.BatchLookupRequest{Namespace: llama, Layer: block.LayerAll, Digests: digests}))
		return r.Tiers[19]
	}
	eventually(t, "the blocks are found on disk", func() bool { return tiers() == byte(pb.Tier_TIER_DISK) })
	eventually(t, "watchers are told", func() bool {
		return f.residency.Stats().OwnBlocks == 20 && f.residency.Stats().Waiting == 0
	})
	warm := ok[*pb.TransferResponse](t)(f.client.Promote(ctx,
		&pb.PromoteRequest{Namespace: llama, Layer: block.LayerAll, Digests: digests}))
	if warm.Ok != 20 || tiers() != byte(pb.Tier_TIER_HOST|pb.Tier_TIER_DISK) {
		t.Errorf("%v, tiers %b", warm, tiers())
	}
}
