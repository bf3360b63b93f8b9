package events

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// reportTime is the longest time of a report to a daemon.
const reportTime = 5 * time.Second

// Daemon is a Sink and a ChunkSink for the cgn-kvcached of this host. Reports wait for each other.
type Daemon struct {
	conn   *grpc.ClientConn
	client pb.KvClient

	mu      sync.Mutex // held during a report
	request pb.ReportRequest
	events  []pb.ReportEvent
}

// NewDaemon makes a Sink for the daemon with the given gRPC socket; the path may begin with
// unix://. The first report makes the connection.
func NewDaemon(socket string) (*Daemon, error) {
	path := strings.TrimPrefix(socket, "unix://")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("%q is no absolute path; give the daemon's kvcached.sock (--sock), such as "+
			"/run/cognitora/kv.sock", socket)
	}
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &Daemon{conn: conn, client: pb.NewKvClient(conn)}, nil
}

// Close closes the connection.
func (d *Daemon) Close() error { return d.conn.Close() }

// kinds maps the kinds of package residency to those of the protocol.
var kinds = [...]pb.ReportEvent_Kind{
	residency.Stored: pb.ReportEvent_KIND_STORED, residency.Removed: pb.ReportEvent_KIND_REMOVED,
	residency.Cleared: pb.ReportEvent_KIND_CLEARED,
}

// Report calls Kv.Report.
func (d *Daemon) Report(r *residency.Report) error {
	ctx, cancel := context.WithTimeout(context.Background(), reportTime)
	defer cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	q := &d.request
	q.Engine, q.Epoch, q.Number, q.Fresh, q.Gone, q.Events = r.Engine, r.Epoch, r.Number, r.Fresh, r.Gone, q.Events[:0]
	q.Reads, q.ReadsNothing = r.Reads, r.Reads != nil && len(r.Reads) == 0
	if len(d.events) < len(r.Events) {
		d.events = make([]pb.ReportEvent, len(r.Events))
	}
	for i := range r.Events {
		from, to := &r.Events[i], &d.events[i]
		to.Kind, to.Namespace, to.Medium, to.Pinned, to.Adapter = kinds[from.Kind], from.Namespace, pb.Tier(from.Tier),
			from.Pinned, from.Adapter
		to.Parent, to.Digests = nil, bytesOf(from.Digests)
		if from.Parent != (block.Digest{}) {
			to.Parent = from.Parent[:]
		}
		q.Events = append(q.Events, to)
	}
	_, err := d.client.Report(ctx, q)
	switch status.Code(err) {
	case codes.FailedPrecondition:
		return fmt.Errorf("%w: %v", residency.ErrGap, err)
	case codes.Aborted:
		return fmt.Errorf("%w: %v", residency.ErrStale, err)
	}
	return err
}

// TellChunks calls Kv.TellChunks. All chunks have the same number of blocks.
func (d *Daemon) TellChunks(s *alias.Source, all []alias.Chunk) (namespace string, taken int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), reportTime)
	defer cancel()
	q := &pb.TellChunksRequest{Scheme: string(s.Scheme), Keys: s.Keys, Model: s.Model, Engine: s.Engine, Dtype: s.DType,
		World: s.World, Layers: s.Layers, Halves: s.Halves, First: uint64(s.First), Variant: s.Variant,
		Served: s.Served, Revision: s.Revision}
	for i := range all {
		c := &all[i]
		q.Blocks = uint32(len(c.Blocks) / block.NameBytes)
		q.Names, q.Parents = append(q.Names, uint64(c.Name)), append(q.Parents, c.Parent[:]...)
		q.Digests = append(q.Digests, c.Blocks...)
	}
	r, err := d.client.TellChunks(ctx, q)
	if status.Code(err) == codes.FailedPrecondition {
		err = fmt.Errorf("%w: %v", ErrNotYet, err)
	}
	return r.GetNamespace(), int(r.GetTaken()), err
}

// bytesOf returns consecutive digests as bytes, without a copy.
func bytesOf(digests []block.Digest) []byte {
	if len(digests) == 0 {
		return nil
	}
	return unsafe.Slice(&digests[0][0], len(digests)*len(digests[0]))
}
