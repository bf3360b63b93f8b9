// Package peerevents lets the routers of this host read the kernel's counts of their peers. The
// package also tells routers about rare events on connections to their peers as they happen:
// retransmission timeouts, resets, failed connections. Routers parse bytes from outside, so they
// have no rights in the kernel. The agent has these rights, and has loaded the programs of package
// bpf.
package peerevents

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/cognitora/dataplane/bpf"
)

// Bounds on the load that routers can put on the server.
const (
	MaxRouters = 8
	queue      = 256         // events that may wait for a router; the router is told the number of lost ones
	stale      = time.Second // older events are dropped: they say nothing about the present
	writeLimit = 5 * time.Second
	openEvery  = 5 * time.Second // retry interval while another reader has the ring
	helloLimit = 5 * time.Second
)

// Source is a source of events: bpf.Events.
type Source interface {
	Next(deadline time.Time) (bpf.Event, error)
	Interrupt()
	Watch(addr netip.AddrPort, id uint64) error
	Unwatch(addr netip.AddrPort) error
	Dropped() (uint64, error)
	PeersFD() int
	Close() error
}

// Options of a Server.
type Options struct {
	// Open opens the source. Open is tried again every 5 s.
	Open func() (Source, error)
	// Layout is bpf.PeersLayout.
	Layout uint64
	Logger *slog.Logger
}

// Stats counts what a Server has done.
type Stats struct {
	Routers  int    // routers connected now
	Watched  int    // peers that these routers asked for
	LeftOut  int    // peers that are not watched because the table is full
	Sent     uint64 // events sent
	Lost     uint64 // events dropped because a router was too slow
	Stale    uint64 // events dropped because they were too old when read
	Refused  uint64 // connections refused: by user, by version, or for their number
	RingFull uint64 // events of all readers that did not fit into the kernel's ring
}
