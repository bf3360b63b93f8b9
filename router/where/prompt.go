// Package where estimates how many leading blocks of a prompt each rank of each node holds. The
// package combines the prefix index's predictions with the reports of engines and of their hosts'
// caches. The package also learns from the cached tokens that the engines report.
package where

import (
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/learned"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/tokens"
)

// Finder looks prompts up. Set the fields of a Finder before use. Finder is safe for concurrent
// use.
type Finder struct {
	Index    *prefix.Index
	Memo     *Memo         // nil: long prompts are not remembered
	Holdings *holdings.Map // reports of cache daemons; nil: none
	Tokens   *tokens.Set   // tokenizers of some models; nil: none
	Learned  *learned.Map  // known beginnings of the chats of some models; nil: none
	Metrics  *metrics.Router
}

// Prompt is the chain of a request's blocks for one model, and the number of leading blocks that
// each rank holds. One goroutine at a time uses a Prompt. Reset makes a Prompt reusable.
type Prompt struct {
	Blocks int // full blocks

	subject
	memory
}

// subject is the input of a Prompt.
type subject struct {
	finder *Finder // nil: nothing was looked up
	asked  *request.Request
	scan   *scan.Request // the scan of asked, or memory.again
	source source
	text   []byte // the chain's text, from block from on
	from   int
	way    uint64 // mixed with the Memo's hashes
	turn   uint64 // see tokens.Result
	beginning
}

// memory holds buffers for the next question.
type memory struct {
	chain   prefix.Chain
	again   *scan.Request // second scan of a body; the first one skipped a beginning with blocks that are unknown here
	joined  []byte        // text joined from several pieces
	step    *step         // scratch of begin and remember
	ids     []uint32
	refs    []prefix.Ref
	matched []int32          // predicted leading blocks in the engine's own memory, by rank
	coming  []int32          // matched plus the blocks being computed for other requests
	reach   []holdings.Reach // empty: no host's cache has reported
	held    bool             // some rank holds or computes a block, or has reported
	query   holdings.Query
	told    told
}

// source says how the chain of a prompt was made.
type source uint8

const (
	fromText   source = iota // from the canonical text; the Memo has not stored the blocks
	fromMarks                // from the canonical text; the Memo has stored the blocks
	fromTokens               // from the model's own tokens: the client's, or the tokenizer's
)

// Reset forgets the last prompt. Reset keeps buffers of moderate size.
func (p *Prompt) Reset() {
	if p.scan != nil && p.scan == p.again {
		p.again.Reset()
		if cap(p.again.Text) > request.KeptText {
			p.again.Text = nil
		}
	}
	p.Blocks, p.subject = 0, subject{}
	p.memory.empty()
}

func (m *memory) empty() {
	const keepIDs = 1 << 16
	m.chain.Reset(prefix.Digest{}, nil, nil)
	m.told.empty()
	m.query.Reset()
	if m.joined = m.joined[:0]; cap(m.joined) > request.KeptText {
		m.joined = nil
	}
	if m.ids = m.ids[:0]; cap(m.ids) > keepIDs {
		m.ids = nil
	}
	m.refs, m.matched, m.coming = m.refs[:0], m.matched[:0], m.coming[:0]
	m.reach, m.held = m.reach[:0], false
}

// Find makes p the prompt of r for a model whose chains begin with seed. Find also finds out how
// many leading blocks each rank holds. Find runs once for a leg; later attempts of the leg use the
// same answer.
func (f *Finder) Find(p *Prompt, r *request.Request, model string, seed prefix.Digest, ranks []*fleet.Rank) {
	p.finder, p.asked, p.scan = f, r, r.Scan
	if p.step == nil {
		p.step = new(step)
	}
	if len(r.Scan.CacheSalt) > 0 {
		seed = prefix.Seed(model, "", r.Scan.CacheSalt)
	}
	p.origin.Seed = seed
	if !f.tokenise(p, model, seed) {
		f.begin(p, seed)
	}
	f.believe(p, model, ranks)
}

