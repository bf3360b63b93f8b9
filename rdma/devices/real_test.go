package devices

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asNobody makes this test binary print a report instead of testing.
const asNobody = "RDMA_CHECK_ONLY"

func TestMain(m *testing.M) {
	if os.Getenv(asNobody) == "" {
		os.Exit(m.Run())
	}
	if err := json.NewEncoder(os.Stdout).Encode(Check(Options{Arena: 8 << 20})); err != nil {
		panic(err)
	}
}

// real skips the test if there is no soft-RoCE device that the test may change. In perf/vm a
// missing soft-RoCE device is a failure.
func real(t *testing.T) {
	if os.Getenv("RDMA_DEVICE") == "" {
		if os.Getenv("RDMA_REQUIRED") != "" {
			t.Fatal("RDMA_DEVICE names no card")
		}
		t.Skip("RDMA_DEVICE names no card: make check-rdma runs this in a virtual machine that has one")
	}
}

// sh runs commands in the shell. busybox's shell has an ip command of its own, which differs from
// iproute2's.
func sh(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// of returns the verdict about a device's only port; nil: the kernel has no such device.
func of(r Report, device string) *Verdict {
	if i := slices.IndexFunc(r.Ports, func(v Verdict) bool { return v.Device == device }); i >= 0 {
		return &r.Ports[i]
	}
	return nil
}

// await polls until the device is as wanted, because the kernel's table of GIDs follows addresses
// with a delay.
func await(t *testing.T, what, device string, is func(v *Verdict) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		r := Check(Options{Arena: 64 << 20})
		if is(of(r, device)) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %+v", what, r)
		}
	}
}

// withProblem returns whether the only reason that a device is unusable has this code and contains
// text.
func withProblem(code Code, text string) func(*Verdict) bool {
	return func(v *Verdict) bool {
		if v == nil || v.Usable {
			return false
		}
		var blocking []Problem
		for _, p := range v.Problems {
			if p.Blocks {
				blocking = append(blocking, p)
			}
		}
		return len(blocking) == 1 && blocking[0].Code == code && strings.Contains(blocking[0].String(), text)
	}
}

func usableBy(addr string) func(*Verdict) bool {
	return func(v *Verdict) bool { return v != nil && v.Usable && v.GID != nil && v.GID.Address().String() == addr }
}

// TestRealDevice removes one requirement of a real rxe device at a time, and restores it.
func TestRealDevice(t *testing.T) {
	real(t)
	sh(t, "/bin/ip link add cgn0 mtu 9000 type veth peer name cgn1 mtu 9000; /bin/ip link set cgn1 up; /bin/ip link "+
		"set cgn0 up; /bin/ip addr add 198.51.100.1/24 dev cgn0; rdma link add rxe7 type rxe netdev cgn0")
	await(t, "all there", "rxe7", usableBy("198.51.100.1"))
	i := slices.IndexFunc(Discover(""), func(d Device) bool { return d.Name == "rxe7" })
	d := Discover("")[i]
	if p := d.Ports[0]; d.Driver != "rdma_rxe" || !strings.HasPrefix(d.Verbs, "/dev/infiniband/uverbs") ||
		p.State != "ACTIVE" || p.LinkLayer != "Ethernet" || p.Rate <= 0 || p.MTU != 9000 ||
		fmt.Sprint(p.Netdevs) != "[cgn0]" {
		t.Errorf("%+v", d)
	}
	sh(t, "/bin/ip link set cgn0 down")
	await(t, "interface down", "rxe7", func(v *Verdict) bool {
		return v != nil && !v.Usable && strings.Contains(fmt.Sprint(v.Problems), "ip link set cgn0 up")
	})
	sh(t, "/bin/ip link set cgn0 up; /bin/ip link set cgn1 down")
	await(t, "the other end down", "rxe7", func(v *Verdict) bool {
		return v != nil && !v.Usable && strings.Contains(fmt.Sprint(v.Problems), "its link is lowerlayerdown")
	})
	sh(t, "/bin/ip link set cgn1 up; /bin/ip addr replace 198.51.100.1/24 dev cgn0")
	await(t, "up again", "rxe7", usableBy("198.51.100.1"))
	sh(t, "/bin/ip addr add 2001:db8::7/64 dev cgn0 nodad; /bin/ip addr del 198.51.100.1/24 dev cgn0")
	await(t, "IPv6 only", "rxe7", usableBy("2001:db8::7"))
	sh(t, "/bin/ip addr flush dev cgn0")
	await(t, "no address", "rxe7", withProblem(NoGID, "ip addr add ADDRESS/PREFIX dev cgn0"))
	left := Discover("")[i].Ports[0].GIDs // the GID that stays in the table though the interface has no address
	if len(left) != 1 || !left[0].Addr.IsLinkLocalUnicast() {
		t.Fatalf("%+v", left)
	}
	sh(t, "/bin/ip addr add "+left[0].Addr.String()+"/64 dev cgn0 nodad")
	await(t, "link-local only", "rxe7", usableBy(left[0].Addr.String()))
	sh(t, "rdma link delete rxe7")
	await(t, "deleted", "rxe7", func(v *Verdict) bool { return v == nil })
	sh(t, "/bin/ip link delete cgn0")
}

