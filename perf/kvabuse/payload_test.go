package kvabuse

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// A payload contains its subject, version and length, bytes that follow from these, and a checksum
// of everything.
const (
	magic    = 0x6b76616275736531
	headLen  = 8 + 32 + 8 + 8
	leastLen = headLen + 4
)

var errWrong = errors.New("wrong bytes")

// makePayload returns the payload of a version of name, with length bytes. length is at least
// leastLen.
func makePayload(name block.Digest, version uint64, length int) []byte {
	b := make([]byte, length)
	binary.LittleEndian.PutUint64(b, magic)
	copy(b[8:], name[:])
	binary.LittleEndian.PutUint64(b[40:], version)
	binary.LittleEndian.PutUint64(b[48:], uint64(length))
	x := binary.LittleEndian.Uint64(name[:]) ^ version*0x9e3779b97f4a7c15
	body := b[headLen : length-4]
	for ; len(body) >= 8; body = body[8:] {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(body, x)
	}
	binary.LittleEndian.PutUint32(b[length-4:], block.Sum(b[:length-4]))
	return b
}

// checkPayload returns the version in b. checkPayload returns errWrong unless every byte is that of
// this version's payload.
func checkPayload(name block.Digest, b []byte) (version uint64, err error) {
	switch {
	case len(b) < leastLen || binary.LittleEndian.Uint64(b) != magic:
		return 0, fmt.Errorf("%w: %d bytes that are no payload", errWrong, len(b))
	case binary.LittleEndian.Uint64(b[48:]) != uint64(len(b)):
		return 0, fmt.Errorf("%w: %d bytes of %d", errWrong, len(b), binary.LittleEndian.Uint64(b[48:]))
	case block.Digest(b[8:40]) != name:
		return 0, fmt.Errorf("%w: another block's", errWrong)
	case binary.LittleEndian.Uint32(b[len(b)-4:]) != block.Sum(b[:len(b)-4]):
		return 0, fmt.Errorf("%w: the checksum inside is another", errWrong)
	}
	return binary.LittleEndian.Uint64(b[40:]), nil
}

// subject is an object that can be stored.
type subject struct {
	name      block.Digest // in the payload, and in the address of a block
	key       string       // as RESP or S3 clients write it
	namespace string       // of a block's address, otherwise empty
	addr      block.Addr
	ways      []string // protocols that reach it
}

var space = block.Namespace{Model: "abuse", Revision: "1", DType: "bf16", Layout: "none", Tokens: 16, TP: 1, PP: 1}

// makeSubjects returns n subjects. Half are blocks, which all protocols can use. The other subjects
// are keys of RESP or S3.
func makeSubjects(n int) []*subject {
	all := make([]*subject, n)
	text := space.String()
	for i := range all {
		s := &subject{key: fmt.Sprintf("key-%d", i)}
		s.name = block.Digest(sha256.Sum256([]byte(s.key)))
		switch i % 4 {
		case 0, 1:
			s.namespace, s.addr = text, block.Addr{Digest: s.name, Model: space.ID(), Layer: uint32(i % 3)}
			s.key, s.ways = block.Text(text, s.addr), []string{"resp", "lease", "grpc", "s3"}
		case 2:
			s.ways = []string{"resp"}
		case 3:
			s.ways = []string{"s3"}
		}
		all[i] = s
	}
	return all
}

func TestPayloadsTellWhatIsWrong(t *testing.T) {
	name, other := block.Digest{1}, block.Digest{2}
	for _, length := range []int{leastLen, leastLen + 1, 4096, 100_001} {
		b := makePayload(name, 7, length)
		if v, err := checkPayload(name, b); v != 7 || err != nil {
			t.Fatal(v, err)
		}
		if _, err := checkPayload(other, b); !errors.Is(err, errWrong) {
			t.Error("another block's bytes are taken")
		}
		if _, err := checkPayload(name, b[:length-1]); !errors.Is(err, errWrong) {
			t.Error("a part is taken")
		}
		b[length/2] ^= 4
		if _, err := checkPayload(name, b); !errors.Is(err, errWrong) {
			t.Error("a flipped bit is taken")
		}
	}
}
