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
}

// Unknown is the Device of an engine that does not report its blocks.
const Unknown = -1

// Query holds the question and the answer of Match. One goroutine at a time uses a Query. A reused
// Query does not allocate.
type Query struct {
	Reach []Reach // set by Match, one for each node asked about

	v       *view
	model   string
	caches  []*cache // one for each node; nil if the node's daemon is unknown or out of date
	engines []*engine
	asked   []*cache // each cache once
	refs    []residency.Ref
	matched []int32
	keys    keys
}

// Reset forgets the last question and keeps the memory.
func (q *Query) Reset() {
	wipe(q.caches)
	wipe(q.engines)
	wipe(q.asked)
	*q = Query{
		Reach: q.Reach[:0], caches: q.caches[:0], engines: q.engines[:0], asked: q.asked[:0],
		refs: q.refs[:0], matched: q.matched[:0],
	}
}

// wipe clears a slice's memory up to its capacity.
func wipe[T any](s []T) { clear(s[:cap(s)]) }

// Begin starts a question about a prompt for a model. Begin returns false if no daemon is known.
func (q *Query) Begin(m *Map, model string) bool {
	q.v, q.model = m.view.Load(), model
	q.Reach, q.caches, q.engines, q.asked, q.refs = q.Reach[:0], q.caches[:0], q.engines[:0], q.asked[:0], q.refs[:0]
	return len(q.v.byAddress)+len(q.v.engines) > 0
}

// Node adds a node, or a rank of a node, to the question. id is the name under which its engine
// reports its blocks, and kvAddress the address of its host's daemon.
func (q *Query) Node(id, kvAddress string) {
	c := q.v.byAddress[kvAddress]
	e := q.v.engines[id]
	if c != nil && !c.live() {
		c = nil
	}
	if e != nil && (!e.cache.live() || !e.knows(q.model)) {
		e = nil
	}
	q.caches, q.engines, q.Reach = append(q.caches, c), append(q.engines, e), append(q.Reach, Reach{Device: Unknown})
	if c != nil && !slices.Contains(q.asked, c) {
		q.asked = append(q.asked, c)
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
	q.matched = slices.Grow(q.matched[:0], len(q.refs))[:len(q.refs)]
	q.keys.chain = c
	m.index.Lookup(&q.keys, q.refs, q.matched)
	for i, a := range q.asked {
		q.matched[2*i] = a.loose.extend(c, q.matched[2*i], tierHost)
		q.matched[2*i+1] = a.loose.extend(c, q.matched[2*i+1], tierHost|tierDisk)
	}
	next := 2 * len(q.asked)
	for i := range q.Reach {
		r := &q.Reach[i]
		if c := q.caches[i]; c != nil {
			at := 2 * slices.Index(q.asked, c)
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
	}
	q.keys.chain = nil
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
