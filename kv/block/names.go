package block

import (
	"bytes"
	"encoding/binary"
)

// Name is the first 8 bytes of a digest. Names tell the blocks of tokens of a namespace apart where
// a confusion costs a wrong count and no wrong bytes.
type Name [NameBytes]byte

// NameOf returns the name of the block with the given digest.
func NameOf(d *Digest) Name { return Name(d[:NameBytes]) }

const (
	// NameBytes is the length of a name.
	NameBytes = 8
	// MaxNames bounds the names of an object, which then has 512 tokens.
	MaxNames = 31
	// MaxNamesAttr is the length of the longest attribute of names, in bytes.
	MaxNamesAttr = len(namesMagic) + MaxNames*NameBytes
)

// namesMagic begins an attribute of names.
const namesMagic = "cgnames\x01"

// Blocks returns how many blocks of 16 tokens an object of the namespace stands for. 0: such
// objects do not count in routing, because TOKENS is above 16 and not a multiple of 16, or above
// 512.
func (n *Namespace) Blocks() int {
	switch {
	case n.Tokens <= Tokens:
		return 1
	case n.Tokens%Tokens != 0 || n.Tokens > (MaxNames+1)*Tokens:
		return 0
	}
	return int(n.Tokens / Tokens)
}

// AppendNames appends an object's attribute to b. names has 8 bytes for each block of 16 tokens in
// the object except the last one, in the order of the blocks. No names make no attribute.
func AppendNames(b, names []byte) []byte {
	if len(names) == 0 {
		return b
	}
	return append(append(b, namesMagic...), names...)
}

// ParseNames returns the names in an object's attribute, which it aliases, or nil if the attribute
// has none. Names are well-formed if they are 1 to MaxNames, all different and none zero.
func ParseNames(attr []byte) []byte {
	names, ok := bytes.CutPrefix(attr, []byte(namesMagic))
	if !ok || len(names) == 0 || len(names) > MaxNames*NameBytes || len(names)%NameBytes != 0 {
		return nil
	}
	for i := 0; i < len(names); i += NameBytes {
		name := binary.LittleEndian.Uint64(names[i:])
		if name == 0 {
			return nil
		}
		for k := 0; k < i; k += NameBytes {
			if binary.LittleEndian.Uint64(names[k:]) == name {
				return nil
			}
		}
	}
	return names
}
