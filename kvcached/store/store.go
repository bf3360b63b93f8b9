// Package store is the cache behind all servers. The store keeps blocks by address in shared memory
// and, behind that, on SSD.
//
// One lock guards the tables and is held only for a short time. Slow work happens without the lock:
// copies, checksums, zeroing and I/O. A reader holds a reference to its block. The block's bytes
// stay as they were until the last reader releases the block, whether it is evicted, deleted or
// replaced.
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
	ErrFull       = ram.ErrFull  // the whole arena is in use; a later try may succeed
	ErrQuota      = ram.ErrQuota // the error's text names the account
	ErrTooLarge   = errors.New("store: too large")
	ErrClosed     = errors.New("store: closed")
	ErrCorrupt    = errors.New("store: the payload has not the checksum that came with it")
	ErrExists     = errors.New("store: there is such a block")
	ErrNotDurable = errors.New("store: there is no SSD tier that outlives the daemon to make a block durable")
)

// Options are the settings of a Store.
type Options struct {
	// RAM is the size of the arena in bytes, ram.MinArena to ram.MaxArena. Required.
	RAM int64
	// Huge uses huge pages for the arena if the host has enough.
	Huge bool
	// Quota returns the account of a namespace's bytes in RAM, and the account's limit in bytes; 0:
	// no limit. An empty account is the namespace's own account. Nil: no limits. Quota is called
	// when a namespace gets its first block.
	Quota func(namespace string) (account string, bytes int64)
	// Pins is the highest number of pins; 0: 16,384.
	Pins int
	// Changed is called with every change of a tier, in order and under the store's lock. Changed
	// must be quick and must not call the store. Nil: there is no call.
	Changed func(Change)
	// Deleting is called at the start of Delete; nil: there is no call.
	Deleting func(a block.Addr)
	// Written is called before a Commit returns, without any lock and with the written block. A
	// Commit with Copy does not call Written. Written must be quick. Nil: there is no call.
	Written func(it *Item)
	// Hidden makes all reads misses until Show.
	Hidden bool
	// Now returns the time in Unix ms; nil: the clock's time.
	Now func() int64
	// SSD are the options of the tier behind RAM; nil: there is no SSD tier. The store sets Evicted
	// in these options.
	SSD *ssd.Options
	// Logger gets messages for the operator. Nil: slog.Default().
	Logger *slog.Logger

	wrap     func(disk) disk // for tests: wraps the SSD tier
	patience time.Duration   // time that Close waits; 0: closePatience
}

// Store keeps blocks. Any number of goroutines may call the methods of a Store.
type Store struct {
	arena *ram.Arena
	o     Options
	log   *slog.Logger

	disk disk // nil: there is no SSD tier

	mu         sync.Mutex
	tier       *ram.Tier
	closed     bool
	counts     Counts
	swept      uint32 // slot where the sweep goes on
	draftBytes int64  // bytes of the arena that belong to drafts that are not parked
	open       drafts // with its own lock
	ops        map[block.Addr]*op
	ghost      *ghost
	churn      churn
	behind     *behind
	// warm has blocks that were used in RAM and then evicted. The sweep tells SSD about these uses.
	// Blocks beyond the capacity of warm are left out.
	warm  []block.Addr
	moved atomic.Uint64 // counts replacements in RAM of blocks that SSD has, each before SSD deletes the old block

	purging  sync.Mutex                       // held by a Purge
	match    func(ns string, key []byte) bool // of the Purge that runs; guarded by mu
	counting counting

	shown chan struct{} // closed by Show
	show  sync.Once

	life   context.Context // ends at Close
	cancel context.CancelFunc
	done   sync.WaitGroup

	writing     context.Context // ends when Close stops waiting for writes behind
	stopWriting context.CancelFunc
}

// Open makes a store. The RAM tier is empty after Open. Blocks that its SSD tier has from an
// earlier run are served from the start. ctx bounds Open, not the store's life.
func Open(ctx context.Context, o Options) (*Store, error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Now == nil {
		o.Now = func() int64 { return time.Now().UnixMilli() }
	}
	arena, err := ram.NewArena(ram.ArenaOptions{Size: o.RAM, Huge: o.Huge, Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &Store{arena: arena, o: o, log: o.Logger, ops: map[block.Addr]*op{}, shown: make(chan struct{})}
	if !o.Hidden {
		s.Show()
	}
	s.tier = ram.NewTier(arena, ram.TierOptions{Quota: o.Quota, Pins: o.Pins, Evicted: s.evicted})
	s.ghost, s.behind, s.warm = newGhost(ghosts), newBehind(arena.Size()), make([]block.Addr, 0, warmAddrs)
	s.churn, s.counting.turn = newChurn(), make(chan struct{}, 1)
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

// closePatience is the time that Close waits for queued writes. Writes that are not done by then
// count as failed.
const closePatience = 10 * time.Second

// Close is CloseWithin without a limit.
func (s *Store) Close() error { return s.CloseWithin(context.Background()) }

// CloseWithin writes the queued blocks, for at most closePatience, and ends the store. Every call
// after CloseWithin fails with ErrClosed. The arena stays mapped if a block or a draft is still
// held, because its holder may still read it. Nothing more is written if ctx ends early. With an
// SSD tier that is an error: the tier is left as after a crash, with all durable blocks.
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

// Arena is the shared memory with the payloads.
func (s *Store) Arena() *ram.Arena { return s.arena }

// Show ends Options.Hidden.
func (s *Store) Show() { s.show.Do(func() { close(s.shown) }) }

// Shown returns a channel that is closed once reads find blocks.
func (s *Store) Shown() <-chan struct{} { return s.shown }

// hidden tells whether reads are misses because Show was not called.
func (s *Store) hidden() bool {
	select {
	case <-s.shown:
		return false
	default:
		return true
	}
}

// find returns the block at an address unless the block has expired. The caller holds the lock.
func (s *Store) find(h uint64, a *block.Addr) ram.ID {
	id := s.tier.Find(h, a)
	if id != 0 && s.expired(s.tier.At(id).Expires) {
		return 0
	}
	return id
}

func (s *Store) expired(at int64) bool { return at != 0 && at <= s.o.Now() }

// remove removes a block from RAM. The caller holds the lock.
func (s *Store) remove(id ram.ID) {
	s.changed(id, false)
	s.tier.Remove(id)
}

// evicted is called by the RAM tier before it evicts a block. The caller holds the lock.
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

// changed reports a change of a block in RAM. The caller holds the lock.
func (s *Store) changed(id ram.ID, present bool) {
	if s.o.Changed == nil {
		return
	}
	c := Change{
		Addr: s.tier.Addr(id), Namespace: s.tier.Names().At(s.tier.At(id).NS()).Text, Parent: s.tier.Parent(id),
		Tier: RAM, Present: present, Length: int(s.tier.At(id).Length),
	}
	if present {
		c.Key, c.Attr = s.tier.Key(id), s.tier.Attr(id)
	}
	s.o.Changed(c)
}
