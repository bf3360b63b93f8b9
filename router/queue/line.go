package queue

import "time"

// Line is where the requests wait that compete for the same nodes. Its queue's lock guards it.
type Line struct {
	q       *Queue
	tenants map[string]*tenant
	lanes   []*lane // in use
	waiting int
	depth   [Bands]int     // of waiting, by bands
	sizes   [Bands][]sizes // one of each weight
	open    int            // requests that wait, or are charged
	floor   float64        // counter at which a tenant begins if nobody waits
	turns   uint64         // dispatches from the line so far
	sweepAt int            // number of tenants at which the idle ones are swept

	last   time.Time     // of the last dispatch, while requests wait; zero: none has been
	paused time.Time     // when the line became empty
	every  time.Duration // mean time between two dispatches while requests wait; 0: unknown
}

// tenant is one tenant in one line.
type tenant struct {
	name    string
	weight  float64
	settled float64 // the counter of ended requests, in tokens per weight
	tokens  float64 // with the charges of running requests
	turn    uint64  // of the line at the tenant's last dispatch
	number  uint64  // of the tenant's first arrival
	waiting int
	running int // charged requests
	groups  []*group
}

// lane is a part of a line. All its requests need the same nodes, unless many lanes are in use.
type lane struct {
	key     uint64
	bands   [Bands]heap[*group]
	waiting int
	blocked bool // its first request has found no room at this look
}

// group are the waiting requests of one tenant in one band of a lane.
type group struct {
	place   // in the band's heap
	tenant  *tenant
	lane    *lane
	band    int
	tickets heap[*Ticket]
}

// sweepFirst is the number of tenants at which idle ones are swept first, and idleMost how many
// idle ones with a debt a line remembers.
const sweepFirst, idleMost = 64, 4096

// Free says whether nobody waits in the line. The caller may then look for a node at once.
func (l *Line) Free() bool {
	return l.q.waiting.Load() == 0 || l.Len() == 0
}

// Len returns the number of requests that wait in the line.
func (l *Line) Len() int {
	l.q.mu.Lock()
	defer l.q.mu.Unlock()
	return l.waiting
}

// Pass charges a request that has got a node without a wait.
func (l *Line) Pass(t *Ticket, tenant string, tokens float64) {
	l.q.mu.Lock()
	defer l.q.mu.Unlock()
	of := l.tenant(tenant)
	if l.waiting == 0 {
		of.lift(l.floor)
		l.floor = of.settled
	}
	t.line = l
	l.charge(t, of, tokens)
}

// Join puts a request into the line. Its Waiter is tried from now on. If the queue is full, another
// request leaves it, see Queue.makeRoom, or Join returns ErrFull or ErrMemory.
func (l *Line) Join(t *Ticket, c Claim) error {
	q := l.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.makeRoom(&c); err != nil {
		return err
	}
	now := time.Now()
	if l.waiting == 0 && now.Sub(l.paused) > oldPace {
		l.every = 0
	}
	q.arrival++
	*t = Ticket{line: l, claim: c, done: make(chan struct{}), arrival: q.arrival}
	of := l.tenant(c.Tenant)
	if of.waiting == 0 {
		of.lift(l.least())
	}
	l.add(t, of)
	q.wake()
	return nil
}

// add puts a ticket of a tenant into the line.
func (l *Line) add(t *Ticket, of *tenant) {
	if l.waiting == 0 {
		l.q.busy = append(l.q.busy, l)
	}
	g := l.group(of, &t.claim)
	if g.tickets.push(t); len(g.tickets) == 1 {
		g.lane.bands[g.band].push(g)
	}
	t.group, t.state = g, waiting
	l.count(t, 1)
}

// count adds n, 1 or -1, to the numbers of waiting requests.
func (l *Line) count(t *Ticket, n int) {
	q := l.q
	q.waiting.Add(int64(n))
	q.bytes += int64(n) * t.claim.Bytes
	q.depth[t.claim.Band] += n
	l.waiting += n
	l.depth[t.claim.Band] += n
	l.open += n
	l.resized(t.group, n)
	t.group.lane.waiting += n
	t.group.tenant.waiting += n
	q.hold(t.group.tenant, n, int64(n)*t.claim.Bytes)
}

// remove takes a waiting ticket out of the line.
func (l *Line) remove(t *Ticket) {
	g, of := t.group, t.group.tenant
	g.tickets.remove(t.at)
	if len(g.tickets) == 0 {
		g.lane.bands[g.band].remove(g.at)
		of.groups = without(of.groups, g)
	}
	if l.count(t, -1); g.lane.waiting == 0 {
		l.lanes = without(l.lanes, g.lane)
	}
	if t.group, t.state = nil, outside; l.waiting == 0 {
		l.q.busy = without(l.q.busy, l)
	}
}

// abandon takes a ticket out of the line whose request gets no node.
func (l *Line) abandon(t *Ticket) {
	of := t.group.tenant
	l.remove(t)
	l.closed(of)
}

