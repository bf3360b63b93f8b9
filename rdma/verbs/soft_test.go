//go:build linux && cgo && rdma

package verbs

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soft is a software RoCE card of a test's own, which the test may remove.
type soft struct {
	t                  testing.TB
	card, link, prefix string
}

var softs atomic.Int32

func newSoft(t testing.TB) *soft {
	t.Helper()
	if os.Getenv("RDMA_REQUIRED") == "" {
		t.Skip("changes the network of its host: make check-rdma runs this in a virtual machine")
	}
	n := softs.Add(1)
	s := &soft{t, fmt.Sprintf("soft%d", n), fmt.Sprintf("link%d", n), fmt.Sprintf("198.51.100.%d/32", n)}
	s.run("ip", "link", "add", s.link, "mtu", "9000", "type", "dummy")
	s.run("ip", "addr", "add", s.prefix, "dev", s.link)
	s.run("ip", "link", "set", s.link, "up")
	s.add()
	t.Cleanup(func() {
		s.remove()
		s.run("ip", "link", "delete", s.link)
	})
	return s
}

// run runs a program with a time limit of a minute.
func (s *soft) run(program string, args ...string) {
	s.t.Helper()
	run(s.t, program, args...)
}

func run(t testing.TB, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(within(t), program, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// itself runs the test in a process of its own, as another user and with additional environment
// variables.
func itself(t *testing.T, user *syscall.Credential, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(within(t), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("%v: %s", err, out)
	}
}

func (s *soft) add()    { s.run("rdma", "link", "add", s.card, "type", "rxe", "netdev", s.link) }
func (s *soft) remove() { s.run("rdma", "link", "delete", s.card) }

// open opens the card as soon as it has its address.
func (s *soft) open() *device {
	s.t.Helper()
	for ctx := within(s.t); ; {
		d, err := open(s.card, Options{})
		if err == nil && d.gid.raw[0] == 0 {
			s.t.Cleanup(func() { d.Close() })
			return d
		}
		if err == nil {
			err = d.Close()
		}
		if ctx.Err() != nil {
			s.t.Fatalf("%s has no address: %v", s.card, err)
		}
	}
}

// resources counts the kernel's objects of a card, and this process's objects on the host.
type resources struct {
	QP, CQ, PD, MR, Ctx int
	fds                 int
	pinned              uint64
}

func used(t testing.TB, card string) resources {
	t.Helper()
	var all []struct {
		IfName string `json:"ifname"`
		resources
	}
	out := run(t, "rdma", "-j", "resource", "show", card)
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
		t.Fatalf("rdma resource show: %v: %s", err, out)
	}
	r := all[0].resources
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		n, _ := strconv.Atoi(fd.Name())
		if to, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(n)); err == nil && !strings.HasPrefix(to, "/proc/") {
			r.fds++
		}
	}
	r.pinned = pinnedBytes()
	return r
}
