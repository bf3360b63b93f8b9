package holdings

import (
	"slices"

	"github.com/cognitora/dataplane/internal/cluster"
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
	hosts   []int32  // one for each node: 1 + the place in asked; 0: the node's daemon is unknown or out of date
	reads   [][]name // one for each node: what its engine reads; nil: all
	engines []*engine
	asked   []*cache // each cache once
	stocks  []*stock // of asked
	first   []int32  // of asked: place in refs of the first configuration
	refs    []residency.Ref
	matched []int32
	keys    keys
}

// Reset forgets the last question and keeps the memory.
func (q *Query) Reset() {
	wipe(q.reads)
	wipe(q.engines)
	wipe(q.asked)
	wipe(q.stocks)
	*q = Query{
		Reach: q.Reach[:0], hosts: q.hosts[:0], reads: q.reads[:0], engines: q.engines[:0], asked: q.asked[:0],
		stocks: q.stocks[:0], first: q.first[:0], refs: q.refs[:0], matched: q.matched[:0],
	}
}

// wipe clears a slice's memory up to its capacity.
func wipe[T any](s []T) { clear(s[:cap(s)]) }

// Begin starts a question about a prompt for a model. Begin returns false if no daemon is known.
func (q *Query) Begin(m *Map, model string) bool {
	q.v, q.model = m.view.Load(), model
	q.Reach, q.hosts, q.reads, q.engines = q.Reach[:0], q.hosts[:0], q.reads[:0], q.engines[:0]
	q.asked, q.stocks, q.first, q.refs = q.asked[:0], q.stocks[:0], q.first[:0], q.refs[:0]
	return len(q.v.byAddress)+len(q.v.engines) > 0
}

// Node adds a node, or a rank of a node, to the question. id is the name under which its engine
// reports its blocks, and kvAddress the address of its host's daemon.
func (q *Query) Node(id, kvAddress string) {
	host, list := int32(0), []name(nil)
	if c := q.v.byAddress[kvAddress]; c != nil && c.live() {
		host = q.ask(c)
		list = q.stocks[host-1].readers[cluster.NodeOf(id)]
	}
	e := q.v.engines[id]
	if e != nil && (!e.cache.live() || !e.knows(q.model)) {
		e = nil
	}
	q.hosts, q.reads, q.engines = append(q.hosts, host), append(q.reads, list), append(q.engines, e)
	q.Reach = append(q.Reach, Reach{Device: Unknown})
}

// ask adds a daemon to the question, once. ask returns 1 + its place.
func (q *Query) ask(c *cache) int32 {
	at := slices.Index(q.asked, c)
	if at < 0 {
		at = len(q.asked)
		q.asked, q.stocks = append(q.asked, c), append(q.stocks, c.stock.Load())
	}
	return int32(at + 1)
}

// cache returns the daemon of node i; nil: it is unknown or out of date.
func (q *Query) cache(i int) *cache {
	if host := q.hosts[i]; host > 0 {
		return q.asked[host-1]
	}
	return nil
}

// kept returns how many leading blocks of the prompt the daemon of node i has in RAM, and in RAM or
// on SSD, in a configuration that the node's engine can read.
func (q *Query) kept(i int) (host, disk int32) {
	at := q.hosts[i] - 1
	if at < 0 {
		return 0, 0
	}
	next := q.first[at]
	for _, of := range q.stocks[at].configurations {
		if reads(q.reads[i], of.name) {
			host, disk = max(host, q.matched[next]), max(disk, q.matched[next+1])
		}
		next += 2
	}
	return host, disk
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
	for _, s := range q.stocks {
		q.first = append(q.first, int32(len(q.refs)))
		for _, of := range s.configurations {
			q.refs = append(q.refs, of.host, of.any)
		}
	}
	next := len(q.refs)
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
	for i := range q.Reach {
		r := &q.Reach[i]
		r.Host, r.Disk = q.kept(i)
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

// keys presents a chain's blocks as keys of the index.
type keys struct{ chain Chain }

func (k *keys) Blocks() int { return k.chain.Blocks() }

func (k *keys) Key(i int) residency.Key {
	return residency.KeyOf(k.chain.Key(i-i%residency.GroupBlocks), k.chain.Key(i), i)
}
