package rdma

import (
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached"

	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/ctl/cache"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/ctltest"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// rdmaTree returns a folder like a host with soft-RoCE on eth0. Package rdma/devices has recorded
// folders of real hosts.
func rdmaTree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	device, verbs := "/sys/devices/virtual/infiniband/rxe0/", "/sys/devices/virtual/infiniband_verbs/uverbs0/"
	for path, text := range map[string]string{
		device + "parent": "eth0", device + "ports/1/state": "4: ACTIVE", device + "ports/1/phys_state": "5: LinkUp",
		device + "ports/1/link_layer":        "Ethernet",
		device + "ports/1/rate":              "10 Gb/sec (1X FDR10)",
		device + "ports/1/gids/1":            "0000:0000:0000:0000:0000:ffff:c000:0201",
		device + "ports/1/gid_attrs/types/1": "RoCE v2", device + "ports/1/gid_attrs/ndevs/1": "eth0",
		verbs + "ibdev":           "rxe0",
		"/sys/class/net/eth0/mtu": "9000", "/dev/infiniband/uverbs0": "",
		"/proc/self/limits": "Max locked memory         8388608              8388608              bytes",
	} {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"infiniband/rxe0": device, "infiniband_verbs/uverbs0": verbs} {
		at := filepath.Join(root, "/sys/class", link)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../.."+strings.TrimSuffix(to, "/"), at); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// bareTree returns a folder like a host without RDMA.
func bareTree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"sys", "proc"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestRDMADevices(t *testing.T) {
	out, err := ctl(t, nil, "rdma", "devices", "--root", rdmaTree(t))
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "DEVICE", "rxe0", "ACTIVE", "9000", "192.0.2.1", "rdma_rxe")
	var all []map[string]any
	out, err = ctl(t, nil, "rdma", "devices", "--root", rdmaTree(t), "-o", "json")
	if err != nil || json.Unmarshal([]byte(out), &all) != nil || len(all) != 1 || all[0]["driver"] != "rdma_rxe" {
		t.Errorf("%v: %s", err, out)
	}
	if out, err = ctl(t, nil, "rdma", "devices", "--root", bareTree(t)); err != nil ||
		!strings.Contains(out, "has no RDMA device") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err = ctl(t, nil, "rdma", "devices", "--root", bareTree(t), "-o", "json"); err != nil || out != "[]\n" {
		t.Errorf("%v: %s", err, out)
	}
	for _, what := range []string{"devices", "check"} {
		if _, err = ctl(t, nil, "rdma", what, "--root", "/nonexist"); err == nil ||
			!strings.Contains(err.Error(), "--root /nonexist: there is no such folder") {
			t.Errorf("%s: %v", what, err)
		}
		if _, err = ctl(t, nil, "rdma", what, "--root", t.TempDir()); err == nil ||
			!strings.Contains(err.Error(), "has no sys and proc: is it the host's root?") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A host without ports, in text and as JSON.
	root := rdmaTree(t)
	if err := os.RemoveAll(filepath.Join(root, "sys/devices/virtual/infiniband/rxe0/ports")); err != nil {
		t.Fatal(err)
	}
	if out, err = ctl(t, nil, "rdma", "devices", "--root", root, "-o", "json"); err != nil ||
		strings.Contains(out, "null") {
		t.Errorf("%v: %s", err, out)
	}
	if out, _ = ctl(t, nil, "rdma", "check", "--root", root, "--arena", "1MiB"); !strings.Contains(out,
		"rxe0    -     no") || !strings.Contains(out, "rxe0 port -: the device has no port") {
		t.Error(out)
	}
}

func TestRDMACheck(t *testing.T) {
	root, nobody := rdmaTree(t), map[string]string{cache.Variable: filepath.Join(t.TempDir(), "kv.sock")}
	out, err := ctl(t, nobody, "rdma", "check", "--root", root, "--arena", "8MiB")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "rxe0", "yes", "192.0.2.1", "not asked what it makes of them: no cache daemon answers")
	out, err = ctl(t, nobody, "rdma", "check", "--root", root, "--arena", "1GiB")
	if err == nil {
		t.Error("an arena beyond the limit passes")
	}
	ctltest.Want(t, out, "PROBLEM: this process may lock 8 MiB, and the arena has 1 GiB", "LimitMEMLOCK=infinity",
		"1      memlock")
	if out, _ = ctl(t, nobody, "rdma", "check", "--root", bareTree(t)); !strings.HasPrefix(out,
		"PROBLEM: no RDMA device") {
		t.Errorf("%q", out)
	}
	out, err = ctl(t, nobody, "rdma", "check", "--root", bareTree(t), "-o", "json")
	var v struct {
		Usable bool
		Host   []struct{ Code string }
		Daemon any
	}
	if err == nil || json.Unmarshal([]byte(out), &v) != nil || v.Usable || len(v.Host) == 0 ||
		v.Host[0].Code != "no_device" || v.Daemon != nil {
		t.Errorf("%v: %s", err, out)
	}
	if _, err = ctl(t, nobody, "rdma", "check", "--arena", "much"); err == nil ||
		!strings.Contains(err.Error(), "64GiB") {
		t.Error(err)
	}
	daemon := &ctltest.LaneServer{Told: &pb.PeersResponse{Devices: []*pb.RdmaDevice{{Name: "rxe0",
		State: pb.RdmaDevice_STATE_UNUSABLE, Why: "built without rdma"}}}}
	sock := ctltest.Serve(t, daemon)
	out, err = ctl(t, map[string]string{cache.Variable: sock}, "rdma", "check", "--root", root)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "as the cache daemon at "+sock+" has its devices:", "unusable  built without rdma",
		"note: the limit of locked memory is that of "+root+"/proc/self, not of the cache daemon at "+sock+
			", whose process is not looked for below --root")
	for _, args := range [][]string{{"rdma", "release", "rxe0"}, {"rdma", "check", "--root", root}} {
		if _, err = ctl(t, nil, append(args, "--sock", sock, "--address", "127.0.0.1:1")...); err == nil ||
			!strings.Contains(err.Error(), "--sock and --address both") {
			t.Error(args, err)
		}
	}
	if _, err = ctl(t, map[string]string{cache.Variable: sock}, "rdma", "release", "rxe0", "--address",
		"127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "needs --tls-ca") {
		t.Error(err)
	}
}

