package ssd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
)

// A page of graves is a record without a name whose payload, in the header page, says which
// addresses were deleted. It is in the log because the end of the log is believed whatever the rows
// have lost, and because rows that are gone are made again from the segments.
//
// payload: per grave the address [68] · 68 sequence number up to which its records are dead u64 ·
// 76 number of the segment that the grave was first written to u32. Zeros stand for the page's own.
// No record that is dead lies in a segment with a higher number than that, so a grave is over when
// all others up to it are gone; until then reclaim copies it.
const graveSize = addrSize + 12

// graveRoom is how many graves a page takes, sealed or not.
const graveRoom = (page - recordFixed - sealTag) / graveSize

type grave struct {
	addr   block.Addr
	seq    uint64
	behind uint32
}

func encodeGraves(list []grave) []byte {
	b := make([]byte, 0, len(list)*graveSize)
	for i := range list {
		b = appendAddr(b, &list[i].addr)
		b = binary.LittleEndian.AppendUint64(b, list[i].seq)
		b = binary.LittleEndian.AppendUint32(b, list[i].behind)
	}
	return b
}

// decodeGraves reads the payload of the page of graves that h heads.
func decodeGraves(h *header, b []byte) ([]grave, error) {
	if len(b)%graveSize != 0 {
		return nil, fmt.Errorf("%w: graves of odd length", errRecord)
	}
	list := make([]grave, 0, len(b)/graveSize)
	for ; len(b) > 0; b = b[graveSize:] {
		a, _ := parseAddr(b[:addrSize])
		g := grave{a, binary.LittleEndian.Uint64(b[addrSize:]), binary.LittleEndian.Uint32(b[addrSize+8:])}
		if g.seq == 0 {
			g.seq, g.behind = h.seq, h.segment
		}
		list = append(list, g)
	}
	return list, nil
}

// gravesOf reads the page of graves in head, which h was decoded from.
func (t *Tier) gravesOf(s *segment, h *header, head []byte) ([]grave, error) {
	if h.flags&flagInline == 0 {
		return nil, fmt.Errorf("%w: graves that are not inline", errRecord)
	}
	b, err := t.unseal(s, h, head, head[recordFixed+h.names():][:storedSize(h.size, h.flags)], make([]byte, h.size))
	if err != nil {
		return nil, err
	}
	return decodeGraves(h, b)
}

// writeGraves writes a page of at most graveRoom graves. It is durable after a sync of its segment;
// the flight must be landed, when the rows know what it says. moved is as in allocate. The
// addresses of graves with a sequence number of zero must be locked.
func (t *Tier) writeGraves(ctx context.Context, list []grave, moved bool) (*flight, error) {
	payload := encodeGraves(list)
	h := header{size: len(payload), crc: block.Sum(payload), flags: flagGraves | flagInline}
	if t.o.Key != nil {
		h.flags |= flagSealed
	}
	f, err := t.allocate(1, tableEntry{size: uint32(h.size), crc: h.crc, flags: h.flags}, moved)
	if err != nil {
		return nil, err
	}
	h.place, h.seq, h.salt = f.place, f.seq, f.seg.salt
	if err := t.writeRecord(ctx, f.seg, &h, payload, nil); err != nil {
		t.land(f, false)
		return nil, err
	}
	t.budget.take(t.o.now(), 0, page, true)
	t.stats.graves.Add(uint64(len(list)))
	return f, nil
}

// burials are graves on their way to the disk.
type burials struct {
	t       *Tier
	moved   bool // by reclaim
	flights []*flight
}

func (b *burials) write(ctx context.Context, list []grave) (*flight, error) {
	f, err := b.t.writeGraves(ctx, list, b.moved)
	if err == nil {
		b.flights = append(b.flights, f)
	}
	return f, err
}

// sync makes all durable.
func (b *burials) sync() error {
	var last *segment
	for _, f := range b.flights {
		if f.seg == last {
			continue
		}
		if last = f.seg; b.t.datasync(last) != nil || last.failed.Load() {
			return fmt.Errorf("%w: the deletion is not synced", ErrIO)
		}
	}
	return nil
}

func (b *burials) land() {
	for _, f := range b.flights {
		b.t.land(f, true)
	}
}

// carryGraves copies the graves of s that are not over to the end of the log, durably.
func (t *Tier) carryGraves(s *segment, table []tableEntry) error {
	var list []grave
	head := alignedBytes(page)
	for i := range table {
		if table[i].flags&flagGraves == 0 {
			continue
		}
		var h header
		err := s.f.ReadAt([][]byte{head}, int64(table[i].page)*page)
		if err == nil {
			err = h.decode(head)
		}
		var found []grave
		if err == nil && h.salt == s.salt && h.place == (place{s.id, table[i].page}) && h.seq == table[i].seq {
			found, err = t.gravesOf(s, &h, head)
		}
		if err != nil {
			t.stats.corrupt.Add(1)
			t.o.Logger.Error("ssd: deletions cannot be read again; they hold as long as the rows do", "segment", s.id,
				"page", table[i].page, "err", err)
			continue
		}
		list = append(list, found...)
	}
	list = slices.DeleteFunc(list, func(g grave) bool { return !t.holdsUpTo(g.behind, s) })
	t.carried.Store(int64(len(list)) * graveSize)
	b := burials{t: t, moved: true}
	defer b.land()
	for some := range slices.Chunk(list, graveRoom) {
		if _, err := b.write(t.stop, some); err != nil {
			return err
		}
	}
	if err := b.sync(); err != nil {
		return errors.Join(err, t.stop.Err())
	}
	return nil
}

// holdsUpTo tells whether there is a segment with a number up to id, besides s.
func (t *Tier) holdsUpTo(id uint32, s *segment) bool {
	t.segs.mu.RLock()
	defer t.segs.mu.RUnlock()
	for other := range t.segs.byID {
		if other <= id && other != s.id {
			return true
		}
	}
	return false
}
