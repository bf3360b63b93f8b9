// Package store is the cache as all servers see it: blocks by address in shared memory and, behind
// it, on SSD.
//
// One short lock guards the tables. What takes time happens outside of it: copies, checksums,
// zeroing and I/O. A block that is read is held by a reference, which neither eviction nor deletion
// nor replacement disturbs: its bytes stay as they were until the last reader has let go.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// Errors of a Store.
var (
	ErrMiss       = errors.New("store: no such block")
	ErrFull       = ram.ErrFull  // all of the arena is in use: try again later
	ErrQuota      = ram.ErrQuota // names the account
	ErrTooLarge   = errors.New("store: too large")
	ErrClosed     = errors.New("store: closed")
	ErrCorrupt    = errors.New("store: the payload has not the checksum that came with it")
	ErrExists     = errors.New("store: there is such a block")
	ErrNotDurable = errors.New("store: there is no SSD tier to make a block durable")
)

// Options say what a Store uses.
type Options struct {
	// RAM is the size of the arena in bytes, ram.MinArena to ram.MaxArena. Required.
	RAM int64
	// Huge takes huge pages for the arena if the host has enough; false: never.
	Huge bool
	// Populate faults the arena in from the start, in the background; false: as it is used.
	Populate bool
	// Quota names the account that a namespace's bytes in RAM count on, and its limit in bytes; 0:
	// no limit. An empty account is the namespace's own. Nil: no limits. It is asked when a
	// namespace gets its first block.
	Quota func(namespace string) (account string, bytes int64)
	// Pins is how many pins there may be; 0: 16,384.
	Pins int
	// Changed is told what came to a tier and what left it, in order and under the store's lock: it
	// must be quick and must not call the store. Nil: nobody is told.
	Changed func(Change)
	// Deleting is called by Delete before anything else; nil: nobody is told.
	Deleting func(a block.Addr)
	// Written is called by Commit before it returns and without any lock, with what has been
	// written, unless that is a Copy. It must be quick. Nil: nobody is told.
	Written func(it *Item)
	// Hidden makes all reads misses until Show.
	Hidden bool
	// Now is the time in Unix ms; nil: the clock's.
	Now func() int64
	// SSD is the tier behind RAM; nil: there is none. Evicted is the store's own.
	SSD *ssd.Options
	// Logger takes what an operator should know. Nil: slog.Default().
	Logger *slog.Logger

	wrap     func(disk) disk // tests: stands between the store and its SSD tier
	patience time.Duration   // of Close; 0: closePatience
}

// Store keeps blocks. Its methods may be called by any number of goroutines.
type Store struct {
	arena *ram.Arena
	o     Options
	log   *slog.Logger

	disk disk // nil: there is none

	mu     sync.Mutex
	tier   *ram.Tier
	closed bool
	counts Counts
	swept  uint32 // the slot where the sweep goes on
	drafts int64  // bytes of the arena that drafts have
	ops    map[block.Addr]*op
	ghost  *ghost
	churn  churn
	behind *behind
	// evicted after uses that SSD has not seen and is told of by the sweep; past its capacity it is
	// not
	warm  []block.Addr
	moved atomic.Uint64 // replacements in RAM of what SSD had, each counted before it is deleted there

	purging  sync.Mutex
	counting counting

	shown chan struct{} // closed by Show
	show  sync.Once

	life   context.Context // ends with Close
	cancel context.CancelFunc
	done   sync.WaitGroup

	writing     context.Context // ends when Close does not wait any longer for what is written behind
	stopWriting context.CancelFunc
}