// TestListener: the checked limit is that of the listening process.
func TestListener(t *testing.T) {
	if got := listener(ctltest.Serve(t, &ctltest.LaneServer{})); got != os.Getpid() {
		t.Errorf("%d, want %d", got, os.Getpid())
	}
	if got := listener(filepath.Join(t.TempDir(), "none")); got != 0 {
		t.Errorf("%d", got)
	}
}

func TestRDMARelease(t *testing.T) {
	env := map[string]string{cache.Variable: ctltest.Serve(t, &ctltest.LaneServer{})}
	out, err := ctl(t, env, "rdma", "release", "rxe0")
	if err != nil || !strings.Contains(out, "rxe0 is closed, and with it 3 queue pairs, by the cache daemon at "+
		env[cache.Variable]) {
		t.Errorf("%v: %s", err, out)
	}
	if out, err = ctl(t, env, "rdma", "release", "rxe1"); err != nil || !strings.Contains(out, "rxe1 was not open") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err = ctl(t, env, "rdma", "release", "busy"); err == nil ||
		!strings.Contains(ctltest.Hint(err), "says when it is closed") {
		t.Errorf("%v: %s", err, ctltest.Hint(err))
	}
	_, err = ctl(t, env, "rdma", "release", "mlx5_0")
	if err == nil || err.Error() != "this daemon does not use mlx5_0" || !strings.Contains(ctltest.Hint(err),
		"kv peers") {
		t.Errorf("%v: %s", err, ctltest.Hint(err))
	}
	env[cache.Variable] = ctltest.Serve(t, &pb.UnimplementedKvServer{})
	if _, err = ctl(t, env, "rdma", "release", "rxe0"); err == nil ||
		!strings.Contains(ctltest.Hint(err), "make build-rdma") {
		t.Errorf("%v: %s", err, ctltest.Hint(err))
	}
}

// TestRDMADaemon calls a daemon that uses no device.
func TestRDMADaemon(t *testing.T) {
	_, sock := ctltest.StartCache(t)
	env := map[string]string{cache.Variable: sock}
	if _, err := ctl(t, env, "rdma", "release", "rxe0"); err == nil ||
		!strings.Contains(err.Error(), `does not use a device "rxe0"`) {
		t.Error(err)
	}
	out, err := ctl(t, env, "rdma", "check", "--root", rdmaTree(t))
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "the cache daemon at "+sock+" is to use no device")
}

// TestADaemonThatHangs: the daemon accepts connections and never answers.
func TestADaemonThatHangs(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "kv.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := cache.Daemon{Sock: sock, Limit: 100 * time.Millisecond}
	err = d.Soon(t.Context(), func(ctx context.Context, c pb.KvClient) error {
		_, err := c.Stats(ctx, &pb.StatsRequest{})
		return err
	})
	released := (&host{App: &cli.App{}, Daemon: d}).release(t.Context(), "rxe0")
	for _, err := range []error{err, released} {
		if err == nil || !strings.Contains(err.Error(), sock+" does not answer in time") || ctltest.Hint(err) == "" {
			t.Errorf("%v, %s", err, ctltest.Hint(err))
		}
	}
}

// TestRegrantOverTCP: the command works over TCP with a certificate of the permitted role.
func TestRegrantOverTCP(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	d, _ := ctltest.StartCache(t, func(c *kvcached.Config) {
		own := pki.FilesIn(dir, pki.KVCached)
		c.TLS, c.GRPC.Listen = kvcached.TLSConfig{CA: own.CA, Cert: own.Cert, Key: own.Key}, "127.0.0.1:0"
	})
	own := pki.FilesIn(dir, pki.Ctl)
	if _, err := ctl(t, nil, "rdma", "release", "rxe0", "--address", d.At("grpc"), "--tls-ca", own.CA, "--tls-cert",
		own.Cert, "--tls-key", own.Key); err == nil || !strings.Contains(err.Error(), "does not use a device") {
		t.Error(err)
	}
}
