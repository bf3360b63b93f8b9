package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// Bounds of Connect, Grant and Release.
const (
	MaxRails = 8    // pairs of network cards in one session
	MaxGrant = 256  // addresses in one Grant
	MaxDone  = 256  // grants that one message gives back
	MaxProbe = 4096 // bytes of a probe: the longest payload of a RoCE packet
)

// Sizes of one element, in bytes.
const (
	sizeEnd      = 16 + 4 + 4 + 4 + 4
	sizeWindow   = 4 + 4 + 8 + 8
	leastGranted = 1
)

var (
	errRails = fmt.Errorf("%w: more than %d rails", TooLarge, MaxRails)
	errGrant = fmt.Errorf("%w: more than %d blocks to be granted", TooLarge, MaxGrant)
	errDone  = fmt.Errorf("%w: more than %d grants", TooLarge, MaxDone)
	errParts = fmt.Errorf("%w: windows that are not the block", BadFrame)
	errFlag  = fmt.Errorf("%w: neither true nor false", BadFrame)
)

// End is one end of a queue pair between two network cards.
type End struct {
	GID [16]byte // address of the card's port
	QPN uint32   // number of the queue pair; 0: there is none
	PSN uint32
	MTU uint32 // largest payload of a packet, in bytes
	// Reads is the number of RDMA reads that the card answers at a time.
	Reads uint32
}

// Window is a piece of memory that the peer can read through one queue pair.
type Window struct {
	Rail   uint32 // the queue pair, an index into Connection.Ends
	RKey   uint32
	Addr   uint64
	Length uint64 // length of the memory, in bytes
}

// Connection is the body of Connect: the requester wants to read blocks with RDMA over these queue
// pairs.
type Connection struct {
	Ends []End // one for each rail
}

// Connected is the answer to Connect.
type Connected struct {
	Session uint64
	GrantMS uint32   // lifetime of a grant, in ms
	IdleMS  uint32   // the session ends after this time without use, in ms
	Most    uint32   // addresses that one Grant may name, at most MaxGrant
	CRC     uint32   // CRC32C of the content of each probe
	Ends    []End    // one for each requested rail; QPN 0: the rail is not available
	Probes  []Window // one for each rail: memory that the requester reads to try the rail
}

// Append appends the body.
func (c *Connection) Append(b []byte) []byte {
	return appendEnds(b, c.Ends)
}

// ParseConnection reads the body of Connect.
func ParseConnection(body []byte) (*Connection, error) {
	c := cursor{rest: body}
	out := &Connection{Ends: c.ends()}
	return out, c.end()
}

func appendEnds(b []byte, ends []End) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(len(ends)))
	for i := range ends {
		e := &ends[i]
		b = le.AppendUint32(le.AppendUint32(append(b, e.GID[:]...), e.QPN), e.PSN)
		b = le.AppendUint32(le.AppendUint32(b, e.MTU), e.Reads)
	}
	return b
}

func (c *cursor) ends() (out []End) {
	for range c.count(MaxRails, sizeEnd, errRails) {
		var e End
		copy(e.GID[:], c.take(len(e.GID)))
		e.QPN, e.PSN, e.MTU, e.Reads = c.u32(), c.u32(), c.u32(), c.u32()
		out = append(out, e)
	}
	return out
}

// count reads the number of the elements that follow. Each element has at least size bytes.
func (c *cursor) count(bound uint64, size int, beyond error) int {
	n := c.length(bound, beyond)
	if c.ok() && len(c.rest) < n*size {
		c.short = true
		return 0
	}
	return n
}

func appendWindow(b []byte, w *Window) []byte {
	le := binary.LittleEndian
	return le.AppendUint64(le.AppendUint64(le.AppendUint32(le.AppendUint32(b, w.Rail), w.RKey), w.Addr), w.Length)
}

func (c *cursor) window() Window { return Window{c.u32(), c.u32(), c.u64(), c.u64()} }

// Append appends the body.
func (a *Connected) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(le.AppendUint32(le.AppendUint64(b, a.Session), a.GrantMS), a.IdleMS)
	b = appendEnds(le.AppendUint32(le.AppendUint32(b, a.Most), a.CRC), a.Ends)
	for i := range a.Probes {
		b = appendWindow(b, &a.Probes[i])
	}
	return b
}

// ParseConnected reads the answer to a Connect with that number of rails.
func ParseConnected(body []byte, rails int) (*Connected, error) {
	c := cursor{rest: body}
	a := &Connected{Session: c.u64(), GrantMS: c.u32(), IdleMS: c.u32(), Most: c.u32(), CRC: c.u32(), Ends: c.ends()}
	if c.ok() && (len(a.Ends) != rails || len(c.rest) != rails*sizeWindow) {
		return nil, errBodyLen
	}
	for range a.Ends {
		a.Probes = append(a.Probes, c.window())
	}
	if err := c.end(); err != nil {
		return nil, err
	}
	for i := range a.Probes {
		if w := &a.Probes[i]; w.Rail != uint32(i) || w.Length > MaxProbe {
			return nil, errParts
		}
	}
	return a, nil
}

// GrantOf returns the number of the grant that a Grant message begins. request is the Request of
// the message's frame. The requester knows the number without an answer and can give the grant
// back. An owner of an older version numbers its grants in another way, so it has no grant of that
// number.
func GrantOf(request uint64) uint64 { return request | 1<<63 }

