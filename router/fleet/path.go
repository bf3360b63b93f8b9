package fleet

import (
	"context"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/policy"
)

// Path is the counts of the router's kernel for its host's connections to a node, those of other
// processes included. It is immutable.
type Path struct {
	RTT, RTTMin time.Duration // smoothed, and smallest recent one, of the last connection; 0: unknown
	RTTAt       time.Time     // when it was last seen to be measured anew; zero: not yet
	Segments    uint64        // sent with payload, those sent again included, since the kernel counts
	Retransmits uint64        // of these, sent again
	Timeouts    uint64        // retransmission timeouts
	Resets      uint64        // connections that the node has reset
	Failed      uint64        // connections that the node has refused, or not answered
	Share       float32       // of the segments sent in the last 10 to 20 s, those sent again; NaN: none was sent
	At          time.Time     // when it was read
}

// Counts are those of one peer, under the names of Path.
type Counts struct {
	RTT, RTTMin                                     time.Duration
	Looks                                           uint64 // at the round trip; it has grown where RTT is new
	Segments, Retransmits, Timeouts, Resets, Failed uint64
}

// pathPast is the earlier counts of a node.
type pathPast struct {
	peer      netip.AddrPort
	looks     uint64
	older     pathCounts // 10 to 20 s old, once there is such
	old       pathCounts // less than 10 s old
	lastRTTAt time.Time
}

// pathState is a node's path.
type pathState struct {
	now  atomic.Pointer[Path]
	past pathPast // owned by the goroutine of TakePaths
}

type pathCounts struct {
	at                    time.Time
	segments, retransmits uint64
}

const (
	pathsAtOnce = 64 // nodes of one TakePaths, which take turns: at about 1 µs each
	pathWindow  = 10 * time.Second
)

// Resent is the share of segments between this host and the node that are sent again, in the
// direction that loses more; NaN: unknown in both.
func (n *Node) Resent() float32 {
	from := float32(n.Load().RetransPPM.Or(math.NaN()) / 1e6)
	if p := n.Path(); p != nil && !(p.Share <= from) && known(p.Share) != nil {
		return p.Share
	}
	return from
}

// Path is the kernel's counts for connections to the node; nil: nobody tells.
func (n *Node) Path() *Path { return n.path.now.Load() }

// Peers are the addresses at the other ends of connections to nodes, as far as they are known, each
// once.
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

// TakePaths reads the counts of at most 64 nodes, which take turns. A node without counts has no
// path. It is called by one goroutine.
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
	n.path.now.Store(nil)
	n.path.past = pathPast{}
}

// Renew has nodes asked over new connections; requests under way finish on theirs. The kernel never
// tells of connections that were made before it began to count, and which these are cannot be
// asked: other processes may be connected to the same node.
func (f *Fleet) Renew(ctx context.Context) {
	f.send(ctx, func(f *Fleet) {
		for _, m := range f.members {
			if n := m.node; n.connected() {
				n.retarget(n.Pool.Target())
			}
		}
	})
}

// connected tells whether the node has been asked anything over TCP.
func (n *Node) connected() bool {
	_, open := n.Pool.Stats()
	_, known := n.Pool.Peer()
	return known && (open > 0 || n.Health.CheckPort() != 0)
}

// ForgetPaths is called by the same goroutine when counts cannot be read any more.
func (f *Fleet) ForgetPaths() {
	for _, n := range f.Load().Nodes {
		n.forgetPath()
	}
}

func (n *Node) takePath(at netip.AddrPort, c *Counts, now time.Time) {
	past := &n.path.past
	// other counts than those read before
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
	n.path.now.Store(&Path{
		RTT: c.RTT, RTTMin: c.RTTMin, RTTAt: past.lastRTTAt, Segments: c.Segments, Retransmits: c.Retransmits,
		Timeouts: c.Timeouts, Resets: c.Resets, Failed: c.Failed, Share: share, At: now,
	})
}
