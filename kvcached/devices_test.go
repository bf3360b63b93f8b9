package kvcached

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/rpc"
	"github.com/cognitora/dataplane/kvcached/transport"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/rdma"
	"github.com/cognitora/dataplane/rdma/verbs"
)

func cards(names ...string) func(c *Config) { return func(c *Config) { c.RDMA.Devices = names } }

// TestRDMAAdvice checks that settings without effect give a warning and that good settings give
// none.
func TestRDMAAdvice(t *testing.T) {
	net, all := []string{"10.0.0.0/8"}, []string{"10.0.0.0/8", "::/0"}
	for _, c := range []struct {
		alone            bool
		devices, trusted []string
		lane             string
		peers            []PeerConfig
		want             string
	}{
		{false, nil, nil, "auto", nil, ""}, {false, []string{"auto"}, net, "auto", nil, ""}, {false, []string{"auto"}, nil, "rdma", nil, ""},
		{false, nil, net, "auto", nil, "rdma.trusted_networks has networks, and there is no RDMA: " + noDevices()},
		{false, []string{"auto"}, nil, "auto", nil, "rdma.devices names devices, and rdma.trusted_networks is empty: no block comes over them; give"},
		{false, []string{"auto"}, nil, "auto", []PeerConfig{{"a", "rdma"}}, "no block comes over them but of caches whose [[fleet.peers]] has lane = rdma"},
		{false, []string{"auto"}, all, "auto", nil, "rdma.trusted_networks[1], ::/0, is every network there is"},
		{false, []string{"auto"}, net, "tls", nil, "fleet.lane is tls: this cache reads no block over them"},
		{false, []string{"auto"}, net, "tls", []PeerConfig{{"a", "auto"}}, ""},
		{true, []string{"auto"}, net, "auto", nil, "none is opened, as this cache knows no other"},
	} {
		config, _ := settings(t, t.TempDir(), func(config *Config) {
			config.RDMA.Devices, config.RDMA.Trusted, config.Fleet.Lane, config.Fleet.Peers = c.devices, c.trusted,
				c.lane, c.peers
			if c.alone {
				config.QUIC.Listen, config.QUIC.TLSListen = "", ""
			}
		})
		if notes := strings.Join(config.adviseRDMA(), "\n"); (notes == "") != (c.want == "") ||
			!strings.Contains(notes, c.want) {
			t.Errorf("%+v: %q", c, notes)
		}
	}
}

// TestWhyNotRDMA checks that the reason names the setting which rules out RDMA.
func TestWhyNotRDMA(t *testing.T) {
	c, _ := settings(t, t.TempDir(), func(c *Config) {
		c.Fleet.Lane, c.Fleet.Peers = "tls", []PeerConfig{{"a", "quic"}, {"b", "auto"}}
	})
	none := notBuilt
	if BuiltWithRDMA() {
		none = "rdma.devices names none; give"
	}
	for cache, want := range map[string]string{"a": "lane of its [[fleet.peers]] is quic", "b": none,
		"c": "fleet.lane is tls"} {
		if why := c.whyNoRDMA(cache); !strings.HasPrefix(why, want) {
			t.Errorf("%s: %s", cache, why)
		}
	}
	c.RDMA.Devices = []string{"auto"}
	if why := c.whyNoRDMA("b"); why != "" {
		t.Error(why)
	}
}

