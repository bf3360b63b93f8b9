package purge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// File is where a ledger lies in its data directory.
const File = "purges.json"

// Store is what a ledger has blocks removed from.
type Store interface {
	// Purge removes the blocks that match says, from all tiers. match may be called by any number
	// of goroutines.
	Purge(ctx context.Context, match func(namespace string, key []byte) bool) (blocks int, err error)
	// SSDSeq is above the sequence number of every record on SSD, and not above that of any later
	// one; 0: there is no SSD tier.
	SSDSeq() uint64
}

// Ledger is the purges that one host knows, and how far it has carried them out. Its methods may be
// called by any number of goroutines.
type Ledger struct {
	path string // empty: the purges are kept in memory only

	mu     sync.Mutex           // of changes
	known  atomic.Pointer[List] // pulls are held to it
	done   atomic.Pointer[List] // carried out
	marks  markings
	went   int                    // blocks, when done was carried out
	floors atomic.Pointer[floors] // of known and marks
	store  Store
}

// markings is where the records on SSD end that are older than a purge, by the purge's ID. A fold
// has the mark of the last purge in it. Markings are not changed once they are made.
type markings map[string]uint64

// saved is the file.
type saved struct {
	*List
	// Seq is SSDSeq when a purge had been carried out. A purge without one removes all records
	// that a start finds.
	Seq markings `json:"ssd_seq,omitempty"`
}

// Open reads the ledger of a data directory; without one (empty) nothing is kept. A file that
// cannot be read is an error: a start without it would serve blocks that were purged.
func Open(dir string) (*Ledger, error) {
	l := &Ledger{}
	list, marks := &List{}, markings{}
	if dir != "" {
		l.path = filepath.Join(dir, File)
		text, err := os.ReadFile(l.path)
		if err == nil {
			list, marks, err = parseFile(text)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("purge: %s: %w; restore the file, or remove it together with the SSD tier's "+
				"directory", l.path, err)
		}
	}
	l.publish(list, marks)
	l.done.Store(list)
	return l, nil
}

func parseFile(text []byte) (*List, markings, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	f := saved{List: &List{}}
	if err := d.Decode(&f); err != nil {
		return nil, nil, err
	}
	if f.Seq == nil {
		f.Seq = markings{}
	}
	return f.List, f.Seq, f.List.check()
}

// Attach says where blocks are removed from. It is called once, before Take, when the store is
// open: nothing on SSD is older than a purge any more of which the file did not say how far it got.
func (l *Ledger) Attach(s Store) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.store = s
	seq, marks := s.SSDSeq(), markings{}
	for _, p := range l.known.Load().Purges {
		mark, marked := l.marks[p.ID]
		if !marked || mark > seq { // or the tier was emptied
			mark = seq
		}
		if seq > 0 {
			marks[p.ID] = mark
		}
	}
	return l.keep(l.known.Load(), marks)
}

// keep saves purges and marks, and works with them from then on.
func (l *Ledger) keep(list *List, marks markings) error {
	if err := l.save(list, marks); err != nil {
		return err
	}
	l.publish(list, marks)
	return nil
}

func (l *Ledger) publish(list *List, marks markings) {
	l.known.Store(list)
	l.marks = marks
	l.floors.Store(newFloors(list, marks))
}

// List is the purges that are known. It must not be changed.
func (l *Ledger) List() *List { return l.known.Load() }

// Stamp says up to which purge all blocks of this host have been looked at. Whoever hands out a
// block asks first, and then gets the block.
func (l *Ledger) Stamp() Stamp { return l.done.Load().Stamp() }

// Bars tells whether a block that came with a stamp is older than a purge. The key is nil where the
// block has none.
func (l *Ledger) Bars(s Stamp, namespace string, key []byte) bool {
	return l.known.Load().Bars(s, namespace, key)
}

// Dead tells whether a record that a start finds on SSD is older than a purge.
func (l *Ledger) Dead(seq uint64, namespace string, key []byte) bool {
	return l.floors.Load().dead(seq, namespace, key)
}

// Purge removes blocks of this host, which is in no fleet. It is a Func.
func (l *Ledger) Purge(ctx context.Context, s Selector) ([]Done, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, err := l.known.Load().With(s)
	if err != nil {
		return nil, err
	}
	n, err := l.take(ctx, list)
	return []Done{{Blocks: n, Err: err}}, nil
}

// ErrHistory says that a list is no later state of the one that is known here, nor an earlier one.
var ErrHistory = errors.New("purge: the two lists number purges differently")

// Take carries out what a later state of the list has, and returns how many blocks went, then or
// when that was carried out before. When it returns without an error the host has confirmed all
// purges of the list. ErrHistory.
func (l *Ledger) Take(ctx context.Context, list *List) (blocks int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch known := l.known.Load(); {
	case known.Follows(list):
		list = known
	case !list.Follows(known):
		return 0, ErrHistory
	}
	return l.take(ctx, list)
}

// Replace is Take of a list that was merged with the one known here; ErrHistory where that has
// changed since and does not follow.
func (l *Ledger) Replace(ctx context.Context, merged, list *List) (blocks int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch known := l.known.Load(); {
	case known.Follows(list):
		list = known
	case known != merged && !list.Follows(known):
		return 0, ErrHistory
	}
	return l.take(ctx, list)
}

// take is Take with the lock held.
func (l *Ledger) take(ctx context.Context, list *List) (blocks int, err error) {
	done := l.done.Load()
	if list == done {
		return l.went, nil
	}
	more := list.since(done)
	marks := markings{}
	for _, p := range list.Purges {
		if mark, marked := l.marks[p.ID]; marked {
			marks[p.ID] = mark
		}
	}
	for _, p := range more {
		delete(marks, p.ID)
	}
	if err := l.keep(list, marks); err != nil {
		return 0, err
	}
	if len(more) > 0 {
		if blocks, err = l.store.Purge(ctx, matchAny(more)); err != nil {
			return blocks, err
		}
	}
	if seq := l.store.SSDSeq(); seq > 0 && len(more) > 0 {
		marks = maps.Clone(marks)
		for _, p := range more {
			marks[p.ID] = seq
		}
		if err := l.keep(list, marks); err != nil {
			return blocks, err
		}
	}
	l.done.Store(list)
	l.went = blocks
	return blocks, nil
}

// save writes the file, durably.
func (l *Ledger) save(list *List, marks markings) error {
	if l.path == "" {
		return nil
	}
	text, err := json.Marshal(saved{list, marks})
	if err == nil {
		err = replace(l.path, text)
	}
	if err != nil {
		return fmt.Errorf("purge: the purges cannot be kept: %w", err)
	}
	return nil
}

// replace puts a file in the place of another, or leaves that.
func replace(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
