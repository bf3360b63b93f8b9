package frame

import (
	"encoding/binary"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// These are the sizes of entries in bytes.
const (
	AddrSize  = 72
	GrantSize = 40
	InfoSize  = 16

	helloSize   = 56
	welcomeSize = 80
	stagedSize  = 16
	commitSize  = 96
	readSize    = 4
)

// magic begins every Hello, so that the first frame of any other program is recognized.
const magic = 0x6573_6165_6c6e_6763 // "cgnlease"

var le = binary.LittleEndian

// AppendAddr writes an address: digest, model, layer, four zero bytes.
func AppendAddr(b []byte, a *block.Addr) []byte {
	b = append(append(b, a.Digest[:]...), a.Model[:]...)
	return le.AppendUint64(b, uint64(a.Layer))
}

// Addr returns the i-th address of a body of addresses.
func Addr(body []byte, i int) (a block.Addr) {
	b := body[i*AddrSize:]
	copy(a.Digest[:], b)
	copy(a.Model[:], b[32:])
	a.Layer = le.Uint32(b[64:])
	return a
}

// Lease returns the i-th lease id, or deadline, of a body of these.
func Lease(body []byte, i int) uint64 { return le.Uint64(body[8*i:]) }

// Hello is the first frame of a client.
type Hello struct {
	Min, Max uint16   // supported versions
	Have     uint64   // instance whose arena is already mapped; 0: none
	Name     [32]byte // of the program, the owner of its pins; padded with zero bytes
}

// AppendHello writes the body of a Hello.
func AppendHello(b []byte, h *Hello) []byte {
	b = le.AppendUint64(b, magic)
	b = le.AppendUint16(le.AppendUint16(b, h.Min), h.Max)
	b = le.AppendUint64(append(b, 0, 0, 0, 0), h.Have)
	return append(b, h.Name[:]...)
}

// ParseHello reads the body of a Hello.
func ParseHello(body []byte) (h Hello, err error) {
	if le.Uint64(body) != magic {
		return h, &Error{StatusBadFrame, "a hello of something else"}
	}
	h.Min, h.Max, h.Have = le.Uint16(body[8:]), le.Uint16(body[10:]), le.Uint64(body[16:])
	copy(h.Name[:], body[24:])
	if h.Min > Version || h.Max < Version {
		return h, &Error{StatusVersion, fmt.Sprintf("versions %d to %d are asked for, %d is spoken", h.Min, h.Max,
			Version)}
	}
	return h, nil
}

// Welcome answers Hello with the limits of this connection. Its fields are those of the frame.
type Welcome struct {
	Version     uint16
	Attached    bool // the arena's memfd comes with this frame
	_           byte
	MaxLeases   uint32 // held at once
	Instance    uint64 // of the daemon; another instance has another arena
	ArenaSize   uint64 // bytes
	LeaseNS     int64  // duration of a lease
	NowNS       int64  // the daemon's CLOCK_MONOTONIC at the time of writing
	MaxLeased   uint64 // bytes under leases at once
	MaxStaging  uint64 // bytes of staging at once
	MaxValue    uint64 // bytes of one block
	MaxSegments uint32 // staging segments at once
	_           [12]byte
}

// AppendWelcome writes the body of a Welcome.
func AppendWelcome(b []byte, w *Welcome) []byte {
	b, _ = binary.Append(b, le, w) // cannot fail: all fields have a fixed size
	return b
}

// ParseWelcome reads the body of a Welcome.
func ParseWelcome(body []byte) (w Welcome) {
	_, _ = binary.Decode(body, le, &w)
	return w
}

// Grant answers one address of a Get. The block's bytes stay unchanged until DeadlineNS, or until
// the lease is released. Later bytes may be another block's.
type Grant struct {
	Lease      uint64
	DeadlineNS int64 // CLOCK_MONOTONIC
	Offset     uint64
	Length     uint32
	CRC        uint32
	Status     Status // the other fields are set only with StatusOK
}

// AppendGrant writes a Grant.
func AppendGrant(b []byte, g *Grant) []byte {
	b = le.AppendUint64(le.AppendUint64(b, g.Lease), uint64(g.DeadlineNS))
	b = le.AppendUint32(le.AppendUint64(b, g.Offset), g.Length)
	return le.AppendUint64(le.AppendUint32(b, g.CRC), uint64(g.Status))
}

// ParseGrant reads the i-th Grant of a body.
func ParseGrant(body []byte, i int) Grant {
	b := body[i*GrantSize:]
	return Grant{
		Lease: le.Uint64(b), DeadlineNS: int64(le.Uint64(b[8:])), Offset: le.Uint64(b[16:]),
		Length: le.Uint32(b[24:]), CRC: le.Uint32(b[28:]), Status: Status(b[32]),
	}
}

// Info describes a stored block, or the result of a Commit.
type Info struct {
	Length uint32
	CRC    uint32
	Uses   uint32
	Tiers  uint8 // bit set: 1 RAM, 2 SSD, 4 another host (Find only); 0: a miss
	Status Status
}

// AppendInfo writes an Info.
func AppendInfo(b []byte, i *Info) []byte {
	b = le.AppendUint32(le.AppendUint32(b, i.Length), i.CRC)
	return append(le.AppendUint32(b, i.Uses), i.Tiers, byte(i.Status), 0, 0)
}

// ParseInfo reads the i-th Info of a body.
func ParseInfo(body []byte, i int) Info {
	b := body[i*InfoSize:]
	return Info{Length: le.Uint32(b), CRC: le.Uint32(b[4:]), Uses: le.Uint32(b[8:]), Tiers: b[12],
		Status: Status(b[13])}
}

// AppendStaged writes the answer to Stage: the segment's id and its size in bytes.
func AppendStaged(b []byte, id uint32, size uint64) []byte {
	return le.AppendUint64(le.AppendUint64(b, uint64(id)), size)
}

// ParseStaged reads the answer to Stage.
func ParseStaged(body []byte) (id uint32, size uint64) { return le.Uint32(body), le.Uint64(body[8:]) }

// These are the flags of a Commit.
const (
	Durable  uint32 = 1 << iota // answer when the block is on disk, written and synced
	CheckCRC                    // refuse unless the payload has the given checksum
	IfAbsent                    // refuse if the address has a block
)

// namesShift is the place of the number of names in the flags of a Commit.
const namesShift = 24

// Commit makes a block from bytes in a staging segment.
type Commit struct {
	Segment   uint32
	Flags     uint32 // below 1<<24; the bits above have the number of names in the frame
	Offset    uint32 // in the segment
	Length    uint32
	CRC       uint32
	Layer     uint32
	Expires   int64 // Unix ms; 0: never
	Digest    block.Digest
	Parent    block.Digest
	Namespace []byte // canonical text; aliases the frame
	// Names are those of an object's blocks of 16 tokens except the last one, 8 bytes each and at
	// most 255; Names aliases the frame.
	Names []byte
}

// Entries returns the count for the header of a Commit: the bytes of the namespace's text and of
// the names. More than MaxBatch do not fit a frame.
func (c *Commit) Entries() int { return len(c.Namespace) + len(c.Names) }

// AppendCommit writes the body of a Commit.
func AppendCommit(b []byte, c *Commit) []byte {
	flags := c.Flags | uint32(len(c.Names)/block.NameBytes)<<namesShift
	for _, v := range [...]uint32{c.Segment, flags, c.Offset, c.Length, c.CRC, c.Layer} {
		b = le.AppendUint32(b, v)
	}
	b = le.AppendUint64(b, uint64(c.Expires))
	b = append(append(b, c.Digest[:]...), c.Parent[:]...)
	return append(append(b, c.Namespace...), c.Names...)
}

// ParseCommit reads the body of a Commit. The error is an *Error if the entries are fewer bytes
// than the names.
func ParseCommit(body []byte) (c Commit, err error) {
	for i, p := range [...]*uint32{&c.Segment, &c.Flags, &c.Offset, &c.Length, &c.CRC, &c.Layer} {
		*p = le.Uint32(body[4*i:])
	}
	c.Expires = int64(le.Uint64(body[24:]))
	copy(c.Digest[:], body[32:])
	copy(c.Parent[:], body[64:])
	entries := body[commitSize:]
	text := len(entries) - int(c.Flags>>namesShift)*block.NameBytes
	if text < 0 {
		return c, &Error{StatusBadFrame, fmt.Sprintf("%d names in %d bytes", c.Flags>>namesShift, len(entries))}
	}
	c.Flags &= 1<<namesShift - 1
	c.Namespace, c.Names = entries[:text], entries[text:]
	return c, nil
}

// Read tells the daemon that a node's engine can read the blocks of a namespace, in all its ranks.
// It counts until the connection ends.
type Read struct {
	End       bool   // the engine no longer reads them
	Node      []byte // id of the node; aliases the frame
	Namespace []byte // canonical text of rank 0; aliases the frame
}

// AppendRead writes the body of a Read. The header's count is the length of both texts together, at
// most MaxBatch.
func AppendRead(b []byte, r *Read) []byte {
	var flags uint16
	if r.End {
		flags = 1
	}
	b = le.AppendUint16(le.AppendUint16(b, uint16(len(r.Node))), flags)
	return append(append(b, r.Node...), r.Namespace...)
}

// ParseRead reads the body of a Read. The error is an *Error if the entries are fewer bytes than
// the node's id, or a flag is unknown.
func ParseRead(body []byte) (r Read, err error) {
	node, flags, texts := int(le.Uint16(body)), le.Uint16(body[2:]), body[readSize:]
	if node > len(texts) || flags > 1 {
		return r, &Error{StatusBadFrame, fmt.Sprintf("a node's id of %d bytes in %d, with flags %#x", node, len(texts),
			flags)}
	}
	return Read{flags == 1, texts[:node], texts[node:]}, nil
}
