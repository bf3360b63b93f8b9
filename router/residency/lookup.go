package residency

import "math/bits"

// Chain gives the keys of a prompt's blocks. A lazily hashed chain is hashed to the end of the
// group in which the last node drops out.
type Chain interface {
	// Blocks returns the number of blocks.
	Blocks() int
	// Key returns the key of block i, which is below Blocks.
	Key(i int) Key
}

// Lookup writes into matched how many leading blocks of the prompt each node of refs holds, 0 for a
// departed node. matched is as long as refs. Name each node only once. Lookup takes no lock, never
// waits for a writer and allocates nothing.
func (x *Index) Lookup(c Chain, refs []Ref, matched []int32) {
	if x.opened.Load() > fewShards {
		find[[maxShards]int32, [maxShards / 64]uint64](x, c, refs, matched)
		return
	}
	find[[fewShards]int32, [fewShards / 64]uint64](x, c, refs, matched)
}

// fewShards is a number of shards whose heads are quickly cleared.
const fewShards = 64

// find is Lookup for at most as many shards as there are heads. A node in a further shard was
// cleared just now.
func find[H [fewShards]int32 | [maxShards]int32, W [fewShards / 64]uint64 | [maxShards / 64]uint64](
	x *Index, c Chain, refs []Ref, matched []int32,
) {
	var heads H // 1 + index of a ref in the shard; matched links to the next one
	var used W
	for i, ref := range refs {
		matched[i] = 0
		if w, ok := x.where(ref); ok && w.shard() < len(heads) {
			s := w.shard()
			used[s/64] |= 1 << (s % 64)
			matched[i], heads[s] = heads[s], int32(i)+1
		}
	}
	for i := range len(used) {
		for word := used[i]; word != 0; word &= word - 1 {
			s := i*64 + bits.TrailingZeros64(word)
			x.lookupShard(c, refs, matched, s, heads[s])
		}
	}
}

func (x *Index) lookupShard(c Chain, refs []Ref, matched []int32, shard int, first int32) {
	w := walk{chain: c, matched: matched}
	var all uint64
	for first != 0 {
		i := first - 1
		first, matched[i] = matched[i], 0
		at, ok := x.where(refs[i])
		if ok && at.shard() == shard { // the node may have been cleared just now
			w.index[at.bit()], w.at[at.bit()] = i, at
			all |= 1 << at.bit()
		}
	}
	w.table = x.shards[shard].table.Load() // loaded after the places, so the table covers them
	w.down(all)
	for b := all; b != 0; b &= b - 1 {
		bit := bits.TrailingZeros64(b)
		i := w.index[bit]
		if at, ok := x.where(refs[i]); !ok || at != w.at[bit] {
			matched[i] = 0 // the place may belong to another node by now
		}
	}
}

// walk follows a chain for some nodes of a shard.
type walk struct {
	table   *holderTable
	chain   Chain
	matched []int32
	index   [shardNodes]int32 // indices into matched, by holder bit
	at      [shardNodes]whereabouts
}

// down finds how far each of the nodes holds the chain.
func (w *walk) down(on uint64) {
	n := w.chain.Blocks()
	var r row // row of the group before
	for from := 0; from < n && on != 0; from += GroupBlocks {
		to := min(from+GroupBlocks, n)
		last := w.chain.Key(to - 1)
		if r.nextHeld(last, on) {
			r.i++
			continue
		}
		var isCrowded bool
		r, isCrowded = w.table.seek(last, r)
		if r.segment != nil && r.held(last, on) {
			continue
		}
		on = w.group(r, from, to, isCrowded, on)
	}
	w.settle(on, n)
}

// group looks at each block of a group and returns the nodes that hold all of them.
func (w *walk) group(r row, from, to int, isCrowded bool, on uint64) uint64 {
	last := w.chain.Key(to - 1)
	for i := from; i < to && on != 0; i++ {
		key := w.chain.Key(i)
		var held uint64
		if r.segment != nil {
			held = r.block(key, last) & on
		}
		if held != on {
			if isCrowded {
				held |= w.table.single(key) & on
			}
			w.settle(on&^held, i)
		}
		on = held
	}
	return on
}

// settle records how many blocks the given nodes hold.
func (w *walk) settle(nodes uint64, blocks int) {
	for ; nodes != 0; nodes &= nodes - 1 {
		w.matched[w.index[bits.TrailingZeros64(nodes)]] = int32(blocks)
	}
}
