package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// Sizes of one element of the registry's messages, in bytes.
const (
	sizeHolder = 4 + 4 + 8
	sizeChange = sizeAddr + 4 + 8
)

var (
	errHost    = fmt.Errorf("%w: a host's name of more than %d bytes", BadFrame, MaxHost)
	errHosts   = fmt.Errorf("%w: more than %d hosts", TooLarge, MaxHosts)
	errHolders = fmt.Errorf("%w: more than %d hosts of one address", TooLarge, MaxHolders)
	errIndex   = fmt.Errorf("%w: a host that is not in the list", BadFrame)
)

// Holder is one host that has a block.
type Holder struct {
	Host   uint32 // index into Locations.Hosts
	Tiers  uint32 // reserved; 1
	Length uint64 // length of the block in bytes; 0: not known
}

// Locations is the answer to Locate. Holders lists the holders of each address of the request, in
// the request's order.
type Locations struct {
	Hosts   []string
	Holders [][]Holder // at most MaxHolders for each address; an empty list: no holder is known
}

// Append appends the encoded body to b.
func (l *Locations) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(len(l.Hosts)))
	for _, h := range l.Hosts {
		b = append(le.AppendUint64(b, uint64(len(h))), h...)
	}
	b = le.AppendUint64(b, uint64(len(l.Holders)))
	for _, holders := range l.Holders {
		b = le.AppendUint64(b, uint64(len(holders)))
		for _, h := range holders {
			b = le.AppendUint32(le.AppendUint32(b, h.Host), h.Tiers)
			b = le.AppendUint64(b, h.Length)
		}
	}
	return b
}

// ParseLocations reads the answer to a Locate with n addresses.
func ParseLocations(body []byte, n int) (*Locations, error) {
	c := cursor{rest: body}
	l := &Locations{}
	for range c.length(MaxHosts, errHosts) {
		l.Hosts = append(l.Hosts, string(c.bytes(MaxHost, errHost)))
		if !c.ok() {
			return nil, c.end()
		}
	}
	if got := c.length(MaxBatch, errBatch); c.ok() && got != n {
		return nil, errBodyLen
	}
	for range n {
		holders, err := c.holders(uint32(len(l.Hosts)))
		if err != nil {
			return nil, err
		}
		l.Holders = append(l.Holders, holders)
	}
	if err := c.end(); err != nil {
		return nil, err
	}
	return l, nil
}

func (c *cursor) holders(hosts uint32) ([]Holder, error) {
	n := c.length(MaxHolders, errHolders)
	var out []Holder
	for range n {
		h := Holder{c.u32(), c.u32(), c.u64()}
		if c.ok() && h.Host >= hosts {
			return nil, errIndex
		}
		out = append(out, h)
	}
	if !c.ok() {
		return nil, c.end()
	}
	return out, nil
}

// Change says that a host now has a block, or that it has lost the block.
type Change struct {
	Addr   block.Addr
	Tiers  uint32 // bit set of tiers, as in Info; 0: the host has lost the block
	Length uint64 // length of the block, in bytes
}

// Announcement is the body of Announce. A host sends an Announcement to tell a keeper which blocks
// it holds. Changes of one epoch are numbered without gaps. Version is the number of the first
// change here. With the flag Snapshot, Version is the number of the last change that the snapshot
// contains.
type Announcement struct {
	Host    string // the host's name in the answers to Locate
	Epoch   uint64 // a new number at each start of the host's daemon
	Version uint64
	Changes []Change // at most MaxBatch
}

// Append appends the body: host, epoch, version and changes.
func (a *Announcement) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(le.AppendUint64(b, uint64(len(a.Host))), a.Host...)
	b = le.AppendUint64(le.AppendUint64(b, a.Epoch), a.Version)
	b = le.AppendUint64(b, uint64(len(a.Changes)))
	for i := range a.Changes {
		ch := &a.Changes[i]
		b = le.AppendUint64(le.AppendUint32(appendAddr(b, &ch.Addr), ch.Tiers), ch.Length)
	}
	return b
}

// ParseAnnouncement reads the body of Announce.
func ParseAnnouncement(body []byte) (*Announcement, error) {
	c := cursor{rest: body}
	a := &Announcement{Host: string(c.bytes(MaxHost, errHost)), Epoch: c.u64(), Version: c.u64()}
	n := c.length(MaxBatch, errBatch)
	if c.ok() && len(c.rest) != n*sizeChange {
		return nil, errBodyLen
	}
	if !c.ok() {
		return nil, c.end()
	}
	a.Changes = make([]Change, n)
	for i := range a.Changes {
		ch := &a.Changes[i]
		c.addr(&ch.Addr)
		ch.Tiers, ch.Length = c.u32(), c.u64()
	}
	return a, c.end()
}

// Receipt is the answer to Announce: the last change that the keeper has of the host. The host
// sends a snapshot if the epoch is not its own or if it did not expect the version.
type Receipt struct {
	Epoch, Version uint64
}

// Append appends the encoded body to b.
func (r Receipt) Append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, r.Epoch), r.Version)
}

// ParseReceipt reads the body of an answer to Announce.
func ParseReceipt(body []byte) (Receipt, error) {
	c := cursor{rest: body}
	r := Receipt{c.u64(), c.u64()}
	return r, c.end()
}
