// Package policy picks the node for a request. The package is pure: it reads the given candidates,
// does no I/O, keeps no state and takes no lock. Pick allocates nothing. Each mode has a file of
// its own.
//
// Mode score weighs four terms and takes the highest total:
//
//	kv·(overlap - pending·waiting) + load·(1-util) + power·(1-norm_watts) + capacity·cap
//
//	overlap    = matched leading blocks, each weighed by the tier that it is in / prompt blocks;
//	             blocks that the engine computes for other requests count as matched; hosted experts
//	             raise the part of the engine's own memory by the share that is hosted
//	waiting    = min(blocks that wait for prefill at the node / max(prompt blocks, 64), 4)
//	util       = max(busy/slots, busy/the fleet's highest busy, sm, the engine's scaled CPU wait,
//	             the scaled Retransmits)
//	norm_watts = watts / the fleet's highest watts
//	cap        = mean of VRAM, throughput and free slots, each relative to the fleet's best
//
// All terms except waiting are in [0,1]. The first bracket may fall below 0. On a cold fleet no
// node has overlap, and only the waiting prefill distinguishes nodes. With kv 0 waiting prefill
// does not count.
//
// The fleet is the list of candidates. Missing measurements count as the fleet average. A
// measurement that no node reports contributes 0 for every node.
//
// # Load
//
// busy is the node's requests in flight, this router's and those of others. slots is the lower of
// its max_concurrent and its engine's slots. A node with neither counts with the mean slots of the
// other nodes. A node is fully used when busy is slots, and when busy is the fleet's highest, which
// counts as at least 32. Nodes with more slots than others count with fewer busy requests in that
// comparison. So the load of nodes with many slots, or without a number of slots, is compared too.
//
// A node is no candidate in any mode once busy reaches its max_concurrent.
package policy

import (
	"math"
	"strconv"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router/busy"
)

// Mode is the way to choose among the nodes that have room.
type Mode uint8

const (
	Score       Mode = iota // highest weighted score, rendezvous among near-equals
	Cost                    // lowest cost in blocks to compute and to keep, ties by session, else at random
	RoundRobin              // each node in turn, by the caller's counter
	Random                  // uniform
	PowerOfTwo              // the less loaded of two random nodes
	LeastLoaded             // lowest busy/slots, ties by session, else at random
	Direct                  // the node that the request names
	DeviceAware             // CPUs and accelerators by their shares, least loaded within
	Predicted               // lowest expected time, its own and that of the node's other requests
)

// picker is a mode with its settings. pick returns the index of the chosen node, or -1, and says
// why in e. On the hot path e is nil, and pick allocates nothing.
type picker interface {
	pick(s *Situation, e *Explanation) int
}

// modes lists the modes. A mode is a row here and a file with its picker.
var modes = [...]struct {
	name string
	of   func(p *Policy) picker
}{
	Score:       {"score", func(p *Policy) picker { return &p.Score }},
	Cost:        {"cost", func(p *Policy) picker { return &p.Cost }},
	RoundRobin:  {"round_robin", func(*Policy) picker { return roundRobin{} }},
	Random:      {"random", func(*Policy) picker { return random{} }},
	PowerOfTwo:  {"power_of_two", func(*Policy) picker { return powerOfTwo{} }},
	LeastLoaded: {"least_loaded", func(*Policy) picker { return leastLoaded{} }},
	Direct:      {"direct", func(*Policy) picker { return direct{} }},
	DeviceAware: {"device_aware", func(p *Policy) picker { return &p.DeviceAware }},
	Predicted:   {"predicted", func(p *Policy) picker { return (*predicted)(p) }},
}

// String returns the name used in documents and flags.
func (m Mode) String() string {
	if int(m) < len(modes) {
		return modes[m].name
	}
	return strconv.Itoa(int(m))
}

// MarshalText returns the name of m for documents.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes a name that MarshalText has written.
func (m *Mode) UnmarshalText(name []byte) (err error) {
	*m, err = ParseMode(string(name))
	return err
}

// ModeNames lists all modes.
func ModeNames() []string {
	names := make([]string, len(modes))
	for i := range modes {
		names[i] = modes[i].name
	}
	return names
}

// Counts says whether Situation.Random must come from a counter that grows by one for every pick.
// In the other modes Random is random.
func (m Mode) Counts() bool { return m == RoundRobin }

