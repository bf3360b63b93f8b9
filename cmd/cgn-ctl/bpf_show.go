package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/cognitora/dataplane/bpf"
)

// since is what was counted after before: counters are differences, the path's figures and open connections are as they are.
func (k *kernel) since(before *kernel) *kernel {
	d := &kernel{RunDelay: k.RunDelay.Since(before.RunDelay), at: k.at}
	for _, c := range k.CPUs {
		if i := slices.IndexFunc(before.CPUs, func(b bpf.CPU) bool { return b.ID == c.ID }); i >= 0 {
			b := before.CPUs[i]
			c.Busy, c.Idle, c.Switches = c.Busy-b.Busy, c.Idle-b.Idle, c.Switches-b.Switches
		}
		d.CPUs = append(d.CPUs, c)
	}
	for _, g := range k.Groups {
		if i := slices.IndexFunc(before.Groups, func(b bpf.Group) bool { return b.Root == g.Root }); i >= 0 {
			b := before.Groups[i]
			g.CPU, g.Delay, g.Runs = g.CPU-b.CPU, g.Delay-b.Delay, g.Runs-b.Runs
		}
		d.Groups = append(d.Groups, g)
	}
	for _, p := range k.Ports {
		if i := slices.IndexFunc(before.Ports, func(b kernelPort) bool { return b.Port.Port == p.Port.Port }); i >= 0 {
			p.Sockets = socketsSince(p.Sockets, before.Ports[i].Sockets)
			p.Tokens.TTFT = p.Tokens.TTFT.Since(before.Ports[i].Tokens.TTFT)
			p.Tokens.ITL = p.Tokens.ITL.Since(before.Ports[i].Tokens.ITL)
			p.Tokens.Requests -= before.Ports[i].Tokens.Requests
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
	if s.Opened < b.Opened { // evicted, and made anew
		return s
	}
	s.Opened, s.Closed = s.Opened-b.Opened, s.Closed-b.Closed
	s.Refused, s.Unanswered, s.Abandoned = s.Refused-b.Refused, s.Unanswered-b.Unanswered, s.Abandoned-b.Abandoned
	s.Resets, s.TimedOut = s.Resets-b.Resets, s.TimedOut-b.TimedOut
	s.Retransmits, s.Timeouts = s.Retransmits-b.Retransmits, s.Timeouts-b.Timeouts
	s.StallsSend, s.StallsReceive = s.StallsSend-b.StallsSend, s.StallsReceive-b.StallsReceive
	s.BytesSent, s.BytesReceived = s.BytesSent-b.BytesSent, s.BytesReceived-b.BytesReceived
	return s
}

// maxPeers are shown, those with the most bytes first; -o json has all.
const maxPeers = 20

// write shows all that has been counted, or what was since before, where there was one.
func (k *kernel) write(t *table, before *kernel) {
	d := k
	if before != nil {
		d = k.since(before)
		t.line(fmt.Sprintf("in the last %v:", k.at.Sub(before.at).Round(time.Millisecond)))
	} else {
		t.line("since the programs were loaded:")
	}
	t.line("")
	t.row("CPU", "BUSY", "SWITCHES")
	for _, c := range d.CPUs {
		share := "-"
		if all := c.Busy + c.Idle; all > 0 {
			share = fmt.Sprintf("%.1f %%", 100*float64(c.Busy)/float64(all))
		}
		t.row(c.ID, share, c.Switches)
	}
	t.line("")
	t.line(fmt.Sprintf("waits for a CPU: %d, mean %v, p50 %v, p99 %v", d.RunDelay.Count, brief(d.RunDelay.Mean()), brief(d.RunDelay.Quantile(0.5)), brief(d.RunDelay.Quantile(0.99))))
	if len(d.Groups) > 0 {
		t.line("")
		t.row("PROCESSES OF", "CPU TIME", "WAITED", "RUNS")
		for _, g := range d.Groups {
			t.row(g.Root, brief(g.CPU), brief(g.Delay), g.Runs)
		}
	}
	d.writePorts(t)
	d.writePeers(t)
}

func (k *kernel) writePorts(t *table) {
	if len(k.Ports) == 0 {
		return
	}
	t.line("")
	t.row("PORT", "OPEN", "OPENED", "RESET", "RETRANSMITS", "STALLS", "RTT", "IN", "OUT", "REQUESTS", "TTFT MEAN", "P99", "ITL MEAN", "P99", "UNMEASURED")
	for _, p := range k.Ports {
		k := p.Tokens
		t.row(p.Port.Port, p.Established, p.Opened, p.Resets, p.Retransmits, p.StallsSend+p.StallsReceive, brief(p.RTT), bytesOf(p.BytesReceived), bytesOf(p.BytesSent),
			k.Requests, brief(k.TTFT.Mean()), brief(k.TTFT.Quantile(0.99)), brief(k.ITL.Mean()), brief(k.ITL.Quantile(0.99)), k.UnmeasuredTLS+k.UnmeasuredHTTP+k.Unmeasured+k.Unclear)
	}
}

func (k *kernel) writePeers(t *table) {
	if len(k.Peers) == 0 {
		return
	}
	peers := slices.Clone(k.Peers)
	slices.SortStableFunc(peers, func(a, b bpf.Peer) int {
		return int(min(b.BytesSent+b.BytesReceived, 1<<62)) - int(min(a.BytesSent+a.BytesReceived, 1<<62))
	})
	t.line("")
	t.row("PEER", "OPEN", "OPENED", "FAILED", "RESET", "RETRANSMITS", "TIMEOUTS", "STALLS", "RTT", "MIN", "RATE", "IN", "OUT")
	for _, p := range peers[:min(len(peers), maxPeers)] {
		t.row(p.Addr, p.Established, p.Opened, p.Refused+p.Unanswered+p.Abandoned, p.Resets+p.TimedOut, p.Retransmits, p.Timeouts, p.StallsSend+p.StallsReceive,
			brief(p.RTT), brief(p.RTTMin), bytesOf(p.DeliveryRate)+"/s", bytesOf(p.BytesReceived), bytesOf(p.BytesSent))
	}
	if more := len(peers) - maxPeers; more > 0 {
		t.line(fmt.Sprintf("and %d more", more))
	}
}

// brief writes a duration with three digits.
func brief(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%.3gus", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.3gms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.4gs", d.Seconds())
}

func bytesOf(n uint64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
