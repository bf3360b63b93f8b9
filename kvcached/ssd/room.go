package ssd

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// squeeze is the state of a tier whose filesystem has less room than the cap allows. Segments get
// the free bytes that the rows do not need, and give way when those become fewer.
type squeeze struct {
	limit    atomic.Int64 // bytes of segments and spare files, as of the last look; 0: the cap is the limit
	times    atomic.Uint64
	quota    atomic.Int64 // bytes at which the filesystem was full although it reported free room; 0: never
	quotaEnd atomic.Int64 // Unix ns at which quota ends
	wanted   atomic.Int64 // size of the largest segment that a writer waits for
	hopeless atomic.Bool  // reclaim frees nothing, so writers fail instead of waiting
	failed   int          // times in a row that reclaim freed nothing; only reclaim uses it
	ballast  atomic.Bool  // the file exists
	told     int64        // limit in the last log line; 0: not squeezed; only look uses it
	toldAt   time.Time    // time of that line
}

const (
	// rowRoom bytes stay free for the rows. Pebble writes its log to tables, and repeats that
	// without end if there is no room.
	rowRoom = 4 * rowMemory
	// LeastRoom is the number of free bytes without which Open fails, once it has deleted all
	// segments.
	LeastRoom = rowRoom
	// smallFiles bounds LOCK, FORMAT, CHECKPOINT and the marks together; rowSlack bounds the growth
	// of the rows between two looks at their size.
	smallFiles = 5 * page
	rowSlack   = 3 * rowMemory

	ballastFile = "BALLAST"
	// ballastSize bytes are freed on a full filesystem, so that the rows can be written until
	// reclaim has made room. They are part of the rows' share.
	ballastSize = 4 << 20

	squeezeLook  = time.Second // between looks at the free room
	quotaFor     = time.Minute // until a filesystem that was full is tried again
	squeezeTries = 20          // attempts of reclaim, reclaimRetry apart, before writers fail
	squeezeParts = 8           // number of segments in the room of a squeezed tier
	squeezeMin   = 4 << 20     // bytes of segments that the tier keeps, even if the rows get less room
	squeezeTold  = time.Minute // least time between two lines about less and less room
)

// free returns the filesystem's free bytes, or the largest number if they are unknown.
func (o *Options) free() int64 {
	n, err := o.fs.Free(o.Dir)
	if err != nil {
		return math.MaxInt64
	}
	return n
}

// share returns the bytes for segments and spare files together, and whether the filesystem leaves
// less than the cap does. Rows have their share, or more if they are larger.
func (t *Tier) share() (bytes int64, squeezed bool) {
	bytes = t.o.Cap - smallFiles - max(t.o.rowShare, t.rows.usage()+rowSlack+ballastSize)
	if disk, free := t.disk.Load(), t.o.free(); free-rowRoom < bytes-disk {
		left := max(disk+free-rowRoom, min(disk+free-ballastSize, squeezeMin))
		bytes, squeezed = min(bytes, left), left < bytes
	}
	if quota := t.squeeze.quota.Load(); quota > 0 && quota < bytes && t.o.now().UnixNano() < t.squeeze.quotaEnd.Load() {
		bytes, squeezed = quota, true
	}
	return bytes, squeezed
}

// room returns the bytes by which segments may grow.
func (t *Tier) room() int64 {
	share, _ := t.share()
	return share - t.disk.Load()
}

// roomFor tells whether there is room for a segment of this size, with spare files counted. It
// keeps room for one more segment, for reclaim's copies, unless moved is set.
func (t *Tier) roomFor(size int64, moved bool) bool {
	if !moved {
		size += t.segmentSize()
	}
	return t.room()+t.spares.held() >= size
}

// segmentSize returns the size of new segments. A squeezed tier has smaller ones, so that reclaim
// can choose between some.
func (t *Tier) segmentSize() int64 {
	share, squeezed := t.share()
	if !squeezed {
		return t.o.segmentSize
	}
	return min(t.o.segmentSize, max(segmentMin, share/squeezeParts&^(page-1)))
}

// sizeFor returns the size of a new segment that begins with a record of n pages.
func (t *Tier) sizeFor(n uint32) int64 {
	return max(t.segmentSize(), int64(n+1+footerPages(1))*page)
}

// full notes that the filesystem has no room for a segment although it reports free room, as with a
// quota.
func (t *Tier) full() {
	t.squeeze.quotaEnd.Store(t.o.now().Add(quotaFor).UnixNano())
	t.squeeze.quota.Store(max(t.disk.Load(), 1))
}

