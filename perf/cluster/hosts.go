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
	// Ahead says that the picked node's host begins to get a prompt's blocks from other hosts when
	// the router picks. Otherwise the engine asks for them, and its batch waits for all of them.
	Ahead bool
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
	recent         list.List                        // of BlockIDs, the least recently used one first
	coming         map[engine.BlockID]time.Duration // when blocks arrive that are on their way
	link           time.Duration                    // when the last of them arrives
	through        time.Duration                    // when the engine has loaded all that it asked for
	loaded, pulled int                              // blocks
}

// openHosts gives every node a host, if there are caches.
func (s *simulation) openHosts() {
	if s.cfg.Hosts.Blocks == 0 {
		return
	}
	for i := range s.nodes {
		h := &host{s: s, node: i, blocks: map[engine.BlockID]*list.Element{},
			coming: map[engine.BlockID]time.Duration{}}
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
		gone := h.recent.Remove(h.recent.Front()).(engine.BlockID)
		delete(h.blocks, gone)
		delete(h.coming, gone)
	}
	h.blocks[b] = h.recent.PushBack(b)
}

// Load gets the leading blocks, from other hosts too if these exchange blocks.
func (h *host) Load(blocks []engine.BlockID) (n int, took time.Duration) {
	begin := max(h.s.now, h.through) // the engine's loads take turns
	ready := begin
	for ; n < len(blocks); n++ {
		if h.blocks[blocks[n]] == nil && !h.pull(blocks[n], begin) {
			break
		}
		h.Store(blocks[n])
		ready = max(ready, h.coming[blocks[n]])
		delete(h.coming, blocks[n])
	}
	h.loaded += n
	h.through = ready + transfer(n, h.s.cfg.Hosts.LoadRate)
	return n, h.through - begin
}

// pull begins to get a block from another host, behind the blocks that are on their way. pull
// returns false if no host has the block, or if hosts exchange none.
func (h *host) pull(b engine.BlockID, now time.Duration) bool {
	rate := h.s.cfg.Hosts.PullRate
	if rate == 0 || !h.s.elsewhere(b) {
		return false
	}
	h.Store(b)
	h.link = max(h.link, now) + transfer(1, rate)
	h.coming[b] = h.link
	h.pulled++
	return true
}

// bring begins to get the leading blocks from other hosts, ahead of the engine.
func (h *host) bring(blocks []engine.BlockID) {
	for _, b := range blocks {
		if h.blocks[b] == nil && !h.pull(b, h.s.now) {
			return
		}
	}
}

// transfer returns the time that blocks take at a rate in bytes per second.
func transfer(blocks int, rate float64) time.Duration {
	return time.Duration(float64(blocks) * hostBlockBytes / rate * float64(time.Second))
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

// leading returns how many of the leading blocks have arrived at the host.
func (h *host) leading(blocks []engine.BlockID) int32 {
	for i := range blocks {
		if h.blocks[blocks[i]] == nil || h.coming[blocks[i]] > h.s.now {
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
