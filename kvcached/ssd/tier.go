// Package ssd is the tier of blocks on disk: segment files that are written once from front to end,
// an index of them in memory, and rows in Pebble from which the index is loaded after a restart.
//
// A read compares the full address, the sequence number and the checksums of header and payload,
// every time. A durable write is acknowledged when its record is synced, a deletion when its row
// is.
//
// After a crash the newest of three wins: the row of an address, its records behind the checkpoint
// in the log, and its tombstone. A replacement syncs its record and then its row; a deletion syncs
// a tombstone. Operations on one address follow each other, so all older copies of a record lie
// before its tombstone's place in the log. A checkpoint that passes the place ends the tombstone.
// Reclaim copies a record under its old sequence number, syncs the copy, and then points the row to
// it.
//
// Damaged or missing rows cost all blocks: the next start begins with an empty tier.
package ssd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/cognitora/dataplane/kv/block"
)

// Errors of the tier.
var (
	ErrMiss     = errors.New("ssd: no such block")
	ErrCorrupt  = errors.New("ssd: the stored block is damaged") // the block is dropped, and is a miss from now on
	ErrIO       = errors.New("ssd: the disk failed")
	ErrShort    = errors.New("ssd: the buffer is shorter than the block")
	ErrTooLarge = errors.New("ssd: larger than a record may be")
	ErrInvalid  = errors.New("ssd: malformed record")
	ErrBudget   = errors.New("ssd: today's write budget is used up")
	ErrReadOnly = errors.New("ssd: the tier cannot be written")
	ErrClosed   = errors.New("ssd: closed")
	ErrLocked   = errors.New("ssd: the directory is in use")
	ErrFormat   = errors.New("ssd: the directory's format is not this version's")
	ErrIndexed  = errors.New("ssd: the directory has an index on disk, which an index in memory only would lose")
	ErrMark     = errors.New("ssd: the file that tells the directory's format is damaged")
	ErrKey      = errors.New("ssd: the key is not the directory's")
	errNoSpace  = errors.New("ssd: no segment is free")
)

// KeyError is the ErrKey of a directory and a key that do not fit together.
type KeyError struct {
	Dir           string
	Sealed, Given bool // the directory is sealed; a key was given
}

func (e *KeyError) Error() string {
	switch {
	case !e.Given:
		return fmt.Sprintf("ssd: %s is sealed, and no key is given", e.Dir)
	case !e.Sealed:
		return fmt.Sprintf("ssd: %s is not sealed, and a key is given", e.Dir)
	}
	return fmt.Sprintf("ssd: %s is sealed with another key", e.Dir)
}

// Is makes a KeyError an ErrKey.
func (e *KeyError) Is(target error) bool { return target == ErrKey }

// SizeError is an ErrTooLarge that is due to the size of the tier.
type SizeError struct {
	Most int64 // most bytes of a record's payload
	Cap  int64 // Options.Cap, which bounds Most
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("%v: at most %d bytes of payload in a tier of %d bytes", ErrTooLarge, e.Most, e.Cap)
}

// Is makes a SizeError an ErrTooLarge.
func (e *SizeError) Is(target error) bool { return target == ErrTooLarge }

// Record is a block's name and attributes.
type Record struct {
	Addr      block.Addr
	Namespace string       // canonical text whose ID is Addr.Model, at most block.MaxNamespace bytes
	Key       []byte       // the client's name for the block, at most block.MaxKey bytes
	Attr      []byte       // opaque, at most block.MaxAttr bytes
	Parent    block.Digest // zero: none
	Expires   int64        // Unix ms; 0: never
	CRC       uint32       // block.Sum of the payload, if HasCRC; else the tier computes it
	HasCRC    bool
}

// Info describes a stored block. Find fills in Addr, Expires, Length and CRC. Read and Scan fill in
// everything.
type Info struct {
	Addr      block.Addr
	Namespace string
	Key       []byte
	Attr      []byte
	Parent    block.Digest
	Expires   int64
	Length    int
	CRC       uint32
}

// Tier is an open directory. Its methods are safe for concurrent use.
type Tier struct {
	o      Options
	lock   io.Closer
	rows   *rows
	proof  file        // copy of the checkpoint
	marked atomic.Bool // the next Open empties the directory
	index  *index
	segs   segments
	log    log
	spares spares
	addrs  locks
	names  names
	stats  counters
	disk   atomic.Int64 // bytes of the segment files

	doubt   doubt
	squeeze squeeze

	pages        sync.Pool // *[page]byte, aligned
	buffers      *buffers  // for writes; the holder of one may wait for space
	readBuffers  *buffers
	reading      chan struct{}
	checkpointMu sync.Mutex
	sealMu       sync.Mutex

	tail   *tail // nil when the rows are loaded
	tailMu sync.RWMutex
	ready  chan struct{}
	load   progress
	budget budget

	closing    chan struct{}   // closed when Close begins
	stop       context.Context // ends background work
	halt       context.CancelFunc
	running    sync.WaitGroup
	keep       chan struct{}
	reclaim    chan struct{}
	pace       pace
	usage      usage
	reclaiming atomic.Bool
	users      gate
	warned     atomic.Uint64 // calls of warnDamaged
	uncached   sync.Once     // logs that O_DIRECT is missing
}