// Policy says how to pick. Policy is immutable once published. To change the policy, publish a new
// one. The fields of Policy and of its sections are the keys of a document (see settings.go).
type Policy struct {
	Mode        Mode                `json:"mode"`
	Score       ScoreSettings       `json:"score"`
	Cost        CostSettings        `json:"cost"`
	DeviceAware DeviceAwareSettings `json:"device_aware"`
	Predicted   PredictedSettings   `json:"predicted"`

	// TTFTSloMs is the target for the time to the first token, in ms, of requests without a target
	// of their own. It counts in mode predicted. 0: none.
	TTFTSloMs float64 `json:"ttft_slo_ms" range:"0..3600000"`

	PrefillLoadModel PrefillLoadModel `json:"prefill_load_model"`
	// Busy are the thresholds above which a node gets no further requests. Pick does not read
	// them. The caller of Pick leaves busy nodes out of the candidates.
	Busy busy.Thresholds `json:"busy"`
	// MaxQueue bounds the requests in flight of a model on the nodes of a role. 0: the router's own
	// setting.
	MaxQueue int `json:"max_queue" range:"0..1048576"`
}

// ScoreSettings are the settings of mode score.
type ScoreSettings struct {
	Weights Weights `json:"weights"`
	Tiers   Tiers   `json:"tiers"`
	// Epsilon is the distance from the best score within which scores count as equal.
	Epsilon float64 `json:"epsilon" range:"0..1"`
	// RunDelayMs is the engine's wait for a CPU, in milliseconds of each second, at which a node
	// counts as fully used. RunDelayMs applies to the waits of the engine's own threads, not of all
	// threads of the host. Only the excess over twice the peers' mean counts. 0: waits do not
	// count.
	RunDelayMs float64 `json:"run_delay_ms" range:"0..60000"`
	// RetransmitPct is the share of retransmitted segments, in percent, at which a node counts as
	// fully used. Only the excess over twice the peers' mean counts. 0: retransmissions do not
	// count.
	RetransmitPct float64 `json:"retransmit_pct" range:"0..100"`
}

// Weights are the weights of the score's terms. KV, Load, Power and Capacity are not all 0.
type Weights struct {
	KV       float64 `json:"kv" range:"0..1"`
	Load     float64 `json:"load" range:"0..1"`
	Power    float64 `json:"power" range:"0..1"`
	Capacity float64 `json:"capacity" range:"0..1"`
	// Pending is the weight of waiting prefill against overlap. One waiting prompt of the picked
	// prompt's size lowers the overlap by Pending.
	Pending float64 `json:"pending" range:"0..1"`
	// Adapter is taken off the score of a node that would have to load the request's adapter.
	Adapter float64 `json:"adapter" range:"0..1"`
}

// Tiers holds the worth of a matched block by the best tier that has it. A tier farther from the
// GPU is worth less. Mode predicted reads Host and Disk too. It does not read Shared, because it
// compares the measured time of a transfer with that of computing.
type Tiers struct {
	Device float64 `json:"device" range:"0..1"`
	Host   float64 `json:"host" range:"0..1"`
	Disk   float64 `json:"disk" range:"0..1"`
	// Shared is the worth of a block that only caches of other hosts have. nil: as measured, see
	// fetched.
	Shared *float64 `json:"shared,omitempty" range:"0..1"`
}

// Default returns the policy in force until another one is published.
func Default() *Policy {
	return &Policy{
		Mode: Predicted,
		Score: ScoreSettings{
			Weights: Weights{KV: 0.55, Load: 0.25, Power: 0.10, Capacity: 0.10, Pending: 0.18, Adapter: 0.1},
			Tiers:   Tiers{Device: 1, Host: 0.75, Disk: 0.25}, Epsilon: 0.01,
		},
		Cost: CostSettings{
			BlockTokens: 16, OverlapScoreCredit: 1, HostCacheHitWeight: 0.75, DiskCacheHitWeight: 0.25,
			PrefillLoadScale: 1, AssumeKVReuse: true, TrackPrefillTokens: true, TrackActiveBlocks: true,
		},
		DeviceAware: DeviceAwareSettings{Ratio: 8},
		Predicted: PredictedSettings{
			First: 12, Wait: 1, Others: 1, Burst: 1, Learn: true, Explore: true,
		},
		PrefillLoadModel: PrefillLoadModel{Mode: NotModelled},
	}
}

// Unknown returns the value of a float32 that a node does not report.
func Unknown() float32 { return float32(math.NaN()) }

