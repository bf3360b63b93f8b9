package policy

import (
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/router/predict"
)

// Warm says what mode predicted expects of a prompt's blocks at a candidate.
type Warm struct {
	Held  int64   // tokens of the prompt that the node need not compute
	Fetch float64 // seconds in which the host gets blocks from other hosts, or from its disk
}

// Warm returns what the node need not compute of a prompt of this many tokens. Blocks that only
// other hosts have count like those in the host's memory, once the host has them. That takes
// at.Fetch for each of them. They do not count if computing is as fast, or if that time is unknown.
// So a slow network makes a node look neither better nor worse. Blocks on the host's disk count as
// fetched too, if that is better than their own worth: a node is never worse for having them.
func (t *Tiers) Warm(c *Candidate, at *Timing, tokens int64) Warm {
	w := Warm{Held: t.Held(c)}
	if at.Fetch <= 0 {
		return w
	}
	if f := t.fetched(c, at); f.Fetch < at.computing(tokens, w.Held)-at.computing(tokens, f.Held) {
		return f
	}
	return w
}

// beyond returns the worth of a block on the host's disk, and of one that only other hosts have.
// Without a setting the latter is measured: the worth of a block in the host's memory, times the
// share of the time that a node saves if its host gets the block in place of computing it. A node
// is then never worse for having a block on its disk.
func (t *Tiers) beyond(c *Candidate) (disk, elsewhere float64) {
	if t.Shared != nil {
		return t.Disk, *t.Shared
	}
	elsewhere = fetched(t.Host, c)
	return max(t.Disk, elsewhere), elsewhere
}

// fetched returns the measured worth of a block that only other hosts have. host is the worth of a
// block in the host's memory, where it comes.
func fetched(host float64, c *Candidate) float64 { return host * c.Saved.Value() }

// count says whether a block can have a worth.
func (t *Tiers) count() bool {
	return t.Device > 0 || t.Host > 0 || t.Disk > 0 || t.Shared != nil && *t.Shared > 0
}

// Measures says whether a pick reads Candidate.Saved. o are the overrides of the request.
func (p *Policy) Measures(o *Overrides) bool {
	switch p.Mode {
	case Score:
		return p.Score.Tiers.Shared == nil
	case Cost:
		return p.Cost.SharedCacheMultiplier == nil && !o.SharedCacheMultiplier.Given
	}
	return false
}

// fetched returns what is expected if the host gets all that it does not have in its memory.
func (t *Tiers) fetched(c *Candidate, at *Timing) Warm {
	near := max(c.Matched, c.Coming, 0)
	host := max(c.Host, near)
	all := max(c.SharedCache, c.Disk, host)
	return Warm{int64((float64(near) + t.Host*float64(all-near)) * block.Tokens), float64(all-host) * at.Fetch}
}

// computing returns the time in which the node computes a prompt of which it holds some tokens.
func (t *Timing) computing(tokens, held int64) float64 {
	return t.PrefillFactor * t.Prefill(predict.Prompt(tokens, held))
}

// beginning returns the time in which the node has the beginning of the prompt that running prompts
// share. fetches says that the host gets blocks from other hosts.
func (x *expecting) beginning(c *Candidate, at *Timing, fetches bool) float64 {
	most := int32(x.shared / block.Tokens)
	part := Candidate{
		Matched: min(c.Matched, most), Coming: min(c.Coming, most), Host: min(c.Host, most), Disk: min(c.Disk, most),
		SharedCache: min(c.SharedCache, most), Fit: c.Fit,
	}
	w := Warm{Held: x.tiers.Held(&part)}
	if fetches {
		w = x.tiers.fetched(&part, at)
	}
	return at.computing(min(x.shared, x.tokens), min(x.credit(&part, w.Held), x.shared)) + w.Fetch
}
