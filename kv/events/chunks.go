package events

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/hicache"
	"github.com/cognitora/dataplane/kv/lmcache"
)

// Chunks are the settings for an engine whose cache stores chunks. The Follower names the chunks of
// the engine's blocks and tells a Sink which blocks they stand for.
//
// With a Source of alias.LMCache the full chunks are named by their tokens. LMCache's names do not
// depend on adapters and cache salts, so only prompts without either are named, and without images.
//
// With a Source of alias.VLLMTier each block of the engine is a chunk, and the end of its hash is
// the chunk's name. vLLM's hashes depend on adapter and salt as the blocks' digests do, so their
// prompts are named too. An engine whose events have other groups of layers than the first, or
// hashes that are no numbers (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0), has no named chunks.
//
// With a Source of alias.HiCache or alias.HiCacheMLA each block of the engine is a chunk too, a
// page. Its name is computed from the tokens, and only a page is named whose hash in the event is
// that name. So neither pages of pairs of tokens nor those of SGLang versions that hash otherwise
// are named, and, as for LMCache, none with an adapter or a salt.
type Chunks struct {
	// Source says how the keys look, and which blocks they stand for. The Follower fills in Served.
	Source alias.Source
	// Tokens of a chunk: a multiple of 16, and at most alias.MaxTokens. 0, unless the source is
	// LMCache's: as many as the engine's first block has.
	Tokens int
	Sink   ChunkSink
	Wanted func() bool // asked for each block with alias.VLLMTier: false: it is no object. Nil: it is
}

// ErrNotYet says that the sink does not know yet which keys an engine's chunks have.
var ErrNotYet = errors.New("events: the cache daemon does not know the engine's keys yet")

// ChunkSink takes what chunks stand for; Daemon is one. taken is the number of chunks that it took,
// and namespace the one in which they count, empty if it does not say. The error may be ErrNotYet.
type ChunkSink interface {
	TellChunks(s *alias.Source, all []alias.Chunk) (namespace string, taken int, err error)
}

// Bounds on the chunks that wait to be told, and on the work of one look for chunks.
const (
	maxChunks  = 2 * alias.MaxTold
	chunksOnce = alias.MaxTold / 2
)

// chunker names the chunks of the engine's blocks.
type chunker struct {
	first   alias.Name
	tokens  int
	sizes   bool // the first block sets the size of all
	tier    bool // the chunks are blocks in vLLM's object tier
	paged   bool // the chunks are blocks in SGLang's HiCache
	several bool // the engine has other groups of layers than the first
	wanted  func() bool
	counts  *counters

	links  []link         // by slot of the table
	pages  []hicache.Hash // by slot, if paged
	serial uint64
	ready  []alias.Chunk // named and not told yet
	again  uint32        // next slot whose chunk is told again; 0: none
	room   []uint32      // tokens of the chunk that is being named
	slots  []uint32      // its blocks
}

// link is the place of an engine's block in its prompt.
type link struct {
	serial, before uint64     // of the block, and of the block before it; 0: none
	parent         uint32     // slot of the block before
	end            uint32     // tokens of the prompt up to the block's end; 0: its chunk cannot be named
	name           alias.Name // of the last chunk that ends in the block or before it
	tokens         []uint32
}

func newChunker(c *Chunks, counts *counters) *chunker {
	if c == nil {
		return nil
	}
	scheme := c.Source.Scheme
	return &chunker{first: c.Source.First, tokens: c.Tokens, sizes: c.Tokens == 0, tier: scheme == alias.VLLMTier,
		paged: scheme == alias.HiCache || scheme == alias.HiCacheMLA, wanted: c.Wanted, counts: counts}
}

// forget drops all blocks. What was named and not told yet is still so: the cache has the chunks.
// The next blocks in vLLM's tier may have another size.
func (c *chunker) forget() {
	if c != nil {
		c.links, c.pages, c.again = nil, nil, 0
		if c.sizes {
			c.tokens, c.ready = 0, nil
		}
	}
}

// withdraw drops what was named and not told yet, because it was named for another model.
func (c *chunker) withdraw() {
	if c != nil {
		c.ready = nil
	}
}

