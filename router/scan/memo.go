package scan

import (
	"hash/maphash"

	"github.com/cognitora/dataplane/internal/memo"
)

// Memo remembers where scans were in long bodies, so that a body that begins with bytes seen before
// (a conversation's history, a document) is scanned from where it differs. Bodies are known by a
// 64-bit hash, under a secret of this process, of each 8 KiB of them and all before. A Memo is
// bounded, and safe for concurrent use.
type Memo struct {
	seed  maphash.Seed
	key   *strideKey
	marks *memo.Table
}

// NewMemo makes a Memo of about that many bytes; one mark takes about 0.6 KiB.
func NewMemo(bytes int) *Memo {
	return &Memo{seed: maphash.MakeSeed(), key: newStrideKey(), marks: memo.New(bytes, markWords)}
}

// Scan is the function Scan, less the canonical text that Request.Skipped bytes stand for.
func (m *Memo) Scan(api API, body []byte, r *Request) error {
	if len(body) < stride {
		return Scan(api, body, r)
	}
	c := &r.rec
	c.state = leavesMarks
	c.hashes = m.hash(c.hashes[:0], api, body)
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

// hash appends the hashes of the body up to the end of each stride.
func (m *Memo) hash(dst []uint64, api API, body []byte) []uint64 {
	h := uint64(api)
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

// mix spreads every bit of x over all of it (the finalizer of MurmurHash3).
func mix(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return max(x^x>>33, 1)
}

// scanFrom takes the scan up at rec.last.
func (r *Request) scanFrom(api API, body []byte, strides int) error {
	m := r.rec.last
	r.begin(api, strides)
	r.resume(&m, body)
	r.c.End()
	return r.finish()
}

// Keep remembers the marks of a scan that Scan has made.
func (m *Memo) Keep(r *Request) {
	for i := range r.rec.marks {
		a := &r.rec.marks[i]
		m.marks.Put(r.rec.hashes[a.strides-1], a.mark.words())
	}
}

// Passed are the hashes of the strides up to the place where the scan began, none if it began with
// the body.
func (r *Request) Passed() []uint64 { return r.rec.hashes[:r.rec.taken] }

// Marks yields, in their order, the places of the canonical text at which a later scan may begin:
// the hash that the text before is known by, together with its Head, and its length in bytes.
func (r *Request) Marks(yield func(hash uint64, length int) bool) {
	for i := range r.rec.marks {
		a := &r.rec.marks[i]
		if !yield(r.rec.hashes[a.strides-1], r.Head+a.mark.text) {
			return
		}
	}
}

// Again scans a body that Memo.Scan has filled r of once more, into another Request, and passes
// nothing over.
func Again(api API, body []byte, r, into *Request) error {
	into.Reset()
	into.rec.state, into.rec.hashes = leavesMarks, append(into.rec.hashes, r.rec.hashes...)
	return Scan(api, body, into)
}

// again is the same within one Request.
func again(api API, body []byte, r *Request) error {
	hashes := r.rec.hashes
	r.Reset()
	r.rec.state, r.rec.hashes = leavesMarks, hashes
	return Scan(api, body, r)
}
