package relay

import "strconv"

// chunkRoom is the space that openChunk sets aside for the size line of a chunk.
const chunkRoom = len("ffffffff\r\n")

const lastChunk = "0\r\n\r\n"

// openChunk begins a chunk at the end of dst, whose data is then appended.
func openChunk(dst []byte) (out []byte, mark int) {
	var room [chunkRoom]byte
	return append(dst, room[:]...), len(dst)
}

// closeChunk ends the chunk begun at mark. One without data is taken back,
// since it would end the body.
func closeChunk(out []byte, mark int) []byte {
	data := out[mark+chunkRoom:]
	if len(data) == 0 {
		return out[:mark]
	}
	line := append(strconv.AppendUint(out[mark:mark], uint64(len(data)), 16), "\r\n"...)
	n := copy(out[mark+len(line):], data)
	return append(out[:mark+len(line)+n], "\r\n"...)
}
