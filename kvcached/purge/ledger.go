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

	"github.com/cognitora/dataplane/internal/replace"
)

// File is the ledger's file name in its data directory.
const File = "purges.json"

// Store is the place where a ledger's blocks lie.
type Store interface {
	// Purge removes the blocks for which match returns true, from all tiers and for good. Any
	// number of goroutines may call match.
	Purge(ctx context.Context, match func(namespace string, key []byte) bool) (blocks int, err error)
}

// Options of Open.
type Options struct {
	Dir   string // data directory; empty: the purges are kept in memory only
	Store Store  // Required
	// Partial says that the data directory may have an SSD tier which Store does not use. The next
	// start without Partial carries out all purges again.
	Partial bool
}

// Ledger keeps the purges that one host knows, and the purges that it has carried out. Any number
// of goroutines may call the methods of a Ledger.
type Ledger struct {
	path string // path of the file; empty: there is no file
	o    Options

	mu    sync.Mutex           // held while the lists change
	known atomic.Pointer[List] // all known purges; pulled blocks are checked against them
	done  atomic.Pointer[List] // purges that are carried out
	went  int                  // blocks that the last change of done removed
}

// saved is the content of the file.
type saved struct {
	*List
	Unfinished bool `json:"unfinished,omitempty"` // a part of the list is not carried out
}

// Open reads the ledger of a data directory. Open carries out all purges again if the last run did
// not carry out all of them. A file that cannot be read is an error, because a start without the
// file would serve purged blocks.
func Open(ctx context.Context, o Options) (*Ledger, error) {
	l := &Ledger{o: o}
	f := saved{List: &List{}}
	if o.Dir != "" {
		l.path = filepath.Join(o.Dir, File)
		if err := f.read(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

func (f *saved) read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !json.Valid(text) {
		return errors.New("it is not whole JSON")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(f); err != nil {
		return err
	}
	return f.check()
}

// Examine returns the error with which Open would refuse a ledger's file. It changes nothing. A
// missing file is no error. A file that cannot be read is an fs.PathError.
func Examine(path string) error {
	f := saved{List: &List{}}
	if err := f.read(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// List returns the known purges. The caller must not change the list.
func (l *Ledger) List() *List { return l.known.Load() }

// Revision is the revision of the last purge that this host has carried out on all its blocks.
func (l *Ledger) Revision() uint32 { return l.done.Load().Revision }

// Stamp names the purges that this host has carried out on all its blocks. Read the stamp before
// the block that is sent with it.
func (l *Ledger) Stamp() Stamp { return l.done.Load().Stamp() }

// Bars tells whether a block with this stamp is older than a purge that removes it. key is nil if
// the block has none.
func (l *Ledger) Bars(s Stamp, namespace string, key []byte) bool {
	return l.known.Load().Bars(s, namespace, key)
}

// Purge carries out a purge on this host alone. Only a host without a fleet calls Purge. This
// method is a Func.
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

// ErrHistory says that neither of two lists is a later state of the other.
var ErrHistory = errors.New("purge: the two lists number purges differently")

// Take carries out the purges of a later state of the list and returns the number of removed
// blocks. If an earlier call carried the purges out, the number is from that call. The host has
// confirmed all purges of the list if Take returns no error. ErrHistory: neither list follows the
// other.
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

// Replace is Take for a list that was merged from the known list. merged is the known list at the
// time of that merge. ErrHistory: the known list has changed since the merge, and list does not
// follow the new one.
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

// save writes the list to the file and syncs it.
func (l *Ledger) save(list *List, unfinished bool) error {
	if l.path == "" {
		return nil
	}
	text, err := json.Marshal(saved{list, (unfinished || l.o.Partial) && len(list.Purges) > 0})
	if err == nil {
		err = replace.Bytes(l.path, 0o600, text)
	}
	if err != nil {
		return fmt.Errorf("purge: the purges cannot be kept: %w", err)
	}
	return nil
}
