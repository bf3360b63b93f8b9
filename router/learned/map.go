// Package learned knows the token ids of beginnings of chats and texts whose tokenizer the router
// cannot follow. Engines teach them: a lesson asks an engine for the ids of two prompts that part
// at a boundary between two messages or lines, and what the ids have in common belongs to the text
// before it.
//
// A Map holds what was taught, as the keys of the blocks of the ids. The package does no I/O.
package learned

import (
	"container/list"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/prefix"
)

// Map holds the blocks of beginnings of chats, by a hash of the beginning. Map is bounded: beyond
// its size it forgets the beginnings that were used least recently. Map is safe for concurrent use,
// and no call waits for more than a few list operations of another one.
type Map struct {
	secret maphash.Seed
	limit  int
	models atomic.Pointer[map[string]struct{}]

	mu    sync.Mutex
	known map[uint64]*Entry
	forms forms
	ends  Entry // ring: ends.newer is the oldest entry, ends.older the newest one
	bytes int
	count counts

	stored uint64 // entries that were ever stored
}

// counts are what a Map has done so far.
type counts struct{ hits, misses, wrong, evicted, taught uint64 }

// Entry is the known beginning of a chat. The exported methods may be called at any time.
type Entry struct {
	parent *Entry // has the blocks before from; nil: from is 0
	depth  int    // parents in a row
	from   int
	keys   []uint64 // of the blocks behind from
	last   prefix.Digest
	tokens int

	key, form    uint64
	older, newer *Entry // guarded by the Map's lock, as is used
	used         uint64 // Map.stored at the last use; 0: none
}

const (
	maxDepth   = 32  // parents in a row; an entry with more has all of its blocks itself
	entryBytes = 176 // of an entry without blocks, its place in the table included
)

// NewMap makes a map of about the given size in bytes. A beginning takes 176 bytes, and 8 more for
// each 16 tokens that no shorter beginning has. A map of size 0 learns no model's chats.
func NewMap(bytes int) *Map {
	m := &Map{secret: maphash.MakeSeed(), limit: bytes, known: map[uint64]*Entry{}}
	m.forms.known = map[uint64]*list.Element{}
	m.ends.older, m.ends.newer = &m.ends, &m.ends
	m.Learn(nil)
	return m
}

// Learn replaces the models whose chats are learned, by the clients' names.
func (m *Map) Learn(models map[string]struct{}) {
	if m.limit == 0 {
		models = nil
	}
	m.models.Store(&models)
}

// Learns says whether the chats of a model are learned. A nil Map learns none.
func (m *Map) Learns(model string) bool {
	if m == nil {
		return false
	}
	_, is := (*m.models.Load())[model]
	return is
}

// Stats is the state of a Map.
type Stats struct {
	Entries, Bytes int
	// Hits and Misses count prompts with and without a known beginning, Taught the beginnings that
	// engines have taught, Wrong those that an engine's cached tokens or a later lesson
	// contradicted, and Evicted those that were forgotten for want of room.
	Hits, Misses, Taught, Wrong, Evicted uint64
	// Distrusted counts the forms whose beginnings are not used now, because engines contradicted
	// more of them than they confirmed.
	Distrusted int
}

// Stats returns the state of the map.
func (m *Map) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stats{
		Entries: len(m.known), Bytes: m.bytes,
		Hits: m.count.hits, Misses: m.count.misses, Taught: m.count.taught, Wrong: m.count.wrong,
		Evicted: m.count.evicted, Distrusted: m.forms.distrusted(time.Now()),
	}
}

// first returns the entry of the first key that is known, and the key's index; nil if there is
// none.
func (m *Map) first(keys []uint64) (e *Entry, at int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.find(keys)
}

// recall is first for a prompt of the form, which it counts. recall finds nothing if the form is
// not trusted.
func (m *Map) recall(form uint64, keys []uint64) (e *Entry, at int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trusted(form) {
		e, at = m.find(keys)
	}
	if e != nil {
		m.count.hits++
	} else {
		m.count.misses++
	}
	return e, at
}

// find is first for a caller that holds the lock.
func (m *Map) find(keys []uint64) (e *Entry, at int) {
	for at, key := range keys {
		if e := m.known[key]; e != nil {
			m.use(e)
			return e, at
		}
	}
	return nil, 0
}

// use makes e and its parents the newest entries. A parent is always newer than its children, so it
// is forgotten after them. use does nothing if nothing was stored since the last use of e: only
// what is stored makes others go, and the order of uses in between does not matter.
func (m *Map) use(e *Entry) {
	if e.used == m.stored {
		return
	}
	e.used = m.stored
	for ; e != nil; e = e.parent {
		if e.older != nil {
			e.unlink()
			m.link(e)
		}
	}
}

func (m *Map) link(e *Entry) {
	e.older, e.newer = m.ends.older, &m.ends
	e.older.newer, m.ends.older = e, e
}

func (e *Entry) unlink() {
	e.older.newer, e.newer.older = e.newer, e.older
	e.older, e.newer = nil, nil
}

func (e *Entry) size() int { return entryBytes + 8*len(e.keys) }

// put stores e, a beginning with these blocks. parent, if not nil, is the entry of a shorter
// beginning. put replaces another entry for the key. An entry that differs counts as wrong.
func (m *Map) put(e, parent *Entry, blocks []uint64) {
	if parent != nil && parent.depth < maxDepth && parent.begins(blocks) {
		e.parent, e.depth, e.from = parent, parent.depth+1, parent.Blocks()
	}
	e.keys = slices.Clone(blocks[e.from:])
	m.mu.Lock()
	defer m.mu.Unlock()
	if was := m.known[e.key]; was != nil {
		if was.tokens == e.tokens && was.last == e.last {
			m.use(was)
			return
		}
		m.count.wrong++
		m.forget(was)
	}
	if e.parent != nil && e.parent.older == nil { // it was evicted meanwhile
		return
	}
	m.count.taught++
	m.stored++
	m.known[e.key] = e
	m.link(e)
	m.bytes += e.size()
	m.use(e)
	for m.bytes > m.limit && m.ends.newer != &m.ends {
		m.evict(m.ends.newer)
	}
}

// forget takes the entry out of the table. Its memory counts until it is evicted, because children
// may use it.
func (m *Map) forget(e *Entry) {
	if m.known[e.key] == e {
		delete(m.known, e.key)
	}
}

func (m *Map) evict(e *Entry) {
	m.bytes -= e.size()
	m.count.evicted++
	e.unlink()
	m.forget(e)
}

// Blocks returns the number of full blocks of the beginning.
func (e *Entry) Blocks() int { return e.from + len(e.keys) }

// Tokens returns the number of tokens of the beginning.
func (e *Entry) Tokens() int { return e.tokens }

// Last returns the digest of the last block.
func (e *Entry) Last() prefix.Digest { return e.last }

// Append appends the keys of the blocks to dst.
func (e *Entry) Append(dst []uint64) []uint64 {
	start, n := len(dst), e.Blocks()
	dst = slices.Grow(dst, n)[:start+n]
	for ; e != nil; e = e.parent {
		copy(dst[start+e.from:], e.keys[:min(len(e.keys), n-e.from)])
		n = e.from
	}
	return dst
}

// begins says whether blocks begin with those of e.
func (e *Entry) begins(blocks []uint64) bool {
	if e.Blocks() > len(blocks) {
		return false
	}
	for ; e != nil; e = e.parent {
		if !slices.Equal(e.keys, blocks[e.from:e.Blocks()]) {
			return false
		}
	}
	return true
}
