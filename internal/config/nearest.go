package config

import (
	"slices"
	"strings"
)

// Nearest returns the candidate with the fewest edits from word, or "" if none is close enough.
// Close enough is a third of word's length, and at least 1.
func Nearest(word string, candidates []string) string {
	best, limit := "", max(len(word)/3, 1)+1
	for _, c := range candidates {
		if d := editDistance(word, c, limit); d < limit {
			best, limit = c, d
		}
	}
	return best
}

// MeantFlags returns the flags that name may stand for: the nearest, else those with name as first
// or last part, if they are no more than three.
func MeantFlags(name string, flags []string) []string {
	name = plain(name)
	folded := make([]string, len(flags))
	var parts []string
	for i, f := range flags {
		folded[i] = plain(f)
		if strings.HasPrefix(folded[i], name+"-") || strings.HasSuffix(folded[i], "-"+name) {
			parts = append(parts, f)
		}
	}
	if near := Nearest(name, folded); near != "" {
		return flags[slices.Index(folded, near):][:1]
	}
	if len(parts) > 3 {
		return nil
	}
	return parts
}

// didYouMean suggests the nearest candidate, or else a candidate that word begins with, as cache_id
// begins with cache.
func didYouMean(word string, candidates []string) string {
	n := Nearest(word, candidates)
	for i := 0; n == "" && i < len(candidates); i++ {
		if strings.HasPrefix(word, candidates[i]+"_") {
			n = candidates[i]
		}
	}
	if n != "" {
		return "; did you mean " + n + "?"
	}
	return ""
}

// editDistance counts the insertions, deletions, substitutions and swaps of neighbours that turn a
// into b. If it is more than limit, the result may be limit.
func editDistance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}
