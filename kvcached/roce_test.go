//go:build linux && cgo && rdma

package kvcached

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/rdma/devices"
)

func init() {
	childSettings = asOwner
}

// withCards makes a daemon use the card that RDMA_DEVICE names.
func withCards(c *Config) {
	if card := os.Getenv("RDMA_DEVICE"); card != "" {
		c.RDMA.Devices, c.RDMA.Trusted, c.RDMA.MinBlock, c.Daemon.SSD = []string{card}, []string{"192.0.2.0/24"},
			4096, 0
	}
}

// valueOf is the value of a key.
func valueOf(key string) []byte {
	var seed [32]byte
	copy(seed[:], key)
	b := make([]byte, 100_000)
	_, _ = rand.NewChaCha8(seed).Read(b)
	return bytes.ReplaceAll(b, []byte("\n"), []byte("n"))
}

// bring sets a key on one host and reads the key on another.
func bring(t *testing.T, to *Daemon, from, key string) {
	t.Helper()
	v := valueOf(key)
	command := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s", len(key), key, len(v), v)
	awaitThat(t, key+" is set", func() bool { return redis(t, from, command)[0] == "+OK" })
	awaitThat(t, key+" is known", func() bool { return redis(t, to.At("resp"), "EXISTS "+key)[0] == ":1" })
	awaitThat(t, key+" comes", func() bool { // a slow host is left out for a while
		got := redis(t, to.At("resp"), "GET "+key)[0]
		if got != string(v) && got != "$-1" {
			t.Errorf("%s has %d other bytes", key, len(got))
		}
		return got == string(v)
	})
}

// bringByCards repeats bring until a value came by RDMA.
func bringByCards(t *testing.T, to *Daemon, from, name string) {
	t.Helper()
	before, n := to.pool.Stats().RDMA.Reads, 0
	awaitThat(t, name+" by RDMA", func() bool {
		n++
		bring(t, to, from, fmt.Sprint(name, n))
		return to.pool.Stats().RDMA.Reads > before
	})
}

// TestRoCEDaemons reads blocks of one daemon from another by RDMA. The owner is killed during reads
// and comes back. The reader closes its card when it is told to.
func TestRoCEDaemons(t *testing.T) {
	if os.Getenv("RDMA_DEVICE") == "" {
		if os.Getenv("RDMA_REQUIRED") != "" {
			t.Fatal("RDMA_DEVICE names no card")
		}
		t.Skip("RDMA_DEVICE names no card: make check-rdma runs this in a virtual machine that has one")
	}
	s, dir := newSite(t), t.TempDir()
	a, _ := s.host(t, "a", func(c *Config) {
		withCards(c)
		// limits for an emulated machine
		c.Fleet.LocateTimeout, c.Fleet.AnswerTimeout = config.Duration(2*time.Second), config.Duration(2*time.Second)
	})
	from, _, kill := s.child(t, dir)
	meet(t, 2, a)
	bringByCards(t, a, from, "first")
	r, err := kv(t, a).Peers(t.Context(), &pb.PeersRequest{})
	if err != nil || len(r.Peers) != 1 || r.Peers[0].Lane != "rdma" || r.Peers[0].Pairs != 1 ||
		r.Devices[0].State != pb.RdmaDevice_STATE_OPEN {
		t.Error(r, err)
	}
	_, page := get(t, "http://"+a.AdminAddr().String()+"/metrics")
	if !strings.Contains(page, "\ncgn_kvcached_rdma_sessions 1\n") ||
		!strings.Contains(page, `cgn_kvcached_rdma_device_up{device="`) ||
		!strings.Contains(page, `cgn_kvcached_rdma_device_open{device="`+os.Getenv("RDMA_DEVICE")+`"} 1`) ||
		!strings.Contains(page, "cgn_kvcached_rdma_demanded_missing 0") {
		t.Error("the metrics do not say so")
	}
	cardCounts(t, a, from)
	s.killed(t, a, dir, from, kill)
	from, _, _ = s.child(t, dir)
	meet(t, 2, a)
	bringByCards(t, a, from, "again")
	released, err := kv(t, a).ReleaseDevice(t.Context(), &pb.ReleaseDeviceRequest{Device: os.Getenv("RDMA_DEVICE")})
	if err != nil || released.Pairs == 0 || released.WasNotOpen {
		t.Error(released, err)
	}
	for i := range 5 {
		bring(t, a, from, fmt.Sprint("released", i))
	}
	if r, err = kv(t, a).Peers(t.Context(), &pb.PeersRequest{}); err != nil || r.Peers[0].Lane == "rdma" ||
		r.Devices[0].State != pb.RdmaDevice_STATE_RELEASED || r.Devices[0].Why == "" {
		t.Error(r, err)
	}
	t.Logf("%+v", a.pool.Stats().RDMA)
}

