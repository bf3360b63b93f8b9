package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/ctl/cache"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/listen"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/rdma/devices"
)

// daemonWait is how long a check waits for the daemon. The check does not need the daemon.
const daemonWait = 2 * time.Second

// checked is the result of rdma check.
type checked struct {
	devices.Report
	PID int `json:"memlock_pid"` // process whose limit was checked; 0: cgn-ctl itself
	// the daemon's view of its devices; null: no daemon answers, or it has no RDMA
	Daemon *[]cache.Device `json:"daemon"`
	daemon error           // why Daemon is null
	asked  string          // name of the daemon
	limit  string          // why the limit is not the daemon's; empty: it is, or no daemon answers
}

func (r *host) check(ctx context.Context, arena uint64, pid int) error {
	if pid < 0 {
		return cli.Misused(fmt.Errorf("--pid %d: must be that of a process, or 0", pid))
	}
	if err := cmp.Or(r.Ambiguous(), r.rooted()); err != nil {
		return err
	}
	if pid == 0 && r.root == "/" && r.Address == "" {
		pid = listener(r.Path())
	}
	v := checked{Report: devices.Check(devices.Options{Root: r.root, Arena: arena, PID: pid}), PID: pid,
		asked: r.Name()}
	ctx, cancel := context.WithTimeout(ctx, daemonWait)
	defer cancel()
	v.daemon = r.Call(ctx, func(ctx context.Context, client pb.KvClient) error {
		told, err := client.Peers(ctx, &pb.PeersRequest{})
		if err == nil {
			v.Daemon = cache.DevicesOf(told)
		}
		return err
	})
	if v.daemon == nil && pid == 0 {
		v.limit = r.whoseLimit()
	}
	if err := r.Show(v, v.write); err != nil {
		return err
	}
	if !v.Usable {
		return cli.WithHint(errors.New("no RDMA device of this host can be used"),
			"a cache without one moves blocks over QUIC, as do all towards it")
	}
	return nil
}

// whoseLimit returns why the limit is not that of the answering daemon.
func (r *host) whoseLimit() string {
	why := "whose process cannot be seen from here"
	switch {
	case r.Address != "":
		why = "which may be on another host"
	case r.root != "/":
		why = "whose process is not looked for below --root, where it may have another number"
	}
	return fmt.Sprintf("note: the limit of locked memory is that of %s, not of %s, %s\n  give its process with --pid",
		filepath.Join(r.root, "proc/self"), r.Name(), why)
}

// listener returns the process that listens on a Unix socket; 0: no process listens, or the process
// cannot be seen.
func listener(path string) int {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	peer, _ := listen.PeerOf(raw) // an error leaves 0
	return int(peer.PID)
}

func (v *checked) write(t *cli.Table) {
	if len(v.Ports) > 0 {
		t.Row("DEVICE", "PORT", "USABLE", "ADDRESS", "INDEX", "LACKS")
	}
	for _, p := range v.Ports {
		usable, address, index := "no", "-", "-"
		if p.Usable {
			usable = "yes"
		}
		if p.GID != nil {
			address, index = p.GID.Address().String(), fmt.Sprint(p.GID.Index)
		}
		t.Row(p.Device, cell.Limit(p.Port), usable, address, index, lacks(slices.Concat(v.Host, p.Problems)))
	}
	texts := problemTexts("", v.Host)
	for _, p := range v.Ports {
		texts = append(texts, problemTexts(fmt.Sprintf("%s port %s: ", p.Device, cell.Limit(p.Port)), p.Problems)...)
	}
	if v.limit != "" {
		texts = append(texts, v.limit)
	}
	switch {
	case v.daemon != nil:
		texts = append(texts, fmt.Sprintf("not asked what it makes of them: %v", v.daemon))
	case len(*v.Daemon) == 0:
		texts = append(texts, v.asked+" is to use no device: its rdma.devices is empty, or it knows no other cache "+
			"(etcd.endpoints, quic.listen)")
	default:
		texts = append(texts, "as "+v.asked+" has its devices:")
	}
	for i, text := range texts {
		if i > 0 || len(v.Ports) > 0 {
			t.Line("")
		}
		t.Line(text)
	}
	if v.daemon == nil && len(*v.Daemon) > 0 {
		cache.WriteDevices(t, *v.Daemon)
	}
}

// lacks names the problems that prevent the use of a port.
func lacks(problems []devices.Problem) string {
	var codes []string
	for _, p := range problems {
		if p.Blocks {
			codes = append(codes, string(p.Code))
		}
	}
	return cell.Dash(strings.Join(codes, ","))
}

func problemTexts(where string, problems []devices.Problem) (texts []string) {
	for _, p := range problems {
		kind := "note"
		if p.Blocks {
			kind = "PROBLEM"
		}
		texts = append(texts, fmt.Sprintf("%s: %s%s\n  %s", kind, where, p.What, p.Fix))
	}
	return texts
}
