//go:build linux && cgo && rdma

package transport

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// inUse counts the kernel's objects of the card, and this process's resources.
type inUse struct {
	QP, CQ, PD, MR, Ctx int
	pinned              int // KiB of memory that is registered with cards
	fds, goroutines     int
}

// heapUsed returns the bytes of Go's heap. The memory that a process keeps says nothing about what
// it has left behind: allocators and the kernel keep some for later. What C allocates belongs to
// one of the counted objects.
func heapUsed() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// pinned returns the KiB of this process's memory that cards may access.
func pinned(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if _, rest, there := strings.Cut(string(text), "VmPin:"); err == nil && there {
		_, err = fmt.Sscan(rest, &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func used(t *testing.T) inUse {
	t.Helper()
	card := os.Getenv("RDMA_DEVICE")
	out, err := exec.CommandContext(t.Context(), "rdma", "-j", "resource", "show", card).CombinedOutput()
	var all []inUse
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil || len(all) != 1 {
		t.Fatalf("rdma resource show: %v: %s", err, out)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	all[0].pinned, all[0].fds, all[0].goroutines = pinned(t), len(fds), runtime.NumGoroutine()
	return all[0]
}

// awaitUsed waits until no more is in use than before. The number of the card's objects and the
// bytes registered with it must be the same as before. Both sides end in the background.
func awaitUsed(t *testing.T, what string, before inUse) {
	t.Helper()
	now := before
	defer func() {
		if t.Failed() {
			t.Logf("in use before: %+v, now: %+v", before, now)
		}
	}()
	awaited(t, what+" are gone", func() bool {
		now = used(t)
		cards := now
		cards.fds, cards.goroutines = before.fds, before.goroutines
		return cards == before && now.fds <= before.fds && now.goroutines <= before.goroutines
	})
}

// byCards reads a block by RDMA. On a busy host a block may come by QUIC, and byCards reads it
// again, mostTries times in all.
func (s *twoStores) byCards() {
	s.t.Helper()
	reads := s.pool.Stats().RDMA.Reads
	for range mostTries {
		s.awaitCards("a session")
		if there, err := s.come(s.t.Context(), 1); !there || err != nil {
			s.t.Fatal(there, err)
		}
		if s.pool.Stats().RDMA.Reads > reads {
			return
		}
	}
	s.t.Fatalf("no block of %d came by RDMA: %+v", mostTries, s.pool.Stats().RDMA)
}

// cycle makes a session, reads a block with it, and ends it as if it were unused for long.
func (s *twoStores) cycle() {
	s.t.Helper()
	s.byCards()
	b := s.peer.grantee
	b.mu.Lock()
	if b.s != nil {
		b.s.idle = 1
	}
	b.mu.Unlock()
	for now := b.session(); now != nil && now.idle == 1; now = b.session() { // while its block is not released
		time.Sleep(time.Millisecond)
	}
}

// TestRoCENothingLeaks: one session after the other leaves no object of the card, no registered
// memory, no descriptor, no goroutine and nothing in Go's heap behind.
func TestRoCENothingLeaks(t *testing.T) { byBoth(t, 30*time.Second, roceNothingLeaks) }

func roceNothingLeaks(t *testing.T, s *twoStores) {
	cycles := 100
	if n, err := strconv.Atoi(os.Getenv("RDMA_CYCLES")); err == nil {
		cycles = n
	}
	if err := s.set(1, 1, 64<<10); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		s.cycle()
	}
	s.awaitCards("a session")
	awaited(t, "others have ended", func() bool { return s.server.GrantStats().Open == 1 })
	before := used(t)
	heap := heapUsed()
	start := time.Now()
	for range cycles {
		s.cycle()
	}
	s.awaitCards("a session")
	took := time.Since(start)
	awaitUsed(t, "sessions", before)
	heapAfter := heapUsed()
	t.Logf("%d sessions in %v; in use: %+v; heap %d KiB, then %d", cycles, took, before, heap>>10, heapAfter>>10)
	if heapAfter > heap+1<<20 {
		t.Error("memory is left behind")
	}
	if r := s.pool.Stats().RDMA; r.Sessions < uint64(cycles) || r.Corrupt != 0 || r.Broken != 0 {
		t.Errorf("%+v", r)
	}
}

// TestRoCEPeers: 100 hosts read from one at a time, and leave no object of the card, no registered
// memory, no descriptor and no goroutine behind.
func TestRoCEPeers(t *testing.T) {
	const peers = 100
	s := roce(t, 30*time.Second)
	if err := s.set(1, 1, 64<<10); err != nil {
		t.Fatal(err)
	}
	before := used(t)
	start := time.Now()
	readers := make([]twoStores, peers)
	for i := range readers {
		r := &readers[i]
		r.t, r.near, r.far, r.server = t, s.near, s.far, s.server
		r.pool = newPool(t, PoolOptions{Rails: s.nearRails, Stripes: 1, GrantIn: 20 * time.Second,
			ListenUDP: func() (net.PacketConn, error) {
				return net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))})
			}})
		var err error
		if r.peer, err = r.pool.Peer(s.peer.target); err != nil {
			t.Fatal(err)
		}
		r.awaitCards(fmt.Sprint("peer ", i))
	}
	during := used(t)
	for i := range readers {
		readers[i].byCards()
	}
	took := time.Since(start)
	if n := s.server.GrantStats().Open; n < peers+1 || during.QP < before.QP+2*peers { // more after a second attempt
		t.Errorf("%d sessions, in use: %+v, before: %+v", n, during, before)
	}
	for i := range readers {
		_ = readers[i].pool.Close()
	}
	awaitUsed(t, "peers", before)
	t.Logf("%d peers at a time, in %v; in use meanwhile: %+v, before and after: %+v", peers, took, during, before)
}
