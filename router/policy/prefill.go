package policy

import (
	"fmt"
	"time"
)

// These are the modes of a prefill load model.
const (
	NotModelled = "none"
	Modelled    = "modelled"
)

// PrefillLoadModel tells how long a node takes to compute a prompt. Without a model a prompt counts
// in full until the first token of its answer. With a model a node's waiting prefill falls while
// the node computes its oldest prompt. The model counts in every mode.
type PrefillLoadModel struct {
	Mode string `json:"mode" oneof:"none|modelled"`
	// Table holds measurements. They are sorted by CachedTokens, then by Tokens, and begin with a
	// prompt without cached tokens. Entries with equal CachedTokens are points of a curve over
	// Tokens, and Ms does not fall along it. A curve begins at 0 tokens in 0 ms, unless its first
	// entry has 0 tokens.
	Table []PrefillTime `json:"table,omitempty" most:"64"`
}

// PrefillTime is the measured duration of one prefill.
type PrefillTime struct {
	Tokens       int     `json:"tokens" range:"0..16777216"` // computed, so without the cached ones
	CachedTokens int     `json:"cached_tokens" range:"0..16777216"`
	Ms           float64 `json:"ms" range:"0.001..3600000"`
}

// longestPrefill bounds expected durations.
const longestPrefill = 24 * time.Hour

// Expected returns the expected duration of a prefill of tokens behind cached ones. It interpolates
// linearly between measurements and continues their slope beyond the last. Expected returns 0 if
// there is nothing to compute or no model.
func (m *PrefillLoadModel) Expected(tokens, cached int64) time.Duration {
	if m.Mode != Modelled || len(m.Table) == 0 || tokens <= 0 {
		return 0
	}
	ms := m.ms(float64(tokens), float64(max(cached, 0)))
	longest := float64(longestPrefill / time.Millisecond)
	return max(time.Duration(min(ms, longest)*float64(time.Millisecond)), 1)
}

// ms interpolates between the curves below and above the number of cached tokens.
func (m *PrefillLoadModel) ms(tokens, cached float64) float64 {
	low, rest := curve(m.Table)
	if len(rest) == 0 {
		return along(low, tokens)
	}
	high, rest := curve(rest)
	for len(rest) > 0 && float64(high[0].CachedTokens) < cached {
		low = high
		high, rest = curve(rest)
	}
	from, to := float64(low[0].CachedTokens), float64(high[0].CachedTokens)
	less, more := along(low, tokens), along(high, tokens)
	slope := (more - less) / (to - from)
	if cached > to {
		return more + max(slope, 0)*(cached-to)
	}
	return less + slope*(cached-from)
}

// curve splits off the leading entries with equal cached tokens.
func curve(table []PrefillTime) (first, rest []PrefillTime) {
	n := 1
	for n < len(table) && table[n].CachedTokens == table[0].CachedTokens {
		n++
	}
	return table[:n], table[n:]
}

// along returns the duration on the line through the two points around tokens, or through the last
// two.
func along(curve []PrefillTime, tokens float64) float64 {
	a, b := PrefillTime{}, curve[0]
	for _, next := range curve[1:] {
		if tokens <= float64(b.Tokens) {
			break
		}
		a, b = b, next
	}
	if b.Tokens == a.Tokens {
		return b.Ms // the only point has 0 tokens
	}
	return a.Ms + (b.Ms-a.Ms)*(tokens-float64(a.Tokens))/float64(b.Tokens-a.Tokens)
}

// fault returns the first problem of a table whose single values are allowed.
func (m *PrefillLoadModel) fault() error {
	const table = "prefill_load_model.table"
	if m.Mode == Modelled && len(m.Table) == 0 {
		return &FieldError{table, "empty", "at least one measurement if mode is " + Modelled}
	}
	for i, p := range m.Table {
		entry := func(key string) string { return fmt.Sprintf("%s[%d].%s", table, i, key) }
		if i == 0 {
			if p.CachedTokens != 0 {
				return &FieldError{entry("cached_tokens"), fmt.Sprint(p.CachedTokens),
					"0, because the table begins with prompts without cached tokens"}
			}
			continue
		}
		switch last := m.Table[i-1]; {
		case p.CachedTokens < last.CachedTokens:
			return &FieldError{entry("cached_tokens"), fmt.Sprint(p.CachedTokens), fmt.Sprintf(
				"%d or more, because entries are sorted by cached_tokens, then by tokens", last.CachedTokens)}
		case p.CachedTokens > last.CachedTokens:
		case p.Tokens <= last.Tokens:
			return &FieldError{entry("tokens"), fmt.Sprint(p.Tokens), fmt.Sprintf(
				"more than %d, because entries are sorted by cached_tokens, then by tokens", last.Tokens)}
		case p.Ms < last.Ms:
			return &FieldError{entry("ms"), fmt.Sprint(p.Ms), fmt.Sprintf(
				"%v or more, because more tokens take no less time", last.Ms)}
		}
	}
	return nil
}