// Candidate is one node that may take the request, at the moment of the pick. In a float32 field
// NaN or any negative value means unknown.
type Candidate struct {
	IDHash        uint64     // hash of the node id, the same in every router replica
	Load          *load.Load // reported by the node's agent or engine; nil: unknown
	PrefillTokens int64      // uncached tokens of prompts that the node computes, others' too; below 0: unknown
	Matched       int32      // leading blocks of this prompt believed to be in the engine's own cache
	Coming        int32      // with the blocks being computed for other requests; less counts as Matched
	Host          int32      // with the blocks in the memory of the host; less counts as Coming
	Disk          int32      // with the blocks on the disk of the host too; less counts as Host
	InFlight      int32      // requests sent and not yet finished
	Others        int32      // requests of other routers and clients, running and waiting
	MaxConcurrent int32      // limit on requests at once; 0: no limit; below 0: no room for a request
	EngineSlots   int32      // requests that the node's engine computes at once; 0 or less: unknown
	VRAM          float32    // bytes, or any unit common to all candidates
	Throughput    float32    // see Throughput
	Retransmits   float32    // retransmitted share of the segments to or from the node, 0 to 1
	CPU           bool       // the engine computes on CPUs
	// Saved is the part of the time for computing the blocks behind Host that the node saves if its
	// host gets them from other hosts; 0: none, or unknown. Mode predicted does not use it.
	Saved Part
	Fit
	SharedCache int32 // Disk with the blocks that the host gets from other hosts; less counts as Disk

	// Mode cost alone uses these fields.
	SharedActive int32   // leading blocks of this prompt that active requests keep at the node
	ActiveBlocks float64 // distinct KV blocks of active requests, with weighted output blocks
}

// Part is a number from 0 to 1, in parts of oneWhole.
type Part uint16

const oneWhole = 1 << 15

// PartOf returns the Part nearest to v. NaN makes 0.
func PartOf(v float64) Part {
	if !(v > 0) {
		return 0
	}
	return Part(min(v, 1)*oneWhole + 0.5)
}

// Value returns the number.
func (p Part) Value() float64 { return float64(p) / oneWhole }

// Fit is how a node fits what the request asks for beyond its prompt.
type Fit struct {
	Labels  float64 // sum of the weights of the preferred labels that it has, of either sign; 0: none
	Experts float32 // share of the request's experts that the node hosts; 0: none, or it names none
	Loads   bool    // the engine must load the request's adapter first
}

var nothing load.Load

// told returns the reported load, or an unknown one.
func (c *Candidate) told() *load.Load {
	if c.Load == nil {
		return &nothing
	}
	return c.Load
}

// Key identifies a prompt's conversation when candidates tie. The key is the digest of the last
// full block of the first user turn, or the session id. Pick asks for the key at most once, and
// only when at least two candidates tie, because it may have to hash that far. 0 means that the
// prompt has no key; the tie is then broken at random.
type Key interface{ RendezvousKey() uint64 }

// Situation is one pick: the request, and the nodes that may take it.
type Situation struct {
	Candidates []Candidate
	Blocks     int    // full blocks of the prompt
	Tokens     int64  // tokens of the prompt
	Key        Key    // nil: the prompt has no key
	Random     uint64 // 64 random bits; in a mode that Counts, the value of the caller's counter
	Home       int    // 1 + the index of the node at which the request's session is; 0: none
	Prefill    bool   // the node only computes the prompt; another node answers
	Pinned     bool   // the request names its node, and the candidates are that node
	Overrides  Overrides
	Times      []Timing // by candidate; mode predicted only
	Output     float64  // expected output tokens; mode predicted only
	// Sharers is the number of running requests whose prompts have the first Shared blocks of this
	// one; mode predicted only.
	Sharers, Shared int
	Tries           bool    // the request may try an idle node of an unknown speed; mode predicted only
	Scratch         Scratch // keep it for the next pick
}

// Scratch is memory that Pick uses again. The zero value is ready for use.
type Scratch []standing

// Pick returns the index of the chosen node, or -1 when no candidate has room. Pick allocates
// nothing, unless s.Scratch is too small, and keeps no reference to s. s escapes to the heap, so a
// caller on the hot path keeps it in scratch memory. In a mode that Counts, one atomic add per pick
// to the caller's counter makes round robin fair without a lock.
func (p *Policy) Pick(s *Situation) int { return modes[p.Mode].of(p).pick(s, nil) }

// UsesPrefixes says whether a pick can depend on which blocks of a prompt a node holds or computes.
// o are the overrides of the request. If UsesPrefixes returns false, the caller need not hash or
// look up the prompt, and need not record where it went.
//
// The modes without a term for prefixes count as users. The caller looks prefixes up for more than
// picks: an answer names its overlap, metrics compare predictions with cached tokens, caches load
// blocks ahead of a request, and waiting prefill counts uncached tokens only. Whoever tries random
// against score compares these figures. Only a policy that gives prefixes no worth gives them up.
func (p *Policy) UsesPrefixes(o *Overrides) bool {
	switch p.Mode {
	case Score:
		return p.Score.usesPrefixes()
	case Cost:
		return p.Cost.usesPrefixes(o)
	}
	return true
}

func (c *Candidate) busy() int64 { return max(int64(c.InFlight), 0) + max(int64(c.Others), 0) }

// Queues says that the engine has no slot for one more request.
func (c *Candidate) Queues() bool { return c.EngineSlots > 0 && c.busy() >= int64(c.EngineSlots) }

// Room says whether the node may have one more request.
func (c *Candidate) Room() bool { return c.MaxConcurrent == 0 || c.busy() < int64(c.MaxConcurrent) }
