package bpf

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/cognitora/dataplane/perf/netpath"
)

// other changes every program's instructions, but not its effect.
func other(spec *ebpf.CollectionSpec) {
	for _, p := range spec.Programs {
		p.Instructions = slices.Insert(slices.Clone(p.Instructions), 1, asm.Mov.Imm(asm.R0, 0))
	}
}

// wider changes the layouts of maps.
func wider(names ...string) func(*ebpf.CollectionSpec) {
	return func(spec *ebpf.CollectionSpec) {
		other(spec)
		for _, name := range names {
			m := spec.Maps[name]
			t := m.Value.(*btf.Struct)
			wide := *t
			wide.Members = append(slices.Clone(t.Members), btf.Member{Name: "new_field",
				Type: &btf.Int{Name: "__u64", Size: 8}, Offset: btf.Bits(t.Size * 8)})
			wide.Size += 8
			m.Value, m.ValueSize = &wide, wide.Size
		}
	}
}

// busy keeps opening connections until stop, and counts them.
type busy struct {
	made atomic.Uint64
	stop atomic.Bool
	done chan struct{}
}

func keepBusy(t *testing.T, at *netpath.Side, to netip.AddrPort) *busy {
	b := &busy{done: make(chan struct{})}
	go func() {
		defer close(b.done)
		for !b.stop.Load() {
			c, err := dial(t, at, to)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Write(make([]byte, 100)); err != nil {
				t.Error(err)
			}
			_ = c.Close()
			b.made.Add(1)
		}
	}()
	return b
}

func (b *busy) end() { b.stop.Store(true); <-b.done }

// TestUpgrade: programs are replaced while sockets and the scheduler are busy, and nothing is lost.
func TestUpgrade(t *testing.T) {
	h := newHost(t)
	p := h.namespaces()
	to := h.echo(p.A, "tcp", "127.0.0.1:0")
	s := h.load()
	if err := s.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	root := h.burning(s, times(3, 0))
	from := h.usage(s, root)
	b := keepBusy(t, p.A, to)
	upgrades := times(10, 2)
	for i := range upgrades {
		o := Options{Root: h.root, Cgroup: h.cgroup}
		if i%2 == 0 {
			o.change = other
		}
		next := must[*Set](t)(Load(o))
		r := next.Report()
		_ = next.Close()
		if len(r.Replaced) != len(hooks) || len(r.Attached)+len(r.Made)+len(r.Carried) != 0 || r.Window != 0 {
			t.Errorf("%+v", r)
		}
		at := b.made.Load()
		within(t, "connections go on", func() bool { return b.made.Load() > at })
	}
	b.end()
	h.used(s, root, from)
	agree(t, from, h.usage(s, root))
	made := b.made.Load()
	within(t, "all are closed", func() bool { p := h.port(s, to.Port()); return p.Closed == p.Opened })
	port, peer := h.port(s, to.Port()), h.peer(s, to)
	t.Logf("%d connections during %d upgrades", made, upgrades)
	if port.Opened != made || peer.Opened != made || port.BytesReceived != made*100 {
		t.Errorf("of %d connections: %+v and %+v", made, port, peer)
	}
	h.noDrops(s)
}

