package events

import (
	"bytes"
	"math/bits"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// Bounds on the numbers that an engine reports.
const (
	maxBlockSize = 4096 // tokens in a block
	maxGroups    = 64
	maxLabels    = 1024 // adapters with a name; blocks of further adapters have no name
)

// knowledge is the state of an engine's cache, as its events tell it.
type knowledge struct {
	model  string
	most   int // limit on blocks
	counts *counters
	out    *outbox
	uses   func(adapter []byte) // Options.Adapter for the present batch; nil: none

	decoder decoder
	group   int // the followed group; -1: unknown yet
	other   [maxGroups]bool
	rank    int // the followed rank; -1: unknown yet
	blocks  int
	emptied bool // the engine has reported an empty cache
	table   *engineBlocks
	chunks  *chunker          // nil: no chunks are named
	labels  map[string]uint16 // numbers of adapters
	names   []string
	scratch []block.Digest // digests of the event that is being applied
}

func newKnowledge(model string, most int, counts *counters, out *outbox) *knowledge {
	k := &knowledge{model: model, most: most, counts: counts, out: out}
	k.forget()
	return k
}

// forget clears all state.
func (k *knowledge) forget() {
	k.group, k.other, k.rank, k.blocks, k.table = -1, [maxGroups]bool{}, -1, 0, newEngineBlocks()
	k.labels, k.names = map[string]uint16{}, []string{""}
	k.chunks.forget()
}

// apply applies a batch. An error means that the batch is unreadable, so the engine's state is
// unknown.
func (k *knowledge) apply(payload []byte) error {
	lost := false
	err := k.decoder.decode(payload, func(e *event) {
		switch {
		case e.kind == unknownEvent:
			k.counts.unknown.Add(1)
		case e.unreadable && e.kind == stored:
			k.counts.unusable.Add(1)
		case e.unreadable:
			lost = true
		case !k.follows(e):
			k.counts.others.Add(1)
		case e.kind == stored:
			k.stored(e)
		case e.kind == removed:
			k.removed(e)
		default:
			k.clear()
		}
	})
	if lost && err == nil {
		err = errMalformed
	}
	return err
}

// follows tells whether an event is of the followed rank and group. Another data-parallel rank has
// its own cache. In a hybrid model the group of full attention limits how much of a prompt can be
// reused.
func (k *knowledge) follows(e *event) bool {
	if k.rank < 0 {
		k.rank = k.decoder.rank
	}
	if k.rank != k.decoder.rank {
		return false
	}
	if e.kind == cleared {
		return true
	}
	if e.group > 0 {
		k.chunks.severalGroups()
	}
	if e.group >= maxGroups {
		return false
	}
	if e.kind == stored && k.group < 0 && !k.other[e.group] {
		switch string(e.spec) {
		case "full_attention", "mla_attention":
			k.group = e.group
		case "":
			if e.group == 0 {
				k.group = 0
			}
		default:
			k.other[e.group] = true
		}
	}
	return e.group == k.group
}

// tiers are the tiers by medium. An event without a medium means the device's memory.
var tiers = map[string]residency.Tiers{
	"": residency.Device, "GPU": residency.Device, "DEVICE": residency.Device,
	"CPU": residency.Host, "HOST": residency.Host,
	"DISK": residency.Disk, "NVME": residency.Disk, "STORAGE": residency.Disk,
	"EXTERNAL": residency.Shared, "REMOTE": residency.Shared, "SHARED": residency.Shared,
}

// tierOf returns the tier of a medium. All media that begin with CPU are one tier.
func tierOf(medium []byte) (tier residency.Tiers, index int, ok bool) {
	name := strings.ToUpper(string(medium))
	if strings.HasPrefix(name, "CPU") {
		name = "CPU"
	}
	tier, ok = tiers[name]
	return tier, bits.TrailingZeros8(uint8(tier)), ok
}

// clear removes all blocks.
func (k *knowledge) clear() {
	k.table, k.blocks, k.emptied = newEngineBlocks(), 0, true
	k.chunks.forget()
	k.out.cleared()
}

// removed removes blocks from a tier.
func (k *knowledge) removed(e *event) {
	tier, index, ok := tierOf(e.medium)
	if !ok {
		k.counts.unknown.Add(1)
		return
	}
	for _, h := range e.hashes {
		slot, ok := k.table.slots[h]
		if !ok {
			continue
		}
		b := &k.table.blocks[slot]
		if b.tiers&tier == 0 {
			continue
		}
		if b.held[index]--; b.held[index] > 0 {
			continue
		}
		b.tiers &^= tier
		k.table.disown(slot, index, func(digests []block.Digest) { k.out.removed(tier, digests) })
		if b.tiers == 0 {
			k.table.remove(h, slot)
			k.chunks.remove(slot)
			k.blocks--
		}
	}
}

// stored adds blocks of a chain.
func (k *knowledge) stored(e *event) {
	tier, index, ok := tierOf(e.medium)
	if !ok {
		k.counts.unknown.Add(1)
		return
	}
	if len(e.tokens) == 0 { // an event of a lower tier, whose tokens came with the first tier's event
		k.spread(e, tier, index)
		return
	}
	if e.blockSize < 1 || e.blockSize > maxBlockSize || len(e.tokens) < len(e.hashes)*e.blockSize {
		k.counts.unusable.Add(1)
		return
	}
	if k.uses != nil && len(e.loraName) > 0 {
		k.uses(e.loraName)
	}
	salt, usable := e.names()
	if usable < len(e.hashes) {
		k.counts.unnamed.Add(uint64(len(e.hashes) - usable))
	}
	from, ok := k.from(e, salt)
	if !ok {
		k.counts.orphans.Add(uint64(usable))
		return
	}
	k.chain(e, from, e.hashes[:usable], tier, index, len(salt) == 0)
}

// from returns the place where the chain of an event begins.
func (k *knowledge) from(e *event, salt []byte) (tail, bool) {
	if !e.hasParent {
		return tail{last: k.seed(e, salt), root: true}, true
	}
	slot, ok := k.table.slots[e.parent]
	if !ok {
		return tail{}, false
	}
	return k.table.end(slot), true
}

// seed returns the beginning of a prompt's chain. Clients ask for an adapter by its name, as for a
// model, so its chain begins as that of a model with this name. No client asks for an adapter by
// its number.
func (k *knowledge) seed(e *event, salt []byte) block.Digest {
	if len(e.loraName) > 0 {
		return block.Seed(string(e.loraName), "", string(salt))
	}
	return block.Seed(k.model, string(e.adapter()), string(salt))
}

// chain computes the digests of a run of blocks and adds the blocks to a tier. unsalted says that
// the run has no cache salt of its own.
func (k *knowledge) chain(e *event, at tail, hashes []hash, tier residency.Tiers, index int, unsalted bool) {
	parent, plain := k.table.slots[e.parent], unsalted && len(e.adapter()) == 0
	label, first, root := k.label(e.adapter()), at.last, at.root
	k.scratch = k.scratch[:0]
	if e.blockSize != block.Tokens {
		k.table.widen()
	}
	news := false
	for i, h := range hashes {
		slot, known := k.table.slots[h]
		if !known && k.blocks >= k.most {
			k.counts.overflow.Add(uint64(len(hashes) - i))
			break
		}
		if known {
			k.scratch = append(k.scratch, k.table.digestsOf(slot)...)
			at = k.table.end(slot)
		} else {
			tokens, begins := e.tokens[i*e.blockSize:][:e.blockSize], i == 0 && !e.hasParent
			slot, at = k.enter(h, at, tokens, label)
			k.chunks.add(k.table, h, slot, parent, begins, plain, tokens)
		}
		parent = slot
		news = k.hold(slot, tier, index) || news
	}
	if news && len(k.scratch) > 0 {
		k.out.stored(tier, k.names[label], first, root, k.scratch)
	}
}

// enter makes a slot for a block, given the end of the chain before it and its tokens. It returns
// the new end of the chain, and appends the block's digests to scratch.
func (k *knowledge) enter(h hash, before tail, tokens []uint32, label uint16) (slot uint32, at tail) {
	mark := len(k.scratch)
	at = k.extend(before, tokens)
	slot = k.table.add(h, len(k.scratch)-mark)
	k.blocks++
	b := &k.table.blocks[slot]
	b.label, b.root = label, before.root
	*k.table.parentOf(slot) = before.last
	copy(k.table.digestsOf(slot), k.scratch[mark:])
	if at.n > 0 {
		k.table.tails[slot] = at
	}
	return slot, at
}

// hold counts a block in a tier once more. news tells whether the tier did not have the block
// before.
func (k *knowledge) hold(slot uint32, tier residency.Tiers, index int) (news bool) {
	b := &k.table.blocks[slot]
	if news = b.tiers&tier == 0; news {
		k.table.own(slot, index)
	}
	b.tiers |= tier
	if b.held[index]++; b.held[index] == 0 {
		b.held[index]--
	}
	return news
}

// extend appends tokens to a chain, and the digests that end in them to scratch.
func (k *knowledge) extend(at tail, tokens []uint32) tail {
	if at.n > 0 {
		n := copy(at.tokens[at.n:], tokens)
		if at.n, tokens = at.n+n, tokens[n:]; at.n < block.Tokens {
			return at
		}
		at = tail{last: block.Next(at.last, &at.tokens)}
		k.scratch = append(k.scratch, at.last)
	}
	for ; len(tokens) >= block.Tokens; tokens = tokens[block.Tokens:] {
		at.last, at.root = block.Next(at.last, (*[block.Tokens]uint32)(tokens)), false
		k.scratch = append(k.scratch, at.last)
	}
	at.n = copy(at.tokens[:], tokens)
	return at
}

// spread adds blocks that the engine has already reported, with their tokens, to another tier.
func (k *knowledge) spread(e *event, tier residency.Tiers, index int) {
	for _, h := range e.hashes {
		slot, ok := k.table.slots[h]
		if !ok {
			k.counts.orphans.Add(1)
			continue
		}
		if b := &k.table.blocks[slot]; k.hold(slot, tier, index) && b.count > 0 {
			k.out.stored(tier, k.names[b.label], *k.table.parentOf(slot), b.root, k.table.digestsOf(slot))
		}
	}
}

// label returns the number of an adapter with this name.
func (k *knowledge) label(name []byte) uint16 {
	if len(name) == 0 {
		return 0
	}
	n, ok := k.labels[string(name)]
	if !ok && len(name) <= residency.MaxAdapterName && len(k.names) < maxLabels {
		n = uint16(len(k.names))
		k.names = append(k.names, string(name))
		k.labels[string(name)] = n
	}
	return n
}

// adapter returns the name of the blocks' LoRA adapter. Older engines send only a number.
func (e *event) adapter() []byte {
	if len(e.loraName) > 0 || !e.hasLoraID {
		return e.loraName
	}
	return strconv.AppendInt(nil, e.loraID, 10)
}

// names reads the inputs of the blocks' hashes besides tokens. Two inputs are known: the adapter's
// name, and the salt, which comes with the first block of a prompt. Tokens cannot identify a block
// with another input, such as an image, or a later block. usable is the number of blocks before the
// first block with another input.
func (e *event) names() (salt []byte, usable int) {
	n := len(e.hashes)
	if !e.hasParent {
		salt = e.salt
	}
	if e.extra == nil {
		return salt, n
	}
	r := reader{b: e.extra}
	if !r.isArray() {
		return salt, 0
	}
	for i := range min(r.array(), n) {
		if r.null() {
			continue
		}
		if !r.isArray() {
			return salt, i
		}
		for range r.array() {
			if !r.isText() {
				id, _ := r.int()
				if r.bad || !e.hasLoraID || int64(id) != e.loraID {
					return salt, i
				}
				continue
			}
			switch text := r.text(); {
			case len(e.loraName) > 0 && bytes.Equal(text, e.loraName):
			case i == 0 && !e.hasParent && (salt == nil || bytes.Equal(salt, text)):
				salt = text
			default:
				return salt, i
			}
		}
	}
	return salt, n
}