// TestRDMASettings checks that settings which cannot work are rejected. The error names the setting
// and the fix.
func TestRDMASettings(t *testing.T) {
	for what, c := range map[string]struct {
		change func(c *Config)
		want   string // empty: the setting is valid
	}{
		"defaults":          {func(*Config) {}, ""},
		"demanded, no card": {func(c *Config) { c.Fleet.Lane = "rdma" }, "fleet.lane: rdma, and " + noDevices()},
		"of one peer":       {func(c *Config) { c.Fleet.Peers = []PeerConfig{{"a", "quic"}, {"b", "rdma"}} }, "fleet.peers[1].lane: rdma, and"},
		"an address":        {func(c *Config) { c.RDMA.Trusted = []string{"10.0.0.1/8"} }, "its network is 10.0.0.0/8"},
		"rubbish":           {func(c *Config) { c.RDMA.Trusted = []string{"10.0.0.0"} }, "write it as 10.1.0.0/16"},
		"no name":           {cards(""), "cgn-ctl rdma devices"},
		"a space":           {cards("mlx5 0"), `rdma.devices: "mlx5 0" is no name`},
		"a path":            {cards("../x"), `rdma.devices: "../x" is no name`},
		"too long":          {cards(strings.Repeat("x", 64)), "is no name of a device"},
		"capitals":          {cards("AUTO"), `rdma.devices: "AUTO" is written auto`},
		"twice":             {cards("a", "b", "a"), `rdma.devices: "a" is named twice`},
		"all, and one":      {cards("mlx5_0", "auto"), "auto stands for all there are"},
		"nine":              {cards("a", "b", "c", "d", "e", "f", "g", "h", "i"), "9 names: at most 8"},
		"names":             {cards("mlx5_0", "rocep1s0f0", "roce-a.b:c"), ""},
		"a short grant":     {func(c *Config) { c.RDMA.Grant = 1 }, "rdma.grant: 1ns: must be 100ms to 1m"},
		"large blocks":      {func(c *Config) { c.RDMA.MinBlock = 64<<20 + 1 }, "must be 0 to 64MiB"},
		"mapped":            {func(c *Config) { c.RDMA.Trusted = []string{"::ffff:10.0.0.0/104"} }, "write it as 10.0.0.0/8"},
		"demanded, alone":   {func(c *Config) { c.RDMA.Devices, c.Fleet.Lane = []string{"auto"}, "rdma" }, "fleet.lane: rdma, and this cache knows no other: give etcd.endpoints"},
		"a peer twice":      {func(c *Config) { c.Fleet.Peers = []PeerConfig{{"a", "quic"}, {"b", "tls"}, {"a", "tls"}} }, `fleet.peers[2].cache: "a" is that of fleet.peers[0], too`},
		"this cache":        {func(c *Config) { c.Daemon.CacheID, c.Fleet.Peers = "me", []PeerConfig{{"me", "quic"}} }, `fleet.peers[0].cache: "me" is this cache itself`},
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

// TestBuiltWithoutRDMA checks that devices end the start of a program without RDMA. The error names
// the program that can drive RDMA devices.
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
	for _, part := range []string{"rdma.devices", "built without rdma", "make build-rdma"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
}

// TestWays checks the lane to another cache, and whether its memory is read, against the
// configuration.
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

// TestPeersAreTold checks that Peers has a line for each other cache, with the reason why RDMA is
// not used.
func TestPeersAreTold(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	b, _ := s.host(t, "b", func(c *Config) { c.Fleet.Lane = "quic" })
	meet(t, 2, a, b)
	r, err := kv(t, a).Peers(t.Context(), &pb.PeersRequest{})
	if err != nil || len(r.Peers) != 1 || len(r.Devices) != 0 {
		t.Fatal(r, err)
	}
	if p := r.Peers[0]; p.Peer != "b" || p.Wanted != "auto" || p.Lane == "rdma" || p.Address != b.At("quic") ||
		p.WhyNotRdma == "" {
		t.Errorf("%v", p)
	}
	if p := r.Peers[0]; p.SilentSinceUnixMs != 0 || r.Unknown != "" {
		t.Error(r)
	}
	gone := fleet.Member{ID: "b", Address: "127.0.0.1:1", Lane: "tls"}
	awaitThat(t, "b is told to be silent", func() bool {
		a.view.Load().SetMembers([]fleet.Member{gone}) // each heartbeat in etcd undoes this
		once(t, a, "EXISTS k")
		r, err := kv(t, a).Peers(t.Context(), &pb.PeersRequest{})
		return err == nil && len(r.Peers) == 1 && r.Peers[0].SilentSinceUnixMs != 0
	})
	if _, _, err := (lanes{a}).Release(context.Background(), "rxe0"); !errors.Is(err, rpc.ErrNoDevice) {
		t.Error(err)
	}
	if _, err := kv(t, a).ReleaseDevice(t.Context(), &pb.ReleaseDeviceRequest{Device: "rxe0"}); err == nil ||
		!strings.Contains(err.Error(), `"rxe0"`) {
		t.Error(err)
	}
}
