//go:build linux && cgo && rdma

package kvcached

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
)

const (
	// ownersAdmin is the address of the first host's metrics.
	ownersAdmin = "127.0.0.1:9093"
	// cableOut is the time that the cable stays out. The cable stays out longer than a read may
	// take.
	cableOut = 6 * time.Second
)

// onHost makes the daemons of two machines reachable for each other.
func onHost(c *Config) {
	withCards(c)
	if self := os.Getenv("VM_SELF"); self != "" {
		c.QUIC.Listen, c.RDMA.Grant = self+":0", config.Duration(30*time.Second)
	}
}

// asOwner changes the configuration of the first host's daemon.
func asOwner(c *Config) {
	onHost(c)
	if os.Getenv("VM_SELF") != "" {
		// a lease that a busy machine can keep
		c.Daemon.Heartbeat = config.Duration(5 * time.Second)
		// the same addresses after a restart
		c.Daemon.Admin, c.Daemon.RAM, c.QUIC.Listen = ownersAdmin, 256<<20, os.Getenv("VM_SELF")+":7072"
	}
}

// TestTwoHosts runs in two virtual machines with a daemon in each. The second host's daemon reads
// blocks of the first host's.
func TestTwoHosts(t *testing.T) {
	switch os.Getenv("VM_HOST") {
	case "1":
		newOwner(t).obey()
	case "2":
		h := newReader(t)
		h.cost()
		h.faults()
		h.tell(order{Do: "end"})
	default:
		t.Skip("VM_HOST is not set: make check-rdma runs this in two virtual machines")
	}
}

// order is a request of the second host to the first.
type order struct {
	Do      string
	From, N int // blocks
	Size    int // bytes of each block
}

// report is the first host's answer.
type report struct {
	Etcd    string
	Files   map[string][]byte // files of the fleet's certificates
	CPU     time.Duration     // used by the daemon's process since its start
	Host    time.Duration     // CPU used by the machine since its start
	Runs    int64             // number of times that the daemon's threads got a CPU
	Metrics map[string]float64
}

// owner is the first host, which owns the blocks.
type owner struct {
	t    *testing.T
	site site
	dir  string // directory of the daemon
	resp string // address of the daemon
	kill func()
	in   *json.Decoder
	out  *json.Encoder
}

func newOwner(t *testing.T) *owner {
	h := &owner{t: t, site: site{pki: t.TempDir()}, dir: t.TempDir()}
	if err := pki.Bootstrap(h.site.pki, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	etcd, err := etcdserver.Start(t.TempDir(), os.Getenv("VM_SELF")+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	h.site.etcd = etcd.Endpoint()
	h.start()
	l, err := net.Listen("tcp", os.Getenv("VM_SELF")+":7000")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(2 * time.Minute))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(8 * time.Minute))
	h.in, h.out = json.NewDecoder(c), json.NewEncoder(c)
	return h
}

func (h *owner) start() { h.resp, _, h.kill = h.site.child(h.t, h.dir) }

// obey carries out orders until the order to end.
func (h *owner) obey() {
	for {
		var o order
		if err := h.in.Decode(&o); err != nil {
			h.t.Fatal(err)
		}
		var r report
		switch o.Do {
		case "join":
			r.Etcd, r.Files = h.site.etcd, h.files()
		case "set":
			h.set(o)
		case "spent":
			r.CPU, r.Runs = h.spent()
			r.Host = hostCPU(h.t)
		case "metrics":
			r.Metrics = h.metrics()
		case "pull the cable":
			h.cable("off", "0")
			<-time.After(cableOut)
			h.cable("on", "1")
		case "drop RoCE":
			dropRoCE(h.t)
		case "let RoCE through":
			letRoCEThrough(h.t)
		case "release the card":
			releaseCard(h.t, filepath.Join(h.dir, "kv.sock"))
		case "kill":
			h.kill()
		case "start":
			h.start()
		}
		if err := h.out.Encode(r); err != nil {
			h.t.Fatal(err)
		}
		if o.Do == "end" {
			return
		}
	}
}

func (h *owner) files() map[string][]byte {
	out := map[string][]byte{}
	entries, err := os.ReadDir(h.site.pki)
	for _, e := range entries {
		if err == nil {
			out[e.Name()], err = os.ReadFile(filepath.Join(h.site.pki, e.Name()))
		}
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *owner) set(o order) {
	var commands []string
	for i := o.From; i < o.From+o.N; i++ {
		key, v := numbered(i), contents(i, o.Size)
		commands = append(commands, fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s", len(key), key, len(v), v))
	}
	for i, reply := range redis(h.t, h.resp, commands...) {
		if reply != "+OK" {
			h.t.Errorf("block %d is not set: %s", o.From+i, reply)
		}
	}
}

// spent is the CPU time that the daemon's process has used, and the number of times that its
// threads got a CPU.
func (h *owner) spent() (cpu time.Duration, runs int64) {
	var pid string
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range tasks {
		text, _ := os.ReadFile(file)
		pid += strings.TrimSpace(string(text))
	}
	threads, _ := filepath.Glob("/proc/" + pid + "/task/*/schedstat")
	for _, file := range threads {
		text, _ := os.ReadFile(file)
		var ran, waited, times int64
		if _, err := fmt.Sscan(string(text), &ran, &waited, &times); err != nil {
			h.t.Error(err)
		}
		cpu, runs = cpu+time.Duration(ran), runs+times
	}
	if len(threads) == 0 {
		h.t.Errorf("no process %q", pid)
	}
	return cpu, runs
}

// hostCPU is the CPU time that this machine has used, to 10 ms.
func hostCPU(t *testing.T) time.Duration {
	text, err := os.ReadFile("/proc/stat")
	var user, nice, system, idle, waits, irq, softirq int64
	if err == nil {
		_, err = fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &waits, &irq,
			&softirq)
	}
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+nice+system+irq+softirq) * 10 * time.Millisecond
}

// metrics returns the daemon's metrics without labels.
func (h *owner) metrics() map[string]float64 {
	_, page := get(h.t, "http://"+ownersAdmin+"/metrics")
	http.DefaultClient.CloseIdleConnections()
	out := map[string]float64{}
	for line := range strings.Lines(page) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil && strings.HasPrefix(name, "cgn_") {
			out[strings.TrimPrefix(name, "cgn_kvcached_")] = v
		}
	}
	return out
}

// cable makes perf/vm/vm.sh pull the cable out or put it in. cable returns when the kernel has seen
// the change.
func (h *owner) cable(what, carrier string) {
	fmt.Println("@@ cable", what)
	awaitThat(h.t, "the cable is "+what, func() bool {
		text, _ := os.ReadFile("/sys/class/net/eth0/carrier")
		return strings.TrimSpace(string(text)) == carrier
	})
}

func numbered(i int) string { return block.Text(testSpace.String(), testAddr(i)) }

// contents is the payload of block i.
func contents(i, size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(b)
	return b
}