// add enters a block that follows the block in slot parent, or begins a prompt. plain says that
// tokens alone identify the prompt, without an adapter or a salt.
func (c *chunker) add(t *engineBlocks, h hash, slot, parent uint32, root, plain bool, tokens []uint32) {
	if c == nil {
		return
	}
	for int(slot) >= len(c.links) {
		c.links = append(c.links, link{})
	}
	if c.tier {
		c.block(t, h, slot, len(tokens))
		return
	}
	if c.paged {
		c.page(t, h, slot, parent, root, plain, tokens)
		return
	}
	c.serial++
	l := link{serial: c.serial, name: c.first, tokens: slices.Clone(tokens)}
	begin := uint32(0)
	if !root {
		if int(parent) >= len(c.links) || c.links[parent].end == 0 {
			plain = false
		} else {
			p := &c.links[parent]
			l.parent, l.before, l.name, begin = parent, p.serial, p.name, p.end
		}
	}
	if !plain || len(tokens)%block.Tokens != 0 || c.tokens%len(tokens) != 0 || int(begin)%len(tokens) != 0 {
		c.links[slot] = link{}
		return
	}
	l.end = begin + uint32(len(tokens))
	c.links[slot] = l
	if int(l.end)%c.tokens != 0 {
		return
	}
	if !c.walk(slot) {
		c.links[slot] = link{}
		c.counts.chunksLost.Add(1)
		return
	}
	c.links[slot].name = lmcache.Next(l.name, c.room)
	c.tell(c.chunk(t, slot))
}

// block enters a block that is a chunk by itself. The first block sets the size of all.
func (c *chunker) block(t *engineBlocks, h hash, slot uint32, tokens int) {
	c.links[slot] = link{}
	if c.wanted != nil && !c.wanted() {
		return
	}
	if c.tokens == 0 && tokens%block.Tokens == 0 && tokens <= alias.MaxTokens {
		c.tokens = tokens
	}
	_, cut := t.tails[slot]
	if c.several || h[1] != 0 || cut || tokens != c.tokens || len(t.digestsOf(slot))*block.Tokens != tokens {
		return
	}
	c.links[slot] = link{name: alias.Name(h[0]), end: uint32(tokens)}
	c.slots = append(c.slots[:0], slot)
	c.tell(c.chunk(t, slot))
}

// page enters a block that is a page of HiCache.
func (c *chunker) page(t *engineBlocks, h hash, slot, parent uint32, root, plain bool, tokens []uint32) {
	for len(c.pages) < len(c.links) {
		c.pages = append(c.pages, hicache.Hash{})
	}
	c.pages[slot] = hicache.Hash{}
	before := hicache.Hash{}
	if !root {
		if int(parent) >= len(c.pages) || c.pages[parent] == (hicache.Hash{}) {
			plain = false
		} else {
			before = c.pages[parent]
		}
	}
	if is := hicache.Next(before, tokens); plain && uint64(is.Name()) == h[0] {
		c.pages[slot] = is
		c.block(t, h, slot, len(tokens))
		return
	}
	c.links[slot] = link{}
}

// severalGroups says that the engine has other groups of layers. An object of one group is then a
// part of what a block is.
func (c *chunker) severalGroups() {
	if c != nil && (c.tier || c.paged) && !c.several {
		c.several, c.links, c.pages, c.ready, c.again = true, nil, nil, nil, 0
	}
}

// ends says whether a chunk ends in a block, and finds its blocks.
func (c *chunker) ends(slot uint32) bool {
	l := &c.links[slot]
	if l.end == 0 || int(l.end)%c.tokens != 0 {
		return false
	}
	if c.tier || c.paged {
		c.slots = append(c.slots[:0], slot)
		return true
	}
	return c.walk(slot)
}

// remove forgets a block.
func (c *chunker) remove(slot uint32) {
	if c != nil && int(slot) < len(c.links) {
		c.links[slot] = link{}
		if c.paged {
			c.pages[slot] = hicache.Hash{}
		}
	}
}

// walk finds the blocks and the tokens of the chunk that ends with a block. false: the engine has
// lost one of the blocks.
func (c *chunker) walk(slot uint32) bool {
	c.slots, c.room = c.slots[:0], c.room[:0]
	for n := 0; n < c.tokens; {
		l := &c.links[slot]
		c.slots = append(c.slots, slot)
		n += len(l.tokens)
		if n >= c.tokens {
			break
		}
		if l.before == 0 || c.links[l.parent].serial != l.before {
			return false
		}
		slot = l.parent
	}
	slices.Reverse(c.slots)
	for _, slot := range c.slots {
		c.room = append(c.room, c.links[slot].tokens...)
	}
	return len(c.room) == c.tokens
}

// chunk returns the chunk that walk has found.
func (c *chunker) chunk(t *engineBlocks, slot uint32) alias.Chunk {
	is := alias.Chunk{Name: c.links[slot].name}
	if first := c.slots[0]; !t.blocks[first].root {
		is.Parent = block.NameOf(t.parentOf(first))
	}
	for _, slot := range c.slots {
		for _, d := range t.digestsOf(slot) {
			is.Blocks = append(is.Blocks, d[:block.NameBytes]...)
		}
	}
	return is
}

