package rpc

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// ledger takes what is told.
type ledger struct {
	source alias.Source
	all    []alias.Chunk
}

func (l *ledger) Tell(s *alias.Source, all []alias.Chunk) (int, error) {
	l.source, l.all = *s, all
	return len(all), s.Check()
}

func (l *ledger) Parts(namespace string, last []block.Name, before int) (string, []block.Digest, int) {
	return "key1;resp.0;", []block.Digest{{1: last[1][0]}, {1: byte(before)}}, len(namespace)
}

func (l *ledger) Namespace(s *alias.Source, tokens int) string { return s.Namespace(tokens).String() }

// TestTellChunks checks that chunks arrive as they were sent, and that malformed calls are refused.
func TestTellChunks(t *testing.T) {
	var l ledger
	s := service{Server: &Server{o: Options{Chunks: &l}}}
	good := func() *pb.TellChunksRequest {
		return &pb.TellChunksRequest{Scheme: "lmcache", Keys: "key1;resp.0;", Model: "/m", Dtype: "half", World: 2,
			Layers: 3, Halves: true, First: 4, Served: "m", Revision: "r", Blocks: 2, Names: []uint64{7, 1 << 63},
			Parents: []byte("........parent 1"), Digests: []byte("block  0block  1block  2block  3")}
	}
	r, err := s.TellChunks(t.Context(), good())
	want := alias.Source{Scheme: alias.LMCache, Keys: "key1;resp.0;", Model: "/m", DType: "half", World: 2, Layers: 3,
		Halves: true, First: 4, Served: "m", Revision: "r"}
	if err != nil || r.Taken != 2 || r.Namespace != want.Namespace(32).String() ||
		l.source != want || l.all[1].Name != 1<<63 ||
		string(l.all[1].Parent[:]) != "parent 1" ||
		string(l.all[0].Blocks) != "block  0block  1" || string(l.all[1].Blocks) != "block  2block  3" {
		t.Fatalf("%v %v %+v", r, err, l)
	}
	paged := good()
	paged.Scheme, paged.Dtype, paged.First, paged.Variant = "hicache", "", 0, "fp8_e4m3"
	if _, err := s.TellChunks(t.Context(), paged); err != nil || l.source.Variant != "fp8_e4m3" {
		t.Errorf("a variant: %v, %+v", err, l.source)
	}
	tier := good()
	tier.Scheme, tier.Model, tier.Engine, tier.First = "vllm-tier", "", "cgn-engine-1", 0
	if _, err := s.TellChunks(t.Context(), tier); err != nil || l.source.Engine != "cgn-engine-1" {
		t.Errorf("an engine: %v, %+v", err, l.source)
	}
	for what, change := range map[string]func(r *pb.TellChunksRequest){
		"too many":  func(r *pb.TellChunksRequest) { r.Names = make([]uint64, alias.MaxTold+1) },
		"blocks":    func(r *pb.TellChunksRequest) { r.Blocks = 33 },
		"no blocks": func(r *pb.TellChunksRequest) { r.Blocks = 0 },
		"parents":   func(r *pb.TellChunksRequest) { r.Parents = r.Parents[1:] },
		"digests":   func(r *pb.TellChunksRequest) { r.Digests = slices.Concat(r.Digests, r.Digests) },
		"source":    func(r *pb.TellChunksRequest) { r.World = 0 },
	} {
		r := good()
		change(r)
		if _, err := s.TellChunks(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.o.Chunks = nil
	if _, err := s.TellChunks(t.Context(), good()); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

// TestChunkParts checks that question and keys arrive, and that malformed calls are refused.
func TestChunkParts(t *testing.T) {
	s := service{Server: &Server{o: Options{Chunks: &ledger{}}}}
	digests := make([]byte, 64)
	digests[32] = 7
	good := func() *pb.ChunkPartsRequest {
		return &pb.ChunkPartsRequest{Namespace: "n", Digests: digests, Before: 5}
	}
	r, err := s.ChunkParts(t.Context(), good())
	want := make([]byte, 64)
	want[1], want[33] = 7, 5
	if err != nil || r.Keys != "key1;resp.0;" || r.Chunks != 1 || !slices.Equal(r.Digests, want) {
		t.Errorf("%+v, %v", r, err)
	}
	for what, change := range map[string]func(r *pb.ChunkPartsRequest){
		"no digests":      func(r *pb.ChunkPartsRequest) { r.Digests = nil },
		"cut":             func(r *pb.ChunkPartsRequest) { r.Digests = digests[1:] },
		"too many":        func(r *pb.ChunkPartsRequest) { r.Digests = make([]byte, 32*(alias.MaxTold+1)) },
		"too many before": func(r *pb.ChunkPartsRequest) { r.Before = alias.MaxTold + 1 },
	} {
		r := good()
		change(r)
		if _, err := s.ChunkParts(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.o.Chunks = nil
	if _, err := s.ChunkParts(t.Context(), good()); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}
