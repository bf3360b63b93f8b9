package resp

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/kv/block"
)

// rival is a server that is measured, in a process of its own.
type rival struct {
	name, network, addr string
	pid                 int
}

// cpu is the processor time that the server has used so far.
func (r rival) cpu(t testing.TB) time.Duration {
	var ts unix.Timespec
	// the clock of a process: see clock_getcpuclockid
	if err := unix.ClockGettime(int32(^r.pid<<3|2), &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// startChild runs this test binary as a server.
func startChild(t testing.TB, addr string) rival {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+addr)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal("the child did not start: ", err)
	}
	r := rival{name: "cognitora", network: "tcp", addr: strings.TrimSpace(line), pid: cmd.Process.Pid}
	if addr[0] == '/' {
		r.network = "unix"
	}
	return r
}

// startRival runs a redis-server on the same kind of socket.
func startRival(t testing.TB, network string) rival {
	t.Helper()
	s, socket := startRedis(t)
	if network == "unix" {
		return rival{"redis", "unix", socket, s.PID()}
	}
	return rival{"redis", "tcp", s.At, s.PID()}
}

// sumCost is the cost of the checksum of a value that was just received, in ms of processor time
// per GB.
func sumCost(t testing.TB) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			t.Fatal(err)
		}
		return ts.Nano()
	}
	value := make([]byte, 512<<10)
	var costs []float64
	for range 256 {
		block.Sum(value) // brings it into the cache
		begun := now()
		block.Sum(value)
		costs = append(costs, float64(now()-begun)/float64(len(value))*1e3)
	}
	mid, _, _ := median(costs)
	return mid
}

// load is one measurement: values of one length over a number of connections.
type load struct {
	op    string
	size  int
	conns int
}

const working = 128 << 20 // bytes of all values together: more than caches have

func (l load) keys() int { return working / l.size }

// run requests total values from r. It returns bytes per second, and the server's processor time
// per byte.
func (l load) run(t testing.TB, r rival, clients []net.Conn, total int) (rate, cost float64) {
	var next atomic.Int64
	var group sync.WaitGroup
	cpu, begun := r.cpu(t), time.Now()
	for _, conn := range clients[:l.conns] {
		group.Go(func() {
			buf := make([]byte, l.size+64)
			value := buf[:l.size]
			for {
				i := next.Add(1)
				if i > int64(total) {
					return
				}
				key := fmt.Sprintf("k:%d:%d", l.size, i%int64(l.keys()))
				var err error
				if l.op == "SET" {
					err = setValue(conn, key, value)
				} else {
					err = getValue(conn, key, buf)
				}
				if err != nil {
					t.Errorf("%s: %v", r.name, err)
					return
				}
			}
		})
	}
	group.Wait()
	took, bytes := time.Since(begun), float64(total*l.size)
	return bytes / took.Seconds(), float64(r.cpu(t)-cpu) / bytes
}

func setValue(conn net.Conn, key string, value []byte) error {
	head := fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, len(value))
	pieces := net.Buffers{head, value, crlf}
	if _, err := pieces.WriteTo(conn); err != nil {
		return err
	}
	var reply [5]byte
	if _, err := io.ReadFull(conn, reply[:]); err != nil || string(reply[:]) != "+OK\r\n" {
		return fmt.Errorf("SET replies %q, %w", reply, err)
	}
	return nil
}

func getValue(conn net.Conn, key string, buf []byte) error {
	if _, err := fmt.Fprintf(conn, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key); err != nil {
		return err
	}
	size := len(buf) - 64
	want := 1 + len(strconv.Itoa(size)) + 2 + size + 2
	if _, err := io.ReadFull(conn, buf[:want]); err != nil || buf[0] != '$' || string(buf[want-2:want]) != "\r\n" {
		return fmt.Errorf("GET replies %q, %w", buf[:32], err)
	}
	return nil
}

// median is the middle of v and its 95 % interval, by order statistics.
func median(v []float64) (mid, low, high float64) {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	// The rank k for which a binomial of n halves is below k with at most 2.5 %.
	k, below, term := 0, 0.0, 1.0
	for range n {
		term /= 2
	}
	for i := 0; below+term <= 0.025; i++ {
		below += term
		term = term * float64(n-i) / float64(i+1)
		k = i + 1
	}
	return (s[(n-1)/2] + s[n/2]) / 2, s[max(k-1, 0)], s[min(n-k, n-1)]
}

// TestAgainstRedis prints throughput and processor time per byte beside redis-server's, as ratios
// of pairs that are measured one after the other. CGN_BENCH=1; CGN_BENCH_NET=unix; CGN_BENCH_ONLY:
// a regular expression of rows; CGN_BENCH_PAIRS: 24.
func TestAgainstRedis(t *testing.T) {
	if os.Getenv("CGN_BENCH") == "" {
		t.Skip("a measurement: CGN_BENCH=1 runs it")
	}
	network, addr := "tcp", "127.0.0.1:0"
	if os.Getenv("CGN_BENCH_NET") == "unix" {
		network, addr = "unix", filepath.Join(t.TempDir(), "ours.sock")
	}
	pairs, _ := strconv.Atoi(os.Getenv("CGN_BENCH_PAIRS"))
	if pairs == 0 {
		pairs = 24
	}
	only := regexp.MustCompile(os.Getenv("CGN_BENCH_ONLY"))
	theirs, ours := startRival(t, network), startChild(t, addr)
	t.Logf("over %s, medians of %d pairs with their 95 %% intervals, ours to redis; of ours %.0f ms/GB are the "+
		"checksum, which redis has not",
		network, pairs, sumCost(t))
	for _, size := range []int{1 << 20, 4 << 20} {
		for _, conns := range []int{1, 16} {
			for _, op := range []string{"SET", "GET"} {
				l := load{op, size, conns}
				name := fmt.Sprintf("%s %d MiB x%d", op, size>>20, conns)
				if only.MatchString(name) {
					l.compare(t, name, ours, theirs, pairs)
				}
			}
		}
	}
}

// compare measures ours and theirs in pairs, each of them first in turn, and prints a row.
func (l load) compare(t *testing.T, name string, ours, theirs rival, pairs int) {
	const total = 256 << 20 // bytes of one measurement
	rivals := []rival{ours, theirs}
	var clients [2][]net.Conn
	for i, r := range rivals {
		for range l.conns {
			conn, err := net.Dial(r.network, r.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			clients[i] = append(clients[i], conn)
		}
		fill := l
		fill.op = "SET"
		fill.run(t, r, clients[i], 2*l.keys())
	}
	var rates, costs, rate, cost []float64
	for p := range pairs {
		var r, c [2]float64
		for turn := range 2 {
			i := (p + turn) % 2
			r[i], c[i] = l.run(t, rivals[i], clients[i], total/l.size)
		}
		rates, costs = append(rates, r[0]/r[1]), append(costs, c[0]/c[1])
		rate, cost = append(rate, r[0]), append(cost, c[0])
	}
	m, low, high := median(rates)
	cm, clow, chigh := median(costs)
	rm, _, _ := median(rate)
	pm, _, _ := median(cost)
	t.Logf("%-13s throughput %.2f [%.2f, %.2f]  CPU per GB %.2f [%.2f, %.2f]   (%.2f GB/s, %.0f ms/GB)",
		name, m, low, high, cm, clow, chigh, rm/1e9, pm*1e9/1e6)
}
