package rpc

import (
	"context"
	"encoding/binary"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kvcached/residency"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// linger is how far apart messages of few changes are, so that a thousand changes a second are not as many messages.
const linger = time.Millisecond

// Watch says which block is where. A client that reads slowly is waited for and gets a new snapshot when it is too far behind; nothing is kept for it.
func (s *service) Watch(r *pb.WatchRequest, stream pb.Kv_WatchServer) error {
	end, err := begin(s.watchers, "watchers")
	if err != nil {
		return err
	}
	defer end()
	if err := stream.SendHeader(nil); err != nil { // a watcher that goes on from where it was learns that it does
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	w := s.o.Residency.Watch(residency.WatchOptions{All: r.All, Epoch: r.Epoch, After: r.After})
	defer w.Close()
	pause := time.NewTimer(0)
	defer pause.Stop()
	var b residency.Batch
	m := &pb.WatchResponse{Epoch: s.o.Residency.Epoch()}
	for {
		if err = w.Next(ctx, &b); err != nil {
			break
		}
		encode(m, &b)
		if err = stream.Send(m); err != nil {
			break
		}
		if b.Part != residency.Changes || len(b.Blocks) > 64 {
			continue
		}
		pause.Reset(linger)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	if s.ending.Err() != nil {
		return status.Error(codes.Unavailable, "the daemon is ending; watch again when it is back")
	}
	return err
}

var parts = [...]pb.WatchResponse_Part{
	residency.Reset: pb.WatchResponse_PART_RESET, residency.Snapshot: pb.WatchResponse_PART_SNAPSHOT,
	residency.Changes: pb.WatchResponse_PART_CHANGES, residency.Synced: pb.WatchResponse_PART_SYNCED,
}

// encode puts a batch into a message, whose memory it uses again.
func encode(m *pb.WatchResponse, b *residency.Batch) {
	m.Part, m.First, m.Last = parts[b.Part], b.First, b.Last
	m.Gone, m.Namespaces, m.Holders = b.Gone, b.Namespaces, m.Holders[:0]
	for _, h := range b.Holders {
		m.Holders = append(m.Holders, &pb.Holder{Number: h.Number, Engine: h.Engine, Epoch: h.Epoch})
	}
	if len(b.Blocks) == 0 {
		m.Blocks = nil
		return
	}
	if m.Blocks == nil {
		m.Blocks = &pb.Blocks{}
	}
	c := m.Blocks
	c.Digests, c.Tiers, c.Leaders, c.Parents = c.Digests[:0], c.Tiers[:0], c.Leaders[:0], c.Parents[:0]
	c.Holder, c.Namespace, c.Layer, c.Position = c.Holder[:0], c.Namespace[:0], c.Layer[:0], c.Position[:0]
	for i := range b.Blocks {
		k := &b.Blocks[i]
		c.Digests = append(c.Digests, k.Name[:]...)
		c.Tiers = append(c.Tiers, byte(k.Tiers))
		c.Leaders = binary.LittleEndian.AppendUint64(c.Leaders, k.Leader)
		c.Parents = binary.LittleEndian.AppendUint64(c.Parents, k.Parent)
		c.Holder = append(c.Holder, k.Holder)
		c.Namespace = append(c.Namespace, k.Namespace)
		c.Layer = append(c.Layer, k.Layer)
		c.Position = append(c.Position, k.Position)
	}
}

// kinds and mediums are what the events of a report say, by their numbers on the wire.
var (
	kinds = [...]residency.Kind{
		pb.ReportEvent_KIND_STORED: residency.Stored, pb.ReportEvent_KIND_REMOVED: residency.Removed, pb.ReportEvent_KIND_CLEARED: residency.Cleared,
	}
	mediums = map[pb.Tier]residency.Tiers{
		pb.Tier_TIER_UNSPECIFIED: 0, pb.Tier_TIER_DEVICE: residency.Device, pb.Tier_TIER_HOST: residency.Host,
		pb.Tier_TIER_DISK: residency.Disk, pb.Tier_TIER_SHARED: residency.Shared,
	}
)

// Report takes what an engine has.
func (s *service) Report(_ context.Context, r *pb.ReportRequest) (*pb.ReportResponse, error) {
	report := &residency.Report{Engine: r.Engine, Epoch: r.Epoch, Number: r.Number, Fresh: r.Fresh, Gone: r.Gone}
	if len(r.Events) > MaxBatch {
		return nil, invalid("there are %d events; send at most %d in a report", len(r.Events), MaxBatch)
	}
	total := 0
	report.Events = make([]residency.Event, len(r.Events))
	for i, e := range r.Events {
		to := &report.Events[i]
		if _, known := mediums[e.Medium]; !known || e.Kind < 0 || int(e.Kind) >= len(kinds) {
			return nil, invalid("events[%d] is of kind %d with medium %d; this daemon knows others", i, e.Kind, e.Medium)
		}
		to.Kind, to.Namespace, to.Pinned, to.Adapter = kinds[e.Kind], e.Namespace, e.Pinned, e.Adapter
		to.Tier = mediums[e.Medium]
		if e.Kind == pb.ReportEvent_KIND_CLEARED {
			continue
		}
		var err error
		if to.Parent, err = parentOf(e.Parent); err != nil {
			return nil, err
		}
		if to.Digests, err = digestsOf("digests", e.Digests, MaxLookup); err != nil {
			return nil, err
		}
		if total += len(to.Digests); total > MaxLookup {
			return nil, invalid("events have more than %d digests; send them in several reports", MaxLookup)
		}
	}
	return &pb.ReportResponse{}, s.o.Residency.Report(report)
}
