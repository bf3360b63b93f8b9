package bpf

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/screen"
)

// since returns the counts since before. Counters are differences; the path's figures and open
// connections are the present ones. A count that has decreased belongs to an object that was made
// anew, so the whole count is new.
func (k *kernel) since(before *kernel) *kernel {
	d := &kernel{RunDelay: k.RunDelay.Since(before.RunDelay), at: k.at}
	for _, c := range k.CPUs {
		if i := slices.IndexFunc(before.CPUs, func(b bpf.CPU) bool { return b.ID == c.ID }); i >= 0 {
			if b := before.CPUs[i]; c.Switches >= b.Switches {
				c.Busy, c.Idle, c.Switches = c.Busy-b.Busy, c.Idle-b.Idle, c.Switches-b.Switches
			}
		}
		d.CPUs = append(d.CPUs, c)
	}
	for _, g := range k.Groups {
		if i := slices.IndexFunc(before.Groups, func(b bpf.Group) bool { return b.Root == g.Root }); i >= 0 {
			if b := before.Groups[i]; g.Runs >= b.Runs {
				g.CPU, g.Delay, g.Runs = g.CPU-b.CPU, g.Delay-b.Delay, g.Runs-b.Runs
			}
		}
		d.Groups = append(d.Groups, g)
	}
	for _, p := range k.Ports {
		if i := slices.IndexFunc(before.Ports, func(b kernelPort) bool { return b.Port.Port == p.Port.Port }); i >= 0 {
			p.Sockets, p.Tokens = socketsSince(p.Sockets, before.Ports[i].Sockets),
				tokensSince(p.Tokens, before.Ports[i].Tokens)
		}
		d.Ports = append(d.Ports, p)
	}
	for _, p := range k.Peers {
		if i := slices.IndexFunc(before.Peers, func(b bpf.Peer) bool { return b.Addr == p.Addr }); i >= 0 {
			p.Sockets = socketsSince(p.Sockets, before.Peers[i].Sockets)
		}
		d.Peers = append(d.Peers, p)
	}
	return d
}

func socketsSince(s, b bpf.Sockets) bpf.Sockets {
	if s.Opened < b.Opened || s.Closed < b.Closed || s.Refused < b.Refused || s.Unanswered < b.Unanswered ||
		s.Abandoned < b.Abandoned ||
		// evicted and made anew
		s.BytesSent < b.BytesSent || s.BytesReceived < b.BytesReceived || s.SegmentsSent < b.SegmentsSent ||
		s.RTTLooks < b.RTTLooks {
		return s
	}
	s.Opened, s.Closed = s.Opened-b.Opened, s.Closed-b.Closed
	s.Refused, s.Unanswered, s.Abandoned = s.Refused-b.Refused, s.Unanswered-b.Unanswered, s.Abandoned-b.Abandoned
	s.Resets, s.TimedOut = s.Resets-b.Resets, s.TimedOut-b.TimedOut
	s.Retransmits, s.Timeouts = s.Retransmits-b.Retransmits, s.Timeouts-b.Timeouts
	s.StallsSend, s.StallsReceive = s.StallsSend-b.StallsSend, s.StallsReceive-b.StallsReceive
	s.BytesSent, s.BytesReceived, s.SegmentsSent = s.BytesSent-b.BytesSent, s.BytesReceived-b.BytesReceived,
		s.SegmentsSent-b.SegmentsSent
	s.RTTLooks, s.RTTSum, s.RTTMean = s.RTTLooks-b.RTTLooks, s.RTTSum-b.RTTSum, 0
	if s.RTTLooks > 0 {
		s.RTTMean = s.RTTSum / time.Duration(s.RTTLooks)
	}
	return s
}

func tokensSince(t, b bpf.Tokens) bpf.Tokens {
	if t.Requests < b.Requests || t.Streams < b.Streams || t.Joined < b.Joined {
		return t
	}
	t.TTFT, t.ITL = t.TTFT.Since(b.TTFT), t.ITL.Since(b.ITL)
	t.Requests, t.Streams = t.Requests-b.Requests, t.Streams-b.Streams
	t.Singles, t.SinglesTime = t.Singles-b.Singles, t.SinglesTime-b.SinglesTime
	t.Unclear, t.Joined, t.Coalesced = t.Unclear-b.Unclear, t.Joined-b.Joined, t.Coalesced-b.Coalesced
	t.UnmeasuredTLS, t.UnmeasuredHTTP, t.Unmeasured = t.UnmeasuredTLS-b.UnmeasuredTLS,
		t.UnmeasuredHTTP-b.UnmeasuredHTTP, t.Unmeasured-b.Unmeasured
	return t
}

// maxPeers is how many peers are shown of all that were ever counted, those with the most bytes
// first. -o json and a tall terminal show all.
const maxPeers = 20

