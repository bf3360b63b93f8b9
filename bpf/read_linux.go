package bpf

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// now returns CLOCK_MONOTONIC, the programs' clock.
func now() uint64 {
	var ts unix.Timespec
	// cannot fail
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ts)), 0)
	return uint64(ts.Nano())
}

// perCPU reads the only entry of a map that has a value for each CPU.
func perCPU[T any](m *ebpf.Map, name string) (v []T, err error) {
	err = m.Lookup(uint32(0), &v)
	return v, wrap(name, err)
}

// open returns the time since the last switch of a CPU. The running thread has used this time, but
// the programs have not counted it yet.
func (c *schedCpu) open(now uint64) time.Duration {
	return max(time.Duration(now-c.AheadNs-(c.StartNs+c.BusyNs+c.IdleNs)), 0)
}

// CPUs returns the utilisation of each CPU up to now. A CPU is missing if it has not switched since
// the programs were loaded.
func (s *Set) CPUs() ([]CPU, error) {
	per, err := perCPU[schedCpu](s.maps["cgn_cpus"], "cgn_cpus")
	if err != nil {
		return nil, err
	}
	now := now()
	var all []CPU
	for id := range per {
		p := &per[id]
		if p.StartNs == 0 {
			continue
		}
		c := CPU{ID: id, Busy: time.Duration(p.BusyNs), Idle: time.Duration(p.IdleNs), Switches: p.Switches}
		if p.Running != 0 {
			c.Busy += p.open(now)
		} else {
			c.Idle += p.open(now)
		}
		all = append(all, c)
	}
	return all, nil
}

// RunDelay sets h to the waits of threads for a CPU, on the whole host.
func (s *Set) RunDelay(h *Histogram) error {
	if err := s.looks.take(s); err != nil {
		return err
	}
	defer s.looks.mu.Unlock()
	h.reset()
	k := s.looks.delay
	if err := k.read(); err != nil {
		return err
	}
	for i := range k.value {
		h.add(k.value[i].Count, k.value[i].SumNs, &k.value[i].Buckets)
	}
	return nil
}

// Groups returns the watched groups. A group's CPU time includes the present run of running
// threads.
func (s *Set) Groups() ([]Group, error) {
	cpus, err := perCPU[schedCpu](s.maps["cgn_cpus"], "cgn_cpus")
	if err != nil {
		return nil, err
	}
	now := now()
	var all []Group
	var per []schedGroup
	for i := uint32(1); i < s.maps["cgn_groups"].MaxEntries(); i++ {
		if err := s.maps["cgn_groups"].Lookup(i, &per); err != nil {
			return nil, wrap("cgn_groups", err)
		}
		if g := groupOf(i, per, cpus, now); g.Root != 0 {
			all = append(all, g)
		}
	}
	return all, nil
}

// groupOf adds up group i. Root is 0 if the group is free.
func groupOf(i uint32, per []schedGroup, cpus []schedCpu, now uint64) (g Group) {
	g.Root = int(per[0].Root)
	for cpu := range per {
		g.CPU += time.Duration(per[cpu].CpuNs)
		g.Delay += time.Duration(per[cpu].DelayNs)
		g.Runs += per[cpu].Runs
		if cpus[cpu].Group == i && cpus[cpu].Running != 0 {
			g.CPU += cpus[cpu].open(now)
		}
	}
	return g
}

// Group returns one of the watched groups.
func (s *Set) Group(root int) (Group, error) {
	s.watches.Lock()
	i := s.places[root]
	s.watches.Unlock()
	if i == 0 {
		return Group{}, notWatched("process", root)
	}
	if err := s.looks.take(s); err != nil {
		return Group{}, err
	}
	defer s.looks.mu.Unlock()
	l := &s.looks
	l.group.key = i
	if err := l.cpus.read(); err != nil {
		return Group{}, err
	}
	now := now()
	if err := l.group.read(); err != nil {
		return Group{}, err
	}
	g := groupOf(i, l.group.value, l.cpus.value, now)
	if g.Root != root {
		return Group{}, notWatched("process", root)
	}
	return g, nil
}

