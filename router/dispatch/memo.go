package dispatch

import (
	"hash/maphash"
	"unsafe"

	"github.com/cognitora/dataplane/internal/memo"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// Memo remembers the beginnings of long prompts: where the scan of a body can begin, and which
// blocks the canonical text before that place has. With it a conversation's history or a document
// that was sent before is neither scanned nor hashed again. It is bounded, and nobody waits
// for a lock of it.
type Memo struct {
	secret maphash.Seed
	scans  *scan.Memo
	chains *memo.Table // by scan's hash, mixed with the chain's seed and the text before
}

// NewMemo makes a Memo of about that many bytes. It takes about 1 KB for every 4 KiB of prompts.
func NewMemo(bytes int) *Memo {
	return &Memo{secret: maphash.MakeSeed(), scans: scan.NewMemo(bytes / 2), chains: memo.New(bytes/2, stepWords)}
}

// stepKeys bounds the blocks between two marks that are remembered: 8 KiB of a body and some
// reordering make about 128.
const stepKeys = 136

// step is the way from one mark to the next: the blocks in between, and the text behind the last
// of them. It has words only, so that it can be a record of a memo.Table.
type step struct {
	from, to uint64 // blocks before the mark before, and before this one
	digest   [4]uint64
	restLen  uint64
	rest     [prefix.BlockBytes / 8]uint64
	keys     [stepKeys]uint64
}

const stepWords = int(unsafe.Sizeof(step{}) / 8)

func (s *step) words() []uint64 { return (*[stepWords]uint64)(unsafe.Pointer(s))[:] }

func (s *step) last() *prefix.Digest { return (*prefix.Digest)(unsafe.Pointer(&s.digest)) }

func (s *step) text() *[prefix.BlockBytes]byte {
	return (*[prefix.BlockBytes]byte)(unsafe.Pointer(&s.rest))
}

// way tells chains with another seed, or another text before the same body, apart.
func (m *Memo) way(seed prefix.Digest, head []byte) uint64 {
	if m == nil {
		return 0
	}
	var h maphash.Hash
	h.SetSeed(m.secret)
	h.Write(seed[:])
	h.Write(head)
	return h.Sum64()
}

// Scan reads the job's body, which is JSON.
func (d *Dispatcher) Scan(j *Job) error {
	if d.memo == nil {
		return scan.Scan(j.API, j.Body, &j.Scan)
	}
	return d.memo.scans.Scan(j.API, j.Body, &j.Scan)
}

// begin makes the job's chain that of its prompt.
func (d *Dispatcher) begin(j *Job, seed prefix.Digest) {
	j.way = d.memo.way(seed, j.Scan.Text[:j.Scan.Head])
	j.from = 0
	if j.Scan.Skipped > 0 && !d.skip(j, seed) {
		// The marks are known, but not the blocks: the model, the salt or the tools are others.
		if scan.Again(j.API, j.Body, &j.Scan) != nil {
			j.Scan.Text = j.Scan.Text[:0] // two bodies with one hash: the engine will say what is wrong
		}
	}
	if j.Scan.Skipped == 0 {
		j.chain.Reset(seed, j.Scan.Text, j.Scan.Tokens)
		j.text = j.Scan.Text
	}
	j.chain.Lengthen(j.Scan.Omitted)
}

// The scan keeps the text and the tokens of all blocks that a chain can have.
const (
	_ = uint(scan.TextKept - prefix.MaxChain*prefix.BlockBytes)
	_ = uint(scan.TokensKept - prefix.MaxChain*prefix.BlockTokens)
)

// skip goes past the blocks of the text that the scan has passed over.
func (d *Dispatcher) skip(j *Job, seed prefix.Digest) bool {
	head, s := j.Scan.Text[:j.Scan.Head], &j.step
	full := len(head) - len(head)%prefix.BlockBytes
	j.chain.Reset(seed, head[:full], nil)
	j.chain.HashTo(j.chain.Blocks())
	arrived := false
	for _, hash := range j.Scan.Passed() {
		d.memo.chains.Near(hash ^ j.way)
	}
	for _, hash := range j.Scan.Passed() {
		arrived = false
		if !d.memo.chains.Get(hash^j.way, s.words()) {
			continue
		}
		n := int(s.to - s.from)
		if int(s.from) != j.chain.Blocks() || n > stepKeys {
			return false
		}
		j.chain.Skip(s.keys[:n], *s.last())
		arrived = true
	}
	if !arrived || int(s.to)*prefix.BlockBytes+int(s.restLen) != len(head)+j.Scan.Skipped {
		return false
	}
	d.metrics.Passed.Add(float64(j.Scan.Skipped))
	j.from = int(s.to)
	j.joined = append(append(j.joined[:0], s.text()[:s.restLen]...), j.Scan.Text[j.Scan.Head:]...)
	j.text = j.joined
	j.chain.Continue(j.text)
	return true
}

// remember keeps the marks that the scan has left, and the blocks between them. It belongs behind
// the dispatch, before the chain is finished.
func (d *Dispatcher) remember(j *Job) {
	if d.memo == nil || j.remembered || j.Blocks == prefix.MaxChain {
		return
	}
	j.remembered = true
	start, before, s := j.from, j.from, &j.step
	if before == 0 {
		before = j.Scan.Head / prefix.BlockBytes
	}
	for hash, length := range j.Scan.Marks {
		to := length / prefix.BlockBytes
		if to < before || to-before > stepKeys {
			return
		}
		j.chain.HashTo(to)
		digest, ok := j.chain.Digest(to - 1)
		if !ok {
			return
		}
		*s = step{from: uint64(before), to: uint64(to), restLen: uint64(length % prefix.BlockBytes)}
		*s.last() = digest
		copy(s.keys[:], j.chain.Keys()[before:to])
		at := (to - start) * prefix.BlockBytes
		copy(s.text()[:s.restLen], j.text[at:])
		d.memo.chains.Put(hash^j.way, s.words())
		before = to
	}
	d.memo.scans.Keep(&j.Scan)
}

// keptText is the size in bytes up to which the buffers of a prompt's text stay with a job.
const keptText = 256 << 10

// forgetText drops the text that begin has put together.
func (j *Job) forgetText() {
	if j.text = nil; cap(j.joined) > keptText {
		j.joined = nil
	}
	j.joined, j.remembered = j.joined[:0], false
}

// dropText frees the text of a long prompt, which has been hashed.
func (j *Job) dropText() {
	j.text = nil
	if cap(j.joined) > keptText {
		j.joined = nil
	}
	if cap(j.Scan.Text) > keptText {
		j.Scan.Text = nil
	}
}