// picture shows all counts, or those since before if there is an earlier look. With an earlier
// look, the busiest CPUs come first.
func (k *kernel) picture(before *kernel) *screen.Picture {
	d, p := k, &screen.Picture{Head: []string{"since the programs were loaded:"}, All: "bpf show"}
	if before != nil {
		d = k.since(before)
		p.Head = []string{fmt.Sprintf("in the last %v:", k.at.Sub(before.at).Round(time.Millisecond))}
		slices.SortStableFunc(d.CPUs, func(a, b bpf.CPU) int { return cmp.Compare(busyShare(b), busyShare(a)) })
	}
	cpus := screen.TableOf("CPUs", "CPU", "BUSY", "SWITCHES")
	for _, c := range d.CPUs {
		share := "-"
		if c.Busy+c.Idle > 0 {
			share = fmt.Sprintf("%.1f %%", 100*busyShare(c))
		}
		cpus.Row(c.ID, share, c.Switches)
	}
	waits := fmt.Sprintf("waits for a CPU: %d, mean %v, p50 %v, p99 %v", d.RunDelay.Count,
		cell.Brief(d.RunDelay.Mean()), cell.Brief(d.RunDelay.Quantile(0.5)), cell.Brief(d.RunDelay.Quantile(0.99)))
	groups := screen.TableOf("processes", "PROCESSES OF", "CPU TIME", "WAITED", "RUNS")
	for _, g := range d.Groups {
		groups.Row(g.Root, cell.Brief(g.CPU), cell.Brief(g.Delay), g.Runs)
	}
	p.Pieces = append(p.Pieces, cpus, screen.Piece{Of: "lines", Apart: true, Rows: [][]string{{waits}}})
	peers := len(d.Peers)
	if before == nil {
		peers = min(peers, maxPeers)
	}
	for _, more := range []screen.Piece{groups, d.tokens(), d.ports(), d.peers(peers)} {
		if len(more.Rows) > 0 {
			p.Pieces = append(p.Pieces, more)
		}
	}
	if more := len(d.Peers) - peers; more > 0 {
		p.Pieces = append(p.Pieces, screen.TextOf("lines", fmt.Sprintf("and %d more, which -o json has", more)))
	}
	return p
}

// busyShare returns the busy share of a CPU; 0 if it is unknown.
func busyShare(c bpf.CPU) float64 {
	return float64(c.Busy) / float64(max(c.Busy+c.Idle, 1))
}

func (k *kernel) ports() screen.Piece {
	p := screen.TableOf("ports", "PORT", "OPEN", "OPENED", "RESET", "LOST", "SEGMENTS", "RESENT", "TIMEOUTS", "RTT",
		"MEAN", "MIN", "STALLS OUT", "STALLS IN", "IN", "OUT", "RATE", "CLOSED")
	for _, o := range k.Ports {
		p.Row(o.Port.Port, o.Established, o.Opened, o.Resets, o.TimedOut, o.SegmentsSent, o.Retransmits, o.Timeouts,
			cell.Brief(o.RTT), cell.Brief(o.RTTMean), cell.Brief(o.RTTMin), o.StallsSend, o.StallsReceive,
			cell.Bytes(o.BytesReceived), cell.Bytes(o.BytesSent), cell.Bytes(o.DeliveryRate)+"/s", o.Closed)
	}
	return p
}

func (k *kernel) tokens() screen.Piece {
	p := screen.TableOf("ports' tokens", "TOKENS OF", "REQUESTS", "STREAMS", "TTFT MEAN", "P50", "P99", "ITL MEAN",
		"P50", "P99", "SINGLES", "SINGLE MEAN", "UNCLEAR", "COALESCED", "JOINED", "TLS", "HTTP/2", "OTHER")
	for _, o := range k.Ports {
		t, single := o.Tokens, time.Duration(0)
		if t.Singles > 0 {
			single = t.SinglesTime / time.Duration(t.Singles)
		}
		p.Row(o.Port.Port, t.Requests, t.Streams, cell.Brief(t.TTFT.Mean()), cell.Brief(t.TTFT.Quantile(0.5)),
			cell.Brief(t.TTFT.Quantile(0.99)), cell.Brief(t.ITL.Mean()), cell.Brief(t.ITL.Quantile(0.5)),
			cell.Brief(t.ITL.Quantile(0.99)), t.Singles, cell.Brief(single), t.Unclear, t.Coalesced, t.Joined,
			t.UnmeasuredTLS, t.UnmeasuredHTTP, t.Unmeasured)
	}
	return p
}

func (k *kernel) peers(most int) screen.Piece {
	peers := slices.Clone(k.Peers)
	slices.SortStableFunc(peers, func(a, b bpf.Peer) int {
		return cmp.Compare(b.BytesSent+b.BytesReceived, a.BytesSent+a.BytesReceived)
	})
	p := screen.TableOf("peers", "PEER", "OPEN", "OPENED", "RESET", "LOST", "REFUSED", "UNANSWERED", "GIVEN UP",
		"SEGMENTS", "RESENT", "TIMEOUTS", "RTT", "MEAN", "MIN", "STALLS OUT", "STALLS IN", "IN", "OUT", "RATE",
		"CLOSED")
	for _, o := range peers[:most] {
		p.Row(o.Addr, o.Established, o.Opened, o.Resets, o.TimedOut, o.Refused, o.Unanswered, o.Abandoned,
			o.SegmentsSent, o.Retransmits, o.Timeouts,
			cell.Brief(o.RTT), cell.Brief(o.RTTMean), cell.Brief(o.RTTMin), o.StallsSend, o.StallsReceive,
			cell.Bytes(o.BytesReceived), cell.Bytes(o.BytesSent), cell.Bytes(o.DeliveryRate)+"/s", o.Closed)
	}
	return p
}