// cardCounts checks that the daemon exports its card's counters. The counters must grow by the
// packets of a block that is read.
func cardCounts(t *testing.T, a *Daemon, from string) {
	t.Helper()
	card, packets := os.Getenv("RDMA_DEVICE"), uint64(len(valueOf(""))/4096)
	before := devices.Read("/", card)
	if len(before) == 0 {
		t.Fatal("the card has no counters")
	}
	bringByCards(t, a, from, "counted")
	for i, c := range devices.Counters {
		if c.Name != "sent_packets_total" && c.Name != "received_packets_total" {
			continue
		}
		line := fmt.Sprintf("\ncgn_kvcached_rdma_device_%s{device=%q,port=\"%d\"} ", c.Name, card, before[0].Port)
		var said float64
		awaitThat(t, c.Name+" grows", func() bool { // the counters are read once a second at most
			_, page := get(t, "http://"+a.AdminAddr().String()+"/metrics")
			_, rest, _ := strings.Cut(page, line)
			value, _, _ := strings.Cut(rest, "\n")
			said, _ = strconv.ParseFloat(value, 64)
			return before[0].Known[i] && said >= float64(before[0].Values[i]+packets)
		})
		t.Logf("%s: %d, and %.0f after a block by RDMA", c.Name, before[0].Values[i], said)
	}
}

// ended is the number of RDMA reads that the end of the other daemon cut off. The daemon repeated
// these reads over a stream.
func ended(d *Daemon) (n uint64) {
	for _, why := range []string{"access", "unreachable", "broken", "timeout"} {
		n += d.pool.Stats().RDMA.Fallbacks[why]
	}
	return n
}

// killed ends the other daemon while its blocks are read by RDMA. The bytes of a block that arrives
// must be right. killed tries again if no read was under way at that moment.
func (s site) killed(t *testing.T, a *Daemon, dir, from string, kill func()) {
	t.Helper()
	for round := range 10 {
		before := ended(a)
		killedOnce(t, a, from, fmt.Sprint("killed", round, "-"), kill)
		n := ended(a) - before
		if t.Logf("%d reads were under way", n); n > 0 {
			return
		}
		from, _, kill = s.child(t, dir)
		meet(t, 2, a)
		bringByCards(t, a, from, fmt.Sprint("anew", round, "-"))
	}
	t.Error("it was never killed while a block was read")
}

// killedOnce kills the daemon once one block has come by RDMA, or all blocks have come another way.
// A value that the owner did not confirm before the kill is dropped.
func killedOnce(t *testing.T, a *Daemon, from, name string, kill func()) {
	t.Helper()
	const keys, readers, size = 24, 8, 1 << 20
	value := func(key string) string { return strings.Repeat(key+" ", size/(len(key)+1)) }
	for i := range keys {
		key := fmt.Sprint(name, i)
		v := value(key)
		if got := redis(t, from, fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s", len(key), key, len(v),
			v)); got[0] != "+OK" {
			t.Fatal(got[0])
		}
	}
	reads := a.pool.Stats().RDMA.Reads
	var all sync.WaitGroup
	came := make(chan string, keys)
	var over atomic.Int64
	for first := range readers {
		all.Go(func() {
			defer over.Add(1)
			for i := first; i < keys; i += readers {
				key := fmt.Sprint(name, i)
				switch got, err := redisAsked(a.At("resp"), "GET "+key); {
				case err != nil:
					t.Error(err)
				case got[0] == value(key):
					came <- key
				case got[0] != "$-1":
					t.Errorf("%s has %d other bytes", key, len(got[0]))
				}
			}
		})
	}
	awaitThat(t, "a block comes by RDMA", func() bool {
		return a.pool.Stats().RDMA.Reads > reads && len(came) > 0 || over.Load() == readers
	})
	kill()
	all.Wait()
	t.Logf("%d of %d blocks came, %d were read by RDMA", len(came), keys, a.pool.Stats().RDMA.Reads-reads)
}
