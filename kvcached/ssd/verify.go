package ssd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
)

// VerifyOptions are the options of Verify.
type VerifyOptions struct {
	Dir string // no tier may have it open
	Key []byte // as in Options
	// Bad is called for each damage. nil: no calls.
	Bad func(Damage)
	// Progress is called after each segment with the bytes read and the total. nil: no calls.
	Progress func(done, total int64)

	fs fileSystem
}

// Damage is one finding of Verify.
type Damage struct {
	File string
	Page uint32     // page of 4 KiB in the file; 0: the segment itself
	Addr block.Addr // zero: unknown
	Err  error
}

// Verified is the result of Verify.
type Verified struct {
	Segments int
	Unsealed int   // number of Segments without a footer, as after a crash
	Unclean  bool  // the last use did not end in a Close, so Open reads the end of the log again
	Records  int   // sound records, with replaced and deleted ones
	Bytes    int64 // of all segments
	Live     int   // blocks in the index, and those that Open finds behind the last checkpoint
	Lost     int   // number of Live blocks without a sound record, which will be misses
	Bad      int   // calls of Bad
	Dropped  bool  // the rows are damaged or missing, so Open drops all blocks
	Skipped  bool  // Skip was called, so Open drops all blocks
}

// Verify reads all files of a directory that no tier has open. It changes only what Open would
// change. It returns ErrLocked, ErrFormat, ErrKey, or the error that ended it. Damage is no error.
func Verify(ctx context.Context, o VerifyOptions) (v Verified, err error) {
	full, err := Options{Dir: o.Dir, Cap: 1 << 50, Key: o.Key, fs: o.fs}.fill()
	if err != nil {
		return v, err
	}
	t := newTier(full)
	defer t.readBuffers.close()
	names, err := full.fs.List(o.Dir)
	if err != nil {
		return v, err
	}
	if len(names) == 0 {
		return v, fmt.Errorf("%w: %s is empty", ErrFormat, o.Dir)
	}
	if t.lock, err = full.fs.Lock(filepath.Join(o.Dir, lockFile)); err != nil {
		return v, err
	}
	defer t.abandon()
	if made, err := checkFormat(&full, false); err != nil {
		return v, err
	} else if !made {
		return v, fmt.Errorf("%w: %s has no file %s; the next start begins with an empty tier", ErrFormat, o.Dir, formatFile)
	}
	w := verifier{t: t, o: &o, v: &v, sound: map[place]uint64{}, fresh: map[block.Addr]uint64{},
		there: map[uint32]bool{}}
	last, err := readProof(&full)
	if errors.Is(err, errProof) {
		w.bad(Damage{File: filepath.Join(o.Dir, proofFile), Err: fmt.Errorf("%w; the next start writes it again", err)})
		err = nil
	}
	if err != nil {
		return v, err
	}
	v.Skipped = slices.Contains(names, skippedFile)
	if err = nil; slices.Contains(names, resetFile) {
		err = errMarked
	} else if !v.Skipped {
		if t.rows, err = openRows(&full); err == nil {
			w.last, err = t.rows.check(&last)
		}
	}
	if v.Dropped = damaged(err); v.Dropped || v.Skipped {
		w.last = last
	}
	if err = w.rowsDamaged(err); err == nil {
		err = w.segments(ctx, names)
	}
	if err == nil && !v.Dropped && !v.Skipped {
		err = w.live()
	}
	return v, err
}

// live counts the blocks that Open finds, by the rows and by the records behind the checkpoint, and
// reports missing segments.
func (w *verifier) live() error {
	dead, err := w.t.readTombstones()
	if err == nil {
		maps.DeleteFunc(w.fresh, func(a block.Addr, seq uint64) bool { return seq <= dead[a] })
		err = w.t.rows.each([]byte{rowRecord}, []byte{rowRecord + 1}, w.row)
	}
	w.v.Live += len(w.fresh)
	newest := slices.Max(append(slices.Collect(maps.Keys(w.there)), 0))
	for _, id := range w.last.missing(newest, func(id uint32) bool { return w.there[id] }) {
		w.bad(Damage{File: segmentName(w.o.Dir, id),
			Err: fmt.Errorf("%w; the blocks written to it since the last checkpoint are lost", errMissing)})
	}
	return w.rowsDamaged(err)
}

