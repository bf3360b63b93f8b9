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

// appendMediaHash appends the hash of the string at the cursor in hex. A string with
// escapes is decoded piece by piece.
func (r *Request) appendMediaHash(dst []byte) []byte {
	r.Media++
	var h mediaHash
	before := r.c
	data, escaped := r.c.String()
	if escaped {
		r.c = before
		data = r.hashPieces(&h)
	}
	for len(data) > bufferBytes {
		h.add((*[bufferBytes]byte)(data))
		data = data[bufferBytes:]
	}
	sum := r.lastSum(&h, data)
	return hex.AppendEncode(dst, sum[:hashBytes])
}

// hashPieces adds the string at the cursor to h, and returns the end of it that is not
// longer than a buffer.
func (r *Request) hashPieces(h *mediaHash) []byte {
	piece := r.scratch.spare[:0]
	for ended := !r.c.OpenString(); !ended; {
		piece, ended = r.c.AppendText(piece, r.c.Pos()+bufferBytes)
		for len(piece) > bufferBytes {
			h.add((*[bufferBytes]byte)(piece))
			piece = piece[:copy(piece, piece[bufferBytes:])]
		}
	}
	r.scratch.spare = piece
	return piece
}

// mediaHash is BLAKE3 on the calling goroutine without allocating, unlike the
// library's own entry points for more than 1 KiB.
type mediaHash struct {
	subtrees [48][8]uint32 // the left siblings that wait for their right one, the largest first
	waiting  int           // of them
	buffers  uint64        // added so far
}

// add takes a buffer that is not the last one.
func (h *mediaHash) add(buffer *[bufferBytes]byte) {
	n := guts.CompressBuffer(buffer, bufferBytes, &guts.IV, h.buffers*guts.MaxSIMD, 0)
	h.buffers++
	cv := guts.ChainingValue(n)
	for full := h.buffers; full&1 == 0; full >>= 1 {
		h.waiting--
		cv = guts.ChainingValue(guts.ParentNode(h.subtrees[h.waiting], cv, &guts.IV, 0))
	}
	h.subtrees[h.waiting] = cv
	h.waiting++
}

// lastSum is the hash of all buffers and of data, the last one, which is not empty unless
// there is no other.
func (r *Request) lastSum(h *mediaHash, data []byte) [64]byte {
	if h.buffers == 0 && len(data) <= guts.ChunkSize {
		return blake3.Sum512(data)
	}
	if cap(r.scratch.pad) < bufferBytes { // the library reads whole buffers
		r.scratch.pad = make([]byte, 0, bufferBytes)
	}
	pad := r.scratch.pad[:bufferBytes]
	copy(pad, data)
	node := guts.CompressBuffer((*[bufferBytes]byte)(pad), len(data), &guts.IV, h.buffers*guts.MaxSIMD, 0)
	for ; h.waiting > 0; h.waiting-- {
		node = guts.ParentNode(h.subtrees[h.waiting-1], guts.ChainingValue(node), &guts.IV, 0)
	}
	node.Flags |= guts.FlagRoot
	return guts.WordsToBytes(guts.CompressNode(node))
}
