//go:build linux && cgo && rdma

package kvcached

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// coming is a promotion of blocks that no host has when it begins.
type coming struct {
	t       *testing.T
	d       *Daemon
	from, n int // numbers of the blocks
	ended   chan error
	moved   *pb.TransferResponse
}

// awaitBlocks asks a daemon for n blocks from a number on. It returns once the daemon waits for
// them.
func awaitBlocks(t *testing.T, d *Daemon, from, n int, wait time.Duration) *coming {
	t.Helper()
	c, waiting := &coming{t: t, d: d, from: from, n: n, ended: make(chan error, 1)}, d.view.Load().Stats().Awaiting
	ask := &pb.PromoteRequest{Namespace: testSpace.String(), WaitMs: uint32(wait.Milliseconds())}
	for i := from; i < from+n; i++ {
		ask.Digests = append(ask.Digests, bytesOf(testAddr(i))...)
	}
	client := kv(t, d)
	go func() {
		var err error
		c.moved, err = client.Promote(t.Context(), ask)
		c.ended <- err
	}()
	awaitThat(t, "the promotion waits", func() bool { return d.view.Load().Stats().Awaiting > waiting })
	return c
}

// end waits for the promotion's end. The first n blocks must be here with their bytes, and no
// others.
func (c *coming) end(what string, n int) {
	c.t.Helper()
	if err := <-c.ended; err != nil {
		c.t.Fatal(what, err)
	}
	want := slices.Concat(bytes.Repeat([]byte{byte(pb.Outcome_OUTCOME_OK)}, n),
		bytes.Repeat([]byte{byte(pb.Outcome_OUTCOME_MISS)}, c.n-n))
	if int(c.moved.Ok) != n || !bytes.Equal(c.moved.Outcomes, want) {
		c.t.Errorf("%s: %v", what, c.moved)
	}
	for i := c.from; i < c.from+n; i++ {
		key := numbered(i)
		if got := redis(c.t, c.d.At("resp"), "GET "+key)[0]; got != string(valueOf(key)) {
			c.t.Errorf("%s: block %d has %d bytes, or others", what, i, len(got))
		}
	}
}

// storeAt stores blocks on the host at a RESP address, in their order.
func storeAt(t *testing.T, at string, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		key, v := numbered(i), valueOf(numbered(i))
		command := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s", len(key), key, len(v), v)
		if got := redis(t, at, command)[0]; got != "+OK" {
			t.Fatal(got)
		}
	}
}

// laneMetrics are the metrics of what came from other hosts, by RDMA and by streams.
func laneMetrics(t *testing.T, d *Daemon) (reads, bytes, streamed float64) {
	t.Helper()
	_, page := get(t, "http://"+d.AdminAddr().String()+"/metrics")
	value := func(name string) (v float64) {
		_, rest, there := strings.Cut(page, "\n"+name+" ")
		if _, err := fmt.Sscan(rest, &v); err != nil || !there {
			t.Fatal("no metric ", name)
		}
		return v
	}
	for _, lane := range []string{"quic", "tls"} {
		streamed += value(fmt.Sprintf("cgn_kvcached_pool_received_bytes_total{lane=%q}", lane))
	}
	return value("cgn_kvcached_rdma_reads_total"), value("cgn_kvcached_rdma_read_bytes_total"), streamed
}

// TestRoCEPromotesWhatComes: a promotion waits for blocks that the other host has not stored yet,
// and reads them by RDMA. It ends with what came if the blocks stay away, or their host dies. It
// also brings the blocks of a host that comes back in time.
func TestRoCEPromotesWhatComes(t *testing.T) {
	if os.Getenv("RDMA_DEVICE") == "" {
		if os.Getenv("RDMA_REQUIRED") != "" {
			t.Fatal("RDMA_DEVICE names no card")
		}
		t.Skip("RDMA_DEVICE names no card: make check-rdma runs this in a virtual machine that has one")
	}
	const blocks = 12
	s, dir := newSite(t), t.TempDir()
	a, _ := s.host(t, "a", func(c *Config) {
		withCards(c)
		// limits for an emulated machine
		c.Fleet.LocateTimeout, c.Fleet.AnswerTimeout = config.Duration(2*time.Second), config.Duration(2*time.Second)
	})
	from, _, kill := s.child(t, dir)
	meet(t, 2, a)
	bringByCards(t, a, from, "first")

	next := 0
	awaitThat(t, "all blocks come by RDMA", func() bool { // on a busy host some may come by QUIC
		reads, bytes, streamed := laneMetrics(t, a)
		c := awaitBlocks(t, a, next, blocks, time.Minute)
		storeAt(t, from, next, blocks)
		c.end("stored meanwhile", blocks)
		next += blocks
		readsNow, bytesNow, streamedNow := laneMetrics(t, a)
		t.Logf("%.0f blocks and %.0f bytes by RDMA, %.0f bytes by streams", readsNow-reads, bytesNow-bytes,
			streamedNow-streamed)
		return readsNow == reads+blocks && bytesNow == bytes+float64(blocks*len(valueOf(""))) && streamedNow == streamed
	})

	vain := a.view.Load().Stats().AwaitedInVain
	awaitBlocks(t, a, next, blocks, time.Second).end("never stored", 0)
	if n := a.view.Load().Stats().AwaitedInVain - vain; n != blocks {
		t.Errorf("%d blocks were awaited in vain", n)
	}
	next += blocks

	// One of two promotions waits until the host is there again.
	awaited := a.view.Load().Stats().Awaited
	short, long := awaitBlocks(t, a, next, blocks, 10*time.Second), awaitBlocks(t, a, next+blocks, blocks, time.Minute)
	storeAt(t, from, next, blocks/2)
	storeAt(t, from, next+blocks, blocks/2)
	awaitThat(t, "half of the blocks come", func() bool { return a.view.Load().Stats().Awaited == awaited+blocks })
	kill()
	short.end("their host died", blocks/2)
	from, _, _ = s.child(t, dir)
	storeAt(t, from, next+blocks+blocks/2, blocks/2)
	long.end("their host came back", blocks)
}