// Open makes a store. Its RAM tier is empty; what its SSD tier has from before is served from the
// start. ctx bounds Open, not the store.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = func() int64 { return time.Now().UnixMilli() }
	}
	arena, err := ram.NewArena(ram.ArenaOptions{Size: o.RAM, Populate: o.Populate, Huge: o.Huge, Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &Store{arena: arena, o: o, log: o.Logger, ops: map[block.Addr]*op{}, shown: make(chan struct{})}
	if !o.Hidden {
		s.Show()
	}
	s.tier = ram.NewTier(arena, ram.TierOptions{Quota: o.Quota, Pins: o.Pins, Evicted: s.evicted})
	s.ghost, s.behind, s.warm = newGhost(ghosts), newBehind(arena.Size()), make([]block.Addr, 0, warmAddrs)
	s.churn = newChurn()
	if err := s.openDisk(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("store: %w", err), arena.Close())
	}
	s.life, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.writing, s.stopWriting = context.WithCancel(context.WithoutCancel(ctx))
	s.done.Go(s.sweep)
	if s.disk != nil {
		s.done.Go(s.announce)
		for range behindWriters {
			s.done.Go(s.write)
		}
	}
	return s, nil
}

// closePatience is how long Close waits for what is to be written behind. What is not written by
// then is counted as failed.
const closePatience = 10 * time.Second

// Close is CloseWithin without an end.
func (s *Store) Close() error { return s.CloseWithin(context.Background()) }

// CloseWithin writes what waits to be written, for as long as closePatience, and ends the store.
// Every call after it fails with ErrClosed. If a block or a draft has not been given back by then,
// the arena stays mapped, for whoever has it may still read it. Where ctx ends before, nothing more
// is written, which is an error if there is an SSD tier: that is then left as by a crash, with all
// that was durable.
func (s *Store) CloseWithin(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	defer context.AfterFunc(ctx, s.stopWriting)()
	late := time.AfterFunc(cmp.Or(s.o.patience, closePatience), s.stopWriting)
	s.done.Wait()
	late.Stop()
	s.stopWriting()
	var err error
	if s.disk != nil {
		err = s.disk.CloseWithin(ctx)
	}
	if held := s.Stats().RAM.Held; held > 0 {
		s.log.Warn("blocks are still held, the arena stays mapped", "bytes", held)
		return err
	}
	return errors.Join(err, s.arena.Close())
}

// Arena is where the payloads are.
func (s *Store) Arena() *ram.Arena { return s.arena }

// Show ends Options.Hidden.
func (s *Store) Show() { s.show.Do(func() { close(s.shown) }) }

// Shown is closed once reads find blocks.
func (s *Store) Shown() <-chan struct{} { return s.shown }

// hidden tells whether reads are misses.
func (s *Store) hidden() bool {
	select {
	case <-s.shown:
		return false
	default:
		return true
	}
}

// find is the block with an address unless its time is over. The lock is held.
func (s *Store) find(h uint64, a *block.Addr) ram.ID {
	id := s.tier.Find(h, a)
	if id != 0 && s.expired(s.tier.At(id).Expires) {
		return 0
	}
	return id
}

func (s *Store) expired(at int64) bool { return at != 0 && at <= s.o.Now() }

// remove takes a block out of RAM. The lock is held.
func (s *Store) remove(id ram.ID) {
	s.changed(id, false)
	s.tier.Remove(id)
}

// evicted is told by the tier before a block goes. The lock is held.
func (s *Store) evicted(id ram.ID) {
	if s.disk != nil {
		a, e := s.tier.Addr(id), s.tier.At(id)
		if e.Mark&onDisk == 0 {
			s.ghost.add(s.tier.Hash(&a))
		} else if e.Uses > 0 && len(s.warm) < cap(s.warm) {
			s.warm = append(s.warm, a)
		}
	}
	s.changed(id, false)
}

// changed tells of a block in RAM. The lock is held.
func (s *Store) changed(id ram.ID, present bool) {
	if s.o.Changed == nil {
		return
	}
	s.o.Changed(Change{
		Addr: s.tier.Addr(id), Namespace: s.tier.Names().At(s.tier.At(id).NS()).Text, Parent: s.tier.Parent(id),
		Tier: RAM, Present: present,
	})
}
