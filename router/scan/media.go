package scan

import (
	"encoding/hex"

	"lukechampine.com/blake3"
	"lukechampine.com/blake3/guts"
)

// hashBytes is how much of the BLAKE3 of a medium goes into the text.
const hashBytes = 16

// bufferBytes is what the hash library takes at once.
const bufferBytes = guts.MaxSIMD * guts.ChunkSize

// appendMediaHash appends the hash of data in hex.
func (r *Request) appendMediaHash(dst, data []byte) []byte {
	r.Media++
	sum := r.blake3(data)
	return hex.AppendEncode(dst, sum[:hashBytes])
}

// blake3 is BLAKE3 of data on the calling goroutine without allocating, which
// the library's own entry points do for more than 1 KiB.
func (r *Request) blake3(data []byte) [64]byte {
	if len(data) <= guts.ChunkSize {
		return blake3.Sum512(data)
	}
	// subtrees holds the left siblings that wait for their right one, the largest first.
	var subtrees [48][8]uint32
	waiting := 0
	buffers := uint64(0)
	for len(data) > bufferBytes {
		n := guts.CompressBuffer((*[bufferBytes]byte)(data), bufferBytes, &guts.IV, buffers*guts.MaxSIMD, 0)
		data = data[bufferBytes:]
		buffers++
		cv := guts.ChainingValue(n)
		for full := buffers; full&1 == 0; full >>= 1 {
			waiting--
			cv = guts.ChainingValue(guts.ParentNode(subtrees[waiting], cv, &guts.IV, 0))
		}
		subtrees[waiting] = cv
		waiting++
	}
	root := r.lastBuffer(data, buffers*guts.MaxSIMD)
	for waiting > 0 {
		waiting--
		root = guts.ParentNode(subtrees[waiting], guts.ChainingValue(root), &guts.IV, 0)
	}
	root.Flags |= guts.FlagRoot
	return guts.WordsToBytes(guts.CompressNode(root))
}

// lastBuffer compresses the rest of the data, padded to the size that the library reads.
func (r *Request) lastBuffer(data []byte, chunk uint64) guts.Node {
	if cap(r.pad) < bufferBytes {
		r.pad = make([]byte, bufferBytes)
	}
	pad := r.pad[:bufferBytes]
	copy(pad, data)
	return guts.CompressBuffer((*[bufferBytes]byte)(pad), len(data), &guts.IV, chunk, 0)
}
