package holdings

import (
	"slices"
	"time"
	"unique"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/kv/block"
	kv "github.com/cognitora/dataplane/kv/residency"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router/residency"
)

// These constants bound the configurations whose blocks count: those of one daemon, and those of
// all daemons beyond the first one of each. The index then has room left for engines.
const (
	MaxConfigurations = 16
	maxFurther        = 512
)

// These constants bound what the engines of one host say they read: nodes, and names of each.
const (
	maxReaders = 256
	maxReads   = 256
	maxPresent = kv.MaxPresent
)

// idleAfter is how long a configuration without changes keeps its place when all are taken.
const idleAfter = time.Minute

// name is the text of a configuration: a namespace of rank 0. It says all that the bytes of blocks
// depend on besides their tokens and ranks. The same tokens have the same digests in each one.
type name = unique.Handle[string]

func nameOf(text string) name { return unique.Make(text) }

// kind names a configuration and its model.
type kind struct{ name, model name }

// configuration has a daemon's blocks of one kind.
type configuration struct {
	kind
	host, any residency.Ref // holders in the index: RAM, and RAM or SSD
	bytes     float64       // of 16 tokens in all ranks; 0: unknown, as with an object for each layer
	blocks    int32         // of an object; at least 1
}

// whole returns how many of so many leading blocks are in whole objects. Another prompt's object
// may begin with the same blocks; its end is another, so no engine finds it.
func (c *configuration) whole(leading int32) int32 { return leading - leading%c.blocks }

// stock is the part of a cache that requests read. stock is immutable.
type stock struct {
	of             *cache
	configurations []configuration
	readers        map[string][]name // by node id: what its engine reads; a node that is absent has not said
	models         map[name]name     // by model: the only configuration with blocks, or several
	unlisted       bool              // models lacks some
}

// several stands for the configurations of a model that has more than one.
var several name

// reads says whether a list of names has one. A nil list has all names.
func reads(list []name, n name) bool { return list == nil || slices.Contains(list, n) }

// modelOf returns the model of a configuration.
func modelOf(n name) name {
	of, err := block.ParseNamespace(n.Value())
	if err != nil {
		return n // of a later version
	}
	return nameOf(of.Model)
}

// held is a configuration with a place.
type held struct {
	configuration
	told  time.Time // of the last message with a change
	parts float64   // bytes of 16 tokens in all ranks for one byte of an object; 0: its blocks do not count
}

// hear records which configurations the nodes' engines read, and which ones have blocks.
func (c *cache) hear(told *cognitorav1.Readers) error {
	nodes := told.Nodes
	if len(nodes) > maxReaders || len(told.Present) > maxPresent {
		return errStream
	}
	c.present, c.unlisted = make(map[name]name, len(told.Present)), told.More
	for _, text := range told.Present {
		if len(text) > block.MaxNamespace {
			return errStream
		}
		n := nameOf(text)
		c.present[n] = modelOf(n)
	}
	c.readers = make(map[string][]name, len(nodes))
	for _, r := range nodes {
		if len(r.Namespaces) > maxReads {
			return errStream
		}
		node := cluster.NodeOf(r.Node) // the ranks of an engine report apart
		list := c.readers[node]
		if list == nil {
			list = make([]name, 0, len(r.Namespaces)) // not nil: what is not in it cannot be read
		}
		for _, text := range r.Namespaces {
			if len(text) > block.MaxNamespace {
				return errStream
			}
			list = append(list, nameOf(text))
		}
		c.readers[node] = list
	}
	c.restock()
	return nil
}

// find returns the configuration of a namespace of the daemon's blocks. find gives a new one a
// place if it has a block. find returns nil if there is no place.
func (c *cache) find(text string, present bool) *held {
	n := nameOf(text)
	for _, h := range c.held {
		if h.name == n {
			h.told = time.Now()
			return h
		}
	}
	if !present {
		return nil
	}
	h := c.enter(n)
	if h != nil {
		c.appear(n)
	}
	return h
}

