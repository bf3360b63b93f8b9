package cluster

import (
	"container/list"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/sim/engine"
)

// Hosts are the cache daemons of the nodes' hosts, one for each node. Every engine has a connector:
// it keeps each block that it computes on its host, and loads what its host has, or gets from
// another host. Its batch waits meanwhile, as that of a vLLM does. A block that comes from another
// host stays. The zero value means that there are none.
type Hosts struct {
	Blocks int // in the RAM of a host, of 512 tokens; the least recently used ones go first
	// LoadRate and PullRate are bytes per second: from the RAM of a host to its engine, and from
	// another host to the RAM of a host. PullRate 0: hosts exchange no blocks.
	LoadRate, PullRate float64
	// Told says what the routers are told about the hosts' blocks. They are told at once.
	Told Told
}

// Told says which blocks outside of engines' memory routers know of.
type Told uint8

// These are the values of Told.
const (
	ToldNothing Told = iota // routers predict the memory of engines by cached tokens alone
	ToldHost                // each node's own host
	ToldFleet               // also what it gets from other hosts, and how fast
)

// These are the sizes of blocks of the engines that the judged kinds have, with 128 KiB for each
// token.
const (
	tokenBytes       = 128 << 10
	hostBlockBytes   = trace.BlockTokens * tokenBytes
	routerBlockBytes = prefix.BlockTokens * tokenBytes
)

// host is the cache of one node's host.
type host struct {
	s              *simulation
	node           int
	blocks         map[engine.BlockID]*list.Element
	recent         list.List // of BlockIDs, the least recently used one first
	loaded, pulled int       // blocks
}

// openHosts gives every node a host, if there are caches.
func (s *simulation) openHosts() {
	if s.cfg.Hosts.Blocks == 0 {
		return
	}
	for i := range s.nodes {
		h := &host{s: s, node: i, blocks: map[engine.BlockID]*list.Element{}}
		s.hosts = append(s.hosts, h)
		s.nodes[i].model.Keep(h)
	}
}

// Store keeps a block.
func (h *host) Store(b engine.BlockID) {
	if at := h.blocks[b]; at != nil {
		h.recent.MoveToBack(at)
		return
	}
	if len(h.blocks) == h.s.cfg.Hosts.Blocks {
		delete(h.blocks, h.recent.Remove(h.recent.Front()).(engine.BlockID))
	}
	h.blocks[b] = h.recent.PushBack(b)
}

// Load gets the leading blocks, from other hosts too if these exchange blocks.
func (h *host) Load(blocks []engine.BlockID) (n int, took time.Duration) {
	set, pulled := &h.s.cfg.Hosts, 0
	for ; n < len(blocks); n++ {
		if h.blocks[blocks[n]] == nil {
			if set.PullRate == 0 || !h.s.elsewhere(blocks[n]) {
				break
			}
			pulled++
		}
		h.Store(blocks[n])
	}
	h.loaded, h.pulled = h.loaded+n, h.pulled+pulled
	seconds := float64(n) * hostBlockBytes / set.LoadRate
	if pulled > 0 {
		seconds += float64(pulled) * hostBlockBytes / set.PullRate
	}
	return n, time.Duration(seconds * float64(time.Second))
}

// elsewhere says whether some host has the block.
func (s *simulation) elsewhere(b engine.BlockID) bool {
	for _, h := range s.hosts {
		if h.blocks[b] != nil {
			return true
		}
	}
	return false
}

// leading returns how many of the leading blocks the host has.
func (h *host) leading(blocks []engine.BlockID) int32 {
	for i := range blocks {
		if h.blocks[blocks[i]] == nil {
			return int32(i)
		}
	}
	return int32(len(blocks))
}

// reaches returns what a router is told about a prompt's full blocks on each node's host. A host
// that has got no block from another one has measured no speed.
func (s *simulation) reaches(r *router, blocks []engine.BlockID) func(*fleet.Node) holdings.Reach {
	set, shared := &s.cfg.Hosts, int32(0)
	if set.Told == ToldFleet && set.PullRate > 0 {
		for _, h := range s.hosts {
			shared = max(shared, h.leading(blocks))
		}
	}
	return func(n *fleet.Node) holdings.Reach {
		h := s.hosts[r.nodes[n]]
		reach := holdings.Reach{
			Device: holdings.Unknown, Host: h.leading(blocks) * indexBlocks, Shared: shared * indexBlocks,
		}
		if h.pulled > 0 {
			reach.Fetch = float32(routerBlockBytes / set.PullRate)
		}
		return reach
	}
}
