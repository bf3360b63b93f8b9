package tokens

import (
	"math"
	"sync"

	"golang.org/x/text/unicode/norm"
)

// Tokenizer turns text into token ids. Tokenizer is safe for concurrent use.
type Tokenizer struct {
	bpe    bpe
	added  addedTokens
	nfc    bool
	stages []stage
	before []uint32 // ids put before a prompt
	after  []uint32 // ids put behind a prompt
	breaks [4]bool  // which of breaks are valid
	mark   uint64   // distinguishes this tokenizer's chunks from other tokenizers' chunks
}

// keptSymbols bounds the memory that a scratch keeps.
const keptSymbols = 4 * maxWord

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Encode appends the ids of text to dst. If special is set, Encode adds the model's tokens before
// and behind a prompt (BOS).
func (t *Tokenizer) Encode(dst []uint32, text string, special bool) []uint32 {
	dst, _ = t.encode(dst, text, special, math.MaxInt, t.pieces)
	return dst
}

// encode returns false if a word is longer than longest. The ids are then incomplete.
func (t *Tokenizer) encode(dst []uint32, text string, special bool, longest int,
	pieces func([]uint32, string, *scratch) []uint32) ([]uint32, bool) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.longest, s.over = longest, false
	if special {
		dst = append(dst, t.before...)
	}
	dst = pieces(dst, text, s)
	if special {
		dst = append(dst, t.after...)
	}
	if s.symbols != nil && cap(s.symbols) > keptSymbols {
		s.symbols, s.heap = nil, nil
	}
	return dst, !s.over
}

// pieces appends the ids of text. pieces finds added tokens first.
func (t *Tokenizer) pieces(dst []uint32, text string, s *scratch) []uint32 {
	t.added.raw.each(text, func(text string, token *addedToken) {
		if t.nfc && !norm.NFC.IsNormalString(text) {
			text = norm.NFC.String(text)
		}
		t.added.later.each(text, func(text string, token *addedToken) {
			if dst = t.cut(dst, text, t.stages, s); token != nil {
				dst = append(dst, token.ID)
			}
		})
		if token != nil {
			dst = append(dst, token.ID)
		}
	})
	return dst
}
