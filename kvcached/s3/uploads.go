package s3

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
)

// maxParts is the highest number of a part.
const maxParts = 10000

// part is a received part. Its bytes are in a draft that is never committed, so that nobody else
// sees them.
type part struct {
	draft  *store.Draft
	length int
	crc    uint32
	etag   string
}

// upload is a multipart upload that is not complete.
type upload struct {
	id      string
	item    store.Item // Attr is filled in when the number of parts is known, unless it has names
	tenant  string
	attr    attributes
	parts   map[int]*part
	used    time.Time // when a part came last
	busy    int       // parts on their way
	coming  int       // their bytes
	held    int64     // bytes of the arena for its parts, coming or received
	closing bool      // it is being completed, so parts neither come nor go
}

// uploads are all incomplete uploads. While there are some, a timer aborts those without new parts.
type uploads struct {
	most     int
	mostHeld int64
	sink     Sink
	count    *counters

	mu      sync.Mutex
	all     map[string]*upload
	held    int64 // bytes of the arena for parts, coming or received
	timer   *time.Timer
	closed  bool
	running sync.WaitGroup
}

// uploadLife is how long an upload may go without a new part.
const uploadLife = 2 * time.Minute

func newUploads(o Options, count *counters) *uploads {
	return &uploads{most: cmp.Or(o.maxUploads, 256), mostHeld: cmp.Or(o.maxUploadBytes, o.Sink.Arena().Size()/4),
		sink: o.Sink, count: count, all: map[string]*upload{}}
}

// add begins an upload with an id that nobody can guess.
func (t *uploads) add(u *upload) error {
	var id [16]byte
	_, _ = rand.Read(id[:])
	u.id, u.parts = hex.EncodeToString(id[:]), map[int]*part{}
	u.used = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.all) >= t.most {
		return refusal("SlowDown", "There are %d multipart uploads that are not complete. Complete or abort some.",
			len(t.all))
	}
	t.all[u.id] = u
	t.watch()
	return nil
}

// watch starts the timer of the next expiry. The caller holds mu.
func (t *uploads) watch() {
	if t.timer == nil && !t.closed && len(t.all) > 0 {
		t.running.Add(1)
		t.timer = time.AfterFunc(uploadLife/4, t.expire)
	}
}

// expire aborts uploads without a new part for uploadLife.
func (t *uploads) expire() {
	defer t.running.Done()
	t.mu.Lock()
	t.timer = nil
	var old []*part
	for _, u := range t.all {
		if u.busy == 0 && !u.closing && time.Since(u.used) >= uploadLife {
			old = append(old, t.drop(u)...)
			t.count.uploadsExpired.Add(1)
		}
	}
	t.watch()
	t.mu.Unlock()
	abandon(old)
}

// drop removes an upload and returns its parts, whose memory the caller gives back. The caller
// holds mu.
func (t *uploads) drop(u *upload) []*part {
	delete(t.all, u.id)
	parts := make([]*part, 0, len(u.parts))
	for _, p := range u.parts {
		t.charge(u, -sizeOf(p.length))
		parts = append(parts, p)
	}
	u.parts = nil
	return parts
}

func abandon(parts []*part) {
	for _, p := range parts {
		p.draft.Abort()
	}
}

// find returns the upload that a call names. The caller holds mu.
func (t *uploads) find(id string, a block.Addr, tenant string) (*upload, error) {
	u := t.all[id]
	if u == nil || u.item.Addr != a || u.tenant != tenant {
		return nil, refusal("NoSuchUpload", "The specified multipart upload does not exist. It may have been aborted "+
			"or completed, or have expired.")
	}
	if u.closing {
		return nil, refusal("OperationAborted", "The multipart upload is being completed.")
	}
	return u, nil
}

