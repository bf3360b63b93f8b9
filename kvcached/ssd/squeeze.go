package ssd

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// squeeze bounds what segments take where the filesystem has less room than the cap allows: what
// they had when it was full. They grow again, a segment at a time, when so much is free. It keeps
// the room that the rows need free, too.
type squeeze struct {
	limit    atomic.Int64 // bytes of segments and spare files; 0: the cap alone bounds them
	hopeless atomic.Bool  // reclaim frees nothing: who waits for space is told
	times    atomic.Uint64
	failed   int // times in a row that reclaim freed nothing; reclaim's own

	mu    sync.Mutex
	retry time.Time     // growth waits until then
	wait  time.Duration // and so long after the next time that the filesystem is full

	ballast file // nil: there is none now
}

const (
	ballastFile = "BALLAST"
	// ballastSize is what is given back to a full filesystem so that the rows can still be written
	// until reclaim has made room; it is of the rows' share.
	ballastSize = 4 << 20
	// squeezeWait and squeezeWaitMax bound how long growth waits after the filesystem was full;
	// each time twice as long.
	squeezeWait    = time.Second
	squeezeWaitMax = 5 * time.Minute
	// squeezeLook is how often a tier looks at what is free.
	squeezeLook = time.Second
	// squeezeTries is how often reclaim tries in vain, reclaimRetry apart, before who waits for
	// space is told.
	squeezeTries = 20
	// squeezeMin is to how many segments of the smallest kind the tier shrinks so that the rows
	// have room; squeezeParts is how many it makes of the room that it has.
	squeezeMin   = 4
	squeezeParts = 8
)

// free is how many bytes the filesystem has left; false: that cannot be told.
func (t *Tier) free() (int64, bool) {
	f, ok := t.o.fs.(interface {
		Free(dir string) (int64, error)
	})
	if !ok {
		return 0, false
	}
	n, err := f.Free(t.o.Dir)
	return n, err == nil
}

// fits tells whether a new file of the given size leaves the rows their room.
func (t *Tier) fits(size int64) bool {
	n, known := t.free()
	reserve := int64(rowRoom)
	if t.squeeze.limit.Load() > 0 {
		reserve = ballastSize
	}
	return !known || n >= size+reserve
}

// segmentSize is how large new segments are: smaller ones where there is little room, so that
// reclaim has some to choose from.
func (t *Tier) segmentSize() int64 {
	limit := t.squeeze.limit.Load()
	if limit == 0 {
		return t.o.SegmentSize
	}
	return min(t.o.SegmentSize, max(segmentMin, limit/squeezeParts&^(page-1)))
}

// cutActive has the active segment end, so that the rest of its file is given back, if it is larger
// than it would be made now.
func (t *Tier) cutActive() {
	if t.squeeze.limit.Load() == 0 {
		return
	}
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if s := t.log.active; s != nil && s.size.Load() > 2*t.segmentSize() {
		s.full, t.log.active = true, nil
		t.wakeKeeper()
	}
}

// affordable is how many bytes segments may take after one of the given size found no room: what
// they have and what is free beyond the rows' room, but at most half of that size more, as there
// may be a quota that Free does not know.
func (t *Tier) affordable(size int64) int64 {
	limit := t.disk.Load()
	if free, known := t.free(); known {
		limit += min(max(free-rowRoom, 0), size/2)
	}
	return limit
}

// full has segments take no more than limit bytes, fewer than before if there is a limit already,
// and growth wait.
func (t *Tier) full(limit int64) {
	q := &t.squeeze
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wait = min(max(2*q.wait, squeezeWait), squeezeWaitMax)
	q.retry = t.o.now().Add(q.wait)
	old := q.limit.Load()
	if limit = max(limit, 1); old == 0 || limit < old {
		q.limit.Store(limit)
	}
	q.times.Add(1)
	switch {
	case old > 0:
	case limit < 2*segmentMin:
		t.o.Logger.Warn("ssd: the filesystem has no room for segments; writes fail until there is some",
			"dir", t.o.Dir, "cap", t.o.Cap, "needed_bytes", rowRoom+2*segmentMin)
	default:
		t.o.Logger.Warn("ssd: the filesystem has less room than the tier may use; it works within that, and grows "+
			"when there is more",
			"dir", t.o.Dir, "cap", t.o.Cap, "segment_bytes", limit)
	}
	t.wakeReclaim()
}

// look gives way to rows that have no room left, and lets segments grow when there is room again.
func (t *Tier) look() {
	q := &t.squeeze
	free, known := t.free()
	if known && free < rowRoom/2 {
		t.shrink()
	} else if !known || free >= rowRoom+ballastSize {
		t.takeBallast()
	}
	if q.limit.Load() > 0 && (!known || free >= 2*t.segmentSize()+rowRoom) && t.grow() {
		t.announceSpace()
	}
}

// grow lets segments have one more, if it is time to.
func (t *Tier) grow() bool {
	q := &t.squeeze
	q.mu.Lock()
	defer q.mu.Unlock()
	now := t.o.now()
	if now.Before(q.retry) {
		return false
	}
	q.retry = now.Add(q.wait)
	q.hopeless.Store(false)
	limit := max(q.limit.Load(), t.disk.Load()) + max(t.segmentSize(), q.limit.Load()/4)
	if limit < t.o.Cap {
		q.limit.Store(limit)
		return true
	}
	q.limit.Store(0)
	q.wait = 0
	t.o.Logger.Info("ssd: the filesystem has room for all that the tier may use again", "dir", t.o.Dir)
	return true
}

// tried is told whether reclaim freed a segment, and tells whether who waits for space is to look
// again.
func (q *squeeze) tried(freed bool) bool {
	if q.failed++; freed || q.limit.Load() == 0 {
		q.failed = 0
	}
	hopeless := q.failed >= squeezeTries
	return q.hopeless.Swap(hopeless) != hopeless
}

// takeBallast sets the ballast aside. Only one goroutine does.
func (t *Tier) takeBallast() {
	q := &t.squeeze
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ballast != nil {
		return
	}
	name := filepath.Join(t.o.Dir, ballastFile)
	f, _, err := t.o.fs.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		f, _, err = t.o.fs.Create(name)
	}
	if err != nil {
		return
	}
	if f.Preallocate(ballastSize) != nil {
		_ = f.Close()
		_ = t.o.fs.Remove(name)
		return
	}
	q.ballast = f
}

// rowsFull is called when the rows meet a full filesystem, before they try once more.
func (t *Tier) rowsFull() {
	q := &t.squeeze
	q.mu.Lock()
	if q.ballast != nil {
		_ = q.ballast.Close()
		q.ballast = nil
	}
	_ = t.o.fs.Remove(filepath.Join(t.o.Dir, ballastFile))
	q.mu.Unlock()
	t.stats.noSpace.Add(1)
	t.shrink()
}

// shrink has segments give way to the rows, down to a few.
func (t *Tier) shrink() {
	if disk := t.disk.Load(); disk > squeezeMin*segmentMin {
		t.full(disk - t.segmentSize())
	}
}

// dropBallast gives up the file, which stays.
func (t *Tier) dropBallast() {
	t.squeeze.mu.Lock()
	defer t.squeeze.mu.Unlock()
	if t.squeeze.ballast != nil {
		_ = t.squeeze.ballast.Close()
	}
}
