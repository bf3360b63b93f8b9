package rpc

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// TellChunks records what chunks stand for.
func (s *service) TellChunks(_ context.Context, r *pb.TellChunksRequest) (*pb.TellChunksResponse, error) {
	n, blocks := len(r.Names), int(r.Blocks)
	switch {
	case s.o.Chunks == nil:
		return nil, status.Error(codes.Unimplemented, "this daemon does not count chunks")
	case n > alias.MaxTold:
		return nil, invalid("there are %d chunks; send at most %d in a call", n, alias.MaxTold)
	case blocks < 1 || blocks > block.MaxNames+1:
		return nil, invalid("blocks is %d; chunks of 1 to %d blocks of %d tokens can count", r.Blocks, block.MaxNames+1,
			block.Tokens)
	case len(r.Parents) != n*block.NameBytes:
		return nil, invalid("parents has %d bytes for %d chunks; send %d for each", len(r.Parents), n, block.NameBytes)
	case len(r.Digests) != n*blocks*block.NameBytes:
		return nil, invalid("digests has %d bytes for %d chunks of %d blocks; send %d for each block", len(r.Digests), n,
			blocks, block.NameBytes)
	}
	from := alias.Source{Scheme: alias.Scheme(r.Scheme), Keys: r.Keys, Model: r.Model, Engine: r.Engine, DType: r.Dtype,
		World: r.World, Layers: r.Layers, Halves: r.Halves, First: alias.Name(r.First), Variant: r.Variant,
		Served: r.Served, Revision: r.Revision}
	all := make([]alias.Chunk, n)
	for i := range all {
		all[i] = alias.Chunk{Name: alias.Name(r.Names[i]), Parent: block.Name(r.Parents[i*block.NameBytes:]),
			Blocks: r.Digests[i*blocks*block.NameBytes:][:blocks*block.NameBytes]}
	}
	taken, err := s.o.Chunks.Tell(&from, all)
	if err != nil && !errors.Is(err, alias.ErrSource) {
		return nil, status.Errorf(codes.FailedPrecondition, "%v", err)
	}
	if err != nil {
		return nil, invalid("%v", err)
	}
	return &pb.TellChunksResponse{
		Taken: uint32(taken), Namespace: s.o.Chunks.Namespace(&from, blocks*block.Tokens),
	}, nil
}

// ChunkParts returns the keys of chunks. Those of LMCache's alone follow from what is told.
func (s *service) ChunkParts(_ context.Context, r *pb.ChunkPartsRequest) (*pb.ChunkPartsResponse, error) {
	digests, err := digestsOf("digests", r.Digests, alias.MaxTold)
	switch {
	case s.o.Chunks == nil:
		return nil, status.Error(codes.Unimplemented, "this daemon does not count chunks")
	case err != nil:
		return nil, err
	case r.Before > alias.MaxTold:
		return nil, invalid("before is %d; ask for at most %d", r.Before, alias.MaxTold)
	}
	last := make([]block.Name, len(digests))
	for i := range digests {
		last[i] = block.NameOf(&digests[i])
	}
	keys, parts, all := s.o.Chunks.Parts(r.Namespace, last, int(r.Before))
	out := &pb.ChunkPartsResponse{Keys: keys, Chunks: uint32(all)}
	for i := range parts {
		out.Digests = append(out.Digests, parts[i][:]...)
	}
	return out, nil
}
