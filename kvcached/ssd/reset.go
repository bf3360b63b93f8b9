package ssd

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
)

// resetFile marks a directory whose rows were found damaged while the tier was open.
const resetFile = "REBUILD"

// skippedFile marks a directory that a daemon has run without.
const skippedFile = "SKIPPED"

// Skip makes the next Open of dir drop all blocks. A run without the tier cannot delete or replace
// blocks in it, so they would come back. false: dir has no tier. No tier may have dir open.
func Skip(dir string) (there bool, err error) {
	d := osFS{}
	names, err := d.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !slices.Contains(names, formatFile):
		return false, nil
	case err != nil || slices.Contains(names, skippedFile):
		return true, err
	}
	return true, makeMark(d, dir, skippedFile)
}

// makeMark durably makes an empty file in dir.
func makeMark(d fileSystem, dir, name string) error {
	f, _, err := d.Create(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = f.Close()
	}
	return errors.Join(err, d.SyncDir(dir))
}

var (
	errMarked     = errors.New("ssd: the rows were found damaged")
	errIncomplete = errors.New("ssd: the rows are incomplete")
)

// damaged tells whether err, from the rows, means damaged or missing files. Errors of the system,
// such as a full disk, do not.
func damaged(err error) bool {
	if err == nil || errors.Is(err, ErrReadOnly) {
		return false
	}
	var errno syscall.Errno
	return !errors.As(err, &errno) && !errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist)
}

// markDamaged marks the directory, so that the next Open empties it.
func (t *Tier) markDamaged(why error) {
	if t.marked.Swap(true) {
		return
	}
	t.o.Logger.Error("ssd: the rows of the index are damaged; the next start drops all blocks", "dir", t.o.Dir,
		"err", plainError{why})
	if err := makeMark(t.o.fs, t.o.Dir, resetFile); err != nil {
		t.writeFailed("mark", err)
	}
}

// openIndex opens the rows of a directory that is not new. If they are damaged or missing, it
// drops all blocks: a cache can fill again.
func (t *Tier) openIndex() error {
	names, err := t.o.fs.List(t.o.Dir)
	if err != nil {
		return err
	}
	if slices.Contains(names, skippedFile) {
		t.o.Logger.Warn("ssd: the daemon has run without this tier, so its blocks may have been deleted or replaced; all "+
			"blocks are dropped", "dir", t.o.Dir)
		return t.emptied(names)
	}
	last, err := readProof(&t.o)
	if errors.Is(err, errProof) {
		t.o.Logger.Warn("ssd: the copy of the checkpoint is damaged; it is written again", "dir", t.o.Dir)
		err = nil
	}
	if err != nil {
		return err
	}
	why := errMarked
	if !slices.Contains(names, resetFile) {
		if t.rows, why = openRows(&t.o); why == nil {
			_, why = t.rows.check(&last)
		}
		if why == nil {
			t.rows.use(t.o.Logger)
		}
		if !damaged(why) {
			return why
		}
	}
	t.stats.resets.Add(1)
	t.o.Logger.Error("ssd: the rows of the index are damaged; all blocks are dropped", "dir", t.o.Dir,
		"err", plainError{why})
	return t.emptied(names)
}

// emptied is reset with an error that names the directory.
func (t *Tier) emptied(names []string) error {
	if err := t.reset(names); err != nil {
		return fmt.Errorf("ssd: emptying %s: %w", t.o.Dir, err)
	}
	return nil
}

// empty drops all blocks of a directory whose index was in memory only.
func (t *Tier) empty() error {
	names, err := t.o.fs.List(t.o.Dir)
	if err != nil {
		return err
	}
	if slices.Contains(names, RowsDir) {
		return fmt.Errorf("%w: %s; give it a directory of its own, keep the index on disk, or delete this directory",
			ErrIndexed, t.o.Dir)
	}
	return t.emptied(names)
}

// check reads the rows that every start needs. It returns the checkpoint, which must not be before
// last.
func (r *rows) check(last *checkpoint) (checkpoint, error) {
	c, err := r.checkpoint()
	if err == nil && (c.place.before(last.place) || c.seq < last.seq) {
		err = errOlder
	}
	if _, closer, found := r.db.Get([]byte{rowRebuild}); found == nil {
		err = errors.Join(err, closer.Close(), errIncomplete)
	}
	each := func([]byte, []byte) bool { return true }
	return c, errors.Join(err, r.each([]byte{rowNamespace}, []byte{rowNamespace + 1}, each),
		r.each([]byte{rowTombstone}, []byte{rowTombstone + 1}, each))
}

// checkpoint reads the last checkpoint.
func (r *rows) checkpoint() (c checkpoint, err error) {
	b, closer, err := r.db.Get([]byte{rowCheckpoint})
	if errors.Is(err, pebble.ErrNotFound) {
		return c, fmt.Errorf("%w: the checkpoint is missing", errIncomplete)
	}
	if err != nil {
		return c, fmt.Errorf("ssd: reading the checkpoint: %w", err)
	}
	return c, errors.Join(c.decode(b), closer.Close())
}

// reset removes rows and segments and begins anew. It removes the marks last. Rows without a
// checkpoint, or with an older one, count as damaged. So the next start repeats a reset that a
// crash cut short.
func (t *Tier) reset(names []string) (err error) {
	if t.rows != nil {
		_ = t.rows.close()
		t.rows = nil
	}
	if err := t.o.rowFS.RemoveAll(filepath.Join(t.o.Dir, RowsDir)); err != nil {
		return err
	}
	for _, name := range names {
		if _, ok := segmentID(name); ok || name == proofFile {
			err = errors.Join(err, t.o.fs.Remove(filepath.Join(t.o.Dir, name)))
		}
	}
	if err != nil {
		return err
	}
	if t.rows, err = openRows(&t.o); err != nil {
		return err
	}
	if err := t.begin(); err != nil {
		return err
	}
	marked := false
	for _, name := range []string{resetFile, skippedFile} {
		if slices.Contains(names, name) {
			marked = true
			err = errors.Join(err, t.o.fs.Remove(filepath.Join(t.o.Dir, name)))
		}
	}
	if marked {
		err = errors.Join(err, t.o.fs.SyncDir(t.o.Dir))
	}
	return err
}
