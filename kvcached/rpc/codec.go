package rpc

import (
	"encoding/binary"
	"io"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec for all else
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec is the protobuf codec, and reads payloads right to where they belong.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Unmarshal reads a message.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if p, ok := v.(*piece); ok {
		r := data.Reader()
		p.read(r)
		return r.Close()
	}
	return c.CodecV2.Unmarshal(data, v)
}

// piece is a PutRequest after the first: it has data only.
type piece struct {
	into []byte // where the data goes, no more than there is room
	n    int    // of them
	err  error  // with a code
}

// fieldReader is what a message is read from.
type fieldReader interface {
	io.Reader
	io.ByteReader
	Discard(n int) (int, error)
	Remaining() int
}

// dataField is the number of PutRequest.data, headerField that of PutRequest.header.
const (
	headerField = 1
	dataField   = 2
)

// read reads the message's fields. What is not known is skipped.
func (p *piece) read(r fieldReader) {
	for seen := false; r.Remaining() > 0 && p.err == nil; {
		tag, err := binary.ReadUvarint(r)
		number, kind := protowire.DecodeTag(tag)
		switch {
		case err != nil || number < 1:
			p.err = invalid("the message is malformed")
		case number == headerField:
			p.err = invalid("header came twice; send it in the first message only")
		case number == dataField && (kind != protowire.BytesType || seen):
			p.err = invalid("data came twice in a message, or is malformed")
		case number == dataField:
			seen = true
			p.take(r)
		default:
			skip(p, r, kind)
		}
	}
}

// take reads the data.
func (p *piece) take(r fieldReader) {
	length, err := binary.ReadUvarint(r)
	if err != nil || length > uint64(r.Remaining()) {
		p.err = invalid("data is cut off")
		return
	}
	if length > uint64(len(p.into)) {
		p.err = invalid("data goes beyond header.block.length by %d bytes", length-uint64(len(p.into)))
		return
	}
	if p.n, err = io.ReadFull(r, p.into[:length]); err != nil {
		p.err = invalid("data is cut off")
	}
}

// skip leaves out a field of a kind.
func skip(p *piece, r fieldReader, kind protowire.Type) {
	var n uint64
	var err error
	switch kind {
	case protowire.VarintType:
		_, err = binary.ReadUvarint(r)
	case protowire.Fixed32Type:
		n = 4
	case protowire.Fixed64Type:
		n = 8
	case protowire.BytesType:
		n, err = binary.ReadUvarint(r)
	default:
		n = uint64(r.Remaining()) + 1
	}
	if err != nil || n > uint64(r.Remaining()) {
		p.err = invalid("the message is malformed")
		return
	}
	_, _ = r.Discard(int(n)) // there is as much
}
