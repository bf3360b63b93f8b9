//go:build linux && cgo && rdma

package kvcached

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

const (
	nobody     = 65534   // a user whom the limit of locked memory binds; root has CAP_IPC_LOCK
	lowMemlock = 8 << 20 // lower than the arena's size
)

// ofNobody makes the user nobody the owner of files and makes their parent folder passable.
func ofNobody(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
			t.Fatal(err)
		}
		if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chown(path, nobody, nobody)
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRoCEMemlock runs a daemon whose user may lock too little memory. The log names the limit and
// the fix, and blocks come over QUIC. Once the limit is raised, blocks come by RDMA without a
// restart.
func TestRoCEMemlock(t *testing.T) {
	card := os.Getenv("RDMA_DEVICE")
	if card == "" {
		if os.Getenv("RDMA_REQUIRED") != "" {
			t.Fatal("RDMA_DEVICE names no card")
		}
		t.Skip("RDMA_DEVICE names no card: make check-rdma runs this in a virtual machine that has one")
	}
	s, dir, log := newSite(t), t.TempDir(), &logText{}
	ofNobody(t, s.pki, dir)
	var process *exec.Cmd
	childCommand = func(c *exec.Cmd) {
		process = c
		script := fmt.Sprintf(`ulimit -S -l %d && exec "$0" "$@"`, lowMemlock>>10)
		c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c", script}, c.Args...)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		c.Stderr = log
	}
	t.Cleanup(func() { childCommand = func(*exec.Cmd) {} })
	a, _ := s.host(t, "a", withCards)
	from, _, _ := s.child(t, dir)
	meet(t, 2, a)
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kv.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	r, err := pb.NewKvClient(conn).Peers(t.Context(), &pb.PeersRequest{})
	if err != nil || len(r.Devices) != 1 || r.Devices[0].Name != card ||
		r.Devices[0].State != pb.RdmaDevice_STATE_UNUSABLE {
		t.Fatal(r, err)
	}
	for _, part := range []string{"limit of locked memory", fmt.Sprint(lowMemlock), "33 MiB", "LimitMEMLOCK=infinity",
		"ulimit -l"} {
		if !strings.Contains(r.Devices[0].Why, part) || !strings.Contains(log.String(), part) {
			t.Errorf("%q is missing in %q, or in the log:\n%s", part, r.Devices[0].Why, log)
		}
	}
	for i := range 5 {
		bring(t, a, from, fmt.Sprint("locked", i))
	}
	if stats := a.pool.Stats().RDMA; stats.Reads != 0 || stats.Fallbacks["no_session"] < 5 {
		t.Errorf("%+v", stats)
	}
	_, page := get(t, "http://"+a.AdminAddr().String()+"/metrics")
	if !strings.Contains(page, `cgn_kvcached_rdma_fallbacks_total{reason="no_session"} `) {
		t.Error("the metrics do not say so")
	}
	t.Logf("%s", r.Devices[0].Why)
	if err := unix.Prlimit(process.Process.Pid, unix.RLIMIT_MEMLOCK,
		&unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, nil); err != nil {
		t.Fatal(err)
	}
	bringByCards(t, a, from, "raised")
}