// charge charges a request that has got a node.
func (l *Line) charge(t *Ticket, of *tenant, tokens float64) {
	t.state, t.of, t.charged = charged, of, tokens
	l.open++
	of.running++
	of.tokens += tokens / of.weight
	of.reorder()
}

// closed is called after a request of a tenant has ended its wait or was settled.
func (l *Line) closed(of *tenant) {
	if of.running+of.waiting == 0 && of.settled <= l.floor {
		delete(l.tenants, of.name) // a tenant that comes anew begins there too
	}
}

// next returns the ticket whose turn it is among the lanes that are not blocked.
func (l *Line) next() (first *Ticket) {
	for _, at := range l.lanes {
		if at.blocked {
			continue
		}
		if t := at.first(); first == nil || t.comesBefore(first) {
			first = t
		}
	}
	return first
}

// first returns the first ticket of a lane that is not empty.
func (at *lane) first() *Ticket {
	for band := Bands - 1; band >= 0; band-- {
		if of := at.bands[band]; len(of) > 0 {
			return of[0].tickets[0]
		}
	}
	return nil
}

// comesBefore says whether t, the first of its lane, comes before x, the first of another one.
func (t *Ticket) comesBefore(x *Ticket) bool {
	a, b := t.group, x.group
	switch {
	case a.band != b.band:
		return a.band > b.band
	case a.tenant != b.tenant:
		return a.tenant.before(b.tenant)
	}
	return t.before(x)
}

func (g *group) before(x *group) bool { return g.tenant.before(x.tenant) }

// before says whether a request of of comes before one of x in the same band. Of two tenants with
// equal counters the one comes first that has waited longer for a turn.
func (of *tenant) before(x *tenant) bool {
	switch {
	case of.tokens != x.tokens:
		return of.tokens < x.tokens
	case of.turn != x.turn:
		return of.turn < x.turn
	}
	return of.number < x.number
}

// lift raises the counter of a tenant without waiting requests to a floor.
func (of *tenant) lift(floor float64) {
	if more := floor - of.settled; more > 0 {
		of.settled, of.tokens = floor, of.tokens+more
	}
}

// least returns the settled counter of the tenant that comes first, or the floor if nobody waits.
// Charges do not count: they may be given back, and a tenant that begins to wait would stay behind.
func (l *Line) least() float64 {
	least, found := l.floor, false
	for _, at := range l.lanes {
		for _, of := range &at.bands {
			if len(of) > 0 && (!found || of[0].tenant.settled < least) {
				least, found = of[0].tenant.settled, true
			}
		}
	}
	return least
}

// tenant returns a tenant of the line.
func (l *Line) tenant(name string) *tenant {
	of := l.tenants[name]
	if of == nil {
		if len(l.tenants) >= max(l.sweepAt, sweepFirst) {
			l.sweep()
		}
		l.q.arrival++
		of = &tenant{name: name, weight: l.q.weight(name), number: l.q.arrival}
		l.tenants[name] = of
	}
	return of
}

// sweep forgets the idle tenants whose counters say nothing. If too many others are idle, sweep
// forgets these too.
func (l *Line) sweep() {
	idle := 0
	for name, of := range l.tenants {
		switch {
		case of.running+of.waiting > 0:
		case of.settled <= l.floor:
			delete(l.tenants, name)
		case idle >= idleMost:
			delete(l.tenants, name)
			l.q.forgot++
		default:
			idle++
		}
	}
	l.sweepAt = 2 * len(l.tenants)
	if idle >= idleMost/2 {
		l.sweepAt = len(l.tenants) + idleMost/2
	}
}

// group returns the group of a request, whose ticket the caller adds.
func (l *Line) group(of *tenant, c *Claim) *group {
	at := l.lane(c.Lane)
	for _, g := range of.groups {
		if g.lane == at && g.band == c.Band {
			return g
		}
	}
	g := &group{tenant: of, lane: at, band: c.Band}
	of.groups = append(of.groups, g)
	return g
}

// lane returns the lane of requests with a key. Once many lanes are in use, requests with different
// keys may share one, but none shares lane 0.
func (l *Line) lane(key uint64) *lane {
	at := l.keyed(key)
	if at == nil && key != 0 && len(l.lanes) >= lanes {
		key = 1 + key%(lanes-1)
		at = l.keyed(key)
	}
	if at == nil {
		at = &lane{key: key}
		l.lanes = append(l.lanes, at)
	}
	return at
}

// keyed returns the lane in use that has the key, or nil.
func (l *Line) keyed(key uint64) *lane {
	for _, at := range l.lanes {
		if at.key == key {
			return at
		}
	}
	return nil
}

// reorder restores the order of the tenant's groups after a change of its counter.
func (of *tenant) reorder() {
	for _, g := range of.groups {
		if len(g.tickets) > 0 {
			g.lane.bands[g.band].fix(g.at)
		}
	}
}

// without returns all without x, which it has once. The order may change.
func without[T comparable](all []T, x T) []T {
	for i := range all {
		if all[i] == x {
			last := len(all) - 1
			all[i] = all[last]
			clear(all[last:])
			return all[:last]
		}
	}
	return all
}
