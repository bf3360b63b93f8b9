// Package fleet knows the nodes: where they are, what they serve and say of themselves, and how
// much is in flight on each. How well they are is for router/health to know. The fleet publishes
// immutable snapshots that requests read without a lock.
package fleet

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
)

// Source is where a node comes from.
type Source string

// Static nodes are configured, etcd nodes announce themselves.
const (
	Static Source = "static"
	Etcd   Source = "etcd"
)

// subject is the kind of problems with a node from there.
func (s Source) subject() subjectKind {
	if s == Etcd {
		return ofNodeKey
	}
	return ofBackend
}

// Node is one incarnation of an engine behind one address. The pointer stays the same from the
// node's arrival until it leaves the fleet, in every snapshot; a request may use it after that for
// as long as it has it in flight. All methods are safe for concurrent use.
type Node struct {
	ID     string
	IDHash uint64 // for rendezvous hashing; the same in every router
	Source Source
	Pool   *relay.Pool // closed by the fleet once the node has left and nothing is in flight on it
	// Health is how well the node is. Whether it may be picked is for Eligible and Acquire to say,
	// which ask it too.
	Health health.Node

	info     atomic.Pointer[Info]
	load     atomic.Pointer[Load]
	ref      atomic.Uint32
	inFlight atomic.Int32
	slots    atomic.Int32 // max_concurrent minus what waits in the engine for others
	slotsMu  sync.Mutex   // makes load and slots follow the newest of info and told
	told     sources      // guarded by slotsMu
	recent   recent

	flags  atomic.Uint32
	cordon atomic.Pointer[string] // what the cordon says, with its reason; nil: there is none
	asker  *asker
	path   pathState
	end    ending
}

// ending is the end of a node: it has left, and nothing is in flight on it.
type ending struct {
	drained chan struct{} // closed then
	closed  atomic.Bool   // drained is
}

// Info is the facts of a node that change rarely. It is immutable: a change makes a new one.
type Info struct {
	Address       string // URL
	Role          cluster.Role
	Engine        string   // vllm, sglang, llama_cpp, openai_compat; empty = unknown
	Models        []string // names under which the node is asked for
	Upstream      []string // for each of Models, the name that the engine expects
	Device, DType string
	TP            int
	VRAMBytes     int64
	MaxConcurrent int32  // requests at once that an operator has stated; 0 = no limit
	EngineSlots   int32  // requests at once, as the engine says; 0 = unknown
	BlockTokens   int    // tokens per KV block of the engine; 0 = unknown
	KVAddress     string // of the host's cache daemon; empty: none
	KVEvents      string // where the node's agent serves its engine's blocks; empty: nowhere
	KVEpoch       uint64 // etcd nodes: changes when the engine's cache starts empty
	Instance      string // etcd nodes: the agent that owns the key
	Version       string
}

// VRAM is the node's GPU memory in bytes, NaN if unknown.
func (i *Info) VRAM() float32 {
	if i.VRAMBytes <= 0 {
		return policy.Unknown()
	}
	return float32(i.VRAMBytes)
}

// Throughput is tensor-parallel width times the dtype's rate relative to 16-bit floats, NaN if
// either is unknown.
func (i *Info) Throughput() float32 { return policy.Throughput(i.TP, i.DType) }

// hashID is FNV-1a: stable over processes and versions.
func hashID(id string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	return h
}

func newNode(id string, source Source, info *Info, pool *relay.Pool) *Node {
	n := &Node{ID: id, IDHash: hashID(id), Source: source, Pool: pool, end: ending{drained: make(chan struct{})}}
	n.told.from, n.told.trust = Nobody, defaultTrust
	n.load.Store(&Load{From: Nobody})
	n.setInfo(info)
	return n
}

// retarget makes requests and checks go over new connections, with another key or CA. It is called
// by the fleet's goroutine only.
func (n *Node) retarget(t relay.Target) {
	n.Pool.Retarget(t)
	n.Health.Retarget()
}

// setInfo is called by the fleet's goroutine only.
func (n *Node) setInfo(info *Info) {
	n.slotsMu.Lock()
	defer n.slotsMu.Unlock()
	n.info.Store(info)
	n.setSlots()
}

// Info is the facts of the node that change rarely.
func (n *Node) Info() *Info { return n.info.Load() }

