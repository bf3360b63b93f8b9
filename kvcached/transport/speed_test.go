//go:build linux && cgo && rdma

package transport

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kvcached/store"
)

// TestSpeed prints how fast blocks come, by RDMA and over QUIC, and the cost of a block for both
// hosts together. Both lanes are measured on the same machine in the same run. TestSpeed checks no
// limit.
func TestSpeed(t *testing.T) {
	s := roce(t, 30*time.Second)
	quic, err := s.pool.Peer(Target{Address: s.peer.target.Address, Lane: QUIC})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("| block | at a time | RDMA: MB/s; ms each; CPU s per GB | QUIC: likewise | rate, RDMA to QUIC | CPU, RDMA " +
		"to QUIC |")
	t.Log("|---|---|---|---|---|---|")
	for key, size := range []int{4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20} {
		if err := s.set(key, 1, size); err != nil {
			t.Fatal(err)
		}
		for _, atOnce := range []int{1, 8} {
			if atOnce*size > churnRAM/4 {
				continue
			}
			n := max(8, min(100, (4<<20)/size))
			var sums [2]measured // sums of the rounds
			for range rounds {
				for i, p := range []*Peer{s.peer, quic} {
					sums[i].add(s.speed(t, p, key, atOnce, n))
				}
			}
			rdma, stream := &sums[0], &sums[1]
			t.Logf("| %d KiB | %d | %.1f; %.1f; %.0f | %.1f; %.1f; %.0f | %.2f | %.2f |", size>>10, atOnce,
				rdma.rate/rounds, rdma.each/rounds, rdma.cpu/rounds,
				stream.rate/rounds, stream.each/rounds, stream.cpu/rounds, rdma.rate/stream.rate, rdma.cpu/stream.cpu)
		}
	}
	t.Logf("%+v", s.pool.Stats().RDMA)
}

// rounds is how often each lane is measured.
const rounds = 3

// measured has MB/s, ms for each block, and seconds of CPU for a GB.
type measured struct{ rate, each, cpu float64 }

func (m *measured) add(n measured) { m.rate, m.each, m.cpu = m.rate+n.rate, m.each+n.each, m.cpu+n.cpu }

// speed pulls a block n times.
func (s *twoStores) speed(t *testing.T, p *Peer, key, atOnce, n int) measured {
	var left, bytes, took atomic.Int64
	left.Store(int64(n))
	var all sync.WaitGroup
	used, start := cpuTime(), time.Now()
	for range atOnce {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				var d *store.Draft
				begin := time.Now()
				f, err := p.Get(t.Context(), Get{Addr: addr(strconv.Itoa(key)), Namespace: namespace,
					Alloc: func(f Found, n int) (_ []byte, err error) {
						if d, err = s.near.Create(t.Context(), store.Item(f.Item), n); err != nil {
							return nil, err
						}
						return d.Bytes(), nil
					}})
				took.Add(int64(time.Since(begin)))
				if d != nil {
					d.Abort()
				}
				if err != nil {
					t.Error(err)
					return
				}
				bytes.Add(int64(f.Length))
			}
		})
	}
	all.Wait()
	gone := time.Since(start).Seconds()
	b := float64(bytes.Load())
	return measured{b / 1e6 / gone, float64(took.Load()) / 1e6 / float64(n), (cpuTime() - used).Seconds() / b * 1e9}
}
