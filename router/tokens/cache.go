package tokens

import (
	"hash/maphash"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/cognitora/dataplane/internal/memo"
)

// A text is cut into chunks at breaks, from its beginning on. Texts with the same beginning
// therefore have the same first chunks. The ids of chunks are remembered.
const (
	chunkFrom = 1 << 10 // least length of a chunk in bytes
	chunkTo   = 4 << 10 // a text without a break in this many bytes is encoded without the cache
	// chunkIDs bounds the ids remembered for a chunk. A chunk with more ids is encoded every time.
	chunkIDs = 512
)

// Cache remembers the ids of chunks of text. Cache is bounded and safe for concurrent use. No call
// of the Cache waits.
type Cache struct {
	table *memo.Table
	seed  maphash.Seed
}

// chunk is a record of the table.
type chunk struct {
	n   uint64
	ids [chunkIDs]uint32
}

const chunkWords = int(unsafe.Sizeof(chunk{}) / 8)

func (c *chunk) words() []uint64 { return (*[chunkWords]uint64)(unsafe.Pointer(c))[:] }

// NewCache makes a cache of about the given size in bytes. The cache uses 2 KB for each KB of text.
func NewCache(bytes int) *Cache {
	return &Cache{table: memo.New(bytes, chunkWords), seed: maphash.MakeSeed()}
}

// maxWord bounds the bytes of a word, because a word's cost grows with its length. Human text and
// code have no longer words.
const maxWord = 4 << 10

// Encode is Tokenizer.Encode with the cache. Texts of another space do not count as known. encoded
// is the number of bytes of text that were not in the cache. ok is false, and ids are incomplete,
// if a word has more than 4 KiB.
func (c *Cache) Encode(
	t *Tokenizer, dst []uint32, text string, space uint64, special bool,
) (ids []uint32, encoded int, ok bool) {
	ids, ok = t.encode(dst, text, special, maxWord, func(dst []uint32, text string, s *scratch) []uint32 {
		for text != "" {
			end := t.breakOf(text)
			if end < 0 {
				encoded += len(text)
				return t.pieces(dst, text, s)
			}
			var known bool
			if dst, known = c.chunk(t, dst, text[:end], space, s); !known {
				encoded += end
			}
			text = text[end:]
		}
		return dst
	})
	return ids, encoded, ok
}

// chunk appends the ids of one chunk.
func (c *Cache) chunk(t *Tokenizer, dst []uint32, text string, space uint64, s *scratch) (_ []uint32, known bool) {
	key := maphash.String(c.seed, text) ^ t.mark ^ space
	r := &s.chunk
	if c.table.Get(key, r.words()) {
		return append(dst, r.ids[:min(r.n, chunkIDs)]...), true
	}
	start := len(dst)
	dst = t.pieces(dst, text, s)
	if r.n = uint64(len(dst) - start); r.n <= chunkIDs && !s.over {
		copy(r.ids[:], dst[start:])
		c.table.Put(key, r.words())
	}
	return dst, false
}

const (
	comma = "，"
	stop  = "。"
)

// breakOf returns the end of the first chunk of text, or -1 if text is the last one.
func (t *Tokenizer) breakOf(text string) int {
	for i := chunkFrom; i < len(text) && i < chunkTo; i++ {
		b, before := text[i], text[i-1]
		switch {
		case b == ' ' && t.breaks[0] && plain(rune(before)),
			before == '\n' && t.breaks[1] && plain(rune(b)),
			b == comma[0] && t.breaks[2] && strings.HasPrefix(text[i:], comma) && behindHan(text, i),
			b == stop[0] && t.breaks[3] && strings.HasPrefix(text[i:], stop) && behindHan(text, i):
			return i
		}
	}
	return -1
}

func behindHan(text string, at int) bool {
	r, _ := utf8.DecodeLastRuneInString(text[:at])
	return han(r)
}