// TestRealCounters: soft-RoCE's counters have the names in the table.
func TestRealCounters(t *testing.T) {
	real(t)
	all := Read("", os.Getenv("RDMA_DEVICE"))
	if len(all) != 1 || !all[0].Up {
		t.Fatalf("%+v", all)
	}
	for i, c := range Counters {
		if soft := !strings.Contains(c.Help, "Not counted by soft-RoCE") && slices.ContainsFunc(c.from,
			func(f string) bool { return strings.HasPrefix(f, "hw_counters/") }); soft != all[0].Known[i] {
			t.Errorf("%s: known %v, want %v", c.Name, all[0].Known[i], soft)
		}
	}
}

// TestRealRights: without root, the limit of locked memory and file modes apply.
func TestRealRights(t *testing.T) {
	real(t)
	name := os.Getenv("RDMA_DEVICE")
	i := slices.IndexFunc(Discover(""), func(d Device) bool { return d.Name == name })
	verbs := Discover("")[i].Verbs
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before) }()
	nobody := func(limit uint64) (r Report) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: before.Max}); err != nil {
			t.Fatal(err)
		}
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), asNobody+"=1")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return r
	}
	if r := nobody(1 << 20); r.Usable || r.Memlock != 1<<20 || problems(r.Host) != "MEMLOCK" {
		t.Errorf("%+v", r)
	}
	if r := nobody(8 << 20); !r.Usable || len(r.Host) != 0 {
		t.Errorf("%+v", r)
	}
	if r := Check(Options{Arena: 1 << 40}); !r.Usable || r.Memlock != -1 {
		t.Errorf("root: %+v", r)
	}
	info, err := os.Stat(verbs)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(verbs, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Chmod(verbs, info.Mode().Perm()) }()
	if r := nobody(8 << 20); r.Usable || !withProblem(Denied, "permission denied")(of(r, name)) {
		t.Errorf("%+v", r)
	}
}

// TestRealCtl: the operators' command prints the same report, and fails if no port is usable.
// TestRealCtl runs last, because it ends with another device than at its start.
func TestRealCtl(t *testing.T) {
	real(t)
	program, name := os.Getenv("RDMA_CTL"), os.Getenv("RDMA_DEVICE")
	if program == "" {
		t.Fatal("RDMA_CTL names no cgn-ctl")
	}
	call := func(args ...string) (string, error) {
		out, err := exec.Command(program, append([]string{"rdma"}, args...)...).CombinedOutput()
		return string(out), err
	}
	i := slices.IndexFunc(Discover(""), func(d Device) bool { return d.Name == name })
	netdev := Discover("")[i].Ports[0].Netdevs[0]
	g, _ := Discover("")[i].Ports[0].RoCE()
	if out, err := call("devices"); err != nil || !strings.Contains(out, name) ||
		!strings.Contains(out, g.Address().String()) {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := call("check", "--arena", "64MiB"); err != nil || !strings.Contains(out, "yes") {
		t.Errorf("%v: %s", err, out)
	}
	sh(t, "rdma link delete "+name)
	await(t, "deleted", name, func(v *Verdict) bool { return v == nil })
	if out, err := call("check"); err == nil ||
		!strings.Contains(out, "rdma link add rxe0 type rxe netdev NETDEV, as the module rdma_rxe is loaded") {
		t.Errorf("%v: %s", err, out)
	}
	sh(t, "rdma link add "+name+" type rxe netdev "+netdev)
	await(t, "back", name, usableBy(g.Address().String()))
}
