package lmcache

import (
	"bytes"
	"errors"
	"math"
	"strconv"
)

// Bounds on the fields of a key. Longer keys are of an unknown form.
const (
	MaxModel   = 512     // bytes
	MaxWorkers = 1024    // of one engine
	MaxLayers  = 1 << 12 // of one model
)

// Errors of Parse.
var (
	// ErrOther says that a key does not look like one of LMCache.
	ErrOther = errors.New("lmcache: not a key of LMCache")
	// ErrForm says that a key looks like one of LMCache, and is of an unknown form.
	ErrForm = errors.New("lmcache: a key of an unknown form")
	// ErrTags says that a key has tags of the request, which separate chunks of equal tokens.
	ErrTags = errors.New("lmcache: a key with tags")
)

// Half tells which part of a worker's chunk a key names.
type Half uint8

// The halves. Whole is both, under one key.
const (
	Whole    Half = iota
	Bytes         // the bytes of redis://
	Metadata      // their shape, of redis://, 28 bytes
)

// suffixes end the keys of the halves.
var suffixes = [...]string{Whole: "", Bytes: "kv_bytes", Metadata: "metadata"}

// NoLayer is the layer of a key for all layers.
const NoLayer = math.MaxUint32

// Key names a part of a chunk.
type Key struct {
	Model  string
	DType  string // one of LMCache's names of data types, such as bfloat16
	World  uint32 // workers that have parts of the chunk, 1 to MaxWorkers
	Worker uint32
	Layer  uint32 // NoLayer: all layers
	Half   Half
	Name   Name
}

// dtypes are LMCache's names of data types.
var dtypes = [...]string{"half", "bfloat16", "float", "double", "int8", "uint8", "int16", "int32", "int64", "bool",
	"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"}

// KnownDType says whether LMCache has a data type of this name.
func KnownDType(name string) bool { return dtypeOf([]byte(name)) != "" }

func dtypeOf(field []byte) string {
	for _, d := range dtypes {
		if string(field) == d {
			return d
		}
	}
	return ""
}

// Parse reads a key. Only keys in exactly the form in which LMCache writes them are read, so Append
// returns them as they were. The error is ErrOther, ErrForm or ErrTags.
func Parse(key []byte) (k Key, err error) {
	if bytes.Count(key, []byte("@")) < 3 {
		return Key{}, ErrOther
	}
	rest := key
	for _, half := range [...]Half{Bytes, Metadata} {
		if cut, ok := bytes.CutSuffix(key, []byte(suffixes[half])); ok {
			rest, k.Half = cut, half
		}
	}
	rest, last := cutLast(rest)
	if bytes.IndexByte(last, '%') >= 0 {
		return Key{}, ErrTags
	}
	k.Layer = NoLayer
	if k.DType = dtypeOf(last); k.DType == "" {
		var ok bool
		if k.Layer, ok = number(last, MaxLayers-1); !ok {
			return Key{}, ErrForm
		}
		if rest, last = cutLast(rest); dtypeOf(last) == "" {
			return Key{}, ErrForm
		}
		k.DType = dtypeOf(last)
	}
	model, ok := k.names(rest)
	if !ok || len(model) == 0 || len(model) > MaxModel {
		return Key{}, ErrForm
	}
	k.Model = string(model)
	return k, nil
}

// names reads world, worker and name from the end of a key without its data type. names returns the
// model before them.
func (k *Key) names(rest []byte) (model []byte, ok bool) {
	rest, name := cutLast(rest)
	n, err := strconv.ParseUint(string(name), 16, 64)
	if err != nil || strconv.FormatUint(n, 16) != string(name) {
		return nil, false
	}
	k.Name = Name(n)
	rest, worker := cutLast(rest)
	model, world := cutLast(rest)
	if k.World, ok = number(world, MaxWorkers); !ok || k.World == 0 {
		return nil, false
	}
	k.Worker, ok = number(worker, k.World-1)
	return model, ok
}

// cutLast cuts the last field off. The field is nil if there is none before it.
func cutLast(b []byte) (before, field []byte) {
	i := bytes.LastIndexByte(b, '@')
	if i < 0 {
		return nil, nil
	}
	return b[:i], b[i+1:]
}

// number reads a decimal number as LMCache writes it.
func number(field []byte, most uint32) (uint32, bool) {
	n, err := strconv.ParseUint(string(field), 10, 32)
	if err != nil || n > uint64(most) || field[0] == '0' && len(field) > 1 || field[0] == '+' {
		return 0, false
	}
	return uint32(n), true
}

// Append appends the key as LMCache writes it.
func (k *Key) Append(b []byte) []byte {
	b = append(append(b, k.Model...), '@')
	b = append(strconv.AppendUint(b, uint64(k.World), 10), '@')
	b = append(strconv.AppendUint(b, uint64(k.Worker), 10), '@')
	b = append(strconv.AppendUint(b, uint64(k.Name), 16), '@')
	b = append(b, k.DType...)
	if k.Layer != NoLayer {
		b = strconv.AppendUint(append(b, '@'), uint64(k.Layer), 10)
	}
	return append(b, suffixes[k.Half]...)
}
