// Package peerevents has the fleet told what the kernel of the router's host knows of connections
// to nodes: rare facts as they happen, and counts. The router has no right to ask the kernel
// itself: an agent of its host passes that on (package agent/peerevents). While there is none, the
// fleet looks for itself.
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

// Bounds of the conversation.
const (
	readEvery  = 50 * time.Millisecond  // counts of at most 64 nodes
	tellEvery  = 250 * time.Millisecond // which peers there are, where they have changed
	retryFirst = 250 * time.Millisecond
	retryLast  = 15 * time.Second
	helloLimit = 5 * time.Second
)

// Fleet is who is told: *fleet.Fleet.
type Fleet interface {
	Peers() []netip.AddrPort
	Tell(wire.Event)
	TakePaths(read func(netip.AddrPort) (fleet.Counts, bool), now time.Time)
	ForgetPaths()
	Renew(context.Context)
}

// Options of a Client.
type Options struct {
	Path   string // of the agent's socket
	Fleet  Fleet
	Logger *slog.Logger
}

// Client follows one agent.
type Client struct {
	o       Options
	stats   Stats
	renewed bool   // the fleet has connected anew
	table   uint32 // for this table of counts: bpf.PeerCounts.ID, 0 where it could not be told
}

// Stats counts what a Client has got.
type Stats struct {
	Connected atomic.Bool
	Counts    atomic.Bool // counts can be read
	Peers     atomic.Int64
	Breaks    atomic.Uint64 // connections that ended, or could not be made, and were tried again
	Malformed atomic.Uint64 // of these, because of what came
	Events    [wire.Kinds]atomic.Uint64
	Slow      atomic.Uint64 // events that this router was too slow for
	RingFull  atomic.Uint64 // events for whomever that the kernel's ring did not hold
	LeftOut   atomic.Int64  // peers that are not watched because others fill the table
}

// New makes a client that does nothing before Run.
func New(o Options) *Client { return &Client{o: o} }

// Stats are the counts.
func (c *Client) Stats() *Stats { return &c.stats }
