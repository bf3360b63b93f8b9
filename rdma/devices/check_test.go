package devices

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

const (
	rxePort = "/sys/devices/virtual/infiniband/rxe0/ports/1/"
	limits  = "/proc/self/limits"
)

// problems returns the codes, with those that block in capitals.
func problems(all []Problem) string {
	var s []string
	for _, p := range all {
		code := string(p.Code)
		if p.Blocks {
			code = strings.ToUpper(code)
		}
		s = append(s, code)
	}
	return strings.Join(s, " ")
}

// with returns changes plus one more. changes take precedence.
func with(changes map[string]string, path, text string) map[string]string {
	all := map[string]string{path: text}
	for k, v := range changes {
		all[k] = v
	}
	return all
}

// TestCheck starts with a usable device and removes one of its requirements at a time.
func TestCheck(t *testing.T) {
	noAddress := map[string]string{
		rxePort + "gids/1":            "0000:0000:0000:0000:0000:0000:0000:0000",
		rxePort + "gids/2":            "0000:0000:0000:0000:0000:0000:0000:0000",
		rxePort + "gid_attrs/types/1": gone, rxePort + "gid_attrs/types/2": gone,
		rxePort + "gid_attrs/ndevs/1": gone, rxePort + "gid_attrs/ndevs/2": gone,
	}
	tests := []struct {
		name    string
		changes map[string]string
		o       Options
		host    string
		port    string // "": there is no port
		says    string // text that what or fix must contain
		usable  bool
	}{
		{"as it is", nil, Options{Arena: 8 << 20}, "", "small_packets", "ip link set cgn0 mtu 9000", true},
		{"large packets", map[string]string{"/sys/devices/virtual/net/cgn0/mtu": "9000"}, Options{Arena: 1 << 20}, "", "", "", true},
		{"no arena given", nil, Options{}, "memlock", "small_packets", "8 MiB", true},
		{"arena over the limit", nil, Options{Arena: 8<<20 + 4096}, "MEMLOCK", "small_packets", "without memory windows up to twice more for each host", false},
		{"unlimited", map[string]string{limits: "Max locked memory         unlimited            unlimited            bytes"}, Options{}, "", "small_packets", "", true},
		{"CAP_IPC_LOCK", map[string]string{"/proc/self/status": "CapEff:\t000001ffffffffff"}, Options{Arena: 1 << 40}, "", "small_packets", "", true},
		{"CAP_IPC_LOCK of a user namespace", map[string]string{"/proc/self/status": "CapEff:\t000001ffffffffff", "/proc/self/uid_map": "0 1000 1"}, Options{Arena: 1 << 40}, "MEMLOCK", "small_packets", "1 TiB", false},
		{"limits of another", nil, Options{PID: 4711}, "memlock", "small_packets", "/proc/4711/limits", true},
		{"interface down", map[string]string{rxePort + "state": "1: DOWN", rxePort + "phys_state": "3: Disabled", "/sys/devices/virtual/net/cgn0/flags": "0x1002"}, Options{Arena: 1}, "", "PORT_DOWN small_packets", "ip link set cgn0 up", false},
		{"no carrier", map[string]string{rxePort + "state": "1: DOWN", rxePort + "phys_state": "2: Polling", "/sys/devices/virtual/net/cgn0/operstate": "lowerlayerdown"}, Options{Arena: 1}, "", "PORT_DOWN small_packets", "its link is lowerlayerdown", false},
		{"link-local address only", noAddress, Options{Arena: 1}, "", "link_local small_packets", "beyond a router", true},
		{"no address", with(noAddress, "/proc/net/if_inet6", ""), Options{Arena: 1}, "", "NO_GID small_packets", "ip addr add ADDRESS/PREFIX dev cgn0", false},
		{"an address of another interface", with(noAddress, "/proc/net/if_inet6", "fe8000000000000070623ffffef413ba 03 40 20 80 eth0"), Options{Arena: 1}, "", "NO_GID small_packets", "cgn0 has no address", false},
		{"no GID", with(noAddress, rxePort+"gids", gone), Options{Arena: 1}, "", "NO_GID small_packets", "cgn0 has no address", false},
		{"RoCE v1 only", with(noAddress, rxePort+"gid_attrs/types/0", "IB/RoCE v1"), Options{Arena: 1}, "", "NO_GID small_packets", "RoCE v1", false},
		{"RoCE v1 with an address", with(noAddress, rxePort+"gid_attrs/types/0", "RoCE v1"), Options{Arena: 1}, "", "NO_GID small_packets", "it has RoCE v1 only", false},
		{"InfiniBand", map[string]string{rxePort + "link_layer": "InfiniBand"}, Options{Arena: 1}, "", "NOT_ETHERNET", "LINK_TYPE_P1=2", false},
		{"no port", map[string]string{"/sys/devices/virtual/infiniband/rxe0/ports": gone}, Options{Arena: 1}, "", "PORT_DOWN", "dmesg", false},
		{"tiny packets", map[string]string{"/sys/devices/virtual/net/cgn0/mtu": "300"}, Options{Arena: 1}, "", "SMALL_PACKETS", "", false},
		{"no device file", map[string]string{"/dev/infiniband": gone}, Options{Arena: 1}, "", "NO_VERBS small_packets", "--device=/dev/infiniband/uverbs0", false},
		{"no ib_uverbs", map[string]string{"/sys/class/infiniband_verbs": gone, "/dev/infiniband": gone}, Options{Arena: 1}, "", "NO_VERBS small_packets", "modprobe ib_uverbs", false},
		{"no verbs of this one", map[string]string{"/sys/class/infiniband_verbs/uverbs0": gone}, Options{Arena: 1}, "", "NO_VERBS small_packets", "modprobe rdma_rxe", false},
		{"may not be opened", nil, Options{Arena: 1, open: func(path string) error { return &os.PathError{Op: "open", Path: path, Err: syscall.EPERM} }}, "", "DENIED small_packets", "operation not permitted", false},
		{"the card is stuck", nil, Options{Arena: 1, open: func(path string) error { return syscall.EIO }}, "", "NO_VERBS small_packets", "input/output error", false},
		{"no module", map[string]string{"/sys": gone}, Options{Arena: 1}, "NO_DEVICE", "", "rdma link add rxe0", false},
		{"no link yet", map[string]string{"/sys/class/infiniband/rxe0": gone, "/sys/module/rdma_rxe/refcnt": "0"}, Options{Arena: 1}, "NO_DEVICE", "", "module rdma_rxe is loaded", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.o.Root = tree(t, "rxe", test.changes)
			r := Check(test.o)
			if got := problems(r.Host); got != test.host {
				t.Errorf("host: %q, want %q", got, test.host)
			}
			if len(r.Ports) > 1 || r.Usable != test.usable {
				t.Fatalf("%+v", r)
			}
			for _, v := range r.Ports {
				if got := problems(v.Problems); got != test.port || v.Usable != test.usable {
					t.Errorf("port: %q, want %q; %v", got, test.port, v.Usable)
				}
			}
			if all := fmt.Sprint(r.Host, r.Ports); !strings.Contains(all, test.says) {
				t.Errorf("%q is not said: %s", test.says, all)
			}
		})
	}
}

