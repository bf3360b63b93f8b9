package ssd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
)

// seqJump is added to the sequence number at each start, to pass numbers that were not written.
const seqJump = 1 << 20

// tail has the records behind the checkpoint. A row that points there without a record is dropped.
type tail struct {
	from    place
	to      uint32           // the first segment that is younger than this start
	records map[place]uint64 // sequence numbers
}

// vouches tells whether the record of a row may exist.
func (l *tail) vouches(r *row) bool {
	if l == nil || r.before(l.from) || r.segment >= l.to {
		return true
	}
	seq, ok := l.records[r.place]
	return ok && seq == r.seq
}

// recover reads checkpoint, tombstones and names, opens the segments, and reads the records behind
// the checkpoint.
func (t *Tier) recover(ctx context.Context) error {
	c, err := t.rows.checkpoint()
	if err != nil {
		return err
	}
	t.log.seq, t.log.segment = c.seq, max(c.segment, 1)
	t.budget.day, t.budget.used = c.day, c.written
	if err := t.readNames(); err != nil {
		return err
	}
	if err := t.openSegments(c.place); err != nil {
		return err
	}
	dead, err := t.readTombstones()
	if err != nil {
		return err
	}
	t.tail = &tail{from: c.place, to: t.log.segment, records: map[place]uint64{}}
	segments := t.segs.all()
	t.warnMissing(&c, segments)
	for _, s := range segments {
		if s.id < c.place.segment {
			continue
		}
		if err := t.recoverSegment(ctx, s, dead); err != nil {
			return err
		}
	}
	t.log.seq += seqJump
	return nil
}

// warnMissing logs the missing segments behind the checkpoint.
func (t *Tier) warnMissing(c *checkpoint, segments []*segment) {
	newest := uint32(0)
	if len(segments) > 0 {
		newest = segments[len(segments)-1].id
	}
	missing := c.missing(newest, func(id uint32) bool { return t.segs.get(id) != nil })
	for _, id := range missing {
		t.warnDamaged("ssd: a segment is missing; the blocks written to it since the last checkpoint are lost, durable "+
			"ones too", place{segment: id}, errMissing)
	}
	t.load.there, t.load.gone = map[uint32]bool{}, map[uint32]bool{}
	for _, s := range segments {
		t.load.there[s.id] = true
	}
	for _, id := range missing {
		t.load.gone[id] = true
	}
}

func (t *Tier) readNames() error {
	return t.rows.each([]byte{rowNamespace}, []byte{rowNamespace + 1}, func(key, value []byte) bool {
		if len(key) == 1+len(block.ModelID{}) {
			t.names.set(block.ModelID(key[1:]), string(value))
		}
		return true
	})
}

// readTombstones returns, for each address, the sequence number up to which its records are dead.
func (t *Tier) readTombstones() (map[block.Addr]uint64, error) {
	dead := map[block.Addr]uint64{}
	err := t.rows.each([]byte{rowTombstone}, []byte{rowTombstone + 1}, func(key, value []byte) bool {
		if len(key) != 9+addrSize || len(value) != 8 {
			return true
		}
		a, _ := parseAddr(key[9:])
		seq := binary.LittleEndian.Uint64(value)
		dead[a] = max(dead[a], seq)
		t.log.seq = max(t.log.seq, seq)
		return true
	})
	return dead, err
}

// openSegments opens the segments in the directory. A bad first page behind the checkpoint means
// that the crash happened while the segment was made. Before the checkpoint it is damage, which
// costs all of the segment's records.
func (t *Tier) openSegments(from place) error {
	names, err := t.o.fs.List(t.o.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		id, ok := segmentID(name)
		if strings.HasPrefix(name, sparePrefix) {
			if err := t.o.fs.Remove(filepath.Join(t.o.Dir, name)); err != nil {
				return err
			}
		}
		if !ok {
			continue
		}
		t.log.segment = max(t.log.segment, id+1)
		full := filepath.Join(t.o.Dir, name)
		s, err := t.openSegment(full, id)
		if errors.Is(err, errSegment) || errors.Is(err, io.ErrUnexpectedEOF) {
			if id < from.segment {
				t.stats.corrupt.Add(1)
				t.o.Logger.Error("ssd: a segment is damaged and dropped", "file", full, "err", err)
			}
			if err := t.o.fs.Remove(full); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("ssd: opening %s: %w", full, err)
		}
		t.disk.Add(s.size.Load())
		t.segs.add(s)
	}
	return nil
}

