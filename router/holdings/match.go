package holdings

import (
	"slices"

	"github.com/cognitora/dataplane/router/residency"
)

// Chain is the sequence of a prompt's blocks; *prefix.Chain implements it.
type Chain interface {
	// Blocks returns the number of blocks.
	Blocks() int
	// Key returns the first 8 bytes of the digest of block i.
	Key(i int) uint64
}

// Reach counts the leading blocks of a prompt that a node has, by tier.
type Reach struct {
	Device int32 // in the engine's own memory; Unknown if the engine does not report its blocks
	Host   int32 // in the engine's own memory, its RAM or the host's RAM; at least Device if that is known
	Disk   int32 // in any of these or on SSD; at least Host
	// Shared adds the blocks that the host's daemon can read from the daemons of other hosts. It is
	// at least Disk.
	Shared int32
	// PulledPerSecond is the speed, in bytes per second, at which blocks of other hosts came to the
	// node's host lately; 0: not measured.
	PulledPerSecond float32
}

// Unknown is the Device of an engine that does not report its blocks.
const Unknown = -1

// Query holds the question and the answer of Match. One goroutine at a time uses a Query. A reused
// Query does not allocate.
type Query struct {
	Reach []Reach // set by Match, one for each node asked about

	v       *view
	model   string
	hosts   []int32 // one for each node: 1 + the place in asked; 0: the node's daemon is unknown or out of date
	engines []*engine
	asked   []*cache // each cache once
	others  []*cache // caches that share and are not asked about; looked up only if an asked one shares
	places  []int32  // by place in v.caches: 1 + the place in asked; 0: not asked
	refs    []residency.Ref
	matched []int32
	keys    keys
}

// Reset forgets the last question and keeps the memory.
func (q *Query) Reset() {
	wipe(q.engines)
	wipe(q.asked)
	wipe(q.others)
	*q = Query{
		Reach: q.Reach[:0], hosts: q.hosts[:0], engines: q.engines[:0], asked: q.asked[:0],
		others: q.others[:0], places: q.places[:0], refs: q.refs[:0], matched: q.matched[:0],
	}
}

// wipe clears a slice's memory up to its capacity.
func wipe[T any](s []T) { clear(s[:cap(s)]) }

// Begin starts a question about a prompt for a model. Begin returns false if no daemon is known.
func (q *Query) Begin(m *Map, model string) bool {
	q.v, q.model = m.view.Load(), model
	q.Reach, q.hosts, q.engines, q.asked, q.refs = q.Reach[:0], q.hosts[:0], q.engines[:0], q.asked[:0], q.refs[:0]
	q.others, q.places = q.others[:0], slices.Grow(q.places[:0], len(q.v.caches))[:len(q.v.caches)]
	clear(q.places)
	return len(q.v.byAddress)+len(q.v.engines) > 0
}

// Node adds a node, or a rank of a node, to the question. id is the name under which its engine
// reports its blocks, and kvAddress the address of its host's daemon.
func (q *Query) Node(id, kvAddress string) {
	host, e := int32(0), q.v.engines[id]
	if at, known := q.v.byAddress[kvAddress]; known && q.v.caches[at].live() {
		if q.places[at] == 0 {
			q.asked = append(q.asked, q.v.caches[at])
			q.places[at] = int32(len(q.asked))
		}
		host = q.places[at]
	}
	if e != nil && (!e.cache.live() || !e.knows(q.model)) {
		e = nil
	}
	q.hosts, q.engines, q.Reach = append(q.hosts, host), append(q.engines, e), append(q.Reach, Reach{Device: Unknown})
}

// cache returns the daemon of node i; nil: it is unknown or out of date.
func (q *Query) cache(i int) *cache {
	if host := q.hosts[i]; host > 0 {
		return q.asked[host-1]
	}
	return nil
}

// share fills in q.others. The nodes of a model need not name all daemons that have its blocks: a
// daemon keeps its blocks when the engines of its host go.
func (q *Query) share() {
	if !slices.ContainsFunc(q.asked, (*cache).exchanges) {
		return
	}
	for at, c := range q.v.caches {
		if q.places[at] == 0 && c.exchanges() && c.live() {
			q.others = append(q.others, c)
		}
	}
}

// knows says whether the engine's reported blocks belong to the model. An engine with adapters
// reports the blocks of an adapter under the name of the base model. The digests of these blocks
// differ, so an adapter's blocks are unknown here.
func (e *engine) knows(model string) bool {
	m := e.model.Load()
	return m == nil || *m == model
}

// Match answers the question for a prompt. Match takes no lock. Match hashes the chain only as far
// as some holder has it.
func (m *Map) Match(c Chain, q *Query) {
	for _, a := range q.asked {
		q.refs = append(q.refs, a.host, a.any)
	}
	for _, e := range q.engines {
		if e != nil {
			q.refs = append(q.refs, e.ref)
			if e.media {
				q.refs = append(q.refs, e.near, e.far)
			}
		}
	}
	if len(q.refs) == 0 {
		return
	}
	q.share()
	rest := len(q.refs)
	for _, o := range q.others {
		q.refs = append(q.refs, o.any)
	}
	q.matched = slices.Grow(q.matched[:0], len(q.refs))[:len(q.refs)]
	q.keys.chain = c
	m.index.Lookup(&q.keys, q.refs, q.matched)
	shared := int32(0)
	for i, a := range q.asked {
		q.matched[2*i] = a.loose.extend(c, q.matched[2*i], tierHost)
		q.matched[2*i+1] = a.loose.extend(c, q.matched[2*i+1], tierHost|tierDisk)
		if a.exchanges() {
			shared = max(shared, q.matched[2*i+1])
		}
	}
	for i, o := range q.others {
		shared = max(shared, o.loose.extend(c, q.matched[rest+i], tierHost|tierDisk))
	}
	q.answer(shared)
	q.keys.chain = nil
}

// answer fills in q.Reach by q.matched. shared is the number of leading blocks of the prompt that
// some daemon has that exchanges blocks.
func (q *Query) answer(shared int32) {
	next := 2 * len(q.asked)
	for i := range q.Reach {
		r, c := &q.Reach[i], q.cache(i)
		if c != nil {
			at := 2 * (q.hosts[i] - 1)
			r.Host, r.Disk = q.matched[at], q.matched[at+1]
		}
		if e := q.engines[i]; e != nil {
			r.Device = q.matched[next]
			next++
			if e.media {
				r.Host, r.Disk = max(r.Host, q.matched[next]), max(r.Disk, q.matched[next+1])
				next += 2
			}
		}
		r.Host = max(r.Host, r.Device, 0)
		r.Disk = max(r.Disk, r.Host)
		if r.Shared = r.Disk; c != nil && c.exchanges() {
			r.Shared, r.PulledPerSecond = max(r.Disk, shared), c.pulledPerSecond()
		}
	}
}

// extend continues a match with blocks that have no place in their chain.
func (l *loose) extend(c Chain, matched int32, tiers uint8) int32 {
	if l.count.Load() == 0 {
		return matched
	}
	for n := int32(c.Blocks()); matched < n && l.tiers(c.Key(int(matched)))&tiers != 0; matched++ {
	}
	return matched
}

// keys presents a chain's blocks as keys of the index.
type keys struct{ chain Chain }

func (k *keys) Blocks() int { return k.chain.Blocks() }

func (k *keys) Key(i int) residency.Key {
	return residency.KeyOf(k.chain.Key(i-i%residency.GroupBlocks), k.chain.Key(i), i)
}
