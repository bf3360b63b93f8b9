package ssd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
)

// Rows that are damaged or gone are made again from the segments, while the tier serves: from the
// headers of all records and from the graves. The highest sequence number of an address is right.
// What rows alone know is lost with them: a later end that a block was given. What a client calls
// by a key of its own may be older than what reclaim has evicted: it is dropped.

// rebuildFile says that rows were found damaged: the next Open makes them again.
const rebuildFile = "REBUILD"

// damaged tells whether err, which rows gave, means that their files are damaged or incomplete, not
// that the system refused.
func damaged(err error) bool {
	if err == nil || errors.Is(err, ErrReadOnly) {
		return false
	}
	var errno syscall.Errno
	return !errors.As(err, &errno) && !errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist)
}

// markDamaged has the next Open make the rows again.
func (t *Tier) markDamaged(why error) {
	if t.marked.Swap(true) {
		return
	}
	t.o.Logger.Error("ssd: the rows of the index are damaged; the next start makes them again from the segments", "dir",
		t.o.Dir, "err", why)
	f, _, err := t.o.fs.Create(filepath.Join(t.o.Dir, rebuildFile))
	if err == nil {
		err = errors.Join(f.Close(), t.o.fs.SyncDir(t.o.Dir))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		t.writeFailed("mark", err)
	}
}

// openIndex opens the rows of a directory that is not new; if they are damaged, they are made
// again.
func (t *Tier) openIndex(ctx context.Context) error {
	names, err := t.o.fs.List(t.o.Dir)
	if err != nil {
		return err
	}
	last, err := readProof(&t.o)
	if errors.Is(err, errProof) {
		t.o.Logger.Warn("ssd: the copy of the checkpoint is damaged; it is written again", "dir", t.o.Dir)
		err = nil
	}
	if err != nil {
		return err
	}
	marked := slices.Contains(names, rebuildFile)
	var why error
	if !marked {
		if t.rows, why = openRows(&t.o); why == nil {
			why = t.checkRows(&last)
		}
		if why == nil {
			return nil
		}
		if !damaged(why) {
			return why
		}
	}
	t.o.Logger.Error("ssd: the rows of the index are damaged; they are made again from the segments, without blocks "+
		"that clients named",
		"dir", t.o.Dir, "err", why)
	if err := t.resetRows(ctx, names, &last); err != nil {
		return fmt.Errorf("ssd: making the rows of %s again: %w", t.o.Dir, err)
	}
	if marked {
		return errors.Join(t.o.fs.Remove(filepath.Join(t.o.Dir, rebuildFile)), t.o.fs.SyncDir(t.o.Dir))
	}
	return nil
}

// checkRows reads the rows without which no start is possible. They must know the last checkpoint.
func (t *Tier) checkRows(last *checkpoint) error {
	b, closer, err := t.rows.db.Get([]byte{rowCheckpoint})
	if errors.Is(err, pebble.ErrNotFound) {
		return errors.New("ssd: the checkpoint is missing")
	}
	if err != nil {
		return err
	}
	var c checkpoint
	err = c.decode(b)
	_ = closer.Close()
	if err == nil && (c.place.before(last.place) || c.seq < last.seq) {
		err = errOlder
	}
	each := func([]byte, []byte) bool { return true }
	return errors.Join(err, t.rows.each([]byte{rowNamespace}, []byte{rowNamespace + 1}, each),
		t.rows.each([]byte{rowTombstone}, []byte{rowTombstone + 1}, each))
}

// rebuildFrom is kept in the rows until they are complete. What is written meanwhile lies in later
// segments: a start in between recovers those as always, from the checkpoint, which is where they
// begin.
//
//	0 below u32 · 4 doubted u32
type rebuildFrom struct {
	below   uint32 // rows are made from the segments before this one; 0: they are complete
	doubted uint32 // of those before this one, none that has no footer is believed: it could not be sealed
}

// seqLeap is how far sequence numbers jump when rows are made again, of which the last is not
// known.
const seqLeap = 1 << 40

// resetRows begins anew with rows that know of no record. Until they are marked so a start does it
// again. last is a checkpoint that they had.
func (t *Tier) resetRows(ctx context.Context, names []string, last *checkpoint) (err error) {
	if t.rows != nil {
		_ = t.rows.close()
		t.rows = nil
	}
	if err := t.o.rowFS.RemoveAll(filepath.Join(t.o.Dir, rowsDir)); err != nil {
		return err
	}
	if t.rows, err = openRows(&t.o); err != nil {
		return err
	}
	next := max(last.segment, 1)
	for _, name := range names {
		if id, ok := segmentID(name); ok {
			next = max(next, id+1)
		}
	}
	check := checkpoint{place: place{next, 0}, seq: last.seq, segment: next, day: last.day, written: last.written}
	if *last == (checkpoint{}) {
		if check.seq, err = t.highest(ctx, names); err != nil {
			return err
		}
	}
	check.seq += seqLeap
	from := rebuildFrom{next, last.place.segment}
	c := t.rows.change()
	c.check(&check)
	c.rebuild(&from)
	return c.commit(true)
}

// highest is the highest sequence number in the segments.
func (t *Tier) highest(ctx context.Context, names []string) (seq uint64, err error) {
	for _, name := range names {
		id, ok := segmentID(name)
		if !ok {
			continue
		}
		s, err := t.openSegment(filepath.Join(t.o.Dir, name), id)
		if err != nil {
			continue // whoever reads it will say so
		}
		table, err := t.readTable(ctx, s)
		_ = s.f.Close()
		if err != nil {
			return 0, err
		}
		for i := range table {
			seq = max(seq, table[i].seq)
		}
	}
	return seq, nil
}

func (c change) rebuild(from *rebuildFrom) {
	b := binary.LittleEndian.AppendUint32(nil, from.below)
	_ = c.batch.Set([]byte{rowRebuild}, binary.LittleEndian.AppendUint32(b, from.doubted), nil)
}

// readRebuild reads whether the rows are complete.
func (t *Tier) readRebuild() error {
	b, closer, err := t.rows.db.Get([]byte{rowRebuild})
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(b) == 8 {
		t.resume = rebuildFrom{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])}
	}
	t.rebuilding.Store(t.resume.below > 0)
	return closer.Close()
}

// loadIndex makes the rows again, if they are not complete, and fills the index.
func (t *Tier) loadIndex() {
	if t.rebuilding.Load() {
		if err := t.rebuild(); err != nil {
			if t.stop.Err() == nil {
				t.o.Logger.Error("ssd: the rows of the index cannot be made again; what was there before is a miss "+
					"until the next start",
					"dir", t.o.Dir, "err", err)
			}
			return
		}
	}
	close(t.rebuilt)
	t.loadRows()
}
