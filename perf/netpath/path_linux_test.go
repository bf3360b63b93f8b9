package netpath

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// path is closed with the test.
func path(t *testing.T, o Options) *Path {
	t.Helper()
	p, err := New(o)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Skipf("needs root and /dev/net/tun, for network namespaces and TUN devices: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// TestLosesAndDelays sends numbered packets one way, each with the time at which it was sent. As many are on their way at a time
// as a socket takes in however late it is read.
func TestLosesAndDelays(t *testing.T) {
	const packets, atOnce, delay = 4000, 100, 20 * time.Millisecond
	p := path(t, Options{Conditions: Conditions{Delay: delay, Loss: 0.1}, Seed: 1})
	to, from := listen(t, p.B), listen(t, p.A)
	began := time.Now()
	arrived, next := 0, 0
	var buf [mtu]byte
	for sent := range packets {
		msg := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(sent)), uint64(time.Since(began)))
		if _, err := from.WriteTo(msg, to.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if (sent+1)%atOnce > 0 {
			continue
		}
		for patience := time.Now().Add(soon); arrived+p.lost() < sent+1; {
			if err := to.SetReadDeadline(time.Now().Add(delay)); err != nil {
				t.Fatal(err)
			}
			_, _, err := to.ReadFrom(buf[:])
			if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(patience) {
				continue // the last ones may be counted as lost by now
			}
			if err != nil {
				t.Fatalf("of %d packets %d have arrived: %+v: %v", sent+1, arrived, p.ab.counts(), err)
			}
			i, at := int(binary.LittleEndian.Uint64(buf[:])), time.Duration(binary.LittleEndian.Uint64(buf[8:]))
			if i < next || time.Since(began)-at < delay {
				t.Errorf("packet %d after %d, in %v", i, next-1, time.Since(began)-at)
			}
			arrived, next = arrived+1, i+1
		}
	}
	if lost := p.lost(); arrived+lost != packets || lost < packets*8/100 || lost > packets*12/100 {
		t.Errorf("of %d packets %d arrived: %+v", packets, arrived, p.ab.counts())
	}
}

// lost is how many packets from A to B were.
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

// TestRate: a stream takes as long as the rate makes it, and nothing of it is dropped or changed.
func TestRate(t *testing.T) {
	const rate, bytes = 8 << 20, 1 << 20
	p := path(t, Options{Conditions: Conditions{Rate: rate}})
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
	if _, ba := p.Counts(); ba.Dropped > 0 {
		t.Errorf("%+v", ba)
	}
}
