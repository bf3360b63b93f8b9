package netpath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/transport"
)

var sizes = []int{64 << 10, 1 << 20, 8 << 20}

// A pull is measured until it was done atMost times, or for this time.
const (
	atMost = 7
	enough = 2 * time.Second
)

// roads are the compared network conditions.
var roads = []struct {
	name string
	Conditions
}{
	{"no delay, no loss", Conditions{}},
	{"20 ms, no loss", Conditions{Delay: delay}},
	{"20 ms, 1 % loss", Conditions{Delay: delay, Loss: loss}},
}

// way is a transport that is compared on each road.
type way struct {
	name    string
	lane    transport.Lane
	stripes int
}

// ways returns QUIC over the default number of connections, QUIC over 16 unless the machine is
// emulated, and TLS.
func (h *hosts) ways() []way {
	all := []way{{"quic", transport.QUIC, 0}, {"quic, 16 stripes", transport.QUIC, 16}, {"tls, " + h.congestion(),
		transport.TLS, 0}}
	if testing.Short() {
		all = slices.Delete(all, 1, 2)
	}
	return all
}

// congestion returns the name of TCP's congestion control in A, which sends.
func (h *hosts) congestion() (name string) {
	h.A.Do(func() {
		text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
		if name = strings.TrimSpace(string(text)); err != nil {
			name = err.Error()
		}
	})
	return name
}

// slow is a road on which 8 MiB take at least two seconds, so that there is time to cancel.
var slow = Conditions{Delay: delay, Loss: loss, Rate: 4 << 20}

// pool returns a pool of connections from B. A block is pulled over this number of connections; 0:
// the default.
func (h *hosts) pool(stripes int) *transport.Pool {
	h.t.Helper()
	id, err := pki.Load(pki.FilesIn(h.pki(), pki.KVCached))
	if err != nil {
		h.t.Fatal(err)
	}
	pool, err := transport.NewPool(transport.PoolOptions{
		Identity: id, Tuning: transport.Tuning{Rate: 125e6, RTT: 2 * delay}, Stripes: stripes, Timeout: patience,
		ListenUDP: h.B.ListenUDP, DialTCP: h.B.DialTCP,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// pull reads a block of A into memory. The block's length must be known, as in a fleet. begun is
// called when the first bytes come.
func pull(ctx context.Context, p *transport.Peer, a block.Addr, length int, begun func()) (into []byte, err error) {
	_, err = p.Get(ctx, transport.Get{Addr: a, Namespace: space, Hint: length,
		Alloc: func(_ transport.Found, n int) ([]byte, error) {
			into = make([]byte, n)
			begun()
			return into, nil
		}})
	return into, err
}

// lanes pulls blocks of all sizes over both lanes on every road, and prints the speeds.
func (h *hosts) lanes(t *testing.T) {
	for _, road := range roads {
		h.Set(road.Conditions)
		for _, w := range h.ways() {
			pool := h.pool(w.stripes)
			peer, err := pool.Peer(transport.Target{Address: h.a.quic, Name: h.A.Addr.String(), Lane: w.lane})
			if err != nil {
				t.Fatal(err)
			}
			row := fmt.Sprintf("%-18s %-18s", road.name, w.name)
			for _, size := range sizes {
				took, n := h.median(t, peer, size)
				row += fmt.Sprintf(" | %4d KiB: %7.2f MB/s, %5d ms, of %d", size>>10, float64(size)/took.Seconds()/1e6,
					took.Milliseconds(), n)
			}
			t.Log(row)
			_ = pool.Close()
		}
	}
	ab, ba := h.Counts()
	mean := h.A.meanPacket(t)
	t.Logf("from A %+v, %.0f bytes each, from B %+v", ab, mean, ba)
	if ab.Lost == 0 || ba.Lost == 0 {
		t.Error("nothing was lost: this shows nothing")
	}
	if mean > mtu+14 {
		t.Error("packets were lost and delayed in batches")
	}
}

// median pulls a block of size bytes repeatedly. median returns the median of the times and their
// number.
func (h *hosts) median(t *testing.T, peer *transport.Peer, size int) (time.Duration, int) {
	t.Helper()
	a, want := h.a.put(t, size)
	var took []time.Duration
	for first := time.Now(); len(took) == 0 || len(took) < atMost && time.Since(first) < enough; {
		began := time.Now()
		got, err := pull(t.Context(), peer, a, len(want), func() {})
		took = append(took, time.Since(began))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes after %v: %v", size, time.Since(began), err)
		}
	}
	slices.Sort(took)
	return took[len(took)/2], len(took)
}

// cancels interrupts pulls. Both sides end an interrupted pull and hold nothing afterwards, and the
// next pull succeeds.
func (h *hosts) cancels(t *testing.T) {
	a, want := h.a.put(t, 8<<20)
	for _, lane := range []transport.Lane{transport.QUIC, transport.TLS} {
		h.Set(slow)
		pool := h.pool(0)
		peer, err := pool.Peer(transport.Target{Address: h.a.quic, Lane: lane})
		if err != nil {
			t.Fatal(err)
		}
		gaveUp := h.a.metric(t, "peer_gave_up_total")
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := pull(ctx, peer, a, len(want), cancel); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: a pull that was cancelled: %v", lane, err)
		}
		within(t, soon, "A gives up too", func() bool {
			return h.a.metric(t, "peer_gave_up_total") > gaveUp && h.a.metric(t, "peer_in_flight_bytes") == 0 &&
				h.a.metric(t, "ram_held_bytes") == 0
		})
		h.Set(Conditions{})
		if got, err := pull(t.Context(), peer, a, len(want), func() {}); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the pull after it: %v", lane, err)
		}
		_ = pool.Close()
	}
}
