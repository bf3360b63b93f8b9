package tokens

import (
	"unicode"
	"unicode/utf8"
)

// class is a set of characters.
type class struct {
	basic [1 << 16 / 64]uint64 // for the Basic Multilingual Plane
	rest  func(r rune) bool
}

func newClass(has func(r rune) bool) *class {
	c := &class{rest: has}
	for r := range rune(1 << 16) {
		if has(r) {
			c.basic[r>>6] |= 1 << (r & 63)
		}
	}
	return c
}

func (c *class) has(r rune) bool {
	if r < 1<<16 {
		return c.basic[r>>6]&(1<<(r&63)) != 0
	}
	return c.rest(r)
}

// decode is utf8.DecodeRuneInString with the ASCII case inlined.
func decode(s string, at int) (rune, int) {
	if b := s[at]; b < utf8.RuneSelf {
		return rune(b), 1
	}
	return utf8.DecodeRuneInString(s[at:])
}

// folded returns a function that says whether has is true for r in upper or lower case.
func folded(has func(rune) bool) func(rune) bool {
	return func(r rune) bool {
		if has(r) {
			return true
		}
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			if has(f) {
				return true
			}
		}
		return false
	}
}

// property returns the ranges of a Unicode property by a name that tokenizers use, such as L for
// \p{L}.
func property(name string) (*unicode.RangeTable, bool) {
	if t, ok := unicode.Categories[name]; ok {
		return t, true
	}
	t, ok := unicode.Scripts[name]
	return t, ok
}
