// Package vllmtier reads the keys under which vLLM's own tiers keep blocks in an object store: the
// OffloadingConnector with the TieringOffloadingSpec and a tier of type obj.
//
//	MODEL_CONFIG_r0/abc/de_g0/HASH.bin
//
// MODEL is the engine's --model with _ for each slash. CONFIG is a hash over the model's name, the
// data type of the cache, the block size, the layers and, unless the bytes do not depend on them,
// the parallel sizes. HASH is vLLM's hash of the block in hexadecimal, which begins with abcde. It
// covers the tokens of the block and of all blocks before it, LoRA adapter, cache salt, images and
// the engine's seed, and neither model nor weights. An object has the parts of all workers, whose
// rank is therefore 0. KV events carry the last 8 bytes of the same hash, which are the name.
//
// CONFIG does not follow from what an agent knows of an engine. So the agent gives each engine that
// it starts an access key of its own (Client), and the engine's requests say which objects are its.
//
// The form is that of vLLM 0.32 with one group of layers. Keys of other groups, of a prefix, and of
// other ranks have other contents and are refused.
package vllmtier

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/cognitora/dataplane/kv/alias"
)

// MaxBase bounds MODEL_CONFIG, in bytes.
const MaxBase = 512

// Key names an object.
type Key struct {
	Base string // MODEL_CONFIG
	Hash string // 8 to 32 bytes in lower-case hexadecimal
}

const (
	suffix    = ".bin"
	configLen = 12 // digits of CONFIG
	minHash   = 16 // digits
	maxHash   = 64 // digits
)

// Parse reads a key. Only keys in exactly the form in which vLLM writes them are read, so Append
// returns them as they were. The error is alias.ErrOther or
// alias.ErrForm.
func Parse(key []byte) (Key, error) {
	rest, ok := bytes.CutSuffix(key, []byte(suffix))
	if !ok || bytes.Count(rest, []byte("/")) < 3 {
		return Key{}, alias.ErrOther
	}
	rest, hash := cutLast(rest)
	rest, second := cutLast(rest)
	head, first := cutLast(rest)
	shard, _, ok := bytes.Cut(second, []byte("_g"))
	if !ok || len(first) != 3 || len(shard) != 2 {
		return Key{}, alias.ErrOther
	}
	k := Key{Base: string(bytes.TrimSuffix(head, []byte("_r0"))), Hash: string(hash)}
	if !k.known() || !bytes.Equal(k.Append(nil), key) {
		return Key{}, alias.ErrForm
	}
	return k, nil
}

// known says whether the fields have the form that vLLM gives them.
func (k *Key) known() bool {
	model := len(k.Base) - configLen - 1
	if model < 1 || len(k.Base) > MaxBase || strings.Contains(k.Base, "/") {
		return false
	}
	n := len(k.Hash)
	return k.Base[model] == '_' && isHex(k.Base[model+1:]) && n >= minHash && n <= maxHash && n%2 == 0 && isHex(k.Hash)
}

// cutLast cuts the last segment off.
func cutLast(b []byte) (before, segment []byte) {
	i := bytes.LastIndexByte(b, '/')
	if i < 0 {
		return nil, b
	}
	return b[:i], b[i+1:]
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Append appends the key as vLLM writes it.
func (k *Key) Append(b []byte) []byte {
	for _, s := range [...]string{k.Base, "_r0/", k.Hash[:3], "/", k.Hash[3:5], "_g0/", k.Hash, suffix} {
		b = append(b, s...)
	}
	return b
}

// Name returns the block's name in KV events: the end of vLLM's hash.
func (k *Key) Name() (n alias.Name) {
	b, err := hex.DecodeString(k.Hash[len(k.Hash)-16:])
	if err != nil {
		panic(err) // Parse has read it
	}
	for _, c := range b {
		n = n<<8 | alias.Name(c)
	}
	return n
}

// Part returns the object as the one part of its chunk.
func (k *Key) Part() alias.Key {
	return alias.Key{Scheme: alias.VLLMTier, Model: k.Base, World: 1, Layer: alias.NoLayer, Name: k.Name()}
}

// Check returns an error that names the field of a source with which no object of vLLM's tier fits,
// if any.
func Check(s *alias.Source) error {
	if s.DType != "" || s.World != 1 || s.Layers > 0 || s.Halves {
		return alias.Unusable("an object of vLLM's tier is whole: give 1 worker, and neither dtype, layers nor halves")
	}
	return s.Check()
}

// clientPrefix begins the access keys of Client.
const clientPrefix = "cgn-engine-"

// Client returns the S3 access key of a node's engine. It has 27 bytes of a-z, 0-9 and -.
func Client(node string) string {
	id := sha256.Sum256([]byte(node))
	return clientPrefix + hex.EncodeToString(id[:8])
}

// IsClient says whether an access key has the form of those that Client returns.
func IsClient(access string) bool {
	id, ok := strings.CutPrefix(access, clientPrefix)
	return ok && len(id) == 16 && isHex(id)
}
