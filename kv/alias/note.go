package alias

import (
	"encoding/binary"

	"github.com/cognitora/dataplane/kv/block"
)

// A note at the end of a part's attribute says what the chunk stands for. Whatever the attribute
// had before stays in front of it. The key says the scheme and the other fields of the source.
//
//	layers u32 · first u64 · parent [8] · variant · served · revision · blocks
//	length of all that u16 · magic [8]
//
// A u16 with its length precedes each text.

// noteMagic ends a note. A header of HTTP cannot have its last byte.
const noteMagic = "cgchunk\x01"

const noteFixed = 4 + 8 + block.NameBytes + 3*2

// AppendNote appends the note on a chunk to the attribute of its part that carries it.
func AppendNote(attr []byte, s *Source, c *Chunk) []byte {
	begin := len(attr)
	b := binary.LittleEndian.AppendUint32(attr, s.Layers)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.First))
	b = append(b, c.Parent[:]...)
	for _, text := range [...]string{s.Variant, s.Served, s.Revision} {
		b = append(binary.LittleEndian.AppendUint16(b, uint16(len(text))), text...)
	}
	b = append(b, c.Blocks...)
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(b)-begin)), noteMagic...)
}

// CutNote splits an attribute into what stood there before and the note. ok is false if there is no
// note. Both results alias attr.
func CutNote(attr []byte) (rest, note []byte, ok bool) {
	end := len(attr) - len(noteMagic) - 2
	if end < noteFixed || string(attr[end+2:]) != noteMagic {
		return attr, nil, false
	}
	n := int(binary.LittleEndian.Uint16(attr[end:]))
	if n > end {
		return attr, nil, false
	}
	return attr[:end-n], attr[end-n : end], true
}

// ParseNote reads the note on the chunk of a key in the namespace keys. The source is not checked.
// The chunk's blocks alias the note.
func ParseNote(note []byte, keys string, k *Key) (s Source, c Chunk, ok bool) {
	if len(note) < noteFixed {
		return Source{}, Chunk{}, false
	}
	le := binary.LittleEndian
	s = Source{Scheme: k.Scheme, Keys: keys, Model: k.Model, DType: k.DType, World: k.World, Layers: le.Uint32(note),
		Halves: k.Half != Whole,
		First:  Name(le.Uint64(note[4:]))}
	c = Chunk{Name: k.Name, Parent: block.Name(note[12:])}
	rest := note[20:]
	for _, to := range [...]*string{&s.Variant, &s.Served, &s.Revision} {
		if len(rest) < 2 || len(rest)-2 < int(le.Uint16(rest)) {
			return Source{}, Chunk{}, false
		}
		n := int(le.Uint16(rest))
		*to, rest = string(rest[2:2+n]), rest[2+n:]
	}
	c.Blocks = rest
	return s, c, (k.Layer != NoLayer) == (s.Layers > 0)
}