// Open opens the directory, or makes it. It returns when the last writes before a crash have been
// found. The index is loaded after that; until then Find and Read use the rows. Open drops all
// blocks if the rows are damaged. ctx bounds Open, not the tier.
func Open(ctx context.Context, o Options) (_ *Tier, err error) {
	if o, err = o.fill(); err != nil {
		return nil, err
	}
	err = o.fs.MkdirAll(o.Dir)
	if err == nil {
		err = o.fs.SyncDir(filepath.Dir(o.Dir))
	}
	if err != nil {
		return nil, fmt.Errorf("ssd: making the directory: %w", err)
	}
	t := newTier(o)
	t.o.rowFS = vfs.OnDiskFull(o.rowFS, t.rowsFull)
	if t.lock, err = o.fs.Lock(filepath.Join(o.Dir, lockFile)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.abandon()
		}
	}()
	made, err := checkFormat(&o, true)
	if err != nil {
		return nil, err
	}
	if made && o.Volatile {
		err = t.empty()
	} else if made {
		err = t.openIndex()
	} else if t.rows, err = openRows(&t.o); err == nil {
		err = t.begin()
	}
	if err != nil {
		return nil, err
	}
	if err := t.openProof(); err != nil {
		return nil, err
	}
	if err := t.recover(ctx); err != nil {
		return nil, err
	}
	t.stop, t.halt = context.WithCancel(context.Background())
	t.running.Go(t.loadRows)
	t.running.Go(t.keepLog)
	t.running.Go(t.reclaimSegments)
	t.running.Go(t.dropExpired)
	return t, nil
}

// newTier returns a tier without files.
func newTier(o Options) *Tier {
	t := &Tier{o: o, index: newIndex(), usage: newUsage(o.Quota), pace: pace{rate: o.ReclaimRate},
		buffers: newBuffers(buffersMax), readBuffers: newBuffers(buffersMax), reading: make(chan struct{}, readsMax),
		ready: make(chan struct{}), closing: make(chan struct{}), keep: make(chan struct{}, 1),
		reclaim: make(chan struct{}, 1)}
	t.pages.New = func() any { return (*[page]byte)(alignedBytes(page)) }
	t.segs.byID = map[uint32]*segment{}
	t.addrs.held = map[uint64]chan struct{}{}
	t.names.text = map[block.ModelID]string{}
	t.log.flights = map[*flight]struct{}{}
	t.log.space = make(chan struct{})
	return t
}

// begin marks a new directory. From then on the rows always have a checkpoint. Sequence numbers
// begin with the clock, so they are above those of an earlier tier in the same place.
func (t *Tier) begin() error {
	t.rows.use(t.o.Logger)
	if err := t.o.fs.SyncDir(t.o.Dir); err != nil {
		return err
	}
	c := t.rows.change()
	c.check(&checkpoint{segment: 1, seq: uint64(t.o.now().UnixNano())})
	if err := c.commit(true); err != nil {
		return fmt.Errorf("ssd: writing the first checkpoint: %w", err)
	}
	return writeFormat(&t.o)
}

// abandon releases the files of a failed Open.
func (t *Tier) abandon() {
	if t.rows != nil {
		_ = t.rows.close()
	}
	if t.proof != nil {
		_ = t.proof.Close()
	}
	for _, s := range t.segs.all() {
		_ = s.f.Close()
	}
	_ = t.lock.Close()
}

// Ready is closed when the index is loaded.
func (t *Tier) Ready() <-chan struct{} { return t.ready }

func (t *Tier) loaded() bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

// Close is CloseWithin without a time limit.
func (t *Tier) Close() error { return t.CloseWithin(context.Background()) }

// CloseWithin waits for running operations, seals all segments and releases the directory. Later
// operations fail with ErrClosed. If ctx ends first, CloseWithin seals nothing and fails; the next
// Open finds the directory as after a crash, with all durable blocks. CloseWithin always waits for
// the disk.
func (t *Tier) CloseWithin(ctx context.Context) error {
	if !t.users.close(t.closing) {
		return nil
	}
	t.halt()
	t.running.Wait()
	t.closeSpares()
	err := ctx.Err()
	if err == nil {
		err = t.shut()
	} else {
		err = fmt.Errorf("ssd: closed without a last checkpoint; the next start reads the end of the log again: %w",
			err)
	}
	err = errors.Join(err, t.rows.close(), t.proof.Close())
	for _, s := range t.segs.all() {
		err = errors.Join(err, s.f.Close())
	}
	t.buffers.close()
	t.readBuffers.close()
	return errors.Join(err, t.lock.Close())
}

// gate admits operations until it is closed, and then waits for them.
type gate struct {
	mu   sync.RWMutex
	shut atomic.Bool
}

// enter must be followed by leave if it returns true. enter does not wait: only close locks mu.
func (g *gate) enter() bool { return g.mu.TryRLock() }

func (g *gate) leave() { g.mu.RUnlock() }

// close admits no more operations. It closes the channel, which wakes operations that wait for
// space. mu stays locked.
func (g *gate) close(closing chan struct{}) (first bool) {
	if g.shut.Swap(true) {
		return false
	}
	close(closing)
	g.mu.Lock()
	return true
}

// writeFailed counts and logs a failure of the disk.
func (t *Tier) writeFailed(what string, err error) {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		t.stats.noSpace.Add(1)
		if t.stats.fullWrites.Add(1)%1000 == 1 {
			t.o.Logger.Warn("ssd: the filesystem is full; every 1000th time is logged", "operation", what, "err", err)
		}
		return
	case errors.Is(err, syscall.EROFS):
		t.stats.readOnly.Add(1)
	default:
		t.stats.writeErrors.Add(1)
	}
	if t.stats.failures.Add(1)%1000 == 1 {
		t.o.Logger.Error("ssd: the disk failed; every 1000th failure is logged", "operation", what, "err", err)
	}
}

func (t *Tier) noteDirect(direct bool) {
	if !direct {
		t.uncached.Do(func() {
			t.o.Logger.Warn("ssd: the file system has no O_DIRECT; blocks go through the page cache", "dir", t.o.Dir)
		})
	}
}