// FindKeys is Find for a prompt given by the keys of its blocks, as one user turn.
func (f *Finder) FindKeys(
	p *Prompt, r *request.Request, keys []uint64, model string, seed prefix.Digest, ranks []*fleet.Rank,
) {
	p.finder, p.asked, p.scan = f, r, r.Scan
	r.Scan.FirstTurn = len(keys) * prefix.BlockBytes
	p.chain.Reset(seed, nil, nil)
	p.chain.Skip(keys, prefix.Digest{})
	f.believe(p, model, ranks)
}

// believe computes how much each rank holds. An engine's own report replaces the prediction if the
// prompt's blocks are of the model's tokens. Engines report no other blocks. A rank holds nothing
// of a prompt for which engines read no cache.
func (f *Finder) believe(p *Prompt, model string, ranks []*fleet.Rank) {
	p.matched = slices.Grow(p.matched[:0], len(ranks))[:len(ranks)]
	p.coming = slices.Grow(p.coming[:0], len(ranks))[:len(ranks)]
	p.Blocks, p.reach = p.chain.Blocks(), p.reach[:0]
	if p.asked.Scan.ReadsNoCache() {
		p.Unknown(len(ranks)) // what ranks hold is of no use, and their counts of cached tokens say nothing
		return
	}
	f.predict(p, ranks)
	if f.Holdings == nil || !p.query.Begin(f.Holdings, model) {
		return
	}
	for _, r := range ranks {
		p.query.Node(r.Name, r.Owner().Info().KVAddress)
	}
	if f.recall(p, model) {
		f.Holdings.Match(&p.told.chain, &p.query)
		p.join()
		return
	}
	f.Holdings.Match(&p.chain, &p.query)
	for i, r := range p.query.Reach {
		switch {
		case r.Device == holdings.Unknown || p.source != fromTokens:
			r.Device = p.matched[i]
		case r.Device < p.matched[i]:
			p.coming[i] = r.Device // the engine has lost the blocks behind
		}
		p.reach, p.held = append(p.reach, r), true
	}
}

// predict sets matched, coming and held by the index alone.
func (f *Finder) predict(p *Prompt, ranks []*fleet.Rank) {
	if p.held = len(ranks) > 0 && f.Index.MayHold(&p.chain); !p.held {
		clear(p.matched)
		clear(p.coming)
		return
	}
	p.refs = p.refs[:0]
	for _, r := range ranks {
		p.refs = append(p.refs, r.Ref())
	}
	f.Index.Match(&p.chain, p.refs, p.matched, p.coming)
	p.held = slices.Max(p.coming) > 0
}

// Tokens returns the length of the prompt in tokens, as estimated from its text if the tokens are
// unknown.
func (p *Prompt) Tokens() int64 {
	if p.known != nil {
		return p.length
	}
	return p.chain.Tokens()
}

// Counted returns the tokens of the prompt if the model's tokenizer has counted them, else 0.
func (p *Prompt) Counted() int64 { return int64(len(p.ids)) }

// Keys returns the keys of the leading blocks that have been hashed: all blocks after Sent. The
// keys stay the same until Reset.
func (p *Prompt) Keys() []uint64 { return p.chain.Keys() }

// Measure makes p the prompt of r in place of Find. Measure hashes and looks up nothing: the prompt
// has a length and no keys, and no rank is known to hold a block.
func (p *Prompt) Measure(r *request.Request, ranks int) {
	s := r.Scan
	p.asked, p.scan = r, s
	p.chain.Measure(len(s.Text)+s.Skipped, len(s.Tokens))
	p.chain.Lengthen(s.Omitted)
	p.Blocks = p.chain.Blocks()
	p.Unknown(ranks)
}

// MeasureBlocks is Measure for a prompt given by the number of its blocks.
func (p *Prompt) MeasureBlocks(r *request.Request, blocks, ranks int) {
	p.asked, p.scan = r, r.Scan
	p.chain.Measure(blocks*prefix.BlockBytes, 0)
	p.Blocks = p.chain.Blocks()
	p.Unknown(ranks)
}

// Found says whether the prompt was looked up. Only such a prompt can be recorded.
func (p *Prompt) Found() bool { return p.finder != nil }