// rowsDamaged reports err if it is damage, and otherwise returns it.
func (w *verifier) rowsDamaged(err error) error {
	if !damaged(err) {
		return err
	}
	w.bad(Damage{File: filepath.Join(w.o.Dir, RowsDir), Err: plainError{err}})
	return nil
}

// row checks that the record of a row, or a newer one behind the checkpoint, exists.
func (w *verifier) row(key, value []byte) bool {
	w.v.Live++
	var r row
	a, _ := parseAddr(key[1:])
	fresh := w.fresh[a]
	delete(w.fresh, a)
	if err := r.decode(value); err != nil {
		w.bad(Damage{File: RowsDir, Addr: a, Err: err})
		return true
	}
	again := fresh == r.seq && (!r.before(w.last.place) || w.t.segs.get(r.segment) == nil)
	if w.sound[r.place] == r.seq || fresh > r.seq || again {
		return true
	}
	w.v.Lost++
	if !w.there[r.segment] {
		w.there[r.segment] = true
		w.bad(Damage{File: segmentName(w.o.Dir, r.segment),
			Err: fmt.Errorf("%w, and the index names blocks in it", errMissing)})
	}
	return true
}

// segments checks the segments in the directory.
func (w *verifier) segments(ctx context.Context, names []string) error {
	for _, name := range names {
		if id, ok := segmentID(name); ok {
			w.there[id] = true
			w.v.Unclean = w.v.Unclean || id >= w.last.place.segment
			w.open(filepath.Join(w.o.Dir, name), id)
		}
	}
	for _, s := range w.t.segs.all() {
		if err := w.segment(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

type verifier struct {
	t     *Tier
	o     *VerifyOptions
	v     *Verified
	sound map[place]uint64      // sequence numbers
	fresh map[block.Addr]uint64 // sequence numbers of the newest sound records behind the checkpoint
	total int64

	last  checkpoint
	there map[uint32]bool // segments in the directory, and those reported missing
}

func (w *verifier) bad(d Damage) {
	w.v.Bad++
	if w.o.Bad != nil {
		w.o.Bad(d)
	}
}

func (w *verifier) open(name string, id uint32) {
	s, err := w.t.openSegment(name, id)
	if err != nil {
		w.bad(Damage{File: name, Err: err})
		return
	}
	w.t.segs.add(s)
	w.v.Segments++
	w.total += s.size.Load()
}

// segment checks every record of s, and that the records in its footer exist.
func (w *verifier) segment(ctx context.Context, s *segment) error {
	failed := w.t.stats.readErrors.Load()
	end := uint64(1)
	told := map[uint32]bool{} // pages of the damaged records
	err := w.t.walk(ctx, s, 1, s.pageCount(), true, func(h *header, head []byte, damage error) {
		end = max(end, uint64(h.page)+uint64(h.pages()))
		if damage != nil {
			w.bad(Damage{File: s.name, Page: h.page, Addr: h.Addr, Err: damage})
			told[h.page] = true
			return
		}
		w.sound[h.place] = h.seq
		if h.flags&flagGraves != 0 {
			return
		}
		w.v.Records++
		if !h.place.before(w.last.place) {
			w.fresh[h.Addr] = max(w.fresh[h.Addr], h.seq)
		}
	})
	if err != nil {
		return err
	}
	if n := w.t.stats.readErrors.Load() - failed; n > 0 {
		w.bad(Damage{File: s.name, Err: fmt.Errorf("%w: %d reads", ErrIO, n)})
	}
	table, err := footerOf(s)
	if err != nil {
		w.v.Unsealed++
		// An unsealed segment always has room for a footer.
		if size := s.size.Load(); size%page != 0 || end >= uint64(s.pageCount()) {
			w.bad(Damage{File: s.name, Err: fmt.Errorf("%w: it was cut short, to %d bytes", errSegment, size)})
		}
	}
	for i := range table {
		e := &table[i]
		if seq, ok := w.sound[place{s.id, e.page}]; (!ok || seq != e.seq) && !told[e.page] {
			w.bad(Damage{File: s.name, Page: e.page, Addr: e.addr,
				Err: fmt.Errorf("%w: the footer names a record that is not there", errRecord)})
		}
	}
	w.v.Bytes += s.size.Load()
	if w.o.Progress != nil {
		w.o.Progress(w.v.Bytes, w.total)
	}
	return nil
}