// begin makes room for part n. The caller must call finish afterwards.
func (t *uploads) begin(id string, it store.Item, tenant string, n, length int) (*upload, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u, err := t.find(id, it.Addr, tenant)
	if err != nil {
		return nil, err
	}
	total := length + u.coming
	for number, p := range u.parts {
		if number != n {
			total += p.length
		}
	}
	if err := t.tooLong(int64(total)); err != nil {
		return nil, err
	}
	if !t.fits(u, sizeOf(length)) {
		return nil, refusal("SlowDown", "The parts of multipart uploads take %d of %d bytes. Try again later.", t.held,
			t.mostHeld)
	}
	u.busy++
	u.coming += length
	t.charge(u, sizeOf(length))
	return u, nil
}

// finish puts part n in its place. If p is nil, the part did not come, and length bytes are free
// again.
func (t *uploads) finish(u *upload, n int, p *part, length int) error {
	t.mu.Lock()
	u.busy--
	u.coming -= length
	u.used = time.Now()
	var old *part
	gone := u.parts == nil
	switch {
	case p == nil:
		t.charge(u, -sizeOf(length))
	case gone || u.closing:
		t.charge(u, -sizeOf(length))
		old = p
	default:
		if old = u.parts[n]; old != nil {
			t.charge(u, -sizeOf(old.length))
		}
		u.parts[n] = p
		p.draft.Park()
	}
	t.mu.Unlock()
	if old != nil {
		old.draft.Abort()
	}
	if p != nil && old == p {
		return refusal("NoSuchUpload", "The multipart upload was aborted or completed while this part came.")
	}
	return nil
}

// abort ends an upload.
func (t *uploads) abort(id string, a block.Addr, tenant string) error {
	t.mu.Lock()
	u, err := t.find(id, a, tenant)
	if err != nil {
		t.mu.Unlock()
		return err
	}
	parts := t.drop(u)
	t.mu.Unlock()
	abandon(parts)
	return nil
}

// known returns the error that claim would return.
func (t *uploads) known(id string, a block.Addr, tenant string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := t.find(id, a, tenant)
	return err
}

// claim keeps others from an upload while it is completed, until release.
func (t *uploads) claim(id string, a block.Addr, tenant string) (*upload, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u, err := t.find(id, a, tenant)
	if err == nil {
		u.closing = true
	}
	return u, err
}

// release gives an upload back, or frees it if it has become an object.
func (t *uploads) release(u *upload, complete bool) {
	t.mu.Lock()
	u.closing = false
	var parts []*part
	if complete || t.closed {
		parts = t.drop(u)
	}
	t.mu.Unlock()
	abandon(parts)
}

func (t *uploads) sizes() (pending int, held int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all), t.held
}

// close aborts all uploads and waits for the timer's goroutine.
func (t *uploads) close() {
	t.mu.Lock()
	t.closed = true
	if t.timer != nil && t.timer.Stop() {
		t.running.Done()
	}
	var old []*part
	for _, u := range t.all {
		if !u.closing {
			old = append(old, t.drop(u)...)
		}
	}
	t.mu.Unlock()
	abandon(old)
	t.running.Wait()
}

// sizeOf is how many bytes of the arena a part of this length takes.
func sizeOf(length int) int64 { return int64(ram.Granules(length)) * ram.Granule }

// charge adds size to the bytes of the arena that u has. The caller holds mu.
func (t *uploads) charge(u *upload, size int64) {
	t.held += size
	u.held += size
}

// fits tells whether u may take size bytes more. All uploads together may take mostHeld. A single
// one may take twice the largest object, up to half of the arena. The caller holds mu.
func (t *uploads) fits(u *upload, size int64) bool {
	return t.held+size <= t.mostHeld ||
		t.held == u.held && u.held+size <= min(2*MaxObject, t.sink.Arena().Size()/2)
}

// mostObject is the length of the largest object made of parts. The parts and the object, which is
// one piece, lie in the arena at the same time.
func (t *uploads) mostObject() int64 { return min(MaxObject, t.sink.Arena().Size()/8*3) }

// tooLong refuses an upload of n bytes that cannot become an object.
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
