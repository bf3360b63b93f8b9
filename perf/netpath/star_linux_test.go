package netpath

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// TestStar: every host reaches the hub, and the given share of one host's packets is lost.
func TestStar(t *testing.T) {
	s, err := NewStar(2)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("needs root, for network namespaces and veth devices: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	arrived := func(h *Host) int {
		t.Helper()
		const sent = 1000
		var to, from *net.UDPConn
		var err1, err2 error
		s.Hub.Do(func() { to, err1 = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.Hub, 0))) })
		h.Do(func() {
			from, err2 = net.DialUDP("udp4", nil, to.LocalAddr().(*net.UDPAddr))
		})
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		defer from.Close()
		n, buf := 0, make([]byte, 8)
		for range sent { // one after the other, so that no queue grows
			if _, err := from.Write(buf); err != nil {
				t.Fatal(err)
			}
			_ = to.SetReadDeadline(time.Now().Add(2 * time.Millisecond))
			if _, err := to.Read(buf); err == nil {
				n++
			}
		}
		for silent := 0; silent < 3; { // reads the packets that a slow machine has not read yet
			_ = to.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err := to.Read(buf); err == nil {
				n, silent = n+1, 0
			} else {
				silent++
			}
		}
		return n
	}
	lossy, other := s.Hosts[0], s.Hosts[1]
	if err := lossy.Lose(0.3); errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if n := arrived(lossy); n < 600 || n > 800 { // 7 standard deviations
		t.Errorf("of 1000 packets %d arrived, want about 700", n)
	}
	if n := arrived(other); n < 990 {
		t.Errorf("of 1000 packets without loss %d arrived", n)
	}
	if err := lossy.Lose(0); err != nil {
		t.Fatal(err)
	}
	if n := arrived(lossy); n < 990 {
		t.Errorf("of 1000 packets after the loss %d arrived", n)
	}
}
