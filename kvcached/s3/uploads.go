package s3

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// maxParts is the highest number of a part.
const maxParts = 10000

// part is one that has arrived: bytes in a draft that is never committed, so that nobody else sees
// them.
type part struct {
	draft    *store.Draft
	length   int
	crc      uint32
	etag     string
	sum      checksum // that the client sent; name empty: none
	modified time.Time
}

// upload is a multipart upload that is not complete.
type upload struct {
	id      string
	item    store.Item // Attr is filled in when the number of parts is known
	bucket  string
	key     string
	tenant  string
	attr    attributes
	parts   map[int]*part
	started time.Time
	used    time.Time // when a part came last
	busy    int       // parts on their way
	coming  int       // their bytes
	held    int64     // of the arena by its parts, on their way or arrived, in bytes
	closing bool      // it is being completed: no part comes or goes
}

// completion is what became of an upload, kept for a client that asks again because the answer did
// not reach it.
type completion struct {
	id, tenant string
	addr       block.Addr
	etag       string
}

// uploads are all that are not complete. A goroutine, there while uploads are, aborts those that
// nobody goes on with.
type uploads struct {
	life     time.Duration
	most     int
	mostHeld int64
	sink     Sink
	count    *counters

	mu      sync.Mutex
	all     map[string]*upload
	held    int64          // of the arena by parts, on their way or arrived, in bytes
	recent  [64]completion // a ring of the last ones
	next    int            // of recent
	timer   *time.Timer
	closed  bool
	running sync.WaitGroup
}

func newUploads(o Options, count *counters) *uploads {
	u := &uploads{life: o.UploadLife, most: o.MaxUploads, mostHeld: o.MaxUploadBytes, sink: o.Sink, count: count,
		all: map[string]*upload{}}
	if u.life == 0 {
		u.life = 15 * time.Minute
	}
	if u.most == 0 {
		u.most = 256
	}
	if u.mostHeld == 0 {
		u.mostHeld = o.Sink.Arena().Size() / 4
	}
	return u
}

// add begins an upload and gives it an id that nobody can guess.
func (t *uploads) add(u *upload) error {
	var id [16]byte
	_, _ = rand.Read(id[:])
	u.id, u.parts = hex.EncodeToString(id[:]), map[int]*part{}
	u.started = time.Now()
	u.used = u.started
	var old []*part
	defer func() { abandon(old) }()
	t.mu.Lock()
	defer t.mu.Unlock()
	if idle := t.idle(nil); len(t.all) >= t.most && len(idle) > 0 {
		old = t.evict(idle[:1])
	}
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
		t.timer = time.AfterFunc(t.life/4, t.expire)
	}
}

// expire aborts what was not used for longer than life.
func (t *uploads) expire() {
	defer t.running.Done()
	t.mu.Lock()
	t.timer = nil
	var old []*part
	for _, u := range t.all {
		if u.busy == 0 && !u.closing && time.Since(u.used) >= t.life {
			old = append(old, t.drop(u)...)
			t.count.uploadsExpired.Add(1)
		}
	}
	t.watch()
	t.mu.Unlock()
	abandon(old)
}

// drop takes an upload out of the table and answers the parts whose memory is to be given back. The
// caller holds mu.
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

// find answers the upload that a call names. The caller holds mu.
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

// begin makes room for part n. The caller goes on with finish, in any case.
func (t *uploads) begin(id string, it store.Item, tenant string, n, length int) (*upload, error) {
	var old []*part
	defer func() { abandon(old) }()
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
	if old, err = t.makeRoom(u, sizeOf(length)); err != nil {
		return nil, err
	}
	u.busy++
	u.coming += length
	t.charge(u, sizeOf(length))
	return u, nil
}

// finish puts part n in its place. p nil: it did not come, and length bytes are free again.
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

// claim keeps everybody else from an upload while it is completed; release ends that. There is none
// but an ETag if it has become an object with that not long ago.
func (t *uploads) claim(id string, a block.Addr, tenant string) (u *upload, etag string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u, err = t.find(id, a, tenant); err == nil {
		u.closing = true
		return u, "", nil
	}
	if etag = t.completed(id, a, tenant); etag != "" {
		err = nil
	}
	return nil, etag, err
}

// known is nil if claim has something to answer now.
func (t *uploads) known(id string, a block.Addr, tenant string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := t.find(id, a, tenant)
	if err != nil && t.completed(id, a, tenant) != "" {
		return nil
	}
	return err
}

// completed is the ETag of what an upload became, if that was not long ago, else empty. The caller
// holds mu.
func (t *uploads) completed(id string, a block.Addr, tenant string) (etag string) {
	for _, r := range t.recent {
		if r.id == id && r.addr == a && r.tenant == tenant && id != "" {
			return r.etag
		}
	}
	return ""
}

// release gives an upload back, or when it has become an object with an ETag, its memory.
func (t *uploads) release(u *upload, etag string) {
	t.mu.Lock()
	u.closing = false
	var parts []*part
	if etag != "" {
		t.recent[t.next] = completion{id: u.id, tenant: u.tenant, addr: u.item.Addr, etag: etag}
		t.next = (t.next + 1) % len(t.recent)
	}
	if etag != "" || t.closed {
		parts = t.drop(u)
	}
	t.mu.Unlock()
	abandon(parts)
}

// numbers are the parts of u that have arrived, in order. The caller holds mu or has claimed u.
func (u *upload) numbers() []int {
	all := make([]int, 0, len(u.parts))
	for n := range u.parts {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
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

// of are a bucket's uploads by key and age; what never changes of an upload may be read.
func (t *uploads) of(bucket, tenant string) []*upload {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*upload
	for _, u := range t.all {
		if u.bucket == bucket && u.tenant == tenant {
			all = append(all, u)
		}
	}
	slices.SortFunc(all, func(a, b *upload) int {
		if c := strings.Compare(a.key, b.key); c != 0 {
			return c
		}
		return a.started.Compare(b.started)
	})
	return all
}
