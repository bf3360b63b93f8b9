package instant

import (
	"strconv"
	"time"
)

// StampLen is the length of a Stamp in a token's content.
const StampLen = 8 + 1 + 8 + 1 + 16

// Stamp is the content of a token, in lower-case hexadecimal: SSSSSSSS.IIIIIIII.NNNNNNNNNNNNNNNN.
type Stamp struct {
	Seq    uint32    // number of the token in its stream, from 0
	Stream uint32    // number of the stream in its engine
	Sent   time.Time // when the engine sent it
}

const hexDigits = "0123456789abcdef"

func putHex(b []byte, v uint64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = hexDigits[v&15]
		v >>= 4
	}
}

// Put writes the stamp into the first StampLen bytes of b.
func (s Stamp) Put(b []byte) {
	putHex(b[:8], uint64(s.Seq))
	b[8] = '.'
	putHex(b[9:17], uint64(s.Stream))
	b[17] = '.'
	putHex(b[18:StampLen], uint64(s.Sent.UnixNano()))
}

// ParseStamp parses the stamp at the beginning of b; false if there is none.
func ParseStamp(b []byte) (s Stamp, ok bool) {
	if len(b) < StampLen || b[8] != '.' || b[17] != '.' {
		return s, false
	}
	seq, err1 := strconv.ParseUint(string(b[:8]), 16, 32)
	stream, err2 := strconv.ParseUint(string(b[9:17]), 16, 32)
	sent, err3 := strconv.ParseUint(string(b[18:StampLen]), 16, 64)
	return Stamp{uint32(seq), uint32(stream), time.Unix(0, int64(sent))}, err1 == nil && err2 == nil && err3 == nil
}