func (c *socketsSockets) counts() Sockets {
	k := Sockets{
		Opened: c.Opened, Closed: c.Closed, Refused: c.Refused, Unanswered: c.Unanswered, Abandoned: c.Abandoned,
		Resets:   c.Resets,
		TimedOut: c.TimedOut, Retransmits: c.Retransmits, Timeouts: c.Timeouts, StallsSend: c.StallsSend,
		StallsReceive: c.StallsReceive,
		BytesSent:     c.BytesSent, BytesReceived: c.BytesReceived, SegmentsSent: c.SegmentsSent,
		DeliveryRate: c.DeliveryRate,
		RTTLooks:     c.RttSamples, RTTSum: time.Duration(c.RttSumUs) * time.Microsecond,
		RTT: time.Duration(c.SrttUs) * time.Microsecond, RTTMin: time.Duration(c.RttMinUs) * time.Microsecond,
	}
	// After an eviction meanwhile, a peer may have more ends than beginnings.
	if c.Opened > c.Closed {
		k.Established = c.Opened - c.Closed
	}
	if c.RttSamples > 0 {
		k.RTTMean = time.Duration(c.RttSumUs/c.RttSamples) * time.Microsecond
	}
	return k
}

// Ports returns the watched ports.
func (s *Set) Ports() ([]Port, error) {
	var key socketsPortKey
	var v socketsSockets
	var all []Port
	entries := s.maps["cgn_ports"].Iterate()
	for entries.Next(&key, &v) {
		all = append(all, Port{Port: key.Port, Sockets: v.counts()})
	}
	return all, wrap("cgn_ports", entries.Err())
}

// Port returns one of the watched ports.
func (s *Set) Port(port uint16) (Port, error) {
	if err := s.looks.take(s); err != nil {
		return Port{}, err
	}
	defer s.looks.mu.Unlock()
	k := s.looks.port
	k.key = socketsPortKey{Port: port}
	err := k.read()
	if errors.Is(err, unix.ENOENT) {
		return Port{}, notWatched("port", int(port))
	}
	return Port{Port: port, Sockets: k.value[0].counts()}, err
}

// peersAtOnce is how many peers one system call reads: 20 KiB of keys and values.
const peersAtOnce = 128

// Peers returns the peers that this host connected to. The map keeps only the most recently used
// peers.
func (s *Set) Peers() ([]Peer, error) {
	var all []Peer
	var cursor ebpf.MapBatchCursor
	keys, values := make([]socketsPeerKey, peersAtOnce), make([]socketsSockets, peersAtOnce)
	for range s.maps["cgn_peers"].MaxEntries() {
		n, err := s.maps["cgn_peers"].BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			all = append(all, Peer{Addr: keys[i].addr(), Sockets: values[i].counts()})
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return all, nil
		}
		if err != nil {
			return all, wrap("cgn_peers", err)
		}
	}
	return all, nil
}

func wrap(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bpf: read %s: %w", name, err)
}

// Tokens returns the timings of a watched port.
func (s *Set) Tokens(port uint16) (Tokens, error) {
	key := socketsPortKey{Port: port}
	var v socketsTokens
	if err := s.maps["cgn_tokens"].Lookup(&key, &v); err != nil {
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return Tokens{}, notWatched("port", int(port))
		}
		return Tokens{}, wrap("cgn_tokens", err)
	}
	t := Tokens{
		Requests: v.Requests, Streams: v.Streams, Singles: v.Singles, SinglesTime: time.Duration(v.SinglesSumNs),
		Joined:    v.Joined,
		Coalesced: v.Coalesced, Unclear: v.Unclear, UnmeasuredTLS: v.UnmeasuredTls, UnmeasuredHTTP: v.UnmeasuredH2,
		Unmeasured: v.Unmeasured,
	}
	t.TTFT.add(v.Ttft.Count, v.Ttft.SumNs, &v.Ttft.Buckets)
	t.ITL.add(v.Itl.Count, v.Itl.SumNs, &v.Itl.Buckets)
	return t, nil
}

// Drops returns the counts of losses.
func (s *Set) Drops() (Drops, error) {
	var d Drops
	per, err := perCPU[schedDrops](s.maps["cgn_drops"], "cgn_drops")
	for _, p := range per {
		d.Events += p.EventsFull
		d.Peers += p.PeersFull
		d.Sockets += p.SocksFull
		d.Processes += p.ProcessesFull
		d.Threads += p.TasksFull
		d.OddPackets += p.OddPackets
	}
	return d, err
}
