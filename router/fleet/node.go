// Package fleet knows the nodes: their addresses, models, load and requests in flight. The package
// publishes immutable snapshots that requests read without a lock. Package health below router/
// follows the health of each node.
package fleet

import (
	"hash/fnv"
	"net"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/lora"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/policy"
)

// Source says how the router knows a node.
type Source string

// Static nodes are configured. Etcd nodes announce themselves.
const (
	Static Source = "static"
	Etcd   Source = "etcd"
)

// subject returns the kind of a problem with a node of this source.
func (s Source) subject() subjectKind {
	if s == Etcd {
		return ofNodeKey
	}
	return ofBackend
}

// Node is one incarnation of an engine behind one address. The pointer stays the same in every
// snapshot until the node leaves the fleet. A request in flight may use the node after the
// departure. All methods are safe for concurrent use.
type Node struct {
	// A pick reads of every node with one rank the fields up to the first ones of the rank's book,
	// and two fields of the health. Each of the two groups lies in one line of the processor's
	// cache.
	load  atomic.Pointer[Load] // of all ranks together
	path  atomic.Pointer[Path]
	flags atomic.Uint32
	limit atomic.Int32 // max_concurrent
	only  Rank         // the only rank; if there are several, it holds the node's count only, see requests

	ID     string
	IDHash uint64 // for rendezvous hashing; the same in every router
	Source Source
	Pool   *relay.Pool // closed by the fleet after the node has left and its last request has ended
	info   atomic.Pointer[Info]

	// Health is the health of the node. Eligible and Acquire consult Health before they let a
	// request in.
	Health health.Node

	ranks    atomic.Pointer[[]*Rank]
	slots    atomic.Int32 // limit minus the requests of others that wait in the engine
	told     reports
	adapters lora.Set

	cordon   atomic.Pointer[string] // the reason of the cordon; nil: not cordoned
	asker    *asker
	pathPast pathPast // owned by the goroutine that calls TakePaths
	end      ending
}

// ending marks the end of a node: it has left, and its last request has ended.
type ending struct {
	drained chan struct{} // closed at the end
	closed  atomic.Bool   // drained is closed
}

// Info holds the facts of a node that change rarely. Info is immutable. A change makes a new Info.
type Info struct {
	Address       string // URL
	Role          cluster.Role
	Engine        string         // vllm, sglang, trtllm, llama_cpp, openai_compat; empty = unknown
	Models        []string       // names of the node's models in requests
	OnlyModel     string         // static nodes: the only model that the configuration lets it serve; empty: all
	Upstream      []string       // for each of Models, the name that the engine expects
	Adapters      []lora.Adapter // the LoRA adapters among Models
	Device, DType string
	GPUModel      string // product name of the node's GPUs; empty: unknown
	TP            int
	DataParallel  int // data-parallel ranks; 0: one
	VRAMBytes     int64
	MaxConcurrent int32  // requests at once, set by an operator; 0 = no limit
	EngineSlots   int32  // requests at once, told by the engine; 0 = unknown
	BlockTokens   int    // tokens per KV block of the engine; 0 = unknown
	KVAddress     string // address of the host's cache daemon; empty: none
	KVEvents      string // address where the node's agent serves its engine's KV events; empty: none
	KVEpoch       uint64 // etcd nodes: changes when the engine starts with an empty cache
	Instance      string // etcd nodes: the agent that owns the key
	Version       string

	// Connector is the stated connector, one of the Connector constants of package cluster; empty:
	// none. Hands returns the one in force.
	Connector string
	// Bootstrap is the host:port of the engine's bootstrap server, which a decoding node asks for
	// blocks; empty: none is known, or the engine's connector needs none.
	Bootstrap string

	EngineVersion    string // empty: unknown
	MaxBatchedTokens int    // tokens that the engine computes in one step; 0: unknown

	// An operator sets the labels and experts, and requests name them.
	Labels  []string
	Experts cluster.Experts

	bases map[string]string // the base of each of Models; empty: no adapter; made by setInfo
}

