package fleet

import (
	"net"
	"testing"

	"github.com/cognitora/dataplane/router/health"
)

func warmed(f *Fleet, n int) func(*Snapshot) bool {
	return func(s *Snapshot) bool {
		for _, node := range s.Nodes {
			if idle, _ := node.Pool.Stats(); node.Health.State() == health.Healthy && idle == n {
				return true
			}
		}
		return false
	}
}

// TestWarm checks that a node gets connections before its first request, and again when it comes
// back.
func TestWarm(t *testing.T) {
	e := newEngine(t, nil, "m")
	addr := e.Listener.Addr().String()
	o := fast(Backend{URL: e.URL})
	o.Warm = 3
	f := run(t, o)
	eventually(t, f, "three connections wait", warmed(f, 3))
	e.CloseClientConnections()
	e.Close()
	eventually(t, f, "the node is down", func(s *Snapshot) bool { return s.Nodes[0].Health.State() == health.Open })
	var l net.Listener
	eventually(t, f, "its port is free", func(*Snapshot) (free bool) {
		var err error
		l, err = net.Listen("tcp", addr)
		return err == nil
	})
	newEngine(t, l, "m")
	eventually(t, f, "three connections wait again", func(s *Snapshot) bool {
		idle, _ := s.Nodes[0].Pool.Stats()
		return idle == 3 && s.Nodes[0].Health.State() != health.Open
	})
}

// TestUnknownEnginesAreNotWarmed checks that an unknown engine gets no idle connections, which
// might block it.
func TestUnknownEnginesAreNotWarmed(t *testing.T) {
	e := newEngine(t, nil)
	o := fast(Backend{URL: e.URL, Model: "m"})
	o.Warm = 3
	f := run(t, o)
	eventually(t, f, "it was checked twice", func(s *Snapshot) bool {
		return e.count("/health") > 1 && s.Nodes[0].Health.State() == health.Healthy
	})
	if idle, open := f.Load().Nodes[0].Pool.Stats(); idle != 0 || open != 0 {
		t.Errorf("%d of %d connections", idle, open)
	}
}
