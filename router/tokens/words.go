package tokens

import "encoding/binary"

// words holds the words that are one token. Nearly all have up to 15 bytes and are found with one
// look into a table.
type words struct {
	short  []shortWord  // up to 7 bytes
	middle []middleWord // up to 15
	long   map[string]uint32
}

type shortWord struct {
	key uint64 // the bytes, with their number in the highest byte; 0: empty
	id  uint32
}

type middleWord struct {
	low, high uint64 // the bytes, with their number in the highest byte; high is never 0
	id        uint32
}

const (
	maxShort  = 7
	maxMiddle = 15
	spread    = 0x9e3779b97f4a7c15
)

func newWords(all map[string]uint32) words {
	var short, middle int
	for word := range all {
		switch {
		case len(word) <= maxShort:
			short++
		case len(word) <= maxMiddle:
			middle++
		}
	}
	w := words{short: make([]shortWord, tableSize(short)), middle: make([]middleWord, tableSize(middle)),
		long: map[string]uint32{}}
	for word, id := range all {
		switch {
		case len(word) <= maxShort:
			s := w.findShort(packed(word))
			*s = shortWord{packed(word), id}
		case len(word) <= maxMiddle:
			low, high := binary.LittleEndian.Uint64([]byte(word)), packed(word[8:])
			*w.findMiddle(low, high) = middleWord{low, high, id}
		default:
			w.long[word] = id
		}
	}
	return w
}

// tableSize returns the size of a table for n entries: a power of two that they fill to less than
// two thirds.
func tableSize(n int) int {
	size := 16
	for 2*size < 3*n {
		size *= 2
	}
	return size
}

// packed returns up to 7 bytes together with their number.
func packed(s string) (key uint64) {
	for i := len(s) - 1; i >= 0; i-- {
		key = key<<8 | uint64(s[i])
	}
	return key | uint64(len(s))<<56 | 1<<63
}

func place(hash uint64, slots int) int { return int(hash>>32) & (slots - 1) }

func (w *words) findShort(key uint64) *shortWord {
	for i := place(key*spread, len(w.short)); ; i = (i + 1) & (len(w.short) - 1) {
		if s := &w.short[i]; s.key == key || s.key == 0 {
			return s
		}
	}
}

func (w *words) findMiddle(low, high uint64) *middleWord {
	for i := place((low*spread^high)*spread, len(w.middle)); ; i = (i + 1) & (len(w.middle) - 1) {
		if s := &w.middle[i]; s.low == low && s.high == high || s.high == 0 {
			return s
		}
	}
}

// find returns the id of a word. ok is false if the word is not one token.
func (w *words) find(word string) (id uint32, ok bool) {
	switch {
	case len(word) <= maxShort:
		s := w.findShort(packed(word))
		return s.id, s.key != 0
	case len(word) <= maxMiddle:
		low := uint64(word[0]) | uint64(word[1])<<8 | uint64(word[2])<<16 | uint64(word[3])<<24 | uint64(word[4])<<32 |
			uint64(word[5])<<40 | uint64(word[6])<<48 | uint64(word[7])<<56
		s := w.findMiddle(low, packed(word[8:]))
		return s.id, s.high != 0
	}
	id, ok = w.long[word]
	return id, ok
}