// Hands returns the connector by which the node hands blocks over as a prefill node, or takes them
// as a decode node; "": it does neither. role is the role in which the node serves a model, which a
// pool may have given it. The default is known as soon as the kind of the engine is.
func (i *Info) Hands(role cluster.Role) string { return cluster.Hands(i.Engine, i.Connector, role) }

// Prefills is Hands for a node that computes prompts. It is "" too if the connector needs the
// address of the node's bootstrap server, and the node has none.
func (i *Info) Prefills(role cluster.Role) string {
	with := i.Hands(role)
	if cluster.NeedsBootstrap(with) && i.Bootstrap == "" {
		return ""
	}
	return with
}

// setBootstrap resolves the address of the bootstrap server. stated is that of the configuration or
// the heartbeat. Without one it is the usual port, if the connector needs a server. network and
// addr are the node's own address; a socket has no host.
func (i *Info) setBootstrap(stated, network, addr string) {
	// a model's pool can make a prefill node of any node
	if stated == "" && cluster.NeedsBootstrap(i.Hands(cluster.RolePrefill)) {
		stated = ":" + cluster.BootstrapPort
	}
	host := ""
	if network != "unix" {
		host, _, _ = net.SplitHostPort(addr)
	}
	i.Bootstrap = cluster.ResolveBootstrap(stated, host)
}

// VRAM is the node's GPU memory in bytes, NaN if unknown.
func (i *Info) VRAM() float32 {
	if i.VRAMBytes <= 0 {
		return policy.Unknown()
	}
	return float32(i.VRAMBytes)
}

// Throughput returns the tensor-parallel width times the dtype's speed relative to 16-bit floats.
// Throughput is NaN if either is unknown.
func (i *Info) Throughput() float32 { return policy.Throughput(i.TP, i.DType) }

// hashID is FNV-1a. hashID's result is the same in every process and version.
func hashID(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	return h.Sum64()
}

// NumberOf returns the number of the node with this id. The number is the same in every process and
// version, and is exact in JSON, whose numbers have 53 bits.
func NumberOf(id string) uint64 { return hashID(id) & (1<<53 - 1) }

// Number returns the node's number. Clients may name the node by it.
func (n *Node) Number() uint64 { return n.IDHash & (1<<53 - 1) }

func newNode(id string, source Source, info *Info, pool *relay.Pool) *Node {
	n := &Node{ID: id, IDHash: hashID(id), Source: source, Pool: pool, end: ending{drained: make(chan struct{})}}
	n.told.from, n.told.trust = Nobody, defaultTrust
	n.load.Store(untold)
	n.only.Count, n.only.Name, n.only.IDHash, n.only.node = 1, id, n.IDHash, n
	n.ranks.Store(new(newRanks(n, info.DataParallel)))
	n.setInfo(info)
	return n
}

// retarget makes requests and checks use new connections with another key or CA. Only the fleet's
// goroutine calls retarget.
func (n *Node) retarget(t relay.Target) {
	n.Pool.Retarget(t)
	n.Health.Retarget()
}

// setInfo stores the facts and adjusts the slots. Only the fleet's goroutine calls setInfo.
func (n *Node) setInfo(info *Info) {
	own := *info
	own.bases = own.findBases()
	n.told.mu.Lock()
	defer n.told.mu.Unlock()
	n.info.Store(&own)
	n.limit.Store(info.MaxConcurrent)
	n.setSlots()
}

// Info returns the facts of the node that change rarely.
func (n *Node) Info() *Info { return n.info.Load() }

// requests returns the count of this router's requests at all ranks together. The count lies in the
// only rank, because a field of its own would make a pick read another line of the processor's
// cache.
func (n *Node) requests() *atomic.Int32 { return &n.only.inFlight }

// InFlight returns the number of this router's requests on the node.
func (n *Node) InFlight() int32 { return n.requests().Load() }

