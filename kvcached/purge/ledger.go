package purge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// File is where a ledger lies in its data directory.
const File = "purges.json"

// Store is what a ledger has blocks removed from.
type Store interface {
	// Purge removes the blocks that match says, from all tiers and for good. match may be called by
	// any number of goroutines.
	Purge(ctx context.Context, match func(namespace string, key []byte) bool) (blocks int, err error)
}

// Options of Open.
type Options struct {
	Dir   string // of the data; empty: the purges are kept in memory only
	Store Store  // Required
	// Partial says that the data directory may have an SSD tier that Store does not use. The next
	// start that does not say so carries out all purges again.
	Partial bool
}

// Ledger is the purges that one host knows, and how far it has carried them out. Its methods may be
// called by any number of goroutines.
type Ledger struct {
	path string // empty: none
	o    Options

	mu    sync.Mutex           // of changes
	known atomic.Pointer[List] // pulls are held to it
	done  atomic.Pointer[List] // carried out
	went  int                  // blocks, when done was carried out
}

// saved is the file.
type saved struct {
	*List
	Unfinished bool `json:"unfinished,omitempty"` // not all of the list was carried out
}

// Open reads the ledger of a data directory. If the last run did not carry out all purges, all are
// carried out now. A file that cannot be read is an error: a start without it would serve blocks
// that were purged.
func Open(ctx context.Context, o Options) (*Ledger, error) {
	l := &Ledger{o: o}
	f := saved{List: &List{}}
	if o.Dir != "" {
		l.path = filepath.Join(o.Dir, File)
		text, err := os.ReadFile(l.path)
		if err == nil {
			err = f.parse(text)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("purge: %s: %w; restore the file, or remove it together with the SSD tier's "+
				"directory", l.path, err)
		}
	}
	l.known.Store(f.List)
	l.done.Store(f.List)
	if f.Unfinished {
		l.done.Store(&List{History: f.History})
		_, err := l.take(ctx, f.List)
		return l, err
	}
	return l, nil
}

func (f *saved) parse(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(f); err != nil {
		return err
	}
	return f.check()
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
	if err := l.save(list, len(more) > 0); err != nil {
		return 0, err
	}
	l.known.Store(list)
	if len(more) > 0 {
		if blocks, err = l.o.Store.Purge(ctx, matchAny(more)); err == nil {
			err = l.save(list, false)
		}
		if err != nil {
			return blocks, err
		}
	}
	l.done.Store(list)
	l.went = blocks
	return blocks, nil
}

// save writes the file, durably.
func (l *Ledger) save(list *List, unfinished bool) error {
	if l.path == "" {
		return nil
	}
	text, err := json.Marshal(saved{list, (unfinished || l.o.Partial) && len(list.Purges) > 0})
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
