package scan

import (
	"encoding/hex"

	"lukechampine.com/blake3"
	"lukechampine.com/blake3/guts"
)

// hashBytes is the number of bytes of a medium's BLAKE3 hash in the text.
const hashBytes = 16

// bufferBytes is the buffer size of the hash library.
const bufferBytes = guts.MaxSIMD * guts.ChunkSize

// appendMediaHash appends the hash of the string at the cursor in hex. appendMediaHash decodes a
// string with escapes piece by piece.
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

// hashPieces adds the string at the cursor to h, except for its end. hashPieces returns that end,
// at most one buffer.
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

// mediaHash computes BLAKE3 on the calling goroutine without allocating. The library's own
// functions allocate above 1 KiB.
type mediaHash struct {
	subtrees [48][8]uint32 // left siblings that wait for their right sibling, the largest first
	waiting  int           // number of waiting siblings
	buffers  uint64        // buffers added so far
}

// add adds a buffer that is not the last one.
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

// lastSum returns the hash of all buffers and of data, the last one. data is empty only if no
// buffer came before.
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
