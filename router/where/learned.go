package where

import (
	"bytes"
	"slices"

	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/learned"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// A prompt whose beginning the Map knows is counted in blocks of 16 tokens. The index goes on
// predicting it by its text, and the predictions are converted.

// beginning is the known beginning of a prompt.
type beginning struct {
	origin  learned.Origin // what the chat's tokens depend on
	teaches bool           // the prompt's chat can be learned
	known   *learned.Entry // nil: the beginning is unknown
	ratio   float64        // blocks of tokens for each block of text, by the known beginning
	length  int64          // tokens of the prompt, as estimated behind the beginning
	shared  int            // leading bytes of text that an earlier prompt had
}

// told is memory for a known beginning.
type told struct {
	chain     prefix.Chain // the known blocks
	keys      []uint64
	predicted []int32 // by rank, see Prompt.Predicted
	promised  []int32 // by rank, see Prompt.Promised
}

func (t *told) empty() {
	const keepKeys = 1 << 13
	t.chain.Reset(prefix.Digest{}, nil, nil)
	if t.keys = t.keys[:0]; cap(t.keys) > keepKeys {
		t.keys = nil
	}
	t.predicted, t.promised = t.predicted[:0], t.promised[:0]
}

// These bound the ratio, against a beginning that is much unlike the rest of the prompt.
const (
	leastRatio = 0.125
	mostRatio  = 4
)

// recall makes the chain of the longest known beginning of the prompt. recall returns false if none
// is known, or if the model's chats are not learned.
func (f *Finder) recall(p *Prompt, model string) bool {
	lines := p.asked.API == scan.Completions
	if p.source != fromText || !lines && p.asked.API != scan.Chat || len(p.text) == 0 || !f.Learned.Learns(model) ||
		lines && !p.oneText() {
		return false
	}
	form, ok := f.Learned.Form(p.asked.API, model, p.asked.Scan, p.asked.Body())
	if !ok {
		return false
	}
	p.teaches, p.origin.Form = true, form
	for _, blocks := range p.coming {
		p.shared = max(p.shared, int(blocks)*prefix.BlockBytes)
	}
	e, end := f.Learned.Recall(&learned.Text{
		Chain: &p.chain, From: p.from, Bytes: p.text, Form: form, Lines: lines, Shared: p.shared,
	})
	if e == nil {
		return false
	}
	p.told.keys = e.Append(p.told.keys[:0])
	p.told.chain.Reset(prefix.Digest{}, nil, nil)
	p.told.chain.Skip(p.told.keys, e.Last())
	bytes, all := float64(p.from*prefix.BlockBytes+end), float64(p.chain.Tokens())*prefix.BlockBytes/prefix.BlockTokens
	p.known = e
	p.ratio = min(max(float64(e.Tokens())/prefix.BlockTokens*prefix.BlockBytes/max(bytes, 1), leastRatio), mostRatio)
	p.length = int64(e.Tokens()) + int64(max(all-bytes, 0)/prefix.BlockBytes*p.ratio*prefix.BlockTokens)
	p.Blocks = min(int(p.length/prefix.BlockTokens), prefix.MaxChain)
	return true
}

// oneText says whether the prompt of a completion is one text, and whole.
func (p *Prompt) oneText() bool {
	r, body := p.asked.Scan, p.asked.Body()
	return bytes.IndexByte(p.text, scan.MarkNext) < 0 && r.Find(body, "truncate_prompt_tokens") == nil &&
		r.Find(body, "prompt_embeds") == nil
}

// clearBy says from how many blocks behind the known beginning on the prediction by text counts.
// Within fewer, the engine's report about the beginning is all that is known.
const clearBy = 2

// join combines the engines' reports about the known beginning with the predictions. An engine that
// has all of the beginning may have more of the prompt. Behind it, the prediction by text counts if
// it goes on for more than two blocks, and for one block less.
func (p *Prompt) join() {
	t, known := &p.told, int32(p.known.Blocks())
	t.predicted = slices.Grow(t.predicted[:0], len(p.matched))[:len(p.matched)]
	t.promised = slices.Grow(t.promised[:0], len(p.matched))[:len(p.matched)]
	for i, r := range p.query.Reach {
		t.predicted[i], t.promised[i] = max(p.matched[i], p.coming[i]), holdings.Unknown
		matched, coming := p.inTokens(p.matched[i]), p.inTokens(p.coming[i])
		switch {
		case r.Device == holdings.Unknown:
			r.Device = matched
		case r.Device < known:
			t.promised[i] = r.Device
			if r.Device < matched { // the engine has lost the blocks behind
				coming = r.Device
			}
		default:
			t.promised[i] = known
			if matched > known+clearBy {
				r.Device = matched - 1
			}
		}
		p.matched[i], p.coming[i] = r.Device, max(coming, r.Device)
		r.Host = max(r.Host, r.Device)
		r.Disk = max(r.Disk, r.Host)
		r.Shared = max(r.Shared, r.Disk)
		p.reach, p.held = append(p.reach, r), true
	}
}

// inTokens converts blocks of text.
func (p *Prompt) inTokens(blocks int32) int32 {
	return min(int32(float64(blocks)*p.ratio), int32(p.Blocks))
}

// Promised returns the number of leading blocks that the engine at index i has by its own report,
// among those of the prompt's known beginning. Promised returns holdings.Unknown if the engine
// reports none, or if the beginning is unknown.
func (p *Prompt) Promised(i int) int {
	if p.known == nil {
		return holdings.Unknown
	}
	return int(p.told.promised[i])
}

// Confirm compares what was promised about the answering engine with its count of cached tokens.
// The engine counts whole blocks of its own, engineBlock tokens each, and never the last token. A
// beginning that promised too much is forgotten. So is one that the engine does not report although
// it found more cached.
func (p *Prompt) Confirm(promised int, prompt, cached int64, engineBlock int) {
	if p.known == nil || promised < 0 || p.Uneven() {
		return
	}
	block := int64(max(engineBlock, prefix.BlockTokens))
	least := min(int64(promised)*prefix.BlockTokens/block, max(prompt-1, 0)/block) * block
	more := promised < p.known.Blocks() && cached > least+2*block
	if promised > 0 || more {
		p.finder.Learned.Settle(p.known, cached >= least && !more)
	}
}

// Lesson returns what the prompt can teach once it has been answered. model is the engine's name of
// the model. Lesson returns nil if the prompt teaches nothing.
func (p *Prompt) Lesson(model string) *learned.Lesson {
	if !p.teaches || !p.Found() {
		return nil
	}
	return p.finder.Learned.Lesson(p.asked.API, p.asked.Scan, p.asked.Body(), model, p.origin, p.shared)
}
