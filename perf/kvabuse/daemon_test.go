package kvabuse

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/process"
)

// soon is the time limit for operations that take no time on an idle machine.
const soon = time.Minute

// daemon is a cgn-kvcached that a test starts, kills and restarts.
type daemon struct {
	program string
	dir     string // directory of logs, configuration and, by default, data
	data    string
	grpc    string // path of the gRPC socket
	lease   string
	resp    string
	s3      string
	quic    string
	admin   string
	flags   []string // in addition to those that follow from the fields above
	starts  int
	process *process.Process // nil: not running
}

// newDaemon prepares a daemon with these flags. The daemon is killed at the latest at the end of
// the test.
func newDaemon(t *testing.T, flags ...string) *daemon {
	t.Helper()
	program := os.Getenv("KVABUSE")
	if program == "" {
		t.Skip("needs the built program; make check-kill and make check-abuse run this")
	}
	dir, err := os.MkdirTemp("", "kvabuse") // t.TempDir would be too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{program: program, dir: dir, data: filepath.Join(dir, "data"), flags: flags}
	d.grpc, d.lease = filepath.Join(dir, "kv.sock"), filepath.Join(dir, "kv-lease.sock")
	d.resp, d.s3, d.quic, d.admin = freePort(t), freePort(t), freePort(t), freePort(t)
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			t.Logf("the daemon's logs and data are left in %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	return d
}

// freePort returns an address outside the range of ephemeral ports, so that it stays free between
// two starts.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))
		l, err := net.Listen("tcp", address)
		if err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}

// launch starts the daemon without waiting for it.
func (d *daemon) launch(t *testing.T) {
	t.Helper()
	d.starts++
	argv := append([]string{
		d.program, "--data", d.data, "--sock", d.grpc, "--resp", d.resp, "--s3", d.s3, "--quic", d.quic, "--admin",
		d.admin,
	}, d.flags...)
	p, err := process.Start(d.dir, "daemon-"+strconv.Itoa(d.starts%8), argv, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.process = p
}

// start launches the daemon and waits until it answers.
func (d *daemon) start(t *testing.T) {
	t.Helper()
	d.launch(t)
	d.await(t)
}

// await waits until the daemon answers.
func (d *daemon) await(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(soon); ; {
		err := d.ping()
		if err == nil {
			return
		}
		if _, ended := d.process.Usage(); ended != nil || time.Now().After(end) {
			err = d.process.Explain(fmt.Errorf("it does not answer: %w", err))
			d.signal(syscall.SIGQUIT) // its log then shows where it hangs
			eventually(t, "it ends on SIGQUIT", func() bool { _, ended := d.process.Usage(); return ended != nil })
			t.Fatal(err)
		}
		pause(2 * time.Millisecond)
	}
}

// ping checks over RESP that the daemon answers.
func (d *daemon) ping() error {
	c, err := net.DialTimeout("tcp", d.resp, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != "+PONG\r\n" {
		err = fmt.Errorf("PING is answered %q", line)
	}
	return err
}

// pause is the time between two checks of a condition that causes no event.
func pause(d time.Duration) { <-time.After(d) }

// eventually polls until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !ok(); pause(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after %s: %s", soon, what)
		}
	}
}

// signal sends the daemon a signal.
func (d *daemon) signal(s syscall.Signal) { _ = syscall.Kill(d.process.PID(), s) }

// kill ends the daemon with SIGKILL and waits for its end.
func (d *daemon) kill() {
	if d.process != nil {
		d.signal(syscall.SIGKILL)
		d.process.Stop()
		d.process = nil
	}
}

// alive fails the test if the daemon does not answer.
func (d *daemon) alive(t *testing.T) {
	t.Helper()
	if err := d.ping(); err != nil {
		t.Fatal(d.process.Explain(fmt.Errorf("it does not serve any more: %w", err)))
	}
}

// metrics returns the daemon's metrics without labels, by name without cgn_kvcached_.
func (d *daemon) metrics(t *testing.T) map[string]float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", "http://"+d.admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	r, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if rest, ours := strings.CutPrefix(name, "cgn_kvcached_"); ours {
			all[rest], _ = strconv.ParseFloat(value, 64)
		}
	}
	return all
}

// memory is the use of memory, without files and the arena, in bytes: the process's own, and the
// system's for all sockets.
type memory struct {
	anonymous int64 // RssAnon of the daemon
	sockets   int64 // pages of all TCP sockets of this machine
	files     int   // open file descriptors
}

func (d *daemon) memory(t *testing.T) (m memory) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", d.process.PID())
	text, err := os.ReadFile(dir + "status")
	if err != nil {
		t.Fatal(d.process.Explain(err))
	}
	_, after, _ := strings.Cut(string(text), "RssAnon:")
	_, _ = fmt.Sscan(after, &m.anonymous)
	m.anonymous <<= 10
	if files, err := os.ReadDir(dir + "fd"); err == nil {
		m.files = len(files)
	}
	text, _ = os.ReadFile("/proc/net/sockstat")
	if _, after, there := strings.Cut(string(text), "TCP:"); there {
		_, after, _ = strings.Cut(after, "mem ")
		_, _ = fmt.Sscan(after, &m.sockets)
		m.sockets *= int64(os.Getpagesize())
	}
	return m
}

// mib formats a number of bytes.
func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
