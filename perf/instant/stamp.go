package instant

import "time"

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

func getHex(b []byte) (v uint64, ok bool) {
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | uint64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
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
	seq, ok1 := getHex(b[:8])
	stream, ok2 := getHex(b[9:17])
	sent, ok3 := getHex(b[18:StampLen])
	return Stamp{uint32(seq), uint32(stream), time.Unix(0, int64(sent))}, ok1 && ok2 && ok3
}
