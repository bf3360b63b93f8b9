package s3

import (
	"slices"
	"time"

	"github.com/cognitora/dataplane/kvcached/ram"
)

// sizeOf is what length bytes take of the arena.
func sizeOf(length int) int64 { return int64(ram.Granules(length)) * ram.Granule }

// evictIdle is how long no part of an upload may have come or be coming for it to be aborted in
// favour of another.
const evictIdle = 5 * time.Second

// idle are the uploads that have been so for evictIdle, the longest first, but not u, and with u
// only those that hold memory. The caller holds mu.
func (t *uploads) idle(u *upload) []*upload {
	var all []*upload
	for _, o := range t.all {
		if o != u && o.busy == 0 && !o.closing && time.Since(o.used) >= evictIdle && (u == nil || len(o.parts) > 0) {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *upload) int { return a.used.Compare(b.used) })
	return all
}

// evict drops uploads in favour of another and answers their parts. The caller holds mu.
func (t *uploads) evict(all []*upload) (old []*part) {
	for _, u := range all {
		t.count.uploadsEvicted.Add(1)
		old = append(old, t.drop(u)...)
	}
	return old
}

// charge counts size bytes that u takes of the arena, or gives back if negative. The caller holds
// mu.
func (t *uploads) charge(u *upload, size int64) {
	t.held += size
	u.held += size
}

// fits tells whether u may take size bytes more when others have given back freed: all together
// have mostHeld, but one alone as much as there may be parts of the largest object, and half of the
// arena. The caller holds mu.
func (t *uploads) fits(u *upload, size, freed int64) bool {
	held := t.held - freed
	if held+size <= t.mostHeld {
		return true
	}
	return held == u.held && u.held+size <= min(2*MaxObject, t.sink.Arena().Size()/2)
}

// makeRoom drops uploads that are idle until u may take size bytes more, and answers what evict
// does. It drops none if all were not enough. The caller holds mu.
func (t *uploads) makeRoom(u *upload, size int64) ([]*part, error) {
	if t.fits(u, size, 0) {
		return nil, nil
	}
	idle, freed := t.idle(u), int64(0)
	for i, o := range idle {
		if freed += o.held; t.fits(u, size, freed) {
			return t.evict(idle[:i+1]), nil
		}
	}
	return nil, refusal("SlowDown", "The parts of multipart uploads take %d of %d bytes. "+
		"Try again later.", t.held, t.mostHeld)
}

// mostObject is how long an object may be that is made of parts: they and it lie in the arena at
// the same time, and it in one piece.
func (t *uploads) mostObject() int64 { return min(MaxObject, t.sink.Arena().Size()/8*3) }

// tooLong is the answer to an upload that would be n bytes, if that is more than can be.
func (t *uploads) tooLong(n int64) error {
	most := t.mostObject()
	switch {
	case n <= most:
		return nil
	case n > MaxObject:
		return tooLarge()
	}
	return refusal("EntityTooLarge", "Of parts an object can have at most %d bytes here: 3/8 of kvcached.ram. Raise "+
		"that, or send it with one PUT.", most)
}
