package ssd

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"

	"github.com/cognitora/dataplane/kv/block"
)

// openRows opens the rows and reads from where a start would read the log again. Damaged rows are
// no error; Tier.rows is nil if they cannot be opened.
func (w *verifier) openRows(o *Options) (err error) {
	last, err := readProof(o)
	if errors.Is(err, errProof) {
		w.bad(Damage{File: filepath.Join(o.Dir, proofFile), Err: fmt.Errorf("%w; the next start writes it again", err)})
		err = nil
	}
	if err != nil {
		return err
	}
	w.from = last.place
	w.t.tail = &tail{from: place{1<<32 - 1, 0}, records: map[place]uint64{}}
	if w.t.rows, err = openRows(o); err != nil {
		return w.rowsDamaged(err)
	}
	b, closer, err := w.t.rows.db.Get([]byte{rowCheckpoint})
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return w.rowsDamaged(err)
	}
	var c checkpoint
	err = c.decode(b)
	_ = closer.Close()
	switch {
	case err != nil:
		return w.rowsDamaged(err)
	case c.place.before(last.place) || c.seq < last.seq:
		return w.rowsDamaged(errOlder)
	}
	w.from = c.place
	w.t.tail.from, w.t.tail.to = c.place, 1<<32-1
	w.dead, err = w.t.readTombstones()
	return w.rowsDamaged(err)
}

// rowsDamaged reports err if it is damage, and returns it if it is not.
func (w *verifier) rowsDamaged(err error) error {
	if !damaged(err) {
		return err
	}
	w.bad(Damage{File: filepath.Join(w.o.Dir, rowsDir), Err: err})
	return nil
}

// missing reports the segments that must be there: none is removed before a checkpoint has passed
// it.
func (w *verifier) missing() {
	last := readNewest(&w.t.o)
	for id := range w.there {
		last = max(last, id)
	}
	first := max(w.from.segment, 1)
	w.v.Unclean = last >= first
	gone := 0
	for id := uint64(first); id <= uint64(last); id++ {
		if w.there[uint32(id)] {
			continue
		}
		if gone++; gone > mostMissing {
			return
		}
		w.gone(uint32(id), "the last checkpoint had not passed it")
	}
}

// gone reports a missing segment.
func (w *verifier) gone(id uint32, why string) {
	w.there[id] = true
	w.bad(Damage{File: segmentName(w.o.Dir, id), Err: fmt.Errorf("%w: it is missing, and %s", errSegment, why)})
}

// mostMissing is how many missing segments are reported: a damaged file name must not bring about
// endless ones.
const mostMissing = 1000

// behind takes up a sound record behind the checkpoint, as recover does.
func (w *verifier) behind(s *segment, h *header, head []byte) {
	if h.before(w.t.tail.from) {
		return
	}
	w.t.tail.records[h.place] = h.seq
	if h.flags&flagGraves != 0 {
		list, err := w.t.gravesOf(s, h, head)
		if err != nil {
			w.bad(Damage{File: s.name, Page: h.page, Err: err})
		}
		for i := range list {
			w.grave(&list[i])
		}
		return
	}
	if h.seq <= w.dead[h.Addr] {
		return
	}
	old, ok := w.rowNow(&h.Addr)
	if ok && (old.seq > h.seq || old.seq == h.seq && w.t.stands(&old)) {
		return
	}
	w.dead[h.Addr] = h.seq - 1
	r := rowOf(h)
	r.key, r.attr = nil, nil
	w.found[h.Addr] = &r
}

func (w *verifier) grave(g *grave) {
	if w.dead[g.addr] >= g.seq {
		return
	}
	if old, ok := w.rowNow(&g.addr); ok && old.seq > g.seq {
		return
	}
	w.dead[g.addr] = g.seq
	w.found[g.addr] = nil
}

// rowNow is the row that a has by now.
func (w *verifier) rowNow(a *block.Addr) (row, bool) {
	if r, ok := w.found[*a]; ok {
		if r == nil {
			return row{}, false
		}
		return *r, true
	}
	r, ok, err := w.t.rows.get(a)
	return r, ok && err == nil
}

func (w *verifier) row(key, value []byte) bool {
	a, _ := parseAddr(key[1:])
	if r, ok := w.found[a]; ok {
		if delete(w.found, a); r != nil {
			w.v.Rows++
		}
		return true
	}
	w.v.Rows++
	var r row
	if err := r.decode(value); err != nil {
		w.bad(Damage{File: rowsDir, Addr: a, Err: err})
		return true
	}
	if seq, ok := w.sound[r.place]; !ok || seq != r.seq {
		w.v.Lost++
		if !w.there[r.segment] {
			w.gone(r.segment, "the index names blocks in it")
		}
	}
	return true
}

// foundLeft counts what a start would find and the rows do not have.
func (w *verifier) foundLeft() {
	for _, r := range w.found {
		if r != nil {
			w.v.Rows++
		}
	}
}
