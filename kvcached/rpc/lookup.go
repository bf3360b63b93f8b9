package rpc

import (
	"context"
	"errors"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Lookup says where one block is.
func (s *service) Lookup(ctx context.Context, r *pb.LookupRequest) (*pb.LookupResponse, error) {
	a, err := s.address(r.Namespace, r.Layer, r.Digest)
	if err != nil {
		return nil, err
	}
	info, err := s.o.Store.Stat(ctx, a)
	if err != nil && !errors.Is(err, store.ErrMiss) {
		return nil, err
	}
	var tiers [1]residency.Tiers
	s.o.Residency.Held(a.Model, a.Layer, []block.Digest{a.Digest}, tiers[:])
	if err != nil {
		return &pb.LookupResponse{Tiers: uint32(tiers[0])}, nil
	}
	return &pb.LookupResponse{
		Tiers: uint32(tiers[0] | tiersOf(info.Tiers)), Length: uint32(info.Length), Crc32C: info.CRC,
		ExpiresUnixMs: info.Item.Expires,
		Parent:        bytesOf(info.Item.Parent), Uses: info.Uses,
	}, nil
}

// lookups is BatchLookup's work for some blocks.
type lookups struct {
	addrs [lookupStep]block.Addr
	infos [lookupStep]store.Info
	tiers [lookupStep]residency.Tiers
}

const lookupStep = 128

var lookupPool = sync.Pool{New: func() any { return new(lookups) }}

// BatchLookup says where each of some blocks is.
func (s *service) BatchLookup(ctx context.Context, r *pb.BatchLookupRequest) (*pb.BatchLookupResponse, error) {
	n, err := s.namespace(r.Namespace)
	if err != nil {
		return nil, err
	}
	digests, err := digestsOf("digests", r.Digests, MaxLookup)
	if err != nil {
		return nil, err
	}
	out := &pb.BatchLookupResponse{Tiers: make([]byte, 0, len(digests)), Lengths: make([]uint32, 0, len(digests))}
	l := lookupPool.Get().(*lookups)
	defer lookupPool.Put(l)
	for ; len(digests) > 0; digests = digests[min(len(digests), lookupStep):] {
		some := digests[:min(len(digests), lookupStep)]
		for i := range some {
			l.addrs[i] = block.Addr{Digest: some[i], Model: n.id, Layer: r.Layer}
		}
		if err := s.o.Store.StatAll(ctx, l.addrs[:len(some)], l.infos[:len(some)]); err != nil {
			return nil, err
		}
		clear(l.tiers[:])
		s.o.Residency.Held(n.id, r.Layer, some, l.tiers[:])
		for i := range some {
			out.Tiers = append(out.Tiers, byte(l.tiers[i]|tiersOf(l.infos[i].Tiers)))
			out.Lengths = append(out.Lengths, uint32(l.infos[i].Length))
		}
	}
	for out.Leading < uint32(len(out.Tiers)) && out.Tiers[out.Leading] != 0 {
		out.Leading++
	}
	return out, nil
}
