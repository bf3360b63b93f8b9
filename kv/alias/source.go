package alias

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
)

// ErrSource says that a Source cannot be right.
var ErrSource = errors.New("alias: unusable source of chunks")

// Source says of which keys the chunks are that a teller knows, and of which model the blocks in
// them. A chunk counts only if all of it is right: a wrong field names other keys, or other blocks.
type Source struct {
	Scheme Scheme
	Keys   string // canonical namespace of the keys, such as key1;resp.0;
	Model  string // the model in the keys; empty if Engine stands for it
	Engine string // VLLMTier: access key of the engine whose keys have the model, as a teller knows it; else empty
	DType  string // LMCache: the data type in the keys; else empty
	World  uint32 // the number of workers in the keys
	Layers uint32 // number of keys by layer of a worker's chunk; 0: one key for all layers
	Halves bool   // the keys of each worker's part are those of halves

	First    Name   // LMCache: name before a prompt's first chunk, from the engine's PYTHONHASHSEED; else 0
	Variant  string // HiCache: data type of the cache, which its keys do not name; else empty
	Served   string // model's name in the digests of the blocks
	Revision string // of the weights
}

// MaxVariant bounds Source.Variant, in bytes.
const MaxVariant = 64

// Check returns an error that names the unusable field, if any. The scheme's package checks the
// fields whose values differ between schemes, and calls Check.
func (s *Source) Check() error {
	keys, err := block.ParseNamespace(s.Keys)
	switch {
	case err != nil:
		return Unusable("keys: %v", err)
	case keys.Space == "":
		return Unusable("keys: %q is no namespace of keys; write key1;resp.0;", s.Keys)
	case s.Engine != "" && s.Scheme != VLLMTier:
		return Unusable("engine %q is for %s: give the model in the keys", s.Engine, VLLMTier)
	case s.Engine != "" && s.Model != "" || len(s.Engine) > MaxModel:
		return Unusable("engine has %d bytes; give up to %d, and no model beside it", len(s.Engine), MaxModel)
	case s.Model == "" && s.Engine == "" || len(s.Model) > MaxModel:
		return Unusable("model in the keys has %d bytes; give the engine's --model, 1 to %d bytes", len(s.Model), MaxModel)
	case s.First != 0 && s.Scheme != LMCache:
		return Unusable("first is for %s; leave it out", LMCache)
	case s.Variant != "" && s.Scheme != HiCache && s.Scheme != HiCacheMLA, len(s.Variant) > MaxVariant:
		return Unusable("variant has %d bytes; give up to %d for %s, and none otherwise", len(s.Variant), MaxVariant,
			HiCache)
	case s.World < 1 || s.World > MaxWorkers:
		return Unusable("%d workers are not in 1..%d", s.World, MaxWorkers)
	case s.Layers > MaxLayers:
		return Unusable("%d layers are not in 0..%d", s.Layers, MaxLayers)
	}
	if err := s.namespace(block.Tokens, keys.Tenant).Check(); err != nil {
		return Unusable("%v", err)
	}
	return nil
}

// Unusable returns an ErrSource with a reason.
func Unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrSource, fmt.Sprintf(format, args...))
}

// Parts returns the number of keys of one chunk.
func (s *Source) Parts() int {
	n := int(s.World * max(s.Layers, 1))
	if s.Halves && s.Scheme != HiCacheMLA { // with MLA there are no values besides the keys
		n *= 2
	}
	return n
}

// PartsWithBytes returns the number of keys of one chunk that have its bytes. LMCache's first
// halves have shapes only.
func (s *Source) PartsWithBytes() int {
	if s.Halves && s.Scheme == LMCache {
		return s.Parts() / 2
	}
	return s.Parts()
}

// Carrier returns the key of the part that keeps what a chunk stands for: the smallest one of
// worker 0.
func (s *Source) Carrier(n Name) Key {
	k := Key{Scheme: s.Scheme, Model: s.Model, DType: s.DType, World: s.World, Layer: NoLayer, Name: n}
	if s.Layers > 0 {
		k.Layer = 0
	}
	if s.Halves {
		k.Half = First
	}
	return k
}

// Every returns the keys of all parts of a chunk, those of worker 0 first.
func (s *Source) Every(n Name) iter.Seq[Key] {
	halves := []Half{Whole}
	switch {
	case s.Halves && s.Scheme == HiCacheMLA: // there are no values besides the keys
		halves = []Half{First}
	case s.Halves:
		halves = []Half{First, Second}
	}
	return func(yield func(Key) bool) {
		k := s.Carrier(n)
		for k.Worker = range s.World {
			for layer := range max(s.Layers, 1) {
				if s.Layers > 0 {
					k.Layer = layer
				}
				for _, k.Half = range halves {
					if !yield(k) {
						return
					}
				}
			}
		}
	}
}

// Namespace returns the namespace in which chunks with the given number of tokens count as objects.
// Chunks of different sources never share a namespace. The source must be one that Check accepts.
func (s *Source) Namespace(tokens int) block.Namespace {
	keys, _ := block.ParseNamespace(s.Keys)
	return s.namespace(tokens, keys.Tenant)
}

// layout begins the layout in namespaces of chunks. The scheme follows, and a hash of the rest of
// the source: chunks.lmcache.0123456789abcdef.
const layout = "chunks."

// SchemeOf returns the scheme of a namespace of chunks, and whether it is one.
func SchemeOf(n *block.Namespace) (of Scheme, chunks bool) {
	rest, chunks := strings.CutPrefix(n.Layout, layout)
	scheme, _, _ := strings.Cut(rest, ".")
	if !chunks {
		return "", false
	}
	return Scheme(scheme), true
}

func (s *Source) namespace(tokens int, tenant string) block.Namespace {
	id := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %d %d %t %d %q", s.Keys, s.Model, s.Engine, s.DType, s.World,
		s.Layers, s.Halves, s.First, s.Variant))
	return block.Namespace{Model: s.Served, Revision: s.Revision, DType: cmp.Or(s.DType, s.Variant, "-"),
		Layout: fmt.Sprintf("%s%s.%x", layout, s.Scheme, id[:8]),
		Tokens: uint32(tokens), TP: 1, PP: 1, Tenant: tenant}
}

// Chunk is what a full chunk stands for.
type Chunk struct {
	Name   Name
	Parent block.Name // of the block of 16 tokens before the chunk; zero: the chunk is a prompt's first
	Blocks []byte     // names of its blocks of 16 tokens in their order, block.NameBytes each
}

// MaxTold bounds the chunks that are told at once.
const MaxTold = 2048

// MaxTokens is the largest number of tokens in a chunk that counts.
const MaxTokens = (block.MaxNames + 1) * block.Tokens

// Tokens returns the number of tokens in a chunk, or 0 if the chunk cannot count.
func (c *Chunk) Tokens() int {
	n := len(c.Blocks) / block.NameBytes
	if n == 0 || len(c.Blocks)%block.NameBytes != 0 || n > block.MaxNames+1 {
		return 0
	}
	for i := range n {
		name := c.at(i)
		if name == (block.Name{}) || name == c.Parent {
			return 0
		}
		for k := range i {
			if c.at(k) == name {
				return 0
			}
		}
	}
	return n * block.Tokens
}

// at returns the name of block i.
func (c *Chunk) at(i int) block.Name { return block.Name(c.Blocks[i*block.NameBytes:]) }
