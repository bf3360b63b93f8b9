package where

import (
	"hash/maphash"
	"unsafe"

	"github.com/cognitora/dataplane/internal/memo"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// Memo remembers the beginnings of long prompts: where the scan of a body can begin, and the blocks
// of the canonical text before that place. A repeated history or document is then neither scanned
// nor hashed again. Memo is bounded, and no call waits for its lock.
type Memo struct {
	secret maphash.Seed
	scans  *scan.Memo
	chains *memo.Table // by scan's hash, mixed with the chain's seed and the preceding text
}

// NewMemo makes a Memo of about the given size in bytes. The Memo uses about 1 KB for every 4 KiB
// of prompts.
func NewMemo(bytes int) *Memo {
	return &Memo{secret: maphash.MakeSeed(), scans: scan.NewMemo(bytes / 2), chains: memo.New(bytes/2, stepWords)}
}

// stepKeys bounds the blocks remembered between two marks. 8 KiB of a body make about 128 blocks,
// with some reordering.
const stepKeys = 136

// step is the way from one mark to the next: the blocks in between, and the text after the last
// block. step consists of words only, so it can be a record of a memo.Table.
type step struct {
	from, to uint64 // blocks before the preceding mark, and before this one
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

// way returns a hash of the chain's seed and of the text before the body.
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

// Scans returns the part of m that package scan uses, or nil for a nil m.
func (m *Memo) Scans() *scan.Memo {
	if m == nil {
		return nil
	}
	return m.scans
}

// begin makes the chain from the canonical text, or from the client's tokens.
func (f *Finder) begin(p *Prompt, seed prefix.Digest) {
	s := p.scan
	p.way = f.Memo.way(seed, s.Text[:s.Head])
	p.from = 0
	if s.Skipped > 0 && !f.skip(p, seed) {
		// The memo knows the marks, but not the blocks, because the model, the salt or the tools
		// differ.
		if p.again == nil {
			p.again = new(scan.Request)
		}
		if scan.Again(p.asked.API, p.asked.Body(), s, p.again) != nil {
			p.again.Text = p.again.Text[:0] // two bodies share a hash; the engine will report the error
		}
		s, p.scan = p.again, p.again
	}
	if s.Skipped == 0 {
		p.chain.Reset(seed, s.Text, s.Tokens)
		p.text = s.Text
	}
	p.chain.Lengthen(s.Omitted)
}

// The scan keeps the text and the tokens of as many blocks as a chain can have.
const (
	_ = uint(scan.TextKept - prefix.MaxChain*prefix.BlockBytes)
	_ = uint(scan.TokensKept - prefix.MaxChain*prefix.BlockTokens)
)

// skip adds the blocks of the text that the scan skipped.
func (f *Finder) skip(p *Prompt, seed prefix.Digest) bool {
	scanned, s := p.scan, p.step
	head := scanned.Text[:scanned.Head]
	full := len(head) - len(head)%prefix.BlockBytes
	p.chain.Reset(seed, head[:full], nil)
	p.chain.HashTo(p.chain.Blocks())
	arrived := false
	for _, hash := range scanned.Passed() {
		f.Memo.chains.Near(hash ^ p.way)
	}
	for _, hash := range scanned.Passed() {
		arrived = false
		if !f.Memo.chains.Get(hash^p.way, s.words()) {
			continue
		}
		n := int(s.to - s.from)
		if int(s.from) != p.chain.Blocks() || n > stepKeys {
			return false
		}
		p.chain.Skip(s.keys[:n], *s.last())
		arrived = true
	}
	if !arrived || int(s.to)*prefix.BlockBytes+int(s.restLen) != len(head)+scanned.Skipped {
		return false
	}
	f.Metrics.Passed.Add(float64(scanned.Skipped))
	p.from = int(s.to)
	p.joined = append(append(p.joined[:0], s.text()[:s.restLen]...), scanned.Text[scanned.Head:]...)
	p.text = p.joined
	p.chain.Continue(p.text)
	return true
}

// remember stores the scan's marks and the blocks between them.
func (f *Finder) remember(p *Prompt) {
	if f.Memo == nil || p.source != fromText || p.chain.Blocks() == prefix.MaxChain {
		return
	}
	p.source = fromMarks
	scanned, s := p.scan, p.step
	start, before := p.from, p.from
	if before == 0 {
		before = scanned.Head / prefix.BlockBytes
	}
	for hash, length := range scanned.Marks {
		to := length / prefix.BlockBytes
		if to < before || to-before > stepKeys {
			return
		}
		p.chain.HashTo(to)
		digest, ok := p.chain.Digest(to - 1)
		if !ok {
			return
		}
		*s = step{from: uint64(before), to: uint64(to), restLen: uint64(length % prefix.BlockBytes)}
		*s.last() = digest
		copy(s.keys[:], p.chain.Keys()[before:to])
		at := (to - start) * prefix.BlockBytes
		copy(s.text()[:s.restLen], p.text[at:])
		f.Memo.chains.Put(hash^p.way, s.words())
		before = to
	}
	f.Memo.scans.Keep(scanned)
}
