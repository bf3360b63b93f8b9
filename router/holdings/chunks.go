package holdings

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/block"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// source returns the daemon that has the most leading blocks of the prompt in a configuration that
// the engine of node i can read; nil: it is node i's own, or unknown.
func (q *Query) source(i int) *cache {
	c := q.cache(i)
	if c == nil || !c.exchanges() {
		return nil
	}
	if at := q.elsewhere(i).at; at != c {
		return at
	}
	return nil
}

// Bounds on the questions about chunks.
const (
	partsOnce   = 4096        // keys in one question to the host's daemon
	partsWithin = time.Second // for the other daemon's answer
)

// bringChunks promotes chunks of LMCache. A daemon that has a chunk says under which keys: that of
// the host, and for chunks that it does not have the one that has the most of the prompt. digests
// are those of the chunks' last blocks, the last one first, and before is the number of chunks
// before them.
func (w *wish) bringChunks(ctx context.Context, s space, digests []byte, before int) (n int, err error) {
	keys, parts, all, err := chunkParts(ctx, w.client, s.text, digests, before)
	if err != nil {
		return 0, err
	}
	var unasked error // the other daemon; the host's own parts come all the same
	if w.from != nil && all < len(digests)/32+before {
		var far string
		var more []block.Digest
		asking, cancel := context.WithTimeout(ctx, partsWithin)
		far, more, _, unasked = chunkParts(asking, *w.from, s.text, digests, before)
		cancel()
		if keys == "" {
			keys = far
		}
		if far == keys {
			parts = union(parts, more)
		}
	}
	for some := range slices.Chunk(parts, partsOnce) {
		last := make([]byte, 0, 32*len(some))
		for _, digest := range slices.Backward(some) {
			last = append(last, digest[:]...)
		}
		_, here, err := w.some(ctx, keys, 0, last)
		if n += here; err != nil {
			return n, err
		}
	}
	return n, unasked
}

// errParts says that a daemon's answer about chunks contradicts itself.
var errParts = errors.New("holdings: malformed keys of chunks")

// chunkParts asks a daemon for the keys of chunks. An older daemon knows none.
func chunkParts(ctx context.Context, client cognitorav1.KvClient, namespace string, digests []byte,
	before int) (keys string, parts []block.Digest, all int, err error) {
	r, err := client.ChunkParts(ctx, &cognitorav1.ChunkPartsRequest{Namespace: namespace, Digests: digests,
		Before: uint32(before)})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return "", nil, 0, nil
	case err != nil:
		return "", nil, 0, err
	case len(r.Digests)%32 != 0 || len(r.Digests) > 0 && !block.OfKeys(r.Keys):
		return "", nil, 0, errParts
	}
	for digest := range slices.Chunk(r.Digests, 32) {
		parts = append(parts, block.Digest(digest))
	}
	return r.Keys, parts, int(r.Chunks), nil
}

// union returns what a or b has, b's first.
func union(a, b []block.Digest) []block.Digest {
	seen := make(map[block.Digest]bool, len(b))
	for _, digest := range b {
		seen[digest] = true
	}
	for _, digest := range a {
		if !seen[digest] {
			b = append(b, digest)
		}
	}
	return b
}
