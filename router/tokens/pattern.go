package tokens

import "unicode/utf8"

// pattern is a regular expression of the kind that tokenizers cut words with: alternatives of
// character classes with quantifiers, (?i:'s|'t) and (?!\S). The first alternative that matches
// counts, as in backtracking engines.
type pattern struct {
	alternatives []alternative
}

type alternative struct {
	items  []item
	starts [256]bool // the bytes that it can begin with
}

type kind uint8

const (
	ofClass kind = iota
	ofGroup      // one of several short sequences
	notNext      // what follows is not of the class
)

type item struct {
	kind       kind
	class      *class
	group      [][]*class
	min, max   int // max < 0: any number
	possessive bool
}

// match is where the match that begins at s[at] ends, at or less if there is none.
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

// sequence is where items, one after the other, end that begin at s[at]; -1 if they do not match.
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

// repeat takes as many characters of the class as there are, and fewer while what follows does not
// match.
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

// joins tells whether some match can go on from a to b right behind it.
func (p *pattern) joins(a, b rune) bool {
	for i := range p.alternatives {
		seen := false // an item before can be a
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

// endsAt tells whether matches that end with a do so at the end of a text as well as before b,
// which (?!\S) can tell apart.
func (p *pattern) endsAt(a, b rune) bool {
	for _, before := range []string{"", " ", "  ", "\t", "\n", "\r\n", ".", " .", "x"} {
		text := before + string(a)
		if p.match(text, 0) != p.match(text+string(b), 0) {
			return false
		}
	}
	return true
}

// holds tells whether the item can take r.
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

// arrange notes what the alternative can begin with; false if it can be empty.
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