// appear records that a new configuration has a block, which hear may learn a second later. One
// that has a place may be about to lose its last block, which hear may have learnt already.
func (c *cache) appear(n name) {
	if _, known := c.present[n]; known || c.present == nil || c.unlisted {
		return
	}
	if c.present[n] = modelOf(n); len(c.present) > maxPresent {
		clear(c.present) // as the daemon will say
		c.unlisted = true
	}
	c.restock()
}

// enter gives a configuration a place. If all places are taken, another configuration gives way:
// one that no engine reads, if an engine reads the new one, or else one that has long been idle.
func (c *cache) enter(n name) *held {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.left {
		return nil
	}
	count := len(c.held)
	c.crowded = c.m.index.Room() < 2
	if count >= MaxConfigurations || count > 0 && (c.crowded || c.m.further >= maxFurther) {
		if !c.displace(n) {
			return nil
		}
		c.crowded = false
	}
	if c.crowded {
		return nil
	}
	parts, blocks := sizesOf(n)
	h := &held{configuration: configuration{kind: kind{n, modelOf(n)}, host: c.m.index.Join(), any: c.m.index.Join(),
		blocks: blocks}, told: time.Now(), parts: parts}
	if c.held = append(c.held, h); len(c.held) > 1 {
		c.m.further++
	}
	c.restock()
	return h
}

// sizesOf returns the parts of a held configuration and the blocks of an object.
func sizesOf(n name) (parts float64, blocks int32) {
	of, err := block.ParseNamespace(n.Value())
	if err != nil || of.Blocks() == 0 {
		return 0, 1
	}
	return float64(of.TP) * float64(of.PP) / float64(of.Blocks()), int32(of.Blocks())
}

// weigh records the bytes of an object of a configuration in one rank; 0: unknown.
func (c *cache) weigh(h *held, size uint64) {
	if bytes := float64(size) * h.parts; bytes > 0 && bytes != h.bytes {
		h.bytes = bytes
		c.restock()
	}
}

// displace forgets a configuration whose place another one may have. The caller holds c.m.mu.
func (c *cache) displace(by name) bool {
	worst := slices.MinFunc(c.held, func(a, b *held) int {
		if first := c.read(a.name); first != c.read(b.name) {
			if first {
				return 1
			}
			return -1
		}
		return a.told.Compare(b.told)
	})
	wanted, unread := c.read(by), !c.read(worst.name)
	idle := time.Since(worst.told) >= idleAfter
	if !(wanted && unread || idle && (wanted || unread)) {
		return false
	}
	c.held = slices.DeleteFunc(c.held, func(h *held) bool { return h == worst })
	c.forsake(worst)
	if len(c.held) > 0 {
		c.m.further--
	}
	return true
}

// forsake forgets the blocks of a configuration.
func (c *cache) forsake(h *held) {
	for _, ref := range []residency.Ref{h.host, h.any} {
		c.m.index.Leave(ref)
		delete(c.numbers, ref)
		delete(c.batches, ref)
	}
}

// read says whether an engine has said that it reads a configuration.
func (c *cache) read(n name) bool {
	for _, list := range c.readers {
		if slices.Contains(list, n) {
			return true
		}
	}
	return false
}

// empty forgets all configurations. The caller holds c.m.mu.
func (c *cache) empty() {
	for _, h := range c.held {
		c.forsake(h)
	}
	if !c.left { // otherwise Map.drop has done it
		c.m.further -= max(len(c.held)-1, 0)
	}
	c.held, c.crowded = nil, false
	c.restock()
}

// restock lets requests read the present state.
func (c *cache) restock() {
	s := &stock{of: c, readers: c.readers, models: map[name]name{}, unlisted: c.unlisted}
	has := func(model, of name) {
		if was, known := s.models[model]; known && was != of {
			of = several
		}
		s.models[model] = of
	}
	for of, model := range c.present {
		has(model, of)
	}
	for _, h := range c.held {
		if len(c.present) == 0 && !c.unlisted { // an older daemon, or one without blocks
			has(h.model, h.name)
		}
		s.configurations = append(s.configurations, h.configuration)
	}
	c.stock.Store(s)
}