// MaxConcurrent returns the node's limit on requests at once; 0: no limit.
func (n *Node) MaxConcurrent() int32 { return n.limit.Load() }

// Full says whether this router's requests fill the node's slots.
func (n *Node) Full() bool {
	limit := n.MaxConcurrent()
	return limit > 0 && n.InFlight() >= limit
}

// UpstreamModel returns the engine's name for the canonical model name. A model that the node does
// not serve keeps its canonical name.
func (n *Node) UpstreamModel(canonical string) string {
	info := n.info.Load()
	for i, name := range info.Models {
		if name == canonical {
			return info.Upstream[i]
		}
	}
	return canonical
}

// Acquire counts one request as in flight. Acquire refuses when the node is full, out of service,
// or out of trial requests after a failure. Requests of others that wait in the engine take up
// slots too. A node without a limit is never full. Call Release exactly once for each Acquire.
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

// reserve counts a request if a slot is free.
func (n *Node) reserve() bool {
	for {
		now := n.requests().Load()
		if now >= n.slots.Load() {
			return false
		}
		if n.requests().CompareAndSwap(now, now+1) {
			n.told.recent.Rise(int64(now) + 1)
			return true
		}
	}
}

// LastResort says whether the node may take a request if no other node can. The answer is yes while
// the node's breaker is open for server errors alone, or its trial requests are out. The engine's
// own error tells the client more than the router's error, and an answered request brings the node
// back.
func (n *Node) LastResort() bool { return n.flags.Load() == 0 && n.Health.Answers() }

// AcquireLastResort is Acquire for a node with LastResort.
func (n *Node) AcquireLastResort() bool {
	if !n.LastResort() || !n.reserve() {
		return false
	}
	n.Health.NoteTrial()
	return true
}

// AcquireAlways counts one request as in flight regardless of the node's state. AcquireAlways
// serves requests that can go to no other node.
func (n *Node) AcquireAlways() { n.told.recent.Rise(int64(n.requests().Add(1))) }

// Release takes back one Acquire.
func (n *Node) Release() {
	if n.requests().Add(-1) == 0 && n.flags.Load()&flagGone != 0 {
		n.finish()
	}
}

// leave marks the node as gone. The node's pool is closed when the last request has ended.
func (n *Node) leave() {
	n.flags.Or(flagGone)
	if n.requests().Load() == 0 {
		n.finish()
	}
}

func (n *Node) finish() {
	if n.end.closed.CompareAndSwap(false, true) {
		close(n.end.drained)
	}
}

// These flags keep a node out of service for reasons other than its health.
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

// Serves says whether the node is in service, healthy and not suspect. Otherwise Eligible and
// Health tell more.
func (n *Node) Serves() bool { return n.flags.Load() == 0 && n.Health.Well() }

// Eligible says whether the node may be picked now, or why not. Eligible does not allocate.
func (n *Node) Eligible(now time.Time) (ok bool, reason string) {
	if flags := n.flags.Load(); flags != 0 {
		return false, n.flagReason(flags)
	}
	return n.Health.Eligible(now)
}

// Obstacle is the kind of reason why a node is not eligible.
type Obstacle uint8

// These are the obstacles.
const (
	Unwell   Obstacle = iota // its health: the breaker, a trial, or no answer yet
	Gone                     // it has left the fleet
	Cordoned                 // or draining
	NotReady                 // its agent says so, or it names no model
	Stale                    // no heartbeat has come for too long
)

// Obstacle returns the kind of the reason that Eligible gives. Call Obstacle only for a node that
// is not eligible.
func (n *Node) Obstacle() Obstacle {
	switch flags := n.flags.Load(); {
	case flags&flagGone != 0:
		return Gone
	case flags&(flagCordoned|flagDraining) != 0:
		return Cordoned
	case flags&(flagNotReady|flagNoModel) != 0:
		return NotReady
	case flags&flagSilent != 0:
		return Stale
	}
	return Unwell
}

// noModel is the reason why a node without a named model takes no requests.
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
