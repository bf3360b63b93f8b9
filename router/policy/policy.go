// Package policy picks the node that gets a request. It is pure: it reads the candidates it
// is given, does no I/O, keeps no state, takes no lock and allocates nothing in Pick.
//
// Mode score weighs four terms, each in [0,1], and takes the highest total:
//
//	kv·overlap + load·(1-util) + power·(1-norm_watts) + capacity·cap
//
//	overlap    = matched leading blocks, each weighed by the tier that it is in / prompt blocks
//	util       = max(in_flight/max_concurrent, sm), in_flight with that of others, and of engine_wait/run_delay_ms and retransmits/retransmit_pct where these
//	             are set: of these two, what is more than twice the mean of the other nodes'
//	norm_watts = watts / the fleet's highest watts
//	cap        = mean of VRAM, throughput and free slots, each relative to the fleet's best
//
// The fleet is the list of candidates. A telemetry value that a node lacks counts as the mean
// of those that report it; one that nobody reports contributes 0 for everybody. A node whose
// in-flight requests reach its max_concurrent is no candidate in any mode: without
// that rule overlap outweighs the whole load term once 45 % of a prompt is shared, and the
// nodes that hold a hot prefix drown while others idle.
package policy

import (
	"math"
	"slices"
)

// DefaultMaxConcurrent is the number of slots of a node that does not say.
const DefaultMaxConcurrent = 64

// Mode is how a node is chosen among those that have a free slot.
type Mode uint8

const (
	Score       Mode = iota // highest weighted score, rendezvous among near-equals
	RoundRobin              // each in turn, by the caller's counter
	Random                  // uniform
	PowerOfTwo              // the less loaded of two drawn at random
	LeastLoaded             // lowest in flight / max_concurrent, ties at random
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
	Tiers                     Tiers
	Epsilon                   float64 // scores this close to the best count as equal, 0 to 1
	MaxQueue                  int     // requests in flight per (model, role); 0 = the router's own setting
	TTFTSLOms                 int     // time-to-first-token objective in milliseconds; 0 = none
	// RunDelayMs is the EngineWait, in milliseconds of each second, of a node that counts as fully used: a further operand of util. It is held against the waits of
	// the engine's own threads, never against those of all threads of its host. 0: waits do not count.
	RunDelayMs float64
	// RetransmitPct is the share of the segments to or from a node that are sent again, in percent, at which it counts as fully used: likewise. 0: they do not count.
	RetransmitPct float64
}

// Tiers is what a matched block is worth by the best tier that the node has it in, 0 to 1 each: the more
// it takes to get it to the GPU, the less.
type Tiers struct{ Device, Host, Disk float64 }

// Default returns the policy that holds until another one is published.
func Default() *Policy {
	return &Policy{Mode: Score, KV: 0.55, Load: 0.25, Power: 0.10, Capacity: 0.10,
		Tiers: Tiers{Device: 1, Host: 0.75, Disk: 0.25}, Epsilon: 0.01}
}

// Unknown is the value of a telemetry field that a node does not report.
func Unknown() float32 { return float32(math.NaN()) }

// Candidate is one node that may take the request, as seen at the moment of the pick. In the
// telemetry fields NaN, or any negative value, means unknown.
type Candidate struct {
	IDHash        uint64  // hash of the node id, the same in every router replica
	Matched       int32   // leading blocks of this prompt believed to be in the engine's own cache
	Host, Disk    int32   // how far they reach with what the host has in memory, and on disk too; below Matched: no further
	InFlight      int32   // requests sent and not yet finished
	Others        int32   // requests that the node has from others, running and waiting
	MaxConcurrent int32   // slots; 0 or less counts as DefaultMaxConcurrent
	SM            float32 // busy share of the GPU, 0 to 1
	Watts         float32 // 30 s mean of the node's power draw
	VRAM          float32 // bytes, or any unit that all candidates share
	Throughput    float32 // see Throughput
	EngineWait    float32 // seconds in a second that threads of the engine wait for a CPU, together
	Retransmits   float32 // share of the segments to or from it that are sent again, 0 to 1
}

// Key gives what a prompt is known by when candidates tie: the digest of the last full block
// of the first user turn, or the session id. It is asked at most once per pick and only when
// at least two candidates tie, because it may have to hash that far. 0 means the prompt has
// none; the tie is then broken at random.
type Key interface{ RendezvousKey() uint64 }

// Pick returns the index of the node to use, or -1 when no candidate has a free slot. key may
// be nil. r is 64 random bits, or for a mode that Counts the value of the caller's counter:
// an atomic add per pick makes round robin fair under concurrency without a lock. Pick keeps
// no reference to its arguments.
func (p *Policy) Pick(cands []Candidate, promptBlocks int, key Key, r uint64) int {
	switch p.Mode {
	case RoundRobin:
		if n := eligible(cands); n > 0 {
			return nth(cands, int(r%uint64(n)))
		}
	case Random:
		if n := eligible(cands); n > 0 {
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

func (c *Candidate) slots() int64 {
	if c.MaxConcurrent <= 0 {
		return DefaultMaxConcurrent
	}
	return int64(c.MaxConcurrent)
}

func (c *Candidate) busy() int64 { return max(int64(c.InFlight), 0) + max(int64(c.Others), 0) }

func (c *Candidate) free() int64 { return max(c.slots()-c.busy(), 0) }

// lessLoaded compares busy/slots without dividing.
func (c *Candidate) lessLoaded(d *Candidate) bool { return c.busy()*d.slots() < d.busy()*c.slots() }