// recoverSegment reads the records of s behind the checkpoint, writes rows that are missing or
// older, and seals s.
func (t *Tier) recoverSegment(ctx context.Context, s *segment, dead map[block.Addr]uint64) error {
	from := uint32(1)
	if s.id == t.tail.from.segment {
		from = max(from, t.tail.from.page)
	}
	if from > 1 {
		// Records before the checkpoint are only needed for the footer.
		if err := t.walk(ctx, s, 1, from, false, func(h *header, _ []byte, _ error) { s.note(h) }); err != nil {
			return err
		}
	}
	batch := t.rows.change()
	var failed error
	err := t.walk(ctx, s, from, s.pageCount(), true, func(h *header, head []byte, damage error) {
		t.log.seq = max(t.log.seq, h.seq)
		// A record that was being written at the checkpoint counts twice.
		t.budget.take(t.o.now(), 0, int64(h.pages())*page, true)
		if damage != nil {
			t.stats.torn.Add(1)
			if r, ok, err := t.rows.get(&h.Addr); err != nil || !ok || r.place != h.place { // else dropRow warns
				t.warnDamaged("ssd: a record written since the last checkpoint is damaged, or a crash left it "+
					"unfinished; it is dropped", h.place, damage)
			}
			return
		}
		s.note(h)
		t.tail.records[h.place] = h.seq
		if h.flags&flagGraves != 0 {
			return
		}
		if err := t.recoverRecord(&batch, h, dead); err != nil && failed == nil {
			failed = err
		}
	})
	if err = errors.Join(err, failed); err != nil {
		batch.discard()
		return err
	}
	if err := batch.commit(false); err != nil {
		return fmt.Errorf("ssd: writing rows: %w", err)
	}
	if len(s.table) == 0 {
		t.retire(s)
		return nil
	}
	s.next = s.table[len(s.table)-1].page + s.table[len(s.table)-1].pages()
	t.log.open = append(t.log.open, s)
	if err := t.sealSegment(s); err != nil {
		t.writeFailed("seal", err)
	}
	s.sealed.Store(true)
	s.table = nil
	return nil
}

func (s *segment) note(h *header) {
	s.table = append(s.table, tableEntry{addr: h.Addr, seq: h.seq, page: h.page, size: uint32(h.size), crc: h.crc,
		flags: h.flags})
}

// recoverRecord writes the row of a record if it is the newest of its address.
func (t *Tier) recoverRecord(batch *change, h *header, dead map[block.Addr]uint64) error {
	if h.seq <= dead[h.Addr] {
		return nil
	}
	old, ok, err := t.rows.get(&h.Addr)
	if errors.Is(err, errRow) {
		ok, err = false, nil
	}
	if err != nil {
		// Nobody can tell which of the two records is newer.
		t.stats.readErrors.Add(1)
		return nil
	}
	if ok && (old.seq > h.seq || old.seq == h.seq && t.segs.get(old.segment) != nil && t.tail.vouches(&old)) {
		return nil
	}
	if err := t.names.ensure(t.rows, h.Addr.Model, h.Namespace); err != nil {
		return err
	}
	// Rows of the batch cannot be read yet. The mark keeps older copies further on from replacing
	// this record.
	dead[h.Addr] = h.seq - 1
	r := rowOf(h)
	batch.put(&h.Addr, &r)
	return nil
}

// errCut says that the file ends within a record.
var errCut = fmt.Errorf("%w: the file ends within it", errRecord)

// walkWindow is how many bytes of a segment are read at once.
const walkWindow = 1 << 20

// walk calls visit, in order, for each record of s whose header page is in [from, to). visit gets
// the record and that page. It skips pages that are no header, or that cannot be read, and counts
// the unreadable ones. It also reads payloads if verify is set. damage then says what is wrong with
// a payload.
func (t *Tier) walk(ctx context.Context, s *segment, from, to uint32, verify bool,
	visit func(h *header, head []byte, damage error)) error {
	window := alignedBytes(walkWindow)
	var dst []byte
	start, have := from, uint32(0) // pages in the window
	for p := from; p < to; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if p < start || p >= start+have {
			start, have = p, min(walkWindow/page, to-p)
			if err := s.f.ReadAt([][]byte{window[:have*page]}, int64(p)*page); err != nil {
				t.stats.readErrors.Add(1)
				have = 1
				if err := s.f.ReadAt([][]byte{window[:page]}, int64(p)*page); err != nil {
					p, have = p+1, 0
					continue
				}
			}
		}
		head := window[(p-start)*page:][:page]
		var h header
		if h.decode(head) != nil || h.segment != s.id || h.page != p || h.salt != s.salt {
			p++
			continue
		}
		cut := uint64(p)+uint64(h.pages()) > uint64(s.pageCount())
		var damage error
		switch {
		case cut && !verify:
			p++
			continue
		case cut:
			damage = errCut
		case verify:
			if cap(dst) < roundUp(h.size) {
				dst = alignedBytes(roundUp(h.size))
			}
			damage = t.verifyAt(ctx, s, &h, window[(p-start)*page:have*page], dst[:h.size])
		}
		visit(&h, head, damage)
		if damage != nil {
			// The record's length may be wrong, so the next record may begin on any page.
			p++
			continue
		}
		p += h.pages()
	}
	return nil
}

// verifyAt checks the record of h, which begins the window. It reads again only if the window does
// not hold the whole record.
func (t *Tier) verifyAt(ctx context.Context, s *segment, h *header, window, dst []byte) error {
	stored := storedSize(h.size, h.flags)
	switch {
	case h.flags&flagInline != 0:
		_, err := t.unseal(s, h, window[:page], window[recordFixed+h.names():][:stored], dst)
		return err
	case page+stored <= len(window):
		_, err := t.unseal(s, h, window[:page], window[page:page+stored], dst)
		return err
	}
	var again header
	head := t.pages.Get().(*[page]byte)
	defer t.pages.Put(head)
	_, err := t.readRecord(ctx, s, &again, head[:], h.place, h.size, h.flags, dst)
	return err
}
