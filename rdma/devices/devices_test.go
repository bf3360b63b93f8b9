package devices

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

func TestDiscoverRxe(t *testing.T) {
	all := Discover(tree(t, "rxe", nil))
	if len(all) != 1 || len(all[0].Ports) != 1 {
		t.Fatalf("%+v", all)
	}
	d, p := all[0], all[0].Ports[0]
	want := Device{Name: "rxe0", Driver: "rdma_rxe", NUMANode: -1, Verbs: "/dev/infiniband/uverbs0", Ports: d.Ports}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("%+v, want %+v", d, want)
	}
	wantPort := Port{
		Number: 1, State: "ACTIVE", Physical: "LinkUp", LinkLayer: "Ethernet", Rate: 10, Netdevs: []string{"cgn0"},
		MTU: 1500,
		GIDs: []GID{
			{0, netip.MustParseAddr("fe80::7062:3fff:fef4:13ba"), RoCEv2, "cgn0"},
			{1, netip.MustParseAddr("::ffff:192.0.2.1"), RoCEv2, "cgn0"},
			{2, netip.MustParseAddr("2001:db8::1"), RoCEv2, "cgn0"},
		},
	}
	if !reflect.DeepEqual(p, wantPort) {
		t.Errorf("%+v, want %+v", p, wantPort)
	}
}

func TestDiscoverMlx5(t *testing.T) {
	all := Discover(tree(t, "mlx5", nil))
	if len(all) != 3 {
		t.Fatalf("%+v", all)
	}
	d := all[0]
	if d.Name != "mlx5_0" || d.Driver != "mlx5_core" || d.Firmware != "22.39.2048" || d.PCI != "0000:3b:00.0" ||
		d.NUMANode != 1 || d.Verbs != "/dev/infiniband/uverbs0" {
		t.Errorf("%+v", d)
	}
	p := d.Ports[0]
	if p.Rate != 100 || p.MTU != 9000 || len(p.GIDs) != 7 || fmt.Sprint(p.Netdevs) != "[ens1f0np0 ens1f0np0.7]" {
		t.Errorf("%+v", p)
	}
	if got := all[1].Ports[0]; got.State != "DOWN" || got.Physical != "Polling" {
		t.Errorf("%+v", got)
	}
	if got := all[2].Ports[0]; got.LinkLayer != "InfiniBand" || len(got.Netdevs) != 0 || got.MTU != 0 {
		t.Errorf("%+v", got)
	}
	for netdev, want := range map[string]string{"ens1f0np0": "mlx5_0", "ens1f0np0.7": "mlx5_0", "ens1f1np1": "mlx5_1"} {
		for _, d := range all {
			if has := slices.Contains(d.Ports[0].Netdevs, netdev); has != (d.Name == want) {
				t.Errorf("%s: %+v", netdev, d)
			}
		}
	}
}

