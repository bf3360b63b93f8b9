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
	// Shared adds the blocks that the host's daemon can read from the daemons of other hosts. It is
	// at least Disk.
	Shared int32
	// Fetch is the time, in seconds, in which a block of another host comes to the node's host, by
	// what came there lately; 0: unknown.
	Fetch float32
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
	reads   [][]name // one for each node: what its engine reads; nil: it is silent
	engines []*engine
	asked   []*cache // each cache once
	places  []int32  // by place in v.caches: 1 + the place in asked; 0: not asked
	stocks  []*stock // of asked
	others  []*stock // of caches that exchange blocks and are not asked about; empty unless an asked one exchanges
	first   []int32  // of asked: place in refs of the first configuration
	offers  []offer  // what the caches have that exchange blocks; each configuration once
	silent  bool     // a node is silent (silent.go)
	refs    []residency.Ref
	matched []int32
	keys    keys
}

// offer is what the fleet has of a prompt in one configuration.
type offer struct {
	kind
	sole   bool    // no daemon that exchanges blocks has another kind of the model; false if no node is silent
	blocks int32   // leading blocks that some daemon has that exchanges blocks; at least 1
	at     *cache  // that daemon
	bytes  float64 // of 16 tokens in all ranks; 0: unknown
}

// Reset forgets the last question and keeps the memory.
func (q *Query) Reset() {
	wipe(q.reads)
	wipe(q.engines)
	wipe(q.asked)
	wipe(q.stocks)
	wipe(q.others)
	wipe(q.offers)
	*q = Query{
		Reach: q.Reach[:0], hosts: q.hosts[:0], reads: q.reads[:0], engines: q.engines[:0], asked: q.asked[:0],
		places: q.places[:0], stocks: q.stocks[:0], others: q.others[:0], first: q.first[:0], offers: q.offers[:0],
		refs: q.refs[:0], matched: q.matched[:0],
	}
}

// wipe clears a slice's memory up to its capacity.
func wipe[T any](s []T) { clear(s[:cap(s)]) }

// Begin starts a question about a prompt for a model. Begin returns false if no daemon is known.
func (q *Query) Begin(m *Map, model string) bool {
	q.v, q.model = m.view.Load(), model
	q.Reach, q.hosts, q.reads, q.engines = q.Reach[:0], q.hosts[:0], q.reads[:0], q.engines[:0]
	q.asked, q.stocks, q.first, q.refs = q.asked[:0], q.stocks[:0], q.first[:0], q.refs[:0]
	q.others, q.offers, q.silent = q.others[:0], q.offers[:0], false
	q.places = slices.Grow(q.places[:0], len(q.v.caches))[:len(q.v.caches)]
	clear(q.places)
	return len(q.v.byAddress)+len(q.v.engines) > 0
}

// Node adds a node, or a rank of a node, to the question. id is the name under which its engine
// reports its blocks, and kvAddress the address of its host's daemon.
func (q *Query) Node(id, kvAddress string) {
	host, list := int32(0), []name(nil)
	if at, known := q.v.byAddress[kvAddress]; known && q.v.caches[at].live() {
		host = q.ask(at)
		list = q.stocks[host-1].readers[cluster.NodeOf(id)]
		q.silent = q.silent || list == nil
	}
	e := q.v.engines[id]
	if e != nil && (!e.cache.live() || !e.knows(q.model)) {
		e = nil
	}
	q.hosts, q.reads, q.engines = append(q.hosts, host), append(q.reads, list), append(q.engines, e)
	q.Reach = append(q.Reach, Reach{Device: Unknown})
}

// ask adds the daemon at a place of the view to the question, once. ask returns 1 + its place in
// asked.
func (q *Query) ask(at int32) int32 {
	if q.places[at] == 0 {
		c := q.v.caches[at]
		q.asked, q.stocks = append(q.asked, c), append(q.stocks, c.stock.Load())
		q.places[at] = int32(len(q.asked))
	}
	return q.places[at]
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
	s, list, next := q.stocks[at], q.reads[i], q.first[at]
	for k := range s.configurations {
		of := &s.configurations[k]
		near, all := of.whole(q.matched[next]), of.whole(q.matched[next+1])
		next += 2
		switch {
		case all == 0 || list != nil && !slices.Contains(list, of.name):
		case list == nil && (disk > 0 || !s.sole(&of.kind)):
			return 0, 0 // nobody knows which kind it reads; two may be of one model under two names
		default:
			host, disk = max(host, near), max(disk, all)
		}
	}
	return host, disk
}

