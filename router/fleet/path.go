package fleet

import (
	"context"
	"math"
	"net/netip"
	"time"

	"github.com/cognitora/dataplane/router/policy"
)

// Path holds the kernel's counts for this host's connections to a node, other processes'
// connections included. Path is immutable.
type Path struct {
	RTT, RTTMin time.Duration // smoothed, and recent minimum, of the last connection; 0: unknown
	RTTAt       time.Time     // when a new measurement was last seen; zero: not yet
	Segments    uint64        // segments with payload sent since the kernel began to count, retransmissions included
	Retransmits uint64        // retransmissions among Segments
	Timeouts    uint64        // retransmission timeouts
	Resets      uint64        // connections reset by the node
	Failed      uint64        // connections that the node has refused or left unanswered
	Share       float32       // retransmitted share of the segments of the last 10 to 20 s; NaN: none was sent
	At          time.Time     // when the counts were read
}

// Counts are the kernel's counts for one peer. The fields are named as in Path.
type Counts struct {
	RTT, RTTMin                                     time.Duration
	Looks                                           uint64 // round trips measured; a higher count means a new RTT
	Segments, Retransmits, Timeouts, Resets, Failed uint64
}

// pathPast holds the earlier counts of a node.
type pathPast struct {
	peer      netip.AddrPort
	looks     uint64
	older     pathCounts // counts 10 to 20 s old, if known
	old       pathCounts // less than 10 s old
	lastRTTAt time.Time
}

type pathCounts struct {
	at                    time.Time
	segments, retransmits uint64
}

const (
	pathsAtOnce = 64 // nodes read by one TakePaths, in turns; each costs about 1 µs
	pathWindow  = 10 * time.Second
)

// Resent returns the retransmitted share of the segments between this host and the node, in the
// direction that loses more. Resent is NaN when both directions are unknown.
func (n *Node) Resent() float32 {
	from := float32(n.Load().RetransPPM.Or(math.NaN()) / 1e6)
	if p := n.Path(); p != nil && !(p.Share <= from) && known(p.Share) != nil {
		return p.Share
	}
	return from
}

// Path returns the kernel's counts for connections to the node. Path is nil without a source of
// counts.
func (n *Node) Path() *Path { return n.path.Load() }

// Peers returns the known remote addresses of connections to nodes, each once.
func (f *Fleet) Peers() []netip.AddrPort {
	nodes := f.Load().Nodes
	all, seen := make([]netip.AddrPort, 0, len(nodes)), make(map[netip.AddrPort]bool, len(nodes))
	for _, n := range nodes {
		if at, ok := n.Pool.Peer(); ok && !seen[at] {
			seen[at] = true
			all = append(all, at)
		}
	}
	return all
}

// TakePaths reads the counts of at most 64 nodes; the nodes take turns. A node without counts gets
// a nil Path. One goroutine calls TakePaths.
func (f *Fleet) TakePaths(read func(netip.AddrPort) (Counts, bool), now time.Time) {
	nodes := f.Load().Nodes
	for range min(len(nodes), pathsAtOnce) {
		f.pathTurn++
		if f.pathTurn >= len(nodes) {
			f.pathTurn = 0
		}
		nodes[f.pathTurn].readPath(read, now)
	}
}

func (n *Node) readPath(read func(netip.AddrPort) (Counts, bool), now time.Time) {
	if at, ok := n.Pool.Peer(); ok {
		if c, ok := read(at); ok {
			n.takePath(at, &c, now)
			return
		}
	}
	n.forgetPath()
}

func (n *Node) forgetPath() {
	n.path.Store(nil)
	n.pathPast = pathPast{}
}

// Renew makes new requests and checks use new connections; running requests finish on theirs. The
// kernel counts only the connections that were made after it began to count.
func (f *Fleet) Renew(ctx context.Context) {
	f.send(ctx, func(f *Fleet) {
		for _, m := range f.members {
			if n := m.node; n.connected() {
				n.retarget(n.Pool.Target())
			}
		}
	})
}

// connected says whether the node was asked anything over TCP.
func (n *Node) connected() bool {
	_, open := n.Pool.Stats()
	_, known := n.Pool.Peer()
	return known && (open > 0 || n.Health.CheckPort() != 0)
}

// ForgetPaths drops all paths when the counts cannot be read any more. The goroutine of TakePaths
// calls ForgetPaths.
func (f *Fleet) ForgetPaths() {
	for _, n := range f.Load().Nodes {
		n.forgetPath()
	}
}

func (n *Node) takePath(at netip.AddrPort, c *Counts, now time.Time) {
	past := &n.pathPast
	// These counts do not continue the earlier ones.
	last := n.Path()
	if at != past.peer || last != nil && (c.Segments < last.Segments || c.Retransmits < last.Retransmits) {
		*past = pathPast{peer: at}
	}
	if c.Looks != past.looks {
		past.looks, past.lastRTTAt = c.Looks, now
	}
	is := pathCounts{now, c.Segments, c.Retransmits}
	switch {
	case past.older.at.IsZero():
		past.older, past.old = is, is
	case now.Sub(past.old.at) >= pathWindow:
		past.older, past.old = past.old, is
	}
	share := policy.Unknown()
	if sent := is.segments - past.older.segments; sent > 0 {
		share = min(float32(is.retransmits-past.older.retransmits)/float32(sent), 1)
	}
	n.path.Store(&Path{
		RTT: c.RTT, RTTMin: c.RTTMin, RTTAt: past.lastRTTAt, Segments: c.Segments, Retransmits: c.Retransmits,
		Timeouts: c.Timeouts, Resets: c.Resets, Failed: c.Failed, Share: share, At: now,
	})
}