func TestNoDevices(t *testing.T) {
	if all := Discover(t.TempDir()); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// TestRoCE: the type decides first, then the reach of the address. The index decides only between
// two GIDs of the same type and reach.
func TestRoCE(t *testing.T) {
	gid := func(index int, addr string, kind GIDType) GID {
		return GID{Index: index, Addr: netip.MustParseAddr(addr), Type: kind}
	}
	local, v4, v4b, global := gid(0, "fe80::1", RoCEv2), gid(5, "::ffff:10.0.0.5", RoCEv2), gid(7, "::ffff:10.9.0.5",
		RoCEv2), gid(3, "2001:db8::5", RoCEv2)
	old := gid(1, "::ffff:10.0.0.5", RoCEv1)
	tests := []struct {
		name     string
		gids     []GID
		networks []string
		want     int // index in the table; -1: none
	}{
		{"nothing", nil, nil, -1},
		{"RoCE v1 only", []GID{old}, nil, -1},
		{"link-local where there is nothing else", []GID{local, old}, nil, 0},
		{"IPv4 before all", []GID{local, old, global, v4}, nil, 5},
		{"global before link-local", []GID{local, global}, nil, 3},
		{"the first of two alike", []GID{v4, v4b}, nil, 5},
		{"by network", []GID{local, global, v4, v4b}, []string{"10.9.0.0/16"}, 7},
		{"by one of the networks", []GID{local, global, v4, v4b}, []string{"192.0.2.0/24", "2001:db8::/32"}, 3},
		{"in no network", []GID{local, global, v4}, []string{"192.0.2.0/24"}, -1},
	}
	for _, test := range tests {
		var networks []netip.Prefix
		for _, n := range test.networks {
			networks = append(networks, netip.MustParsePrefix(n))
		}
		p := Port{GIDs: test.gids}
		got, ok := p.RoCE(networks...)
		if ok != (test.want >= 0) || ok && got.Index != test.want {
			t.Errorf("%s: %+v, %v", test.name, got, ok)
		}
	}
	if all := Discover(tree(t, "mlx5", nil)); true {
		if g, ok := all[0].Ports[0].RoCE(); !ok || g.Index != 3 || g.Address().String() != "10.0.0.5" {
			t.Errorf("mlx5_0: %+v", g)
		}
	}
}

func TestPathMTU(t *testing.T) {
	for mtu, want := range map[int]int{9000: 4096, 4192: 4096, 4191: 2048, 1500: 1024, 1119: 512, 352: 256, 351: 0,
		0: 0} {
		if got := PathMTU(mtu); got != want {
			t.Errorf("%d: %d, want %d", mtu, got, want)
		}
	}
}

func TestRead(t *testing.T) {
	value := func(r Reading, name string) (uint64, bool) {
		for i, c := range Counters {
			if c.Name == name {
				return r.Values[i], r.Known[i]
			}
		}
		t.Fatalf("no counter %s", name)
		return 0, false
	}
	root := tree(t, "mlx5", nil)
	all := Read(root, "mlx5_0")
	if len(all) != 1 || all[0].Port != 1 || !all[0].Up {
		t.Fatalf("%+v", all)
	}
	for name, want := range map[string]uint64{"received_bytes_total": 4 * 1010, "sent_bytes_total": 4 * 1009,
		"out_of_sequence_total": 105, "sequence_errors_total": 108, "congestion_marks_total": 129} {
		if got, ok := value(all[0], name); !ok || got != want {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, want)
		}
	}
	if _, ok := value(all[0], "retries_total"); ok {
		t.Error("mlx5 counts no retries")
	}
	down := Read(root, "mlx5_1")
	if _, ok := value(down[0], "received_bytes_total"); ok || down[0].Up {
		t.Error("what a card cannot tell is taken for a number")
	}
	root = tree(t, "rxe", map[string]string{"/sys/devices/virtual/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts": "77",
		"/sys/devices/virtual/infiniband/rxe0/ports/1/hw_counters/rcvd_seq_err": "3"})
	soft := Read(root, "rxe0")
	for name, want := range map[string]uint64{"received_packets_total": 77, "sequence_errors_total": 3,
		"retries_total": 0} {
		if got, ok := value(soft[0], name); !ok || got != want {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, want)
		}
	}
	for _, name := range []string{"", ".", "..", "rxe1", "../rxe0"} {
		if got := Read(root, name); got != nil {
			t.Errorf("%q: %+v", name, got)
		}
	}
}

// TestLongFiles: a file longer than sysfs writes is not used.
func TestLongFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state"), make([]byte, maxText+1), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := text(dir, "state"); got != "" {
		t.Errorf("%d bytes", len(got))
	}
	if _, err := read(filepath.Join(dir, "state"), maxText); err != errLong {
		t.Error(err)
	}
}

// TestPortOfSeveral: RoCE picks the active port, and the first of two active ones.
func TestPortOfSeveral(t *testing.T) {
	const ports = "/sys/class/infiniband/mlx5_0/ports/"
	networks := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	for _, c := range []struct {
		first, second string // states of the two ports
		address       string // address of the second port
		networks      []netip.Prefix
		want          int
	}{
		{"4: ACTIVE", "4: ACTIVE", "0a00:0006", nil, 1}, {"1: DOWN", "4: ACTIVE", "0a00:0006", nil, 2}, {"4: ACTIVE", "1: DOWN", "0a00:0006", nil, 1}, {"1: DOWN", "1: DOWN", "0a00:0006", nil, 1},
		{"4: ACTIVE", "4: ACTIVE", "0a00:0006", networks, 1}, {"1: DOWN", "4: ACTIVE", "0a00:0006", networks, 2}, {"4: ACTIVE", "1: DOWN", "0a00:0006", networks, 1},
		{"1: DOWN", "4: ACTIVE", "0a00:0106", networks, 1},
	} {
		root := tree(t, "mlx5", nil)
		for path, text := range map[string]string{
			"1/state": c.first, "2/state": c.second, "2/link_layer": "Ethernet",
			"2/gids/0": "0000:0000:0000:0000:0000:ffff:" + c.address, "2/gid_attrs/types/0": "RoCE v2",
			"2/gid_attrs/ndevs/0": "eth7",
		} {
			at := filepath.Join(root, ports, path)
			_ = os.Remove(at)
			plant(t, at, "= "+text)
		}
		all := Discover(root)
		port, gid, ok := all[0].RoCE(c.networks...)
		want, _ := all[0].Ports[c.want-1].RoCE(c.networks...)
		if !ok || port != c.want || gid != want {
			t.Errorf("%+v: port %d, %v", c, port, gid)
		}
	}
	d := Device{}
	if port, _, ok := d.RoCE(); ok || port != 0 {
		t.Error("a device without ports has one")
	}
}
