// Package feed encodes the changes of a residency index as messages of cognitora.v1.Kv's Watch.
// Servers and readers in the same process then need no other part of the daemon.
package feed

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/cognitora/dataplane/kv/residency"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// linger is the shortest time between messages with few changes, so that a thousand changes a
// second make fewer messages.
const linger = time.Millisecond

// Reader is one watcher of an index. One goroutine at a time calls a Reader.
type Reader struct {
	w     *residency.Watcher
	batch residency.Batch
	m     pb.WatchResponse
	timer *time.Timer // for linger
}

// NewReader begins to watch by a request. Close the Reader.
func NewReader(x *residency.Index, r *pb.WatchRequest) *Reader {
	return &Reader{
		w: x.Watch(residency.WatchOptions{All: r.All, Epoch: r.Epoch, After: r.After}),
		m: pb.WatchResponse{Epoch: x.Epoch()}, timer: time.NewTimer(0),
	}
}

// Close ends the watch.
func (r *Reader) Close() {
	r.timer.Stop()
	r.w.Close()
}

// Next waits for the next message, which is valid until the next call. Next's error is the
// context's.
func (r *Reader) Next(ctx context.Context) (*pb.WatchResponse, error) {
	if b := &r.batch; b.Part == residency.Changes && len(b.Blocks) <= 64 {
		r.timer.Reset(linger)
		select {
		case <-r.timer.C:
		case <-ctx.Done():
		}
	}
	if err := r.w.Next(ctx, &r.batch); err != nil {
		return nil, err
	}
	encode(&r.m, &r.batch)
	return &r.m, nil
}

var parts = [...]pb.WatchResponse_Part{
	residency.Reset: pb.WatchResponse_PART_RESET, residency.Snapshot: pb.WatchResponse_PART_SNAPSHOT,
	residency.Changes: pb.WatchResponse_PART_CHANGES, residency.Synced: pb.WatchResponse_PART_SYNCED,
}

// encode writes a batch into a message, whose memory it reuses.
func encode(m *pb.WatchResponse, b *residency.Batch) {
	m.Part, m.First, m.Last = parts[b.Part], b.First, b.Last
	m.Gone, m.Namespaces, m.BlockBytes, m.Holders = b.Gone, b.Namespaces, b.BlockBytes, m.Holders[:0]
	for _, h := range b.Holders {
		m.Holders = append(m.Holders, &pb.Holder{Number: h.Number, Engine: h.Engine, Epoch: h.Epoch})
	}
	m.Readers = nil
	if b.Readers != nil {
		m.Readers = &pb.Readers{Present: b.Present, More: b.Present == nil}
		for _, r := range b.Readers {
			m.Readers.Nodes = append(m.Readers.Nodes, &pb.Reader{Node: r.Node, Namespaces: r.Namespaces})
		}
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
