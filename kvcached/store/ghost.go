package store

// ghost remembers, in bounded memory, addresses that were written or evicted not long ago, so that
// a block which comes a second time is told from one that comes once. It may be wrong about one in
// some millions, which then goes to SSD early.
type ghost struct{ tags []uint32 }

// ghosts is how many addresses are remembered at most; the oldest of two with the same place gives
// way.
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

// churn remembers addresses whose block was replaced on SSD, for one to two of its ages. They do
// not go there again before, for each replacement of what is there must be durable before it is
// acknowledged.
type churn struct {
	now, before *ghost
	ticks       int
}

const (
	churns     = 1 << 15 // addresses of one age
	churnTicks = 60      // sweeps, and so seconds, that an age lasts
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