// Ref is the node's incarnation in the prefix index. It changes when the engine has come back with
// an empty cache.
func (n *Node) Ref() prefix.Ref { return prefix.Ref(n.ref.Load()) }

// InFlight is the number of requests that this router has in flight on the node.
func (n *Node) InFlight() int32 { return n.inFlight.Load() }

// MaxConcurrent is how many requests the node may have at once; 0: as many as come.
func (n *Node) MaxConcurrent() int32 { return n.info.Load().MaxConcurrent }

// Full tells whether as many of this router's requests are in flight as the node may have.
func (n *Node) Full() bool {
	limit := n.MaxConcurrent()
	return limit > 0 && n.InFlight() >= limit
}

// UpstreamModel is the name that the engine expects for the canonical model name; the same string
// unless it differs.
func (n *Node) UpstreamModel(canonical string) string {
	info := n.info.Load()
	for i, name := range info.Models {
		if name == canonical {
			return info.Upstream[i]
		}
	}
	return canonical
}

// Acquire counts one request as in flight, unless the node is full (ours in flight and others'
// that wait there), not in service, or out of trial requests after a failure. A node without a
// limit is never full. The caller releases it exactly once.
func (n *Node) Acquire() bool {
	if n.flags.Load() != 0 || !n.reserve() {
		return false
	}
	if n.Health.Admit() {
		return true
	}
	n.Release()
	return false
}

// reserve counts a request if there is a free slot.
func (n *Node) reserve() bool {
	for {
		now := n.inFlight.Load()
		if now >= n.slots.Load() {
			return false
		}
		if n.inFlight.CompareAndSwap(now, now+1) {
			n.recent.rise(now + 1)
			return true
		}
	}
}

// LastResort says whether a request that no other node may take can go to this one all the same:
// its breaker is open for server errors alone, or its trial requests are out. The engine's own
// error tells the client more than one of ours, and a request that is answered brings the node
// back.
func (n *Node) LastResort() bool { return n.flags.Load() == 0 && n.Health.Answers() }

// AcquireLastResort is Acquire for a node of which LastResort is true.
func (n *Node) AcquireLastResort() bool {
	if !n.LastResort() || !n.reserve() {
		return false
	}
	n.Health.NoteTrial()
	return true
}

// AcquireAlways counts one request as in flight whatever the node's state, for a request that can
// go nowhere else.
func (n *Node) AcquireAlways() { n.recent.rise(n.inFlight.Add(1)) }

// Release takes back one Acquire.
func (n *Node) Release() {
	if n.inFlight.Add(-1) == 0 && n.flags.Load()&flagGone != 0 {
		n.finish()
	}
}

// leave marks the node as gone; its pool is closed when the last request has ended.
func (n *Node) leave() {
	n.flags.Or(flagGone)
	if n.inFlight.Load() == 0 {
		n.finish()
	}
}

func (n *Node) finish() {
	if n.end.closed.CompareAndSwap(false, true) {
		close(n.end.drained)
	}
}

// Reasons against a node that its own health does not know of.
const (
	flagGone uint32 = 1 << iota
	flagCordoned
	flagDraining
	flagNotReady
	flagSilent
	flagNoModel
)

func (n *Node) setFlag(flag uint32, on bool) {
	if on {
		n.flags.Or(flag)
	} else {
		n.flags.And(^flag)
	}
}

// Eligible says whether the node may be picked now, and if not, why. It does not allocate.
func (n *Node) Eligible(now time.Time) (ok bool, reason string) {
	if flags := n.flags.Load(); flags != 0 {
		return false, n.flagReason(flags)
	}
	return n.Health.Eligible(now)
}

// noModel is the reason against a node that answers, and names no model.
const noModel = "it names no model"

func (n *Node) flagReason(flags uint32) string {
	switch {
	case flags&flagGone != 0:
		return "left the fleet"
	case flags&(flagCordoned|flagDraining) != 0:
		if why := n.cordon.Load(); why != nil {
			return *why
		}
		if flags&flagCordoned != 0 {
			return "cordoned"
		}
		return "draining"
	case flags&flagNotReady != 0:
		return "its agent says it is not ready"
	case flags&flagSilent != 0:
		return "its heartbeat is stale"
	default:
		return noModel
	}
}
