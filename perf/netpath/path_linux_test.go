package netpath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// linkEnv names the links that must be tested, if the best available one is not enough.
const linkEnv = "NETPATH_LINK"

// path makes a path that is closed with the test.
func path(t *testing.T, l Link, o Options) *Path {
	t.Helper()
	p, err := newPath(l, o)
	needed := os.Getenv(linkEnv) == string(l)
	if lacking := errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) ||
		errors.Is(err, errors.ErrUnsupported); lacking && !needed {
		t.Skipf("needs root and /dev/net/tun or sch_netem, for network namespaces and what joins them: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// bestLink returns the requested link, or netem if the kernel has it.
func bestLink() Link {
	if l := os.Getenv(linkEnv); l != "" {
		return Link(l)
	}
	p, err := newPath(Netem, Options{})
	if err != nil {
		return Relay
	}
	p.Close()
	return Netem
}

// links runs a test on each link.
func links(t *testing.T, test func(t *testing.T, l Link)) {
	for _, l := range []Link{Relay, Netem} {
		t.Run(string(l), func(t *testing.T) { test(t, l) })
	}
}

// TestLosesAndDelays sends numbered packets in one direction, each with its sending time. No more
// packets are in transit than a socket can hold, however late it is read.
func TestLosesAndDelays(t *testing.T) { links(t, losesAndDelays) }

func losesAndDelays(t *testing.T, l Link) {
	const packets, atOnce, delay = 4000, 100, 20 * time.Millisecond
	p := path(t, l, Options{Conditions: Conditions{Delay: delay, Loss: 0.1}, Seed: 1})
	to, from := listen(t, p.B), listen(t, p.A)
	began := time.Now()
	arrived, next := 0, 0
	var buf [mtu]byte
	for sent := range packets {
		msg := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(sent)),
			uint64(time.Since(began)))
		if _, err := from.WriteTo(msg, to.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if (sent+1)%atOnce > 0 {
			continue
		}
		lost := p.lost()
		for patience := time.Now().Add(soon); arrived+lost < sent+1; {
			if err := to.SetReadDeadline(time.Now().Add(delay)); err != nil {
				t.Fatal(err)
			}
			_, _, err := to.ReadFrom(buf[:])
			if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(patience) {
				lost = p.lost() // the last lost packets may be counted by now
				continue
			}
			if err != nil {
				t.Fatalf("of %d packets %d have arrived, %d were lost: %v", sent+1, arrived, lost, err)
			}
			i, at := int(binary.LittleEndian.Uint64(buf[:])), time.Duration(binary.LittleEndian.Uint64(buf[8:]))
			if i < next || time.Since(began)-at < delay {
				t.Errorf("packet %d after %d, in %v", i, next-1, time.Since(began)-at)
			}
			arrived, next = arrived+1, i+1
		}
	}
	if lost := p.lost(); arrived+lost != packets || lost < packets*8/100 || lost > packets*12/100 {
		t.Errorf("of %d packets %d arrived, %d were lost", packets, arrived, lost)
	}
}

// lost returns the number of lost packets from A to B.
func (p *Path) lost() int {
	ab, _ := p.Counts()
	return int(ab.Lost)
}

func listen(t *testing.T, s *Side) net.PacketConn {
	t.Helper()
	c, err := s.ListenUDP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestRate: a stream takes the time that the rate implies, and none of it is dropped or changed.
func TestRate(t *testing.T) { links(t, keepsRate) }

func keepsRate(t *testing.T, link Link) {
	const rate, bytes = 8 << 20, 1 << 20
	p := path(t, link, Options{Conditions: Conditions{Rate: rate}})
	var l net.Listener
	var err error
	p.A.Do(func() { l, err = net.Listen("tcp4", p.A.Addr.String()+":0") })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	go func() {
		c, err := p.B.DialTCP(t.Context(), l.Addr().String())
		if err == nil {
			_, err = c.Write(make([]byte, bytes))
			_ = c.Close()
		}
		if err != nil {
			t.Error(err)
			_ = l.Close()
		}
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n, err := io.Copy(io.Discard, c)
	if took := time.Since(began); err != nil || n != bytes || took < time.Second*bytes/rate {
		t.Errorf("%d bytes in %v: %v", n, took, err)
	}
	if _, ba := p.Counts(); ba.Dropped > 0 || ba.Lost > 0 || ba.Forwarded < bytes/mtu {
		t.Errorf("%+v", ba)
	}
	if mean := p.B.meanPacket(t); mean > mtu+14 {
		t.Errorf("%.0f bytes per packet: the device is given more than one at a time", mean)
	}
}

// meanPacket returns the mean length of the packets that the side has sent into the path, including
// Ethernet's header if there is one.
func (s *Side) meanPacket(t *testing.T) float64 {
	t.Helper()
	var text []byte
	var err error
	s.Do(func() { text, err = os.ReadFile("/proc/thread-self/net/dev") })
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), device+":")
	var received [8]float64
	var bytes, packets float64
	if _, err := fmt.Sscan(line, &received[0], &received[1], &received[2], &received[3], &received[4], &received[5],
		&received[6], &received[7],
		&bytes, &packets); err != nil || packets == 0 {
		t.Fatalf("%v in %s", err, text)
	}
	return bytes / packets
}

// ListenUDP opens a socket with a free port in the namespace.
func (s *Side) ListenUDP() (c net.PacketConn, err error) {
	s.Do(func() { c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.Addr, 0))) })
	return c, err
}

// DialTCP connects from the namespace to an address, not a name.
func (s *Side) DialTCP(ctx context.Context, address string) (c net.Conn, err error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	s.Do(func() {
		var d net.Dialer
		c, err = d.DialTCP(ctx, "tcp4", netip.AddrPort{}, to)
	})
	return c, err
}
