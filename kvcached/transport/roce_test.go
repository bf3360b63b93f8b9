//go:build linux && cgo && rdma

package transport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
	"github.com/cognitora/dataplane/rdma/verbs"
)

// These tests need a real card, or RoCE in software. make check-rdma runs them in a virtual machine
// with a software card. Both hosts are this machine.

// roce returns two stores whose hosts reach each other by the card of RDMA_DEVICE.
func roce(t *testing.T, grant time.Duration) *twoStores { return roceBy(t, grant, false) }

// roceBy is roce with windows, or with registrations.
func roceBy(t *testing.T, grant time.Duration, windows bool) *twoStores {
	t.Helper()
	o := roceRails(t, windows)
	s := newTwoStores(t, o, o, PoolOptions{GrantIn: 20 * time.Second}, grant)
	s.awaitCards("a session")
	return s
}

// roceRails returns options with the card of RDMA_DEVICE.
func roceRails(t *testing.T, windows bool) RailsOptions {
	t.Helper()
	card := os.Getenv("RDMA_DEVICE")
	if card == "" {
		if os.Getenv("RDMA_REQUIRED") != "" {
			t.Fatal("RDMA_DEVICE names no card")
		}
		t.Skip("RDMA_DEVICE names no card: make check-rdma runs this in a virtual machine that has one")
	}
	return RailsOptions{
		Wanted: []string{card}, Present: roceThere, Open: func(name string) (rdma.Device, error) {
			return verbs.Open(name, verbs.Options{LooseWindows: windows})
		},
		Trusted: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Poll: 100 * time.Millisecond,
	}
}

// byBoth runs a test with windows and without.
func byBoth(t *testing.T, grant time.Duration, fn func(t *testing.T, s *twoStores)) {
	for name, windows := range map[string]bool{"windows": true, "registrations": false} {
		t.Run(name, func(t *testing.T) { fn(t, roceBy(t, grant, windows)) })
	}
}

func roceThere() map[string]string {
	out := map[string]string{}
	entries, _ := os.ReadDir("/sys/class/infiniband")
	for _, e := range entries {
		if i, err := os.Stat("/sys/class/infiniband/" + e.Name()); err == nil {
			out[e.Name()] = fmt.Sprint(i.Sys())
		}
	}
	return out
}

// awaited waits until ok returns true. That takes long on a busy host with an emulated machine, so
// awaited leaves the CPU to the machine.
func awaited(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited for a minute: ", what)
		}
	}
}

// awaitCards waits until blocks are read by RDMA.
func (s *twoStores) awaitCards(what string) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); s.peer.grantee.session() == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%s: none after a minute: %s", what, s.peer.status().Why)
		}
	}
}

// TestRoCEReads: many blocks at a time come by RDMA, with few messages and no stream. They are
// given back before their grants end.
func TestRoCEReads(t *testing.T) { byBoth(t, time.Hour, roceReads) }

func roceReads(t *testing.T, s *twoStores) {
	const keys = 32
	for key := range keys {
		if err := s.set(key, uint64(key), 8*(1000+1111*key%8000)); err != nil {
			t.Fatal(err)
		}
	}
	awaited(t, "all blocks come by RDMA", func() bool { // on a busy host some may come by QUIC
		before, sent := s.pool.Stats().RDMA, s.server.Stats().Sent
		var all sync.WaitGroup
		for key := range keys {
			all.Go(func() {
				if there, err := s.come(t.Context(), key); !there || err != nil {
					t.Error(key, err)
				}
			})
		}
		all.Wait()
		r, asked := s.pool.Stats().RDMA, s.pool.Stats().RDMA.Asked-before.Asked
		t.Logf("%d blocks with %d messages", r.Reads-before.Reads, asked)
		return r.Reads == before.Reads+keys && asked <= keys/2 && s.server.Stats().Sent == sent
	})
	if err := s.set(100, 1, 4<<20); err != nil {
		t.Fatal(err)
	}
	if there, err := s.pull(t.Context(), 100); !there || err != nil {
		t.Error("4 MiB:", err)
	}
	awaited(t, "all is given back", func() bool {
		return s.server.GrantStats().Grants == 0 && s.far.Stats().RAM.Held == 0
	})
	if n := s.pool.Stats().RDMA.Corrupt; n != 0 {
		t.Errorf("%d blocks were corrupt", n)
	}
}

// TestRoCERevoked: a block cannot be read after its grant has ended. The attempt breaks the pair,
// and another one is made.
func TestRoCERevoked(t *testing.T) { byBoth(t, time.Second, roceRevoked) }

func roceRevoked(t *testing.T, s *twoStores) {
	if err := s.set(1, 1, 64<<10); err != nil {
		t.Fatal(err)
	}
	p := <-s.peer.grantee.want(addr("1")).answer
	if p.block == nil || p.block.Status != wire.OK {
		t.Fatalf("%+v", p.block)
	}
	awaited(t, "the grant ends", func() bool {
		return s.server.GrantStats().Expired == 1 && s.far.Stats().RAM.Held == 0
	})
	d := s.near.Arena().Slice(0, 64<<10)
	before := string(d)
	err := p.grant.s.read(t.Context(), p.block.Parts, d, time.Now().Add(10*time.Second))
	if !errors.Is(err, rdma.ErrAccess) || whyNot(err) != accessRefused {
		t.Error("a revoked window is read:", err)
	}
	if string(d) != before {
		t.Error("something was written")
	}
	p.grant.done()
	s.awaitCards("after the refusal")
	if there, err := s.pull(t.Context(), 1); !there || err != nil {
		t.Error(err)
	}
}

