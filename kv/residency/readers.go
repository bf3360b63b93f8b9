package residency

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// These constants bound what engines say they read.
const (
	MaxReaders = 64  // nodes
	MaxReads   = 64  // namespaces of one node
	MaxPresent = 256 // namespaces with blocks that watchers are told of
)

// readGrace is how long a reading stays after its last connection has ended. An engine that
// connects again in that time has told the same all along.
const readGrace = 5 * time.Second

// ErrReaders says that MaxReaders or MaxReads is reached.
var ErrReaders = errors.New("residency: too many nodes, or namespaces of one node, are read")

// Reader is a node whose engine says which namespaces it can read, over the lease socket or in its
// reports.
type Reader struct {
	Node       string   // as it was said: in reports of an engine with several ranks followed by the rank
	Namespaces []string // of rank 0; none: it can read no block
}

// reading is a namespace that an engine reads.
type reading struct {
	namespace string
	held      int       // connections that have said so
	until     time.Time // end of the grace, if held is 0
}

// CheckRead returns an error if node is no node's id, or namespace is none that engines read.
func CheckRead(node, namespace string) error {
	if node == "" || len(node) > MaxEngineName {
		return fmt.Errorf("residency: a node's id of %d bytes; 1 to %d are allowed", len(node), MaxEngineName)
	}
	n, err := block.ParseNamespace(namespace)
	if err == nil && (n.Space != "" || n.TPRank != 0 || n.PPRank != 0) {
		err = fmt.Errorf("%w: give that of rank 0 of a model", block.ErrNamespace)
	}
	return err
}

// Read records that a node's engine can read the blocks of a namespace, in all its ranks. Each
// connection that says so calls Read once, and EndRead later. What the node's ended connections
// have said no longer counts. The error is that of CheckRead, or ErrReaders.
func (x *Index) Read(node, namespace string) error {
	if err := CheckRead(node, namespace); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropReads(node, func(r reading) bool { return r.held == 0 && r.namespace != namespace })
	list := x.readers[node]
	for i := range list {
		if list[i].namespace == namespace {
			list[i].held++
			return nil
		}
	}
	if list == nil && len(x.readers) >= MaxReaders || len(list) >= MaxReads {
		x.stats.ReadsRefused++
		return ErrReaders
	}
	x.readers[strings.Clone(node)] = append(list, reading{namespace: strings.Clone(namespace), held: 1})
	x.tellReaders()
	return nil
}

// EndRead takes a Read back: at once, or after a grace because the connection has ended.
func (x *Index) EndRead(node, namespace string, grace bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.readers[node] {
		r := &x.readers[node][i]
		if r.namespace != namespace || r.held == 0 {
			continue
		}
		if r.held--; r.held > 0 {
			return
		}
		if grace {
			r.until = time.Now().Add(readGrace)
			return
		}
	}
	x.dropReads(node, func(r reading) bool { return r.namespace == namespace && r.held == 0 })
}

// ExpireReads forgets what ended connections have said, once the grace is over. Call it every few
// seconds.
func (x *Index) ExpireReads() {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for node := range x.readers {
		x.dropReads(node, func(r reading) bool { return r.held == 0 && now.After(r.until) })
	}
}

// dropReads forgets some readings of a node.
func (x *Index) dropReads(node string, these func(reading) bool) {
	before := len(x.readers[node])
	list := slices.DeleteFunc(x.readers[node], these)
	if len(list) == before {
		return
	}
	if x.readers[node] = list; len(list) == 0 {
		delete(x.readers, node)
	}
	x.tellReaders()
}

// present returns the namespaces of rank 0 of which the daemon's tiers have blocks; nil: more than
// MaxPresent.
func (x *Index) present() []string {
	list := []string{}
	for i, blocks := range x.own.spaces {
		if s := &x.namespaces.list[i]; blocks > 0 && s.counts {
			if len(list) == MaxPresent {
				return nil
			}
			list = append(list, s.text)
		}
	}
	return list
}

// tellReaders tells watchers that readers have changed. They then learn of the namespaces with
// blocks, too.
func (x *Index) tellReaders() {
	x.presentLate = false
	x.ring.mark(0, markReaders)
}

// presentEvery is the shortest time between two changes of the namespaces with blocks that watchers
// are told of. Each time they get the whole lists.
const presentEvery = time.Second

// tellPresent tells watchers that the namespaces with blocks have changed: at once, or when
// presentEvery is over.
func (x *Index) tellPresent() {
	x.presentLate = true
	if x.tellLate() > 0 {
		x.ring.wakeAll() // so that a watcher waits no longer than for that
	}
}

// tellLate tells watchers of a change that is late and due. tellLate returns how long watchers
// should wait at most; 0: for the next change.
func (x *Index) tellLate() time.Duration {
	if !x.presentLate {
		return 0
	}
	now := time.Now()
	if wait := x.presentNext.Sub(now); wait > 0 {
		return wait
	}
	x.presentNext = now.Add(presentEvery)
	x.tellReaders()
	return 0
}

// Readers returns the nodes that say what they read, by id.
func (x *Index) Readers() []Reader {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.listReaders()
}

// countReaders returns the length of what listReaders returns.
func (x *Index) countReaders() int {
	n := len(x.readers)
	for engine, h := range x.engines {
		if h.reads != nil && x.readers[engine] == nil {
			n++
		}
	}
	return n
}

// listReaders returns a list that is never nil.
func (x *Index) listReaders() []Reader {
	all := make([]Reader, 0, len(x.readers))
	for node, list := range x.readers {
		r := Reader{Node: node}
		for _, of := range list {
			r.Namespaces = append(r.Namespaces, of.namespace)
		}
		if h := x.engines[node]; h != nil {
			r.Namespaces = append(r.Namespaces, h.reads...)
		}
		all = append(all, r)
	}
	for engine, h := range x.engines {
		if h.reads != nil && x.readers[engine] == nil {
			all = append(all, Reader{engine, h.reads})
		}
	}
	slices.SortFunc(all, func(a, b Reader) int { return cmp.Compare(a.Node, b.Node) })
	return all
}
