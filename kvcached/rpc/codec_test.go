package rpc

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// cut cuts a message as the transport may have.
func cut(message []byte, at int) (b mem.BufferSlice) {
	for len(message) > 0 {
		n := min(max(at, 1), len(message))
		b = append(b, mem.SliceBuffer(message[:n]))
		message = message[n:]
	}
	return b
}

func TestPieceUnknownFields(t *testing.T) {
	message := []byte{3 << 3, 1, 4<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8, 5<<3 | 5, 1, 2, 3, 4, 6<<3 | 2, 2, 9, 9, 2<<3 | 2, 3,
		'a', 'b', 'c'}
	p := piece{into: make([]byte, 5)}
	if err := newCodec().Unmarshal(cut(message, 2), &p); err != nil || p.err != nil || string(p.into[:p.n]) != "abc" {
		t.Errorf("%q, %v, %v", p.into[:p.n], err, p.err)
	}
}

// FuzzPiece reads messages as protobuf does, or refuses them.
func FuzzPiece(f *testing.F) {
	for _, m := range []*pb.PutRequest{{}, {Data: []byte("abc")}, {Data: make([]byte, 300)},
		{Header: &pb.PutHeader{Durable: true}, Data: []byte("x")}} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, 7)
	}
	f.Add([]byte{2<<3 | 2, 0xff, 0xff, 0xff, 0xff, 0x0f}, 1)
	f.Add([]byte{3<<3 | 3, 3<<3 | 4}, 1)
	f.Fuzz(func(t *testing.T, message []byte, at int) {
		p := piece{into: make([]byte, 256)}
		if err := newCodec().Unmarshal(cut(message, at), &p); err != nil {
			t.Fatal(err)
		}
		if p.err != nil {
			return
		}
		var m pb.PutRequest
		if err := proto.Unmarshal(message, &m); err != nil {
			return // what we skip may be malformed inside
		}
		if m.Header != nil || !bytes.Equal(m.Data, p.into[:p.n]) {
			t.Errorf("%x: %d bytes, protobuf has %d", message, p.n, len(m.Data))
		}
	})
}
