package bpf

import (
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

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
		if len(r.Attached)+len(r.Made) != 0 {
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

// TestUpgradeOfLayout: when a map's layout has changed, all counts begin anew, and connections are
// counted right from then on.
func TestUpgradeOfLayout(t *testing.T) {
	h := newHost(t)
	p := h.namespaces()
	to := h.echo(p.A, "tcp", "127.0.0.1:0")
	s := h.load()
	maps := len(s.maps)
	connections(t, p.A, to, 3)
	b := keepBusy(t, p.A, to)
	for i := range times(6, 2) {
		o := Options{Root: h.root, Cgroup: h.cgroup}
		if i%2 == 0 {
			o.change = wider("cgn_ports", "cgn_socks")
		}
		next := must[*Set](t)(Load(o))
		if r := next.Report(); len(r.Made) != maps || len(r.Attached) != len(hooks) || len(next.Missing()) != 0 {
			t.Errorf("%+v, %v", r, next.Missing())
		}
		at := b.made.Load()
		within(t, "connections go on", func() bool { return b.made.Load() > at+1 })
		_ = next.Close()
	}
	b.end()
	if err := s.Removed(); err == nil {
		t.Error("the first reader does not notice")
	}
	o := Options{Root: h.root, Cgroup: h.cgroup, Keep: true, change: wider("cgn_ports")}
	if _, err := Load(o); !errors.Is(err, errLayout) {
		t.Errorf("maps of another version were replaced, or: %v", err)
	}
	s2 := h.load()
	if len(s2.Report().Reused) != maps {
		t.Errorf("%+v", s2.Report())
	}
	to = h.echo(p.A, "tcp", "127.0.0.1:0")
	if err := s2.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	connections(t, p.A, to, 5)
	if port, peer := h.ended(s2, to); port.Opened != 5 || peer.Opened != 5 {
		t.Errorf("%+v and %+v", port, peer)
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