// TestRoCEReusedUnderReaders: as TestBlocksReusedUnderReaders.
func TestRoCEReusedUnderReaders(t *testing.T) {
	byBoth(t, 500*time.Millisecond, roceReusedUnderReaders)
}

func roceReusedUnderReaders(t *testing.T, s *twoStores) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	good, miss, rest := s.churn(soak(15*time.Second), seed)
	// on a busy host grants may end before their turn
	for tries := 0; s.pool.Stats().RDMA.Reads == 0 && tries < 5; tries++ {
		more, _, _ := s.churn(15*time.Second, seed)
		good += more
	}
	r := s.pool.Stats().RDMA
	t.Logf("%d blocks read, %d misses, %d given up; %+v", good, miss, rest, r)
	if r.Reads == 0 || r.Corrupt != 0 {
		t.Error("nothing was read by RDMA, or blocks change while they are granted")
	}
	awaited(t, "all grants end", func() bool {
		return s.server.GrantStats().Grants == 0 && s.far.Stats().RAM.Held == 0
	})
}

// TestRoCERottenBytes: bytes that differ from those stored are never an answer, by RDMA or by QUIC.
// The session that brought them ends, and RDMA is used again.
func TestRoCERottenBytes(t *testing.T) { byBoth(t, time.Hour, roceRottenBytes) }

func roceRottenBytes(t *testing.T, s *twoStores) {
	d, err := s.far.Create(t.Context(), store.Item{Addr: addr("1"), Namespace: namespace, Key: []byte("1")}, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Abort()
	stored := d.Bytes()
	fillFor(stored, 1, 1)
	if _, err := d.Commit(t.Context(), store.CommitOptions{}); err != nil {
		t.Fatal(err)
	}
	stored[60<<10]++
	if there, err := s.pull(t.Context(), 1); there {
		t.Error("it is an answer:", err)
	}
	stored[60<<10]--
	s.awaitCards("after it")
	if there, err := s.pull(t.Context(), 1); !there || err != nil {
		t.Error("as it was:", err)
	}
	if r := s.pool.Stats().RDMA; r.Corrupt != 1 || r.Fallbacks["checksum"] != 1 || r.Broken != 1 || r.Reads != 1 {
		t.Errorf("%+v", r)
	}
}

// mostTries bounds the reads of a block that does not come, or not by RDMA.
const mostTries = 10

// come is pull. A connection times out on a machine that gets no CPU for a while, and come then
// pulls again, mostTries times in all.
func (s *twoStores) come(ctx context.Context, key int) (there bool, err error) {
	for range mostTries {
		if there, err = s.pull(ctx, key); !ranOut(err) || ctx.Err() != nil {
			break
		}
	}
	return there, err
}

// disturb reads all the time while fn runs, and returns how many blocks have come by RDMA since.
func (s *twoStores) disturb(t *testing.T, what string, fn func()) {
	t.Helper()
	var stop atomic.Bool
	var pulled atomic.Int64
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for !stop.Load() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if there, err := s.come(ctx, w); !there || err != nil {
					t.Errorf("%s: %v", what, err)
				}
				cancel()
				pulled.Add(1)
			}
		})
	}
	progress := func(what string) {
		t.Helper()
		n := pulled.Load() + 20
		end := time.Now().Add(60 * time.Second)
		for pulled.Load() < n {
			if time.Now().After(end) {
				t.Fatal("no block came for a minute: ", what)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	progress("before: " + what)
	fn()
	progress("after: " + what)
	s.awaitCards(what)
	reads := s.pool.Stats().RDMA.Reads
	progress("at the end: " + what)
	if stop.Store(true); s.pool.Stats().RDMA.Reads == reads {
		t.Errorf("%s: RDMA is not used again: %s", what, s.peer.status().Why)
	}
	all.Wait()
}

func command(t *testing.T, line string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the cleanup runs commands, too
	defer cancel()
	words := strings.Fields(line)
	if out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", line, err, out)
	}
}

// TestRoCETakenAway: under load the link goes down and comes back, and the card is released,
// deleted and added anew. Blocks come by QUIC meanwhile, none is wrong or lost, and RDMA is used
// again.
func TestRoCETakenAway(t *testing.T) { byBoth(t, 5*time.Second, roceTakenAway) }

func roceTakenAway(t *testing.T, s *twoStores) {
	for key := range 4 {
		if err := s.set(key, 1, 128<<10); err != nil {
			t.Fatal(err)
		}
	}
	s.disturb(t, "link down", func() {
		command(t, "ip link set rdma0 down")
		awaited(t, "its sessions end", func() bool { return s.pool.Stats().RDMA.Broken > 0 })
		command(t, "ip link set rdma0 up")
	})
	t.Logf("%+v", s.pool.Stats().RDMA)
	s.disturb(t, "card deleted", func() {
		start := time.Now()
		for _, rails := range []*Rails{s.nearRails, s.farRails} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := rails.Release(ctx, os.Getenv("RDMA_DEVICE")); err != nil {
				t.Error(err)
			}
			cancel()
		}
		t.Log("given away in", time.Since(start))
		command(t, "rdma link delete "+os.Getenv("RDMA_DEVICE"))
		before := s.pool.Stats().RDMA.Fallbacks["no_session"]
		awaited(t, "blocks come by QUIC", func() bool {
			return s.pool.Stats().RDMA.Fallbacks["no_session"] >= before+20
		})
		command(t, "rdma link add "+os.Getenv("RDMA_DEVICE")+" type rxe netdev rdma0")
	})
	r := s.pool.Stats().RDMA
	t.Logf("%+v", r)
	if r.Broken == 0 || r.Fallbacks["no_session"] < 20 || r.Corrupt != 0 {
		t.Errorf("%+v", r)
	}
}
