package rpc

import (
	"context"
	"errors"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/feed"
	"github.com/cognitora/dataplane/kv/residency"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Watch tells which block is where. A slow client is waited for. A client too far behind gets a new
// snapshot.
func (s *service) Watch(r *pb.WatchRequest, stream pb.Kv_WatchServer) error {
	end, err := begin(s.watchers, "watchers")
	if err != nil {
		return err
	}
	defer end()
	if err := stream.SendHeader(nil); err != nil { // a watcher that continues learns at once that it does
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	w := feed.NewReader(s.o.Residency, r)
	defer w.Close()
	var told speed
	for {
		var m *pb.WatchResponse
		if m, err = s.next(ctx, w, &told); err != nil {
			break
		}
		if err = stream.Send(m); err != nil {
			break
		}
	}
	if s.ending.Err() != nil {
		return status.Error(codes.Unavailable, "the daemon is ending; watch again when it is back")
	}
	if errors.Is(stream.Context().Err(), context.Canceled) {
		return nil // the client has seen enough
	}
	return err
}

// speed is what a watcher has been told of the speed of pulls.
type speed struct {
	pulled float64
	epoch  uint64
	last   uint64 // number of the last change that the watcher has
	whole  bool   // last counts
}

// speedEvery is the time after which a watcher is told a speed that has changed, although no block
// has.
const speedEvery = time.Second

// next waits for the next message. A message without changes tells a speed that has changed by
// more than a sixteenth.
func (s *service) next(ctx context.Context, w *feed.Reader, told *speed) (*pb.WatchResponse, error) {
	if s.o.Pulled == nil {
		return w.Next(ctx)
	}
	for {
		wait, cancel := context.WithTimeout(ctx, speedEvery)
		m, err := w.Next(wait)
		cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		pulled := s.o.Pulled()
		switch {
		case err == nil:
			told.epoch, told.last = m.Epoch, m.Last
			told.whole = m.Part == pb.WatchResponse_PART_CHANGES || m.Part == pb.WatchResponse_PART_SYNCED
		case !told.whole || math.Abs(pulled-told.pulled) <= told.pulled/16:
			continue
		default:
			m = &pb.WatchResponse{Part: pb.WatchResponse_PART_CHANGES, Epoch: told.epoch, First: told.last + 1,
				Last: told.last}
		}
		told.pulled = pulled
		m.Shares, m.PulledBytesPerSecond = true, pulled
		return m, nil
	}
}

// kinds and mediums translate the numbers of a report's events.
var (
	kinds = [...]residency.Kind{
		pb.ReportEvent_KIND_STORED: residency.Stored, pb.ReportEvent_KIND_REMOVED: residency.Removed,
		pb.ReportEvent_KIND_CLEARED: residency.Cleared,
	}
	mediums = map[pb.Tier]residency.Tiers{
		pb.Tier_TIER_UNSPECIFIED: 0, pb.Tier_TIER_DEVICE: residency.Device, pb.Tier_TIER_HOST: residency.Host,
		pb.Tier_TIER_DISK: residency.Disk, pb.Tier_TIER_SHARED: residency.Shared,
	}
)

// Report records an engine's report of its blocks.
func (s *service) Report(_ context.Context, r *pb.ReportRequest) (*pb.ReportResponse, error) {
	report := &residency.Report{Engine: r.Engine, Epoch: r.Epoch, Number: r.Number, Fresh: r.Fresh, Gone: r.Gone,
		Reads: r.Reads}
	if r.ReadsNothing {
		if len(r.Reads) > 0 {
			return nil, invalid("reads_nothing, and reads has %d namespaces; leave one of the two out", len(r.Reads))
		}
		report.Reads = []string{}
	}
	if len(r.Events) > MaxBatch {
		return nil, invalid("there are %d events; send at most %d in a report", len(r.Events), MaxBatch)
	}
	total := 0
	report.Events = make([]residency.Event, len(r.Events))
	for i, e := range r.Events {
		to := &report.Events[i]
		if _, known := mediums[e.Medium]; !known || e.Kind < 0 || int(e.Kind) >= len(kinds) {
			return nil, invalid("events[%d] is of kind %d with medium %d; this daemon knows others", i, e.Kind,
				e.Medium)
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