// share fills in q.others. The nodes of a model need not name all daemons that have its blocks: a
// daemon keeps its blocks when the engines of its host go.
func (q *Query) share() {
	if !slices.ContainsFunc(q.asked, (*cache).exchanges) {
		return
	}
	for at, c := range q.v.caches {
		if q.places[at] == 0 && c.exchanges() && c.live() {
			q.others = append(q.others, c.stock.Load())
		}
	}
}

// offer adds the leading blocks of the prompt that a daemon has in a configuration.
func (q *Query) offer(c *cache, of *configuration, blocks int32) {
	if blocks = of.whole(blocks); blocks == 0 {
		return
	}
	at := slices.IndexFunc(q.offers, func(o offer) bool { return o.name == of.name })
	if at < 0 {
		at = len(q.offers)
		q.offers = append(q.offers, offer{kind: of.kind})
	}
	o := &q.offers[at]
	if o.bytes = max(o.bytes, of.bytes); blocks > o.blocks {
		o.blocks, o.at = blocks, c
	}
}

// gather fills in q.offers by q.matched. rest is the place in it of the first other daemon.
func (q *Query) gather(rest int) {
	for at, s := range q.stocks {
		if !q.asked[at].exchanges() {
			continue
		}
		next := q.first[at]
		for i := range s.configurations {
			q.offer(s.of, &s.configurations[i], q.matched[next+1])
			next += 2
		}
	}
	for _, s := range q.others {
		for i := range s.configurations {
			q.offer(s.of, &s.configurations[i], q.matched[rest])
			rest++
		}
	}
	for i := range q.offers {
		o := &q.offers[i]
		o.sole = q.silent && !q.contested(&o.kind)
	}
}

// elsewhere returns the offer with the most leading blocks in a configuration that the engine of
// node i can read. The daemon of node i must exchange blocks. Of equal offers, the one with the
// longer blocks counts. There is none if a silent node may read two.
func (q *Query) elsewhere(i int) (most offer) {
	for j := range q.offers {
		o := &q.offers[j]
		switch {
		case !q.readable(i, o):
		case q.reads[i] == nil && most.blocks > 0:
			return offer{}
		case o.blocks > most.blocks || o.blocks == most.blocks && o.bytes > most.bytes:
			most = *o
		}
	}
	return most
}

// readable says whether the engine of node i can read an offer.
func (q *Query) readable(i int, o *offer) bool {
	if list := q.reads[i]; list != nil {
		return slices.Contains(list, o.name)
	}
	return o.sole || q.stocks[q.hosts[i]-1].sole(&o.kind)
}

// knows says whether the engine's reports tell all its blocks of the model. An engine with adapters
// reports under the name of the base model. Not every engine reports an adapter's blocks by the
// adapter's name, so no engine tells them all here.
func (e *engine) knows(model string) bool {
	m := e.model.Load()
	return m == nil || *m == model
}

// Match answers the question for a prompt. Match takes no lock. Match hashes the chain only as far
// as some holder has it.
func (m *Map) Match(c Chain, q *Query) {
	q.share()
	for _, s := range q.stocks {
		q.first = append(q.first, int32(len(q.refs)))
		for _, of := range s.configurations {
			q.refs = append(q.refs, of.host, of.any)
		}
	}
	engines := len(q.refs)
	for _, e := range q.engines {
		if e != nil {
			q.refs = append(q.refs, e.ref)
			if e.media {
				q.refs = append(q.refs, e.near, e.far)
			}
		}
	}
	rest := len(q.refs)
	for _, s := range q.others {
		for _, of := range s.configurations {
			q.refs = append(q.refs, of.any)
		}
	}
	if len(q.refs) == 0 {
		return
	}
	q.matched = slices.Grow(q.matched[:0], len(q.refs))[:len(q.refs)]
	q.keys.chain = c
	m.index.Lookup(&q.keys, q.refs, q.matched)
	q.gather(rest)
	q.answer(engines)
	q.keys.chain = nil
}

// answer fills in q.Reach by q.matched and q.offers. next is the place in q.matched of the first
// engine.
func (q *Query) answer(next int) {
	for i := range q.Reach {
		r, c := &q.Reach[i], q.cache(i)
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
		if r.Shared = r.Disk; c != nil && c.exchanges() {
			most := q.elsewhere(i)
			r.Shared = max(r.Disk, most.blocks)
			r.Fetch = c.fetches(most.bytes)
		}
	}
}

// keys presents a chain's blocks as keys of the index.
type keys struct{ chain Chain }

func (k *keys) Blocks() int { return k.chain.Blocks() }

func (k *keys) Key(i int) residency.Key {
	return residency.KeyOf(k.chain.Key(i-i%residency.GroupBlocks), k.chain.Key(i), i)
}