// TestUpgradeOfLayout: a map that is made anew begins with the counts of the old map. No connection
// is lost. At most the CPU time of Report.Window is lost.
func TestUpgradeOfLayout(t *testing.T) {
	h := newHost(t)
	p := h.namespaces()
	to := h.echo(p.A, "tcp", "127.0.0.1:0")
	s := h.load()
	if err := s.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	root := h.burning(s, times(3, 0))
	from := h.usage(s, root)
	b := keepBusy(t, p.A, to)
	within(t, "connections begin", func() bool { return b.made.Load() > 10 })
	var window time.Duration
	var during uint64
	upgrades := times(6, 2)
	for i := range upgrades {
		o := Options{Root: h.root, Cgroup: h.cgroup}
		if i%2 == 0 {
			o.change = wider("cgn_ports", "cgn_peers", "cgn_groups")
		}
		at := b.made.Load()
		next := must[*Set](t)(Load(o))
		during += b.made.Load() - at
		r := next.Report()
		if len(r.Carried) != 3 || len(r.Reset) != 0 || r.Window == 0 || len(r.Attached) != 0 ||
			len(next.Missing()) != 0 {
			t.Errorf("%+v, %v", r, next.Missing())
		}
		_ = next.Close()
		window += r.Window
	}
	b.end()
	s2 := h.load()
	made := b.made.Load()
	port, peer := h.ended(s2, to)
	t.Logf("%d connections, %d during the upgrades, the windows were %v: %d counted by the port, %d by the peer", made,
		during, window, port.Opened, peer.Opened)
	if port.Opened != made || peer.Opened != made || port.BytesReceived != made*100 || peer.BytesSent != made*100 {
		t.Errorf("of %d connections: %+v and %+v", made, port, peer)
	}
	h.used(s2, root, from)
	u := h.usage(s2, root)
	counted, all := u.group.CPU-from.group.CPU, u.before.CPU-from.after.CPU
	// A run is counted when it ends. A run that ends in a window is lost, including its time before
	// the window. All threads share one CPU, and others wait for it.
	bound := window + time.Duration(upgrades*times(10, 100))*time.Millisecond
	t.Logf("%v of %v of CPU time counted; the windows were %v", counted, all, window)
	if counted < all-bound-all/50 || counted > (u.after.CPU-from.before.CPU)*51/50 {
		t.Errorf("%v of %v of CPU time are counted, and at most %v may be lost", counted, all, bound)
	}
}

// ended waits until a port and its peer have counted the end of every connection.
func (h *host) ended(s *Set, to netip.AddrPort) (port Port, peer Sockets) {
	h.t.Helper()
	within(h.t, "all connections are closed", func() bool {
		port, peer = h.port(s, to.Port()), h.peer(s, to)
		return port.Closed == port.Opened && peer.Closed == peer.Opened && port.Opened > 0
	})
	return port, peer
}

// TestUpgradeOfSockets: when the state of sockets is made anew, exactly the open sockets count as
// closed. Open sockets of a port count as opened anew with their next packet.
func TestUpgradeOfSockets(t *testing.T) {
	h := newHost(t)
	p := h.namespaces()
	to := h.echo(p.A, "tcp", "127.0.0.1:0")
	s := h.load()
	if err := s.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	server := h.echo(p.A, "tcp", "127.0.0.1:0") // each server handles one connection at a time
	if err := s.WatchPort(server.Port()); err != nil {
		t.Fatal(err)
	}
	kept := must[net.Conn](t)(dial(t, p.A, server))
	b := keepBusy(t, p.A, to)
	upgrades := uint64(times(6, 2))
	for i := range upgrades {
		o := Options{Root: h.root, Cgroup: h.cgroup}
		if i%2 == 0 {
			o.change = wider("cgn_socks")
		}
		next := must[*Set](t)(Load(o))
		if r := next.Report(); len(r.Carried) < 2 || len(r.Reset) != 0 || len(next.Missing()) != 0 {
			t.Errorf("%+v, %v", r, next.Missing())
		}
		at := b.made.Load()
		within(t, "connections go on", func() bool { return b.made.Load() > at+1 })
		must[int](t)(kept.Write([]byte("x")))
		within(t, "the connection that is kept is counted anew", func() bool {
			return h.port(next, server.Port()).Established == 1
		})
		_ = next.Close()
	}
	b.end()
	_ = kept.Close()
	s2 := h.load()
	port, peer := h.ended(s2, to)
	made := b.made.Load()
	t.Logf("%d connections, %d upgrades: %d and %d counted", made, upgrades, port.Opened, peer.Opened)
	// At each upgrade, one connection can be in any state, and the server may be some connections
	// behind.
	if port.Opened+upgrades < made || port.Opened > made+64*upgrades || peer.Opened > made ||
		peer.Opened+upgrades < made {
		t.Errorf("of %d connections: %+v and %+v", made, port, peer)
	}
	within(t, "the connection that was kept is closed", func() bool {
		p := h.port(s2, server.Port())
		return p.Closed == p.Opened
	})
	if through := h.port(s2, server.Port()).Opened; through != 1+upgrades {
		t.Errorf("the connection that was kept is counted %d times", through)
	}
}
