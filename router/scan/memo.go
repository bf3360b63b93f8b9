package scan

import (
	"hash/maphash"

	"github.com/cognitora/dataplane/internal/memo"
)

// Memo remembers where scans were in long bodies, so that a body that begins with bytes seen before
// (a conversation's history, a document) is scanned from where it differs. Bodies are
// known by a 64-bit hash, under a secret of this process, of each 8 KiB of them and all before.
// It is bounded, and safe for concurrent use.
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
	r.marking = true
	r.hashes = m.hash(r.hashes[:0], api, body)
	for n := len(r.hashes); n > 0; n-- {
		if !m.marks.Get(r.hashes[n-1], r.last.words()) {
			continue
		}
		if err := r.scanFrom(api, body, n); !r.lost {
			return err
		}
		return Again(api, body, r)
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

// scanFrom takes the scan up at r.last.
func (r *Request) scanFrom(api API, body []byte, strides int) error {
	m := r.last
	r.api, r.taken = api, strides
	r.next = (strides + 1) * stride
	r.resume(&m, body)
	r.c.End()
	return r.finish()
}

// Keep remembers the marks of a scan that Scan has made.
func (m *Memo) Keep(r *Request) {
	for i := range r.marks {
		a := &r.marks[i]
		m.marks.Put(r.hashes[a.strides-1], a.mark.words())
	}
}

// Passed are the hashes of the strides up to the place where the scan began, nil if it began with the body.
func (r *Request) Passed() []uint64 { return r.hashes[:r.taken] }

// Marks yields, in their order, the places of the canonical text at which a later scan may begin: the hash
// that the text before is known by, together with its Head, and its length in bytes.
func (r *Request) Marks(yield func(hash uint64, length int) bool) {
	for i := range r.marks {
		a := &r.marks[i]
		if !yield(r.hashes[a.strides-1], r.Head+a.mark.text) {
			return
		}
	}
}

// Again scans a body once more into the r that Memo.Scan has filled, and passes nothing over.
func Again(api API, body []byte, r *Request) error {
	hashes := r.hashes
	r.Reset()
	r.marking, r.hashes = true, hashes
	return Scan(api, body, r)
}