// Wanted is the body of Grant: the requester wants to read Addrs and gives back the grants in Done.
type Wanted struct {
	Session uint64
	Done    []uint64     // grants, at most MaxDone; some, numbered by GrantOf, may never have begun
	Addrs   []block.Addr // at most MaxGrant
}

// Append appends the body.
func (w *Wanted) Append(b []byte) []byte {
	return AppendAddrs(appendNumbers(binary.LittleEndian.AppendUint64(b, w.Session), w.Done), w.Addrs)
}

// ParseWanted reads the body of Grant.
func ParseWanted(body []byte) (*Wanted, error) {
	c := cursor{rest: body}
	w := &Wanted{Session: c.u64(), Done: c.numbers()}
	n := c.length(MaxGrant, errGrant)
	if c.ok() && len(c.rest) != n*sizeAddr {
		return nil, errBodyLen
	}
	if !c.ok() {
		return nil, c.end()
	}
	w.Addrs = make([]block.Addr, n)
	for i := range w.Addrs {
		c.addr(&w.Addrs[i])
	}
	return w, c.end()
}

func appendNumbers(b []byte, numbers []uint64) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(len(numbers)))
	for _, n := range numbers {
		b = le.AppendUint64(b, n)
	}
	return b
}

func (c *cursor) numbers() (out []uint64) {
	for range c.count(MaxDone, 8, errDone) {
		out = append(out, c.u64())
	}
	return out
}

// Granted is the answer to Grant. One grant covers all its blocks.
type Granted struct {
	Grant  uint64 // GrantOf of the request; 0: nothing is granted
	MS     uint32 // lifetime of the grant, in ms
	Blocks []GrantedBlock
}

// GrantedBlock is the answer about one address. A GrantedBlock whose status is not OK has only the
// status.
type GrantedBlock struct {
	Status  Status // ByStream: Get serves the block
	CRC     uint32 // CRC32C of the whole block
	Length  uint64 // length of the block, in bytes
	Parent  block.Digest
	Expires int64 // Unix ms; 0: never
	Key     []byte
	Attr    []byte
	Parts   []Window // the block's bytes in order, at most MaxRails parts
}

// Append appends the body.
func (l *Granted) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(le.AppendUint32(le.AppendUint64(b, l.Grant), l.MS), uint64(len(l.Blocks)))
	for i := range l.Blocks {
		b = l.Blocks[i].append(b)
	}
	return b
}

// Size is how many bytes of the body the block takes.
func (e *GrantedBlock) Size() int {
	if e.Status != OK {
		return leastGranted
	}
	return leastGranted + 4 + 8 + 32 + 8 + 8 + len(e.Key) + 8 + len(e.Attr) + 8 + len(e.Parts)*sizeWindow
}

func (e *GrantedBlock) append(b []byte) []byte {
	b = append(b, byte(e.Status))
	if e.Status != OK {
		return b
	}
	le := binary.LittleEndian
	b = append(le.AppendUint64(le.AppendUint32(b, e.CRC), e.Length), e.Parent[:]...)
	b = appendBytes(appendBytes(le.AppendUint64(b, uint64(e.Expires)), e.Key), e.Attr)
	b = le.AppendUint64(b, uint64(len(e.Parts)))
	for i := range e.Parts {
		b = appendWindow(b, &e.Parts[i])
	}
	return b
}

// ParseGranted reads the answer to a Grant of n addresses in a session with that number of rails.
// The byte strings of a Granted are parts of body.
func ParseGranted(body []byte, n, rails int) (*Granted, error) {
	c := cursor{rest: body}
	l := &Granted{Grant: c.u64(), MS: c.u32()}
	if got := c.count(MaxGrant, leastGranted, errGrant); c.ok() && got != n {
		return nil, errBodyLen
	}
	if !c.ok() {
		return nil, c.end()
	}
	l.Blocks = make([]GrantedBlock, n)
	for i := range l.Blocks {
		if err := c.granted(&l.Blocks[i], uint32(rails)); err != nil {
			return nil, err
		}
	}
	return l, c.end()
}

func (c *cursor) granted(e *GrantedBlock, rails uint32) error {
	if e.Status = Status(c.u8()); e.Status != OK {
		return nil
	}
	e.CRC, e.Length = c.u32(), c.u64()
	c.digest(&e.Parent)
	e.Expires = int64(c.u64())
	e.Key, e.Attr = c.bytes(block.MaxKey, errKey), c.bytes(block.MaxAttr, errAttr)
	left, fits := e.Length, e.Length <= MaxBody
	for range c.count(MaxRails, sizeWindow, errRails) {
		w := c.window()
		fits = fits && w.Rail < rails && w.Length > 0 && w.Length <= left
		left -= w.Length
		e.Parts = append(e.Parts, w)
	}
	if !c.ok() {
		return c.end()
	}
	if !fits || left != 0 {
		return errParts
	}
	return nil
}

// Returned is the body of Release: the requester has read the blocks of Grants.
type Returned struct {
	Session uint64
	Grants  []uint64 // numbers of grants, as in Wanted.Done
	End     bool     // the session ends, with all its grants
}

// Append appends the body.
func (r *Returned) Append(b []byte) []byte {
	b = appendNumbers(binary.LittleEndian.AppendUint64(b, r.Session), r.Grants)
	return AppendBools(b, []bool{r.End})
}

// ParseReturned reads the body of Release.
func ParseReturned(body []byte) (*Returned, error) {
	c := cursor{rest: body}
	r := &Returned{Session: c.u64(), Grants: c.numbers()}
	end := c.u8()
	if r.End = end == 1; end > 1 {
		return nil, errFlag
	}
	return r, c.end()
}
