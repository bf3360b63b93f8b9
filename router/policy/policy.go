// Package policy picks the node that gets a request. It is pure: it reads the candidates it
// is given, does no I/O, keeps no state, takes no lock and allocates nothing in Pick.
//
// Mode score weighs four terms and takes the highest total:
//
//	kv·(overlap - pending·waiting) + load·(1-util) + power·(1-norm_watts) + capacity·cap
//
//	overlap    = matched leading blocks, each weighed by the tier that it is in / prompt blocks;
//	             blocks that the engine computes for other requests count as matched
//	waiting    = min(blocks that wait for prefill at the node / max(prompt blocks, 64), 4)
//	util       = max(busy/slots, sm, what the engine waits and Retransmits make of it)
//	norm_watts = watts / the fleet's highest watts
//	cap        = mean of VRAM, throughput and free slots, each relative to the fleet's best
//
// All but waiting are in [0,1]. The first bracket falls below 0 on purpose: on a cold fleet
// nobody has overlap, and only the prefill that waits tells nodes apart. With kv 0 prefill that
// waits does not count.
//
// The fleet is the list of candidates. A telemetry value that a node lacks counts as the mean
// of those that report it; one that nobody reports contributes 0 for everybody.
//
// # Load
//
// busy is the node's requests in flight, ours and those of others. slots is the lower of its
// max_concurrent and the slots that its engine tells. A node that has neither is taken to have
// as many as the mean of those that do. Where nobody has any, every node has twice the mean of
// busy, and 16 at least: load then only tells who has more than others, and few requests say
// little.
//
// # Who is left out
//
// A node with a max_concurrent is no candidate in any mode once it is busy with as many. In mode
// score a node is also left out while busy/slots is max_share times the fleet's or more, unless
// it is busy with less than 32 and less than its own slots, or nobody would be left. Without that
// rule overlap outweighs the whole load term once 45 % of a prompt is shared, and the nodes that
// hold a hot prefix drown while others idle.
package policy

import (
	"math"
	"slices"

	"github.com/cognitora/dataplane/internal/load"
)

// Mode is how a node is chosen among those that have room.
type Mode uint8

const (
	Score       Mode = iota // highest weighted score, rendezvous among near-equals
	RoundRobin              // each in turn, by the caller's counter
	Random                  // uniform
	PowerOfTwo              // the less loaded of two drawn at random
	LeastLoaded             // lowest busy/slots, ties at random
)

var modeNames = [...]string{"score", "round_robin", "random", "power_of_two", "least_loaded"}

// String returns the name used in documents and flags.
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return "unknown"
}

// ModeNames lists all modes.
func ModeNames() []string { return slices.Clone(modeNames[:]) }

// Counts reports whether the r given to Pick must come from a counter that the caller
// increments by one for every pick, rather than from a random source.
func (m Mode) Counts() bool { return m == RoundRobin }

// Policy says how to pick. It is immutable once published: whoever changes it makes a new one.
type Policy struct {
	Mode                      Mode
	KV, Load, Power, Capacity float64 // weights, 0 to 1 each, not all 0
	// Pending is what one prompt that waits for prefill takes off the overlap, 0 to 1.
	Pending float64
	Tiers   Tiers
	Epsilon float64 // scores this close to the best count as equal, 0 to 1
	// MaxShare leaves out nodes whose load is this multiple of the fleet's or more. 0: none.
	MaxShare  float64
	MaxQueue  int // requests in flight per (model, role); 0 = the router's own setting
	TTFTSLOms int // time-to-first-token objective in milliseconds; 0 = none
	// RunDelayMs is the engine's wait for a CPU, in milliseconds of each second, at which a node
	// counts as fully used. It is held against the waits of the engine's own threads, never against
	// those of all threads of its host. Only the excess over twice the peers' mean counts. 0: waits
	// do not count.
	RunDelayMs float64
	// RetransmitPct is the share of retransmitted segments, in percent, at which a node counts as
	// fully used, likewise. 0: they do not count.
	RetransmitPct float64
}

// Tiers is the worth of a matched block by the best tier that the node has it in, 0 to 1 each:
// the farther from the GPU, the less.
type Tiers struct{ Device, Host, Disk float64 }

// Default returns the policy that holds until another one is published.
func Default() *Policy {
	return &Policy{Mode: Score, KV: 0.55, Load: 0.25, Power: 0.10, Capacity: 0.10, Pending: 0.15,
		Tiers: Tiers{Device: 1, Host: 0.75, Disk: 0.25}, Epsilon: 0.01, MaxShare: 1.5}
}

// Unknown is the value of a float32 that a node does not report.
func Unknown() float32 { return float32(math.NaN()) }

// Candidate is one node that may take the request, as seen at the moment of the pick. In the
// fields of type float32 NaN, or any negative value, means unknown.
type Candidate struct {
	IDHash        uint64  // hash of the node id, the same in every router replica
	Matched       int32   // leading blocks of this prompt believed to be in the engine's own cache
	Coming        int32   // with those that it computes for other requests now; below Matched: no more
	Host, Disk    int32   // with those in the host's memory, and on its disk too; below Matched: no more
	Pending       int32   // blocks of prompts whose answers the engine has not begun
	InFlight      int32   // requests sent and not yet finished
	Others        int32   // requests that the node has from others, running and waiting
	MaxConcurrent int32   // requests that it may have at once; 0 or less: no limit
	EngineSlots   int32   // requests that its engine computes at once; 0 or less: unknown
	VRAM          float32 // bytes, or any unit that all candidates share
	Throughput    float32 // see Throughput
	Retransmits   float32 // share of the segments to or from it that are sent again, 0 to 1

	// Load is what the node's agent or engine tells; nil: nothing is known.
	Load *load.Load
}

var nothing load.Load

// told is what is known of the node's load.
func (c *Candidate) told() *load.Load {
	if c.Load == nil {
		return &nothing
	}
	return c.Load
}

// Key tells prompts apart when candidates tie: by the digest of the last full block of the
// first user turn, or by the session id. It is asked at most once per pick and only when
// at least two candidates tie, because it may have to hash that far. 0 means the prompt has
// none; the tie is then broken at random.
type Key interface{ RendezvousKey() uint64 }

// Pick returns the index of the node to use, or -1 when no candidate has room. key may
// be nil. r is 64 random bits, or for a mode that Counts the value of the caller's counter:
// an atomic add per pick makes round robin fair under concurrency without a lock. Pick keeps
// no reference to its arguments.
func (p *Policy) Pick(cands []Candidate, promptBlocks int, key Key, r uint64) int {
	switch p.Mode {
	case RoundRobin:
		if n := withRoom(cands); n > 0 {
			return nth(cands, int(r%uint64(n)))
		}
	case Random:
		if n := withRoom(cands); n > 0 {
			return nth(cands, scale(r, n))
		}
	case PowerOfTwo:
		return powerOfTwo(cands, r)
	case LeastLoaded:
		return leastLoaded(cands, r)
	default:
		return p.pickScore(cands, promptBlocks, key, r)
	}
	return -1
}

func (c *Candidate) busy() int64 { return max(int64(c.InFlight), 0) + max(int64(c.Others), 0) }

// room tells whether the node may have one more request.
func (c *Candidate) room() bool { return c.MaxConcurrent <= 0 || c.busy() < int64(c.MaxConcurrent) }