// Unknown makes p a prompt of which no rank is known to hold a block.
func (p *Prompt) Unknown(ranks int) {
	p.matched = slices.Grow(p.matched[:0], ranks)[:ranks]
	p.coming = slices.Grow(p.coming[:0], ranks)[:ranks]
	p.reach, p.held = p.reach[:0], false
	clear(p.matched)
	clear(p.coming)
}

// Held says whether a rank may hold a block of the prompt. Otherwise Reach and Coming are zero for
// every rank.
func (p *Prompt) Held() bool { return p.held }

// Reach returns how far the prompt reaches on the rank at index i of Find's ranks.
func (p *Prompt) Reach(i int) holdings.Reach {
	if !p.Reported() {
		return holdings.Reach{Device: p.matched[i]}
	}
	return p.reach[i]
}

// Reported says whether hosts' caches have reported their blocks. Without reports no rank has a
// reach beyond its engine's own memory.
func (p *Prompt) Reported() bool { return len(p.reach) > 0 }

// Predicted returns the index's prediction: how many leading blocks the engine at index i should
// have in memory when the engine begins the prompt.
func (p *Prompt) Predicted(i int) int {
	if p.known != nil {
		return int(p.told.predicted[i])
	}
	return int(max(p.matched[i], p.coming[i]))
}

// Coming returns how many leading blocks the engine at index i holds, or computes for other
// requests now.
func (p *Prompt) Coming(i int) int32 { return p.coming[i] }

// Suppose replaces the knowledge about the rank at index i.
func (p *Prompt) Suppose(i int, device int32) {
	if device < p.matched[i] {
		p.coming[i] = device
	}
	p.held = true
	if p.matched[i] = device; p.Reported() {
		p.reach[i].Device = device
	}
}

// Tell replaces what engines and hosts' caches have reported about the rank at index i. An Unknown
// Device leaves the prediction.
func (p *Prompt) Tell(i int, r holdings.Reach) {
	if !p.Reported() {
		for _, device := range p.matched {
			p.reach = append(p.reach, holdings.Reach{Device: device, Host: device, Disk: device, Shared: device})
		}
	}
	if r.Device == holdings.Unknown {
		r.Device = p.matched[i]
	}
	r.Host = max(r.Host, r.Device)
	r.Disk = max(r.Disk, r.Host)
	r.Shared = max(r.Shared, r.Disk)
	p.reach[i], p.held = r, true
}

// Sent predicts that the rank will hold the prompt, which was sent to it at the given time. Call
// Sent after the dispatch, because Sent hashes the whole prompt.
func (p *Prompt) Sent(ref prefix.Ref, at time.Time) {
	p.finder.remember(p)
	p.finder.Index.Record(&p.chain, ref, at)
	p.text = nil
}

// Begun notes that the engine has begun to answer, or that the prompt should have been computed.
// After Begun the rank holds the prompt. Any goroutine may call Begun, but not at the same time as
// another method.
func (p *Prompt) Begun(ref prefix.Ref) { p.finder.Index.Begun(&p.chain, ref) }

// Failed takes back the prediction of Sent.
func (p *Prompt) Failed(ref prefix.Ref, at time.Time) { p.finder.Index.Forget(&p.chain, ref, at) }

// Learn compares the prediction with the engine's observation. Learn returns the prediction error.
func (p *Prompt) Learn(o prefix.Observation) float64 {
	o.Uneven = p.Uneven()
	return p.finder.Index.Observe(&p.chain, o)
}

// Uneven says whether engines count tokens for media that the prompt does not have.
func (p *Prompt) Uneven() bool { return p.scan.Media > 0 }

// Promote asks the cache of rank i's host to bring the prompt's blocks into RAM, in the background.
// The blocks are then in RAM when the engine asks for them. r is how far the engine is believed to
// use what rank i reaches.
func (p *Prompt) Promote(i int, model string, r holdings.Reach) {
	if !p.Found() {
		return
	}
	told := p.finder.Holdings
	if told == nil || told.Empty() {
		return
	}
	from, to := told.Wanted(&p.query, i, r)
	if from >= to {
		return
	}
	p.wish(i, model, from, to, holdings.Wait{})
}

