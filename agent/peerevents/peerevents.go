// Package peerevents lets the routers of this host read what the kernel counts of their peers, and
// tells them of rare facts about connections to these as they happen: retransmission timeouts,
// resets, connections that fail. Routers parse bytes from outside, so they have no rights; who has
// loaded the programs of package bpf has them.
package peerevents

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/cognitora/dataplane/bpf"
)

// Bounds of what routers make the server do.
const (
	MaxRouters = 8
	queue      = 256         // events that wait for a router; it is told how many more there were
	stale      = time.Second // events that are older than this were left by others: they tell nothing of now
	writeLimit = 5 * time.Second
	openEvery  = 5 * time.Second // another reader of the ring is waited for
	helloLimit = 5 * time.Second
)

// Source is where events come from: bpf.Events.
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
	// Open opens the source; it is tried again every 5 s.
	Open func() (Source, error)
	// Layout is bpf.PeersLayout.
	Layout uint64
	Logger *slog.Logger
}

// Stats counts what a Server has done.
type Stats struct {
	Routers  int    // that are told now
	Watched  int    // peers of theirs
	LeftOut  int    // peers that are not watched because others fill the table
	Sent     uint64 // events
	Lost     uint64 // events that a router was too slow for
	Stale    uint64 // events that were too old when they were read
	Refused  uint64 // connections, by their user, version, or because there are enough
	RingFull uint64 // events that the kernel's ring did not hold, of all its readers
}
