package kvcached

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/kvcached/rpc"
	"github.com/cognitora/dataplane/kvcached/transport"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/rdma"
	"github.com/cognitora/dataplane/rdma/verbs"
)

// TestRDMASettings: what cannot work is refused with its field and the fix.
func TestRDMASettings(t *testing.T) {
	for what, c := range map[string]struct {
		change func(c *Config)
		want   string // empty: it is taken
	}{
		"defaults":          {func(*Config) {}, ""},
		"demanded, no card": {func(c *Config) { c.Fleet.Lane = "rdma" }, "fleet.lane: rdma, and rdma.devices names none"},
		"of one peer":       {func(c *Config) { c.Fleet.Peers = []PeerConfig{{"a", "quic"}, {"b", "rdma"}} }, "fleet.peers[1].lane: rdma, and"},
		"an address":        {func(c *Config) { c.RDMA.Trusted = []string{"10.0.0.1/8"} }, "its network is 10.0.0.0/8"},
		"rubbish":           {func(c *Config) { c.RDMA.Trusted = []string{"10.0.0.0"} }, "write it as 10.1.0.0/16"},
		"no name":           {func(c *Config) { c.RDMA.Devices = []string{""} }, "cgn-ctl rdma devices"},
		"a short lease":     {func(c *Config) { c.RDMA.Lease = 1 }, "rdma.lease: 1ns: must be 100ms to 1m"},
		"networks":          {func(c *Config) { c.RDMA.Trusted = []string{"10.0.0.0/8", "fd00::/8"} }, ""},
	} {
		config, _ := settings(t, t.TempDir(), c.change)
		switch err := config.Validate(); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", what, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestBuiltWithoutRDMA: devices in a program that cannot drive them end its start, and it says which program can.
func TestBuiltWithoutRDMA(t *testing.T) {
	if _, err := verbs.Open("", verbs.Options{}); !errors.Is(err, rdma.ErrNotBuilt) {
		t.Skip("this program was built with -tags rdma")
	}
	c, _ := settings(t, t.TempDir(), func(c *Config) { c.RDMA.Devices = []string{"auto"} })
	d, err := New(c)
	if err == nil {
		d.Close()
		t.Fatal("it starts")
	}
	for _, part := range []string{"rdma.devices", "built without rdma", "-tags rdma ./cmd/cgn-kvcached"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
}

// TestWays: what the configuration asks for is how a cache is spoken to, and whether its memory is read.
func TestWays(t *testing.T) {
	both := &cluster.CacheHealth{CacheID: "a", QUIC: "h:1", TLS: "h:1"}
	apart := &cluster.CacheHealth{CacheID: "a", QUIC: "h:1", TLS: "h:2"}
	only := &cluster.CacheHealth{CacheID: "a", TLS: "h:2"}
	for _, c := range []struct {
		lane  string
		h     *cluster.CacheHealth
		where string
		want  transport.Lane
		cards transport.OneSided
	}{
		{"auto", both, "h:1", transport.Auto, transport.Trusted}, {"auto", apart, "h:1", transport.QUIC, transport.Trusted}, {"auto", only, "h:2", transport.TLS, transport.Trusted},
		{"rdma", both, "h:1", transport.Auto, transport.Demanded}, {"rdma", only, "h:2", transport.TLS, transport.Demanded},
		{"quic", both, "h:1", transport.QUIC, transport.NoCards}, {"tls", both, "h:1", transport.TLS, transport.NoCards},
	} {
		for _, config := range []FleetConfig{{Lane: c.lane}, {Lane: "quic", Peers: []PeerConfig{{"a", c.lane}}}} {
			if where, lane, cards := config.way(c.h); where != c.where || lane != c.want || cards != c.cards {
				t.Errorf("%s: %s %s %s", c.lane, where, lane, cards)
			}
		}
	}
}

// TestPeersAreTold: each cache of the fleet has a line, with why RDMA is not used.
func TestPeersAreTold(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	b, _ := s.host(t, "b", func(c *Config) { c.Fleet.Lane = "quic" })
	meet(t, 2, a, b)
	r, err := kv(t, a).Peers(t.Context(), &pb.PeersRequest{})
	if err != nil || len(r.Peers) != 1 || len(r.Devices) != 0 {
		t.Fatal(r, err)
	}
	if p := r.Peers[0]; p.Peer != "b" || p.Wanted != "auto" || p.Lane == "rdma" || p.Address != b.At("quic") || p.WhyNotRdma == "" {
		t.Errorf("%v", p)
	}
	if _, _, err := (lanes{a}).Release(context.Background(), "rxe0"); !errors.Is(err, rpc.ErrNoDevice) {
		t.Error(err)
	}
	if _, err := kv(t, a).ReleaseDevice(t.Context(), &pb.ReleaseDeviceRequest{Device: "rxe0"}); err == nil || !strings.Contains(err.Error(), `"rxe0"`) {
		t.Error(err)
	}
}