// PromoteComing asks the cache of rank i's host to bring the prompt's blocks into RAM while another
// node computes and stores them, in the background. Only prompts of the model's own tokens have the
// blocks that engines store.
func (p *Prompt) PromoteComing(i int, model string, wait holdings.Wait) {
	if !p.Found() || p.source != fromTokens {
		return
	}
	told := p.finder.Holdings
	if told == nil || told.Empty() || !p.Reported() {
		return
	}
	from, to := told.Coming(&p.query, i, p.Reach(i), p.Blocks)
	if from >= to {
		return
	}
	p.chain.HashTo(to)
	p.wish(i, model, from, to, wait)
}

// wish asks for blocks from up to to, excluded.
func (p *Prompt) wish(i int, model string, from, to int, wait holdings.Wait) {
	told, chain := p.finder.Holdings, &p.chain
	if p.known != nil {
		chain = &p.told.chain
	}
	last, ok := chain.Digest(to - 1)
	if !ok {
		return // the Memo or the Map knows the keys of these blocks, but not their digests
	}
	wish := told.Promotion(&p.query, i, model, wait)
	if wish == nil {
		return
	}
	wish.Last = to - 1
	for to--; ok && to >= from; last, ok = chain.Digest(to) {
		wish.Add(&last)
		to--
	}
	wish.Before = to + 1 - from
	told.Ask(wish)
}

// RendezvousKey identifies the prompt's conversation. The key is the session id, or else the digest
// of the last full block of the first user turn. A shared system prompt therefore does not tie
// every conversation to one node. A turn without a full block of its own is identified by a hash of
// its text. The key is the same in every router. A prompt that was only measured has no key but its
// session's.
func (p *Prompt) RendezvousKey() uint64 {
	if len(p.asked.Session) > 0 {
		return xxhash.Sum64(p.asked.Session)
	}
	if !p.Found() {
		return 0
	}
	if p.turn != 0 {
		return p.turn
	}
	s := p.scan
	first := p.firstTurn()
	last := min(first/prefix.BlockBytes, p.chain.Blocks()) - 1
	if s.ShortTurn > 0 && last*prefix.BlockBytes < first-s.ShortTurn {
		if last < 0 {
			return s.TurnHash
		}
		return p.chain.Key(last) ^ s.TurnHash
	}
	if last < 0 {
		last = p.chain.Blocks() - 1
	}
	if last < 0 {
		return xxhash.Sum64(s.Text)
	}
	return p.chain.Key(last)
}

// firstTurn returns the end of the first user turn, in bytes of the chain's text. The key of a
// tokenised prompt is turn, or its last block.
func (p *Prompt) firstTurn() int {
	if n := len(p.ids); n > 0 {
		return n / prefix.BlockTokens * prefix.BlockBytes
	}
	return p.scan.FirstTurn
}

// tokenised lists the APIs whose prompts a model's tokenizer can encode.
var tokenised = map[scan.API]tokens.API{
	scan.Completions: tokens.Completions, scan.Chat: tokens.Chat,
	scan.Responses: tokens.Responses, scan.Messages: tokens.Messages,
}

// tokenise makes the chain from the model's own tokens, if the model has a tokenizer that can read
// the prompt. tokenise returns true if it made the chain; otherwise call begin.
func (f *Finder) tokenise(p *Prompt, model string, seed prefix.Digest) bool {
	r := p.asked
	if len(r.Scan.Tokens) > 0 {
		p.source = fromTokens // begin makes the chain of the tokens
		return false
	}
	api, ok := tokenised[r.API]
	if !ok || !f.Tokens.Has(model) {
		return false
	}
	start := time.Now()
	made := f.Tokens.Make(model, api, r.Body(), r.Scan.Space, p.ids[:0])
	p.ids = made.IDs
	f.Metrics.Tokenised.WithLabelValues(string(made.Outcome)).Inc()
	if made.Outcome != tokens.Exact {
		p.ids = p.ids[:0]
		return false
	}
	f.Metrics.TokenSeconds.Observe(time.Since(start).Seconds())
	f.Metrics.TokenBytes.Add(float64(made.Encoded))
	f.Metrics.TokensKnown.Add(float64(made.Bytes - made.Encoded))
	p.source, p.turn, p.from, p.text = fromTokens, made.Turn, 0, nil
	p.chain.Reset(seed, nil, p.ids)
	return true
}
