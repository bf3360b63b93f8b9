package tokens

import "unicode/utf8"

// pattern is a regular expression of the kind that tokenizers use to cut words. pattern has
// alternatives of character classes with quantifiers, (?i:'s|'t) and (?!\S). The first matching
// alternative counts, as in backtracking engines.
type pattern struct {
	alternatives []alternative
}

type alternative struct {
	items  []item
	starts [256]bool // the possible first bytes
}

type kind uint8

const (
	ofClass kind = iota
	ofGroup      // one of several short sequences
	notNext      // the next character is not of the class
)

type item struct {
	kind       kind
	class      *class
	group      [][]*class
	min, max   int // max < 0: any number
	possessive bool
}

// match returns the end of the match that begins at s[at]. The result is at or less if no match
// begins there.
func (p *pattern) match(s string, at int) int {
	first := s[at]
	for i := range p.alternatives {
		a := &p.alternatives[i]
		if !a.starts[first] {
			continue
		}
		if end := sequence(a.items, s, at); end > at {
			return end
		}
	}
	return -1
}

// sequence returns the end of items in a row that begin at s[at], or -1 if they do not match.
func sequence(items []item, s string, at int) int {
	if len(items) == 0 {
		return at
	}
	switch it := &items[0]; it.kind {
	case notNext:
		if at < len(s) {
			if r, _ := decode(s, at); it.class.has(r) {
				return -1
			}
		}
		return sequence(items[1:], s, at)
	case ofGroup:
		for _, word := range it.group {
			if end := spell(word, s, at); end >= 0 {
				if end = sequence(items[1:], s, end); end >= 0 {
					return end
				}
			}
		}
		if it.min == 0 {
			return sequence(items[1:], s, at)
		}
		return -1
	default:
		return it.repeat(items[1:], s, at)
	}
}

// repeat takes as many characters of the class as possible. repeat takes fewer while the next items
// do not match.
func (it *item) repeat(next []item, s string, at int) int {
	n, end := 0, at
	for end < len(s) && n != it.max {
		r, size := decode(s, end)
		if !it.class.has(r) {
			break
		}
		end += size
		n++
	}
	if n < it.min {
		return -1
	}
	if len(next) == 0 {
		return end
	}
	for {
		if e := sequence(next, s, end); e >= 0 {
			return e
		}
		if n == it.min || it.possessive {
			return -1
		}
		_, size := utf8.DecodeLastRuneInString(s[at:end])
		end -= size
		n--
	}
}

func spell(word []*class, s string, at int) int {
	for _, c := range word {
		if at == len(s) {
			return -1
		}
		r, size := decode(s, at)
		if !c.has(r) {
			return -1
		}
		at += size
	}
	return at
}

// joins says whether some match can extend from a to b right behind it.
func (p *pattern) joins(a, b rune) bool {
	for i := range p.alternatives {
		seen := false // an earlier item can be a
		for _, it := range p.alternatives[i].items {
			if it.kind == notNext {
				continue
			}
			hasA, hasB := it.holds(a), it.holds(b)
			if hasB && seen || hasA && hasB && (it.max != 1 || it.kind == ofGroup) {
				return true
			}
			seen = seen || hasA
		}
	}
	return false
}

// endsAt says whether a match on a text that ends with a has the same end if b follows. (?!\S) can
// distinguish the two cases.
func (p *pattern) endsAt(a, b rune) bool {
	for _, before := range []string{"", " ", "  ", "\t", "\n", "\r\n", ".", " .", "x"} {
		text := before + string(a)
		if p.match(text, 0) != p.match(text+string(b), 0) {
			return false
		}
	}
	return true
}

// holds says whether the item can match r.
func (it *item) holds(r rune) bool {
	if it.kind == ofClass {
		return it.class.has(r)
	}
	for _, word := range it.group {
		for _, c := range word {
			if c.has(r) {
				return true
			}
		}
	}
	return false
}

// arrange records the possible first bytes of the alternative. arrange returns false if the
// alternative can be empty.
func (a *alternative) arrange() bool {
	for b := utf8.RuneSelf; b < 256; b++ {
		a.starts[b] = true
	}
	for _, it := range a.items {
		for b := range utf8.RuneSelf {
			switch it.kind {
			case ofClass:
				a.starts[b] = a.starts[b] || it.class.has(rune(b))
			case ofGroup:
				for _, word := range it.group {
					a.starts[b] = a.starts[b] || word[0].has(rune(b))
				}
			}
		}
		if it.kind != notNext && it.min > 0 {
			return true
		}
	}
	return false
}
