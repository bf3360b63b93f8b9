package alias

import (
	"errors"
	"math"
)

// Scheme says whose keys a chunk has.
type Scheme string

// The schemes.
const (
	LMCache    Scheme = "lmcache"     // of LMCache (package lmcache)
	VLLMTier   Scheme = "vllm-tier"   // of vLLM's own object tier (package vllmtier)
	HiCache    Scheme = "hicache"     // of SGLang's HiCache (package hicache)
	HiCacheMLA Scheme = "hicache-mla" // of the same for models with MLA
)

// Derived says whether a chunk's keys follow from its Name. Other schemes' keys have more of the
// hash than the Name.
func (s Scheme) Derived() bool { return s == LMCache }

// Bounds on the fields of a key. Longer keys are of an unknown form.
const (
	MaxModel   = 512     // bytes
	MaxWorkers = 1024    // of one engine
	MaxLayers  = 1 << 12 // of one model
)

// Errors of the schemes' parsers of keys.
var (
	// ErrOther says that a key does not look like one of the scheme.
	ErrOther = errors.New("alias: not a key of the scheme")
	// ErrForm says that a key looks like one of the scheme, and is of an unknown form.
	ErrForm = errors.New("alias: a key of an unknown form")
	// ErrTags says that a key has tags of the request, which separate chunks of equal tokens.
	ErrTags = errors.New("alias: a key with tags")
)

// Name is a scheme's name of a chunk: 8 bytes of a hash as a big-endian number. A name stands for
// the chunk's tokens and all tokens before them.
type Name uint64

// Half tells which part of a worker's chunk a key names.
type Half uint8

// The halves. LMCache's redis:// client and HiCache make them; other keys are whole.
const (
	Whole  Half = iota // both, under one key
	First              // with LMCache the shape of the chunk, 28 bytes; with HiCache the keys of the page
	Second             // with LMCache the bytes of the chunk; with HiCache the values of the page
)

// NoLayer is the layer of a key for all layers.
const NoLayer = math.MaxUint32

// Key names a part of a chunk.
type Key struct {
	Scheme Scheme
	Model  string
	DType  string // with LMCache one of its names of data types, such as bfloat16; else empty
	World  uint32 // workers that have parts of the chunk, 1 to MaxWorkers
	Worker uint32
	Layer  uint32 // NoLayer: all layers
	Half   Half
	Name   Name
}

// Carries says whether a key is one of those that Carrier returns.
func (k *Key) Carries() bool {
	return k.Worker == 0 && (k.Layer == 0 || k.Layer == NoLayer) && k.Half != Second
}
