// Package block defines the names of KV blocks. A block has an address. A block's namespace
// separates models, layouts and ranks. A block's digest is a link in the chain of its prompt.
//
// The package is pure: it does no I/O, keeps no state and imports nothing of this module.
package block

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"lukechampine.com/blake3"
	"lukechampine.com/blake3/guts"
)

// Tokens is the number of tokens in a block of a digest chain.
const Tokens = 16

// MaxKey is the longest key, in bytes, that a client may choose for a block (RESP, S3).
const MaxKey = 1024

// MaxPayload is the longest payload of a block, in bytes.
const MaxPayload = 64 << 20

// MaxAttr bounds a client's data about a block, in bytes.
const MaxAttr = 2048

// LayerAll is the layer of a block that holds every layer of its tokens.
const LayerAll = 1<<32 - 1

// ErrAddress says that a text begins like an address but is none.
var ErrAddress = errors.New("block: not an address")

// Digest identifies a block's tokens together with all tokens before them.
type Digest [32]byte

// ModelID is the short form of a namespace: BLAKE3 of the canonical text.
type ModelID [32]byte

// Addr is the full name of a block. Blocks with equal addresses hold equal bytes. Any difference of
// addresses is a miss.
type Addr struct {
	Digest Digest
	Model  ModelID
	Layer  uint32
}

// Seed returns the beginning of a chain: d[-1] = BLAKE3("cognitora.seq.v1\0" ‖ model ‖ 0 ‖ adapter
// ‖ 0 ‖ salt). model is the name by which clients ask, which is a LoRA adapter's own for its
// prompts. adapter is the number of an adapter without a known name, and empty otherwise. The salt
// separates tenants.
func Seed(model, adapter, salt string) Digest {
	text := make([]byte, 0, 64+len(model)+len(adapter)+len(salt))
	text = append(text, "cognitora.seq.v1\x00"...)
	text = append(append(text, model...), 0)
	text = append(append(text, adapter...), 0)
	return blake3.Sum256(append(text, salt...))
}

// Next returns the digest of the block that follows parent: BLAKE3 keyed by the parent, over the
// tokens as little-endian uint32. Only full blocks have digests.
func Next(parent Digest, tokens *[Tokens]uint32) (d Digest) {
	n := guts.Node{BlockLen: guts.BlockSize, Flags: nextFlags} // a message of one chunk with one block
	for i := range n.CV {
		n.CV[i] = binary.LittleEndian.Uint32(parent[4*i:])
	}
	n.Block = *tokens
	for i, w := range guts.ChainingValue(n) {
		binary.LittleEndian.PutUint32(d[4*i:], w)
	}
	return d
}

const nextFlags = guts.FlagChunkStart | guts.FlagChunkEnd | guts.FlagRoot | guts.FlagKeyedHash

// keyed are the derivations for other inputs than tokens.
const (
	keyContext  = "cognitora.key.v1\x00"
	nameContext = "cognitora.namespace.v1\x00"
)

// OfKey returns the address for a key that a client chose, in the namespace with the given id. The
// key may hold any bytes. The address never equals an address of tokens.
func OfKey(model ModelID, key []byte) Addr {
	text := append(append(make([]byte, 0, len(keyContext)+len(key)), keyContext...), key...)
	return Addr{Digest: blake3.Sum256(text), Model: model}
}

// addressPrefix begins the text form of an address.
const addressPrefix = "cgn:"

// IsAddress says whether key begins like the text form of an address.
func IsAddress(key []byte) bool { return bytes.HasPrefix(key, []byte(addressPrefix)) }

// Text returns a block's address as RESP and S3 clients write it: cgn:<namespace>:<layer>:<hex
// digest>. namespace is the canonical text.
func Text(namespace string, a Addr) string {
	b := make([]byte, 0, len(addressPrefix)+len(namespace)+12+2*len(a.Digest))
	b = append(append(b, addressPrefix...), namespace...)
	b = append(strconv.AppendUint(append(b, ':'), uint64(a.Layer), 10), ':')
	return string(hex.AppendEncode(b, a.Digest[:]))
}

// Tail is what a writer may add to the text form of an address.
type Tail struct {
	Parent Digest // zero: none
	// Names are the names of an object's blocks except the last one, as AppendNames takes them;
	// nil: none.
	Names []byte
}

// MaxAddress is the length of the longest text form of an address with its tail, in bytes.
const MaxAddress = len(addressPrefix) + MaxNamespace + len(":4294967295") + 2*(1+2*len(Digest{})) +
	1 + 2*MaxNames*NameBytes

// ParseText reads the text form of an address: cgn:<namespace>:<layer>:<digest>, or with a tail for
// writers cgn:<namespace>:<layer>:<digest>:<parent>:<names>. Digest and parent are 64 hexadecimal
// digits, names 16 for each. Parent and names may be empty. Other numbers of names than the
// namespace's TOKENS / 16 - 1 are refused. The returned namespace is canonical.
func ParseText(key []byte) (namespace string, a Addr, tail Tail, err error) {
	bad := func(why string) (string, Addr, Tail, error) {
		return "", Addr{}, Tail{}, fmt.Errorf("%w: %s; write cgn:<namespace>:<layer>:<64 hex digits>", ErrAddress, why)
	}
	rest, ok := bytes.CutPrefix(key, []byte(addressPrefix))
	if !ok {
		return bad("it does not begin with cgn:")
	}
	var fields [5][]byte // a namespace has no colon
	n := 0
	for more := true; more; n++ {
		if n == len(fields) {
			return bad("it has more than 5 fields after cgn:")
		}
		fields[n], rest, more = bytes.Cut(rest, []byte(":"))
	}
	if n != 3 && n != len(fields) {
		return bad("it does not have 3 or 5 fields after cgn:")
	}
	if !unhex(a.Digest[:], fields[2]) {
		return bad("the digest is not 64 hex digits")
	}
	layer, err := strconv.ParseUint(string(fields[1]), 10, 32)
	if err != nil || fields[1][0] == '0' && len(fields[1]) > 1 {
		return bad("the layer is not a number below 2^32")
	}
	ns, err := ParseNamespace(string(fields[0]))
	if err != nil {
		return "", Addr{}, Tail{}, err
	}
	if ns.Space != "" {
		return bad("a namespace of keys has no digests")
	}
	if why := tail.parse(fields[3], fields[4], ns.Blocks()-1); why != "" {
		return bad(why)
	}
	a.Layer = uint32(layer)
	namespace = ns.String()
	a.Model = IDOf(namespace)
	return namespace, a, tail, nil
}

// parse reads the fields of a tail. parse returns what is wrong with them, if anything.
func (t *Tail) parse(parent, names []byte, most int) (why string) {
	if len(parent) > 0 && !unhex(t.Parent[:], parent) {
		return "the parent is neither empty nor 64 hex digits"
	}
	if len(names) == 0 {
		return ""
	}
	if len(names) != 2*NameBytes*max(most, 0) {
		return fmt.Sprintf("the names have %d hex digits, and this namespace has objects with %d names of 16", len(names),
			max(most, 0))
	}
	if t.Names = make([]byte, len(names)/2); !unhex(t.Names, names) {
		return "the names are not hexadecimal"
	}
	return ""
}

// unhex reads exactly as many bytes as to has room for.
func unhex(to, text []byte) bool {
	if len(text) != hex.EncodedLen(len(to)) {
		return false
	}
	_, err := hex.Decode(to, text)
	return err == nil
}
