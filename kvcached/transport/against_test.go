package transport

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// puller pulls one block of the given length into buf.
type puller func(buf []byte) error

// TestAgainstBare compares pulls with those of a bare program, which only writes and reads the same
// bytes over as many connections of quic-go or crypto/tls. Run it with
//
//	CGN_BENCH=1 go test -run TestAgainstBare -v ./kvcached/transport
func TestAgainstBare(t *testing.T) {
	if os.Getenv("CGN_BENCH") == "" {
		t.Skip("CGN_BENCH is not set")
	}
	const most = 8 << 20
	s := newSite(t, ServerOptions{}, PoolOptions{})
	wide := newPool(t, PoolOptions{Stripes: 1})
	for _, c := range []struct {
		lane  Lane
		conns int
		size  int
		least float64
	}{
		{QUIC, 4, 1 << 20, 0.95}, {QUIC, 4, most, 0.95}, {QUIC, 1, 1 << 20, 0.95}, {QUIC, 1, most, 0.95}, {TLS, 1, 1 << 20, 0.9}, {TLS, 1, most, 0.9},
	} {
		t.Run(fmt.Sprintf("%s over %d, %d KiB", c.lane, c.conns, c.size>>10), func(t *testing.T) {
			key := fmt.Sprint("b", c.size)
			payload := s.store.fill(key, c.size)
			pool := s.pool
			if c.conns == 1 {
				pool = wide
			}
			p, err := pool.Peer(Target{Address: s.address, Lane: c.lane})
			if err != nil {
				t.Fatal(err)
			}
			ours := func(buf []byte) error {
				_, err := p.Get(t.Context(), Get{Addr: addr(key), Namespace: namespace, Hint: c.size,
					Alloc: func(Found, int) ([]byte, error) { return buf, nil }})
				return err
			}
			bare := bareQUIC(t, payload, c.conns)
			if c.lane == TLS {
				bare = bareTLS(t, payload)
			}
			r := compare(t, ours, bare, make([]byte, c.size))
			t.Logf("throughput %.3f of bare, 95 %% interval [%.3f, %.3f], ours %.2f GB/s; CPU time %.3f of bare",
				r.median, r.low, r.high, r.rate/1e9, r.cpu)
			if r.high < c.least {
				t.Errorf("below %.2f", c.least)
			}
		})
	}
}

// compare times ours and bare in pairs. It returns the median of the ratios with its 95 % interval,
// and our median rate. It also returns the ratio of the CPU time of both ends, over all pairs. A
// pair is short, so that other work of the machine affects both sides.
func compare(t *testing.T, ours, bare puller, buf []byte) (r ratio) {
	const pairs, volume = 150, 8 << 20
	var cpu [2]time.Duration
	run := func(which int, p puller) float64 {
		start, used := time.Now(), cpuTime()
		for range volume / len(buf) {
			if err := p(buf); err != nil {
				t.Fatal(err)
			}
		}
		cpu[which] += cpuTime() - used
		return volume / time.Since(start).Seconds()
	}
	for range 3 {
		run(0, ours)
		run(1, bare)
	}
	cpu = [2]time.Duration{}
	var ratios, rates []float64
	for i := range pairs {
		var a, b float64
		if i%2 == 0 {
			a, b = run(0, ours), run(1, bare)
		} else {
			b, a = run(1, bare), run(0, ours)
		}
		ratios, rates = append(ratios, a/b), append(rates, a)
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	// With 95 % confidence, the 63rd and the 88th of 150 values enclose the median.
	return ratio{(ratios[74] + ratios[75]) / 2, ratios[62], ratios[87], rates[75], float64(cpu[0]) / float64(cpu[1])}
}

// ratio is the result of compare.
type ratio struct{ median, low, high, rate, cpu float64 }

// cpuTime returns the CPU time of this process so far.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bareSide returns the TLS configurations of a bare pair.
func bareSide(t *testing.T) (server, client *tls.Config) {
	id := identity(t, pkiDir, pki.KVCached)
	client, err := clientTLS(id, "")
	if err != nil {
		t.Fatal(err)
	}
	return id.Mutual(wire.ALPN), client
}

// bareQUIC pulls over conns connections, one stream each, with our windows.
func bareQUIC(t *testing.T, payload []byte, conns int) puller {
	server, client := bareSide(t)
	tuning := Tuning{}.withDefaults()
	config := tuning.config(100, newReceiveBudget(tuning, 1))
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listening := &quic.Transport{Conn: socket}
	l, err := listening.Listen(server, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = listening.Close(), socket.Close() })
	go serveRanges(l, payload)
	var to []*quic.Conn
	for range conns {
		own, err := net.ListenUDP("udp", nil)
		if err != nil {
			t.Fatal(err)
		}
		transport := &quic.Transport{Conn: own}
		c, err := transport.Dial(t.Context(), socket.LocalAddr(), client, config)
		if err != nil {
			t.Fatal(err)
		}
		to = append(to, c)
		t.Cleanup(func() { _, _, _ = c.CloseWithError(0, ""), transport.Close(), own.Close() })
	}
	return func(buf []byte) error {
		var all sync.WaitGroup
		errs := make([]error, conns)
		size := len(buf) / conns
		for i := 1; i < conns; i++ {
			all.Go(func() { errs[i] = pullRange(to[i], buf, i*size, (i+1)*size) })
		}
		errs[0] = pullRange(to[0], buf, 0, size)
		all.Wait()
		return errors.Join(errs...)
	}
}

// serveRanges answers each stream with the requested part of payload, until the listener is closed.
func serveRanges(l *quic.Listener, payload []byte) {
	answer := func(st *quic.Stream) {
		var ask [16]byte
		_, _ = io.ReadFull(st, ask[:])
		_, _ = st.Write(payload[binary.LittleEndian.Uint64(ask[:]):binary.LittleEndian.Uint64(ask[8:])])
		_ = st.Close()
		_, _ = st.Read(ask[:])
	}
	for {
		c, err := l.Accept(context.Background())
		if err != nil {
			return
		}
		go func() {
			for {
				st, err := c.AcceptStream(context.Background())
				if err != nil {
					return
				}
				go answer(st)
			}
		}()
	}
}

// pullRange reads buf[from:end] from a server of ranges.
func pullRange(c *quic.Conn, buf []byte, from, end int) error {
	st, err := c.OpenStream()
	if err != nil {
		return err
	}
	ask := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(from)), uint64(end))
	_, _ = st.Write(ask)
	_ = st.Close()
	_, err = io.ReadFull(st, buf[from:end])
	_, _ = st.Read(ask[:1])
	return err
}

// bareTLS pulls over one connection.
func bareTLS(t *testing.T, payload []byte) puller {
	server, client := bareSide(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		var ask [16]byte
		for {
			if _, err := io.ReadFull(c, ask[:]); err != nil {
				return
			}
			_, _ = c.Write(payload)
		}
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return func(buf []byte) error {
		if _, err := c.Write(make([]byte, 16)); err != nil {
			return err
		}
		_, err := io.ReadFull(c, buf)
		return err
	}
}