// tell lets a chunk wait to be told.
func (c *chunker) tell(is alias.Chunk) {
	if len(c.ready) >= maxChunks {
		c.counts.chunksLost.Add(1)
		return
	}
	c.ready = append(c.ready, is)
}

// repeat makes the chunks of all blocks be told again. Chunks that wait and have lost their blocks
// meanwhile go on waiting.
func (c *chunker) repeat() {
	if c != nil {
		c.again = 1
	}
}

// untold takes back what the sink has not taken. Of more than maxChunks the latest are lost. If
// blocks set the size of chunks, those of an earlier size are lost: all that is told at once has
// one size.
func (c *chunker) untold(all []alias.Chunk) {
	if c.sizes {
		all = slices.DeleteFunc(all, func(is alias.Chunk) bool { return is.Tokens() != c.tokens })
	}
	c.ready = append(all, c.ready...)
	if n := len(c.ready) - maxChunks; n > 0 {
		c.ready = c.ready[:maxChunks]
		c.counts.chunksLost.Add(uint64(n))
	}
	c.repeat()
}

// take returns the next chunks to tell.
func (c *chunker) take(t *engineBlocks) (all []alias.Chunk, more bool) {
	if c == nil {
		return nil, false
	}
	n := min(len(c.ready), alias.MaxTold)
	all = append(all, c.ready[:n]...)
	if c.ready = c.ready[n:]; len(c.ready) == 0 {
		c.ready = nil
	}
	for range snapshotBy {
		if c.again == 0 || len(all) >= chunksOnce {
			break
		}
		if int(c.again) >= len(c.links) {
			c.again = 0
			break
		}
		if c.ends(c.again) {
			all = append(all, c.chunk(t, c.again))
		}
		c.again++
	}
	return all, len(c.ready) > 0 || c.again > 0
}

// retryChunks is the time between attempts to tell chunks that the sink does not take.
const retryChunks = 5 * time.Second

// telling is the state of what is told of chunks.
type telling struct {
	after time.Time   // no attempt before
	retry *time.Timer // fires then, in case the engine does nothing meanwhile
	said  string      // last logged problem
}

// reads returns what the engine can read of the daemon's blocks, as far as it is known: only its
// own chunks. Until the sink has said in which namespace chunks of vLLM's tier count, that is one
// without blocks. nil: it is not known. Empty: it can read none. The caller holds f.mu.
func (f *Follower) reads() []string {
	c := f.o.Chunks
	if c == nil && f.o.ReadsNothing {
		return []string{}
	}
	if c == nil || c.Wanted != nil && !c.Wanted() {
		return nil
	}
	if served := labelOf(f.known.model); len(f.report.reading) == 0 || f.report.served != served {
		s := c.Source
		s.Served, f.report.served = served, served
		f.report.reading = []string{s.Namespace(cmp.Or(c.Tokens, block.Tokens)).String()}
	}
	return f.report.reading
}

// readsIn notes the namespace in which the engine's chunks count. The next report says it.
func (f *Follower) readsIn(namespace string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.reads(); namespace == "" || len(now) == 0 || now[0] == namespace {
		return
	}
	f.report.reading, f.report.moved = []string{namespace}, true
	await.Wake(f.wake)
}

// tellChunks tells the sink of the next chunks. more says that others wait. After an error all
// chunks are told again.
func (f *Follower) tellChunks(t *telling) (more bool) {
	if f.o.Chunks == nil || time.Now().Before(t.after) {
		return false
	}
	f.mu.Lock()
	if !f.following {
		f.mu.Unlock()
		return false
	}
	all, more := f.known.chunks.take(f.known.table)
	s := f.o.Chunks.Source
	s.Served = labelOf(f.known.model)
	f.mu.Unlock()
	if len(all) == 0 {
		return more
	}
	namespace, taken, err := f.o.Chunks.Sink.TellChunks(&s, all)
	f.counts.chunks.Add(uint64(taken))
	f.counts.chunksRefused.Add(uint64(len(all) - taken))
	if err == nil {
		t.said = ""
		f.readsIn(namespace)
		return more
	}
	if errors.Is(err, ErrNotYet) {
		f.log.Debug("what the engine's chunks stand for is told later", "reason", err)
	} else if err.Error() != t.said {
		t.said = err.Error()
		f.log.Warn("the cache daemon does not learn what the engine's chunks stand for, trying again", "error", err)
	}
	t.after = time.Now().Add(retryChunks)
	t.retry.Reset(retryChunks)
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.Served == labelOf(f.known.model) {
		f.known.chunks.untold(all)
	}
	return false
}
