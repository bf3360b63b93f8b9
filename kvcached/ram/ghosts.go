package ram

// ghosts are the names of evicted blocks, by part and in the order of their eviction. A name is the
// hash of an address. One name in about 2^64 is mistaken for another one, and then moves the
// boundary once.
type ghosts struct {
	chains[uint32]
	names chunked[ghost]
	spare uint32 // list of unused names, by next
	count uint32
	of    [2]ghostList
}

type ghost struct {
	hash         uint64
	next         uint32 // in the chain of its bucket
	older, newer uint32
	sizePart     uint32 // granules, and the part in the last bit
}

type ghostList struct {
	oldest, newest uint32
	size           int64 // granules
}

func newGhosts() ghosts {
	g := ghosts{chains: newChains[uint32](1)}
	g.names.grow() // 0 is none
	return g
}

// add remembers a name, as the newest of a part.
func (g *ghosts) add(h uint64, part int, size uint32) {
	g.take(h)
	id := g.spare
	if id != 0 {
		g.spare = g.names.at(id).next
	} else {
		id = g.names.grow()
	}
	if g.count++; g.count > g.heads.n {
		g.split()
	}
	head, l := g.head(h), &g.of[part]
	*g.names.at(id) = ghost{hash: h, next: *head, older: l.newest, sizePart: size<<1 | uint32(part)}
	*head = id
	if l.newest != 0 {
		g.names.at(l.newest).newer = id
	} else {
		l.oldest = id
	}
	l.newest = id
	l.size += int64(size)
}

// split makes one more chain and moves its elements there.
func (g *ghosts) split() {
	for id := g.begin(); id != 0; {
		e := g.names.at(id)
		next, head := e.next, g.head(e.hash)
		e.next, *head = *head, id
		id = next
	}
}

// take forgets a name and returns its part, if it was known.
func (g *ghosts) take(h uint64) (part int, known bool) {
	at := g.head(h)
	for *at != 0 && g.names.at(*at).hash != h {
		at = &g.names.at(*at).next
	}
	id := *at
	if id == 0 {
		return 0, false
	}
	e := g.names.at(id)
	*at = e.next
	part = int(e.sizePart & 1)
	l := &g.of[part]
	if e.older != 0 {
		g.names.at(e.older).newer = e.newer
	} else {
		l.oldest = e.newer
	}
	if e.newer != 0 {
		g.names.at(e.newer).older = e.older
	} else {
		l.newest = e.older
	}
	l.size -= int64(e.sizePart >> 1)
	*e = ghost{next: g.spare}
	g.spare = id
	g.count--
	return part, true
}

// forget drops the oldest name of the larger part.
func (g *ghosts) forget() {
	p := frequent
	if g.of[recent].size > g.of[frequent].size {
		p = recent
	}
	if g.of[p].oldest != 0 {
		g.take(g.names.at(g.of[p].oldest).hash)
	}
}