// want makes reclaim free room for a segment of this size.
func (q *squeeze) want(size int64) {
	for old := q.wanted.Load(); old < size && !q.wanted.CompareAndSwap(old, size); old = q.wanted.Load() {
	}
}

// look checks the free room, sets the ballast aside, and wakes writers if there is room for them.
func (t *Tier) look() {
	q := &t.squeeze
	share, squeezed := t.share()
	limit := int64(0)
	if squeezed {
		limit = max(share, 1)
	}
	if old := q.limit.Swap(limit); old == 0 && squeezed {
		q.times.Add(1)
	}
	t.tellLimit(limit)
	if !q.ballast.Load() && t.o.free() >= rowRoom+ballastSize {
		t.takeBallast()
	}
	if q.wanted.Load() > 0 && t.roomFor(q.wanted.Load(), false) {
		q.wanted.Store(0)
		q.hopeless.Store(false)
		t.announceSpace()
	}
}

// tellLimit logs when the tier begins or ceases to be squeezed, and when its limit has halved since
// the last line.
func (t *Tier) tellLimit(limit int64) {
	q := &t.squeeze
	begins, now := q.told == 0, t.o.now()
	switch {
	case limit == 0 && !begins:
		t.o.Logger.Info("ssd: the filesystem has room for all that the tier may use again", "dir", t.o.Dir)
		q.told = 0
		return
	case limit == 0, !begins && limit > q.told/2:
		q.told = max(q.told, limit)
		return
	case !begins && now.Sub(q.toldAt) < squeezeTold:
		return
	case limit < segmentMin:
		t.o.Logger.Warn("ssd: the filesystem has no room for the tier; blocks are written to RAM alone, and durable "+
			"writes fail, until there is more", "dir", t.o.Dir, "cap", t.o.Cap)
	default:
		t.o.Logger.Warn("ssd: the filesystem has less room than the tier may use; it works within that, and grows "+
			"when there is more", "dir", t.o.Dir, "cap", t.o.Cap, "segment_bytes", limit)
	}
	q.told, q.toldAt = limit, now
}

// tried notes whether reclaim has freed a segment, and wakes the writers when there is no hope.
func (t *Tier) tried(freed bool) {
	q := &t.squeeze
	if _, squeezed := t.share(); freed || !squeezed {
		q.failed = 0
	} else {
		q.failed++
	}
	if hopeless := q.failed >= squeezeTries; q.hopeless.Swap(hopeless) != hopeless {
		t.announceSpace()
	}
}

// takeBallast makes the ballast. Only reclaim calls it.
func (t *Tier) takeBallast() {
	name := filepath.Join(t.o.Dir, ballastFile)
	_ = t.o.fs.Remove(name)
	f, _, err := t.o.fs.Create(name)
	if err != nil {
		return
	}
	t.squeeze.ballast.Store(true)
	if errors.Join(f.Preallocate(ballastSize), f.Close()) != nil {
		t.dropBallast()
	}
}

func (t *Tier) dropBallast() {
	t.squeeze.ballast.Store(false)
	_ = t.o.fs.Remove(filepath.Join(t.o.Dir, ballastFile))
}

// rowsFull is called when the rows meet a full filesystem, before they try again.
func (t *Tier) rowsFull() {
	t.stats.noSpace.Add(1)
	t.dropBallast()
	t.wakeReclaim()
}

// makeRowRoom deletes files on a full filesystem until the rows can be opened: the ballast, spare
// files, and then the oldest segments, whose blocks become misses.
func makeRowRoom(o *Options) error {
	if o.free() >= rowRoom {
		return nil
	}
	names, err := o.fs.List(o.Dir)
	if err != nil {
		return err
	}
	slices.SortFunc(names, func(a, b string) int {
		x, _ := segmentID(a)
		y, _ := segmentID(b)
		return int(x) - int(y)
	})
	for _, name := range names {
		if _, ok := segmentID(name); !ok && !strings.HasPrefix(name, sparePrefix) && name != ballastFile {
			continue
		}
		o.Logger.Error("ssd: the filesystem is full; a file is deleted so that the index can be opened", "file", name)
		err := o.fs.Remove(filepath.Join(o.Dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if o.free() >= rowRoom {
			return nil
		}
	}
	return fmt.Errorf("%w: %s needs %d MiB free to be opened; make room there", syscall.ENOSPC, o.Dir, rowRoom>>20)
}
