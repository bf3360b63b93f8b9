package scan

import (
	"hash/maphash"

	"github.com/cognitora/dataplane/internal/memo"
)

// Memo remembers the states of scans in long bodies. A body that begins with known bytes (a
// conversation's history, a document) is then scanned from the first difference. Memo identifies
// the beginning of a body, in steps of 8 KiB, by a 64-bit hash with a secret of this process. A
// Memo is bounded and safe for concurrent use.
type Memo struct {
	seed  maphash.Seed
	key   *strideKey
	marks *memo.Table
}

// NewMemo makes a Memo of about the given size in bytes. One mark takes about 0.6 KiB.
func NewMemo(bytes int) *Memo {
	return &Memo{seed: maphash.MakeSeed(), key: newStrideKey(), marks: memo.New(bytes, markWords)}
}

// Scan is the function Scan without the canonical text of the skipped bytes (Request.Skipped).
func (m *Memo) Scan(api API, body []byte, r *Request) error {
	if len(body) < stride {
		return Scan(api, body, r)
	}
	c := &r.rec
	c.state = leavesMarks
	c.hashes = m.hash(c.hashes[:0], r.Space^uint64(api), body)
	for n := len(c.hashes); n > 0; n-- {
		if !m.marks.Get(c.hashes[n-1], c.last.words()) {
			continue
		}
		if err := r.scanFrom(api, body, n); c.state != lostText {
			return err
		}
		return again(api, body, r)
	}
	return Scan(api, body, r)
}

// hash appends the hashes of the body up to the end of each stride, beginning with h.
func (m *Memo) hash(dst []uint64, h uint64, body []byte) []uint64 {
	for range min(len(body)/stride, maxMarks) {
		first, second, ok := sumStride(m.key, body)
		if !ok {
			first = maphash.Bytes(m.seed, body[:stride])
		}
		h = mix(mix(h^first) ^ second)
		body = body[stride:]
		dst = append(dst, h)
	}
	return dst
}

// mix spreads every bit of x over the whole word (the finalizer of MurmurHash3).
func mix(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return max(x^x>>33, 1)
}

// scanFrom starts the scan at rec.last.
func (r *Request) scanFrom(api API, body []byte, strides int) error {
	m := r.rec.last
	r.begin(api, strides)
	r.resume(&m, body)
	r.c.End()
	return r.finish()
}

// Keep stores the marks of a scan made by Scan.
func (m *Memo) Keep(r *Request) {
	for i := range r.rec.marks {
		a := &r.rec.marks[i]
		m.marks.Put(r.rec.hashes[a.strides-1], a.mark.words())
	}
}

// Passed returns the hashes of the skipped strides. The result is empty if the scan began with the
// body.
func (r *Request) Passed() []uint64 { return r.rec.hashes[:r.rec.taken] }

// Marks yields the places of the canonical text at which a later scan may begin, in order. hash,
// together with the Head, identifies the text before the place. length is the text's length in
// bytes.
func (r *Request) Marks(yield func(hash uint64, length int) bool) {
	for i := range r.rec.marks {
		a := &r.rec.marks[i]
		if !yield(r.rec.hashes[a.strides-1], r.Head+a.mark.text) {
			return
		}
	}
}

// Again scans a body once more into another Request and skips nothing. r is the Memo.Scan of the
// body.
func Again(api API, body []byte, r, into *Request) error {
	into.Reset()
	into.rec.state, into.rec.hashes, into.Space = leavesMarks, append(into.rec.hashes, r.rec.hashes...), r.Space
	return Scan(api, body, into)
}

// again is Again within one Request.
func again(api API, body []byte, r *Request) error {
	hashes, space := r.rec.hashes, r.Space
	r.Reset()
	r.rec.state, r.rec.hashes, r.Space = leavesMarks, hashes, space
	return Scan(api, body, r)
}
