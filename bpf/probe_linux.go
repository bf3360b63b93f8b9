package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// needed are the capabilities that Load needs.
var needed = []struct {
	bit  uint
	name string
}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_PERFMON, "CAP_PERFMON"}, {unix.CAP_BPF, "CAP_BPF"}}

// Permitted returns an error that names the missing capabilities; nil: none is missing.
// CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON.
func Permitted() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	has := func(bit uint) bool { return data[bit/32].Effective&(1<<(bit%32)) != 0 }
	var lacks []string
	for _, c := range needed {
		if !has(c.bit) && (c.bit == unix.CAP_NET_ADMIN || !has(unix.CAP_SYS_ADMIN)) {
			lacks = append(lacks, c.name)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return &hinted{fmt.Errorf("bpf: the process lacks %s: %w", strings.Join(lacks, " and "), unix.EPERM),
		"run it as root, or with AmbientCapabilities=CAP_BPF CAP_PERFMON CAP_NET_ADMIN in its systemd unit, or give " +
			"the program's file the rights (setcap cap_bpf,cap_perfmon,cap_net_admin+ep FILE)"}
}

// present returns an error if the kernel lacks the place of a hook.
func present(kernel *btf.Spec, h hook) error {
	if h.tracepoint == "" {
		return nil
	}
	var t *btf.Typedef
	if kernel.TypeByName("btf_trace_"+h.tracepoint, &t) != nil {
		return fmt.Errorf("the kernel has no tracepoint %s", h.tracepoint)
	}
	return nil
}

// noWaits returns waits as missing if the kernel does not record when threads begin to wait.
func noWaits(kernel *btf.Spec) []Missing {
	for name, member := range map[string]string{"sched_info": "last_queued", "cfs_rq": "rq"} {
		var t *btf.Struct
		if kernel.TypeByName(name, &t) != nil ||
			!slices.ContainsFunc(t.Members, func(m btf.Member) bool { return m.Name == member }) {
			return []Missing{{What: "run-queue delay", Reason: "the kernel does not note when threads begin to wait: " +
				"it needs CONFIG_SCHED_INFO and CONFIG_FAIR_GROUP_SCHED"}}
		}
	}
	return nil
}

// cgroupFolder returns folder, or the mount of cgroup version 2 if folder is empty.
func cgroupFolder(folder string) (string, error) {
	if folder != "" {
		return folder, nil
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		if f := strings.Fields(before); ok && len(f) > 4 && strings.HasPrefix(after, "cgroup2 ") && f[3] == "/" {
			return f[4], nil
		}
	}
	return "", errors.New("no cgroup2 file system is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")
}

// linkedTo tells whether a link is attached to the cgroup of folder. A cgroup's number is the inode
// of its folder.
func linkedTo(l link.Link, folder string) bool {
	var st unix.Stat_t
	if unix.Stat(folder, &st) != nil {
		return false
	}
	info, err := l.Info()
	if err != nil || info.Cgroup() == nil {
		return false
	}
	return info.Cgroup().CgroupId == st.Ino
}

// explain turns errors of the bpf system call into plain text.
func explain(err error) error {
	switch {
	case errors.As(err, new(*ebpf.VerifierError)):
		return fmt.Errorf("the verifier: %w", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("not permitted: a capability is missing, or a security policy of the kernel forbids it: %w",
			err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("not in this kernel: %w", err)
	}
	return err
}
