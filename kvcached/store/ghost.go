package store

// ghost remembers, in bounded memory, the addresses of blocks that were written or evicted not long
// ago. ghost tells the store which blocks come a second time. ghost is wrong about one address in
// some millions, and that block goes to SSD early.
type ghost struct{ tags []uint32 }

// ghosts is the number of addresses that are remembered at most. Two addresses share a place, and a
// third one replaces the older of them.
const ghosts = 1 << 17

func newGhost(size int) *ghost { return &ghost{tags: make([]uint32, size)} }

func (g *ghost) place(h uint64) (at int, tag uint32) {
	return int(h % uint64(len(g.tags)/2) * 2), uint32(h>>32) | 1
}

func (g *ghost) has(h uint64) bool {
	at, tag := g.place(h)
	return g.tags[at] == tag || g.tags[at+1] == tag
}

func (g *ghost) add(h uint64) {
	at, tag := g.place(h)
	if g.tags[at] != tag {
		g.tags[at+1] = g.tags[at]
		g.tags[at] = tag
	}
}

// churn remembers the addresses of blocks that were replaced on SSD. The addresses are forgotten
// after one to two ages. Until then the block is not written to SSD again. A replacement of a block
// on SSD must wait until SSD has deleted the old block durably.
type churn struct {
	now, before *ghost
	ticks       int
}

const (
	churns     = 1 << 15 // addresses of one age
	churnTicks = 60      // length of an age in sweeps, so in seconds
)

func newChurn() churn { return churn{now: newGhost(churns), before: newGhost(churns)} }

func (c *churn) has(h uint64) bool { return c.now.has(h) || c.before.has(h) }

func (c *churn) tick() {
	if c.ticks++; c.ticks == churnTicks {
		c.ticks = 0
		c.now, c.before = c.before, c.now
		clear(c.now.tags)
	}
}
