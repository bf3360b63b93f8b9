package peerevents

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/await"
	wire "github.com/cognitora/dataplane/internal/peerevents"
	"github.com/cognitora/dataplane/router/fleet"
)

// Run follows the agent until ctx ends, connecting again after each loss. Run returns nil.
func (c *Client) Run(ctx context.Context) error {
	for wait, said := retryFirst, ""; ; wait = min(2*wait, retryLast) {
		told, err := c.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		c.stats.Breaks.Add(1)
		if told {
			wait, said = retryFirst, ""
		}
		reason := err.Error()
		if isNetwork(err) {
			reason = "nobody is there"
		} else if !errors.Is(err, errRejected) {
			c.stats.Malformed.Add(1)
		}
		if reason != said {
			said = reason
			c.o.Logger.Warn("router.kernel_events: nobody tells of events of the kernel, connections to nodes are "+
				"looked at instead; trying on", "socket", c.o.Path, "error", err)
		}
		if !await.About(ctx, wait) {
			return nil
		}
	}
}

// errRejected wraps the agent's reason for refusing this router.
var errRejected = errors.New("the agent refuses")

// isNetwork says whether err is a lost connection or a timeout, not a bad message.
func isNetwork(err error) bool {
	var n *net.OpError
	return errors.As(err, &n)
}

// follow connects to the agent and receives its messages until a failure. told says that the agent
// accepted the router.
func (c *Client) follow(ctx context.Context) (told bool, err error) {
	dialing, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	conn, err := wire.Dial(dialing, c.o.Path)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	hang := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer hang()
	counts, err := c.greet(ctx, conn)
	if err != nil {
		return false, err
	}
	c.stats.Connected.Store(true)
	defer c.stats.Connected.Store(false)
	c.o.Logger.Info("the kernel's events are told", "socket", c.o.Path, "counts", counts != nil)
	c.renew(ctx, counts)
	var other sync.WaitGroup
	defer other.Wait()
	other.Go(func() { give(c.work(ctx, conn, counts)) })
	defer give(nil) // frees the counts before the wait
	return true, c.hear(ctx, conn)
}

// hear receives messages until a failure, or until ctx ends; then hear returns the cause of ctx.
func (c *Client) hear(ctx context.Context, conn *wire.Conn) error {
	for {
		_ = conn.SetReadDeadline(time.Now().Add(wire.Silence))
		if ctx.Err() != nil { // a later deadline may have replaced the one set at the end of ctx
			return context.Cause(ctx)
		}
		m, fd, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			closeFD(fd)
			return context.Cause(ctx)
		case err != nil:
			return err
		case m.Type == wire.Told:
			c.stats.Events[m.Event.Kind].Add(1)
			c.o.Fleet.Tell(m.Event)
		case m.Type == wire.Alive:
			c.stats.Slow.Store(m.Beat.Lost)
			c.stats.RingFull.Store(m.Beat.Ring)
			c.stats.LeftOut.Store(int64(m.Beat.LeftOut))
		default:
			closeFD(fd)
			return fmt.Errorf("the agent sends a message of type %d", m.Type)
		}
	}
}

// renew makes the fleet use new connections, once for each table of counts. The agent's programs
// may have been loaded after the old connections were made.
func (c *Client) renew(ctx context.Context, counts *bpf.PeerCounts) {
	table := uint32(0)
	if counts != nil {
		table = counts.ID()
	}
	if c.renewed && c.table == table {
		return
	}
	c.renewed, c.table = true, table
	c.o.Fleet.Renew(ctx)
}

// greet exchanges the greetings. counts is nil if the counts cannot be read, which greet logs.
func (c *Client) greet(ctx context.Context, conn *wire.Conn) (counts *bpf.PeerCounts, err error) {
	_ = conn.SetDeadline(time.Now().Add(helloLimit))
	if ctx.Err() != nil { // a later deadline may have replaced the one set at the end of ctx
		return nil, context.Cause(ctx)
	}
	// An agent that refuses at once has closed the connection, after its reason.
	sent := conn.Send(&wire.Message{Type: wire.Hello, Version: wire.Version}, -1)
	m, fd, err := conn.Receive()
	switch {
	case err != nil:
		return nil, errors.Join(err, sent)
	case m.Type == wire.Rejected:
		return nil, fmt.Errorf("%w: %s", errRejected, m.Reason)
	case m.Type != wire.Welcome:
		closeFD(fd)
		return nil, fmt.Errorf("the agent answers with a message of type %d", m.Type)
	case m.Version != wire.Version:
		closeFD(fd)
		return nil, wire.Mismatch(m.Version)
	}
	if fd < 0 {
		return nil, nil
	}
	if counts, err = bpf.NewPeerCounts(fd, m.Layout); err != nil {
		c.o.Logger.Warn("router.kernel_events: round trips and retransmissions cannot be read", "error", err)
		return nil, nil
	}
	return counts, nil
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// work reports the fleet's peers to the agent and reads the counts, until ctx ends or a report
// fails.
func (c *Client) work(ctx context.Context, conn *wire.Conn, counts *bpf.PeerCounts) error {
	if counts != nil {
		c.stats.Counts.Store(true)
		defer func() {
			c.stats.Counts.Store(false)
			c.o.Fleet.ForgetPaths()
			_ = counts.Close()
		}()
	}
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	var told []netip.AddrPort
	var next time.Time
	for first := true; ; first = false {
		now := time.Now()
		if !now.Before(next) {
			next = now.Add(tellEvery)
			if peers := c.peers(); first || !slices.Equal(peers, told) {
				told = peers
				if err := c.watch(ctx, conn, peers); err != nil {
					return err
				}
			}
		}
		if counts != nil {
			c.o.Fleet.TakePaths(func(at netip.AddrPort) (fleet.Counts, bool) { return read(counts, at) }, now)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// watch asks the agent for the events of peers.
func (c *Client) watch(ctx context.Context, conn *wire.Conn, peers []netip.AddrPort) error {
	c.stats.Peers.Store(int64(len(peers)))
	_ = conn.SetWriteDeadline(time.Now().Add(helloLimit))
	if ctx.Err() != nil { // a later deadline may have replaced the one set at the end of ctx
		return context.Cause(ctx)
	}
	return conn.Send(&wire.Message{Type: wire.Watch, Peers: peers}, -1)
}

// peers returns the fleet's peers, at most as many as can be watched.
func (c *Client) peers() []netip.AddrPort {
	all := c.o.Fleet.Peers()
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all[:min(len(all), wire.MaxPeers)]
}

func read(counts *bpf.PeerCounts, at netip.AddrPort) (fleet.Counts, bool) {
	s, ok, err := counts.Peer(at)
	if err != nil || !ok {
		return fleet.Counts{}, false
	}
	return fleet.Counts{
		RTT: s.RTT, RTTMin: s.RTTMin, Looks: s.RTTLooks, Segments: s.SegmentsSent, Retransmits: s.Retransmits,
		Timeouts: s.Timeouts, Resets: s.Resets, Failed: s.Refused + s.Unanswered,
	}, true
}
