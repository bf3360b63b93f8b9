// Package peerevents tells the fleet the kernel's facts about this host's connections to nodes:
// rare events as they happen, and counts. The router has no right to ask the kernel itself. An
// agent of its host passes the facts on (package agent/peerevents). Without an agent the fleet
// looks at its own connections.
package peerevents

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	wire "github.com/cognitora/dataplane/internal/peerevents"
	"github.com/cognitora/dataplane/router/fleet"
)

// These constants bound the connection to the agent.
const (
	readEvery  = 50 * time.Millisecond  // reads the counts of at most 64 nodes
	tellEvery  = 250 * time.Millisecond // reports the fleet's peers, if they have changed
	retryFirst = 250 * time.Millisecond
	retryLast  = 15 * time.Second
	helloLimit = 5 * time.Second
)

// Fleet receives the events and counts; *fleet.Fleet implements it.
type Fleet interface {
	Peers() []netip.AddrPort
	Tell(wire.Event)
	TakePaths(read func(netip.AddrPort) (fleet.Counts, bool), now time.Time)
	ForgetPaths()
	Renew(context.Context)
}

// Options are the settings of a Client.
type Options struct {
	Path   string // path of the agent's socket
	Fleet  Fleet
	Logger *slog.Logger
}

// Client follows one agent.
type Client struct {
	o       Options
	stats   Stats
	renewed bool   // the fleet has made new connections
	table   uint32 // ID of the table of counts at that time: bpf.PeerCounts.ID, or 0 if unknown
}

// Stats are the counts of a Client.
type Stats struct {
	Connected atomic.Bool
	Counts    atomic.Bool // the counts can be read
	Peers     atomic.Int64
	Breaks    atomic.Uint64 // connections that ended or failed and were tried again
	Malformed atomic.Uint64 // breaks because of a bad message
	Events    [wire.Kinds]atomic.Uint64
	Slow      atomic.Uint64 // events dropped because this router was too slow
	RingFull  atomic.Uint64 // events of any router dropped because the kernel's ring was full
	LeftOut   atomic.Int64  // peers not watched because the table is full
}

// New makes a client. The client does nothing before Run.
func New(o Options) *Client { return &Client{o: o} }

// Stats returns the client's counts.
func (c *Client) Stats() *Stats { return &c.stats }
