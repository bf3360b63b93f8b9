package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// ownerPrefix keeps owners of gRPC apart from those of the lease socket.
const ownerPrefix = "grpc:"

func checkOwner(owner string) error {
	if owner == "" || len(owner) > MaxOwner {
		return invalid("owner has %d bytes; give a name of 1 to %d, under which the pins can be ended", len(owner),
			MaxOwner)
	}
	return nil
}

// Pin keeps blocks in RAM.
func (s *service) Pin(ctx context.Context, r *pb.PinRequest) (*pb.PinResponse, error) {
	if err := checkOwner(r.Owner); err != nil {
		return nil, err
	}
	if left := time.Until(time.UnixMilli(r.UntilUnixMs)); left <= 0 || left > ram.MaxPin {
		return nil, invalid("until_unix_ms is %s from now; a pin ends later than now and within %s",
			left.Round(time.Second), ram.MaxPin)
	}
	_, addrs, err := s.addresses(r)
	if err != nil {
		return nil, err
	}
	out := make([]Outcome, len(addrs))
	for i := range addrs {
		err := s.o.Store.Pin(ctx, addrs[i], ownerPrefix+r.Owner, r.UntilUnixMs)
		if errors.Is(err, ram.ErrPins) {
			err = store.ErrFull
		}
		if out[i] = outcomeOf(err); out[i] == 0 || out[i] == Failed {
			return nil, err
		}
	}
	m := &pb.PinResponse{}
	m.Outcomes, m.Ok = answer(out)
	return m, nil
}

// Unpin ends an owner's pins.
func (s *service) Unpin(_ context.Context, r *pb.UnpinRequest) (*pb.UnpinResponse, error) {
	if err := checkOwner(r.Owner); err != nil {
		return nil, err
	}
	_, addrs, err := s.addresses(r)
	if err != nil {
		return nil, err
	}
	for i := range addrs {
		s.o.Store.Unpin(addrs[i], ownerPrefix+r.Owner)
	}
	return &pb.UnpinResponse{}, nil
}

// Delete removes blocks.
func (s *service) Delete(ctx context.Context, r *pb.DeleteRequest) (*pb.DeleteResponse, error) {
	_, addrs, err := s.addresses(r)
	if err != nil {
		return nil, err
	}
	out := make([]Outcome, len(addrs))
	for i := range addrs {
		there, err := s.o.Store.Delete(ctx, addrs[i])
		switch {
		case err != nil:
			return nil, err
		case there:
			out[i] = OK
		default:
			out[i] = Miss
		}
	}
	m := &pb.DeleteResponse{}
	m.Outcomes, m.Ok = answer(out)
	return m, nil
}

// Purge removes blocks from all hosts. The error names hosts that have not confirmed it, and has
// the answer as a detail.
func (s *service) Purge(ctx context.Context, r *pb.PurgeRequest) (*pb.PurgeResponse, error) {
	what := purge.Selector{Model: r.Model, Tenant: r.Tenant, Everything: r.Everything}
	if r.Namespace != "" {
		if _, err := s.namespace(r.Namespace); err != nil {
			return nil, err
		}
		what.Namespaces = []string{r.Namespace}
	}
	if err := what.Check(); err != nil {
		return nil, invalid("give namespace, model or tenant, or everything alone")
	}
	if s.o.Purge == nil {
		return nil, status.Error(codes.Unimplemented, "this server purges nothing")
	}
	done, err := s.o.Purge(ctx, what)
	out := &pb.PurgeResponse{}
	for _, d := range done {
		out.Blocks += uint64(d.Blocks)
		if d.Host == "" {
			continue // the daemon is in no fleet
		}
		h := &pb.PurgedHost{Host: d.Host, Blocks: uint64(d.Blocks)}
		if d.Err != nil {
			h.Error = "not reached, or it failed; the log of the daemon that was called says why"
			if why := purge.Refused(""); errors.As(d.Err, &why) {
				h.Error = why.Error()
			}
			s.log.Warn("a host has not confirmed a purge", "host", d.Host, "error", d.Err)
		}
		out.Hosts = append(out.Hosts, h)
	}
	if len(done) == 0 {
		return nil, err
	}
	s.log.Info("blocks purged", "namespace", r.Namespace, "model", r.Model, "tenant", r.Tenant, "everything",
		r.Everything, "blocks", out.Blocks, "hosts", len(out.Hosts), "caller", caller(ctx))
	if err == nil {
		err = purge.Failed(done)
	}
	var hosts *purge.HostsError
	if !errors.As(err, &hosts) {
		return out, err
	}
	told := status.New(codes.Unavailable, hosts.Public())
	if detailed, err := told.WithDetails(out); err == nil {
		told = detailed
	}
	return out, told.Err()
}

// listBuckets is how many buckets of the table one List looks at, so that a List without a result
// ends.
const listBuckets = 65536

// List pages through the blocks.
func (s *service) List(ctx context.Context, r *pb.ListRequest) (*pb.ListResponse, error) {
	limit := int(r.Limit)
	if limit == 0 {
		limit = 100
	}
	if r.Limit > MaxList {
		return nil, invalid("limit is %d; ask for at most %d and go on with next", r.Limit, MaxList)
	}
	if r.Namespace != "" {
		if _, err := s.namespace(r.Namespace); err != nil {
			return nil, err
		}
	}
	out := &pb.ListResponse{Next: r.Cursor}
	for range listBuckets {
		next, err := s.o.Store.Scan(ctx, out.Next, func(info store.Info) bool {
			if r.Namespace == "" || r.Namespace == info.Item.Namespace {
				out.Blocks = append(out.Blocks, listed(&info))
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		if out.Next = next; next == 0 || len(out.Blocks) >= limit {
			break
		}
	}
	return out, nil
}

func listed(info *store.Info) *pb.ListedBlock {
	it := &info.Item
	return &pb.ListedBlock{
		Namespace: it.Namespace, Layer: it.Addr.Layer, Digest: it.Addr.Digest[:], Key: it.Key,
		Parent: bytesOf(it.Parent),
		Length: uint32(info.Length), Tiers: uint32(tiersOf(info.Tiers)), Uses: info.Uses, ExpiresUnixMs: it.Expires,
	}
}