// TestDriverNotKnown: no module is named for an unknown driver.
func TestDriverNotKnown(t *testing.T) {
	root := tree(t, "rxe", map[string]string{"/sys/class/infiniband_verbs/uverbs0": gone,
		"/sys/devices/virtual/infiniband/rxe0/parent": gone})
	if r := Check(Options{Root: root}); len(r.Ports) != 1 ||
		r.Ports[0].Problems[0].Fix != "see dmesg for what its driver says" {
		t.Errorf("%+v", r.Ports)
	}
}

func TestCheckMlx5(t *testing.T) {
	root := tree(t, "mlx5", nil)
	r := Check(Options{Root: root, PID: 4711, Arena: 1 << 40})
	if !r.Usable || len(r.Host) != 0 || r.Memlock != -1 || len(r.Ports) != 3 {
		t.Fatalf("%+v", r)
	}
	for i, want := range []string{"", "PORT_DOWN NO_GID small_packets", "NOT_ETHERNET"} {
		if got := problems(r.Ports[i].Problems); got != want || r.Ports[i].Usable != (want == "") {
			t.Errorf("%s: %q, want %q", r.Ports[i].Device, got, want)
		}
	}
	if g := r.Ports[0].GID; g == nil || g.Index != 3 {
		t.Errorf("%+v", g)
	}
	// Cards of NVIDIA are named if mlx5_ib is missing.
	r = Check(Options{Root: tree(t, "mlx5", map[string]string{
		"/sys/class/infiniband": gone, "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/infiniband": gone,
		"/sys/devices/pci0000:3a/0000:3a:00.0/0000:5e:00.0/infiniband": gone,
	})})
	if len(r.Host) == 0 || !strings.Contains(r.Host[0].String(),
		"0000:3b:00.0, 0000:5e:00.0, but the module mlx5_ib") || r.Usable {
		t.Errorf("%+v", r)
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1: "1 B", 1024: "1 KiB", 8 << 20: "8 MiB",
		8<<20 + 4096: "8196 KiB", 3 << 40: "3 TiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
