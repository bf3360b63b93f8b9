package bpf

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// segment returns a TCP segment with a valid checksum, without an IP header.
func segment(from, to netip.AddrPort, seq, ack uint32, words byte, flags byte, window uint16, payload string) []byte {
	b := make([]byte, 20, 20+len(payload))
	binary.BigEndian.PutUint16(b, from.Port())
	binary.BigEndian.PutUint16(b[2:], to.Port())
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[12], b[13] = words<<4, flags
	binary.BigEndian.PutUint16(b[14:], window)
	b = append(b, payload...)
	src, dst := from.Addr().As4(), to.Addr().As4()
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(b))
	for _, part := range [][]byte{src[:], dst[:], b} {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
		if len(part)%2 == 1 {
			sum += uint32(part[len(part)-1]) << 8
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}

// TestForged: segments with the right addresses and absurd sequence numbers, which the kernel does
// not accept, change no count of requests or answers.
func TestForged(t *testing.T) {
	h := newHost(t)
	s := h.load()
	server := h.serve(s, (*httptest.Server).Start, streamed)
	to := netip.MustParseAddrPort(server.Listener.Addr().String())
	c := must[net.Conn](t)(net.Dial("tcp", to.String()))
	defer c.Close()
	from := netip.MustParseAddrPort(c.LocalAddr().String())
	ask := func() {
		t.Helper()
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: engine\r\nContent-Length: 100\r\n\r\n%s", strings.Repeat("q", 100))
		var got strings.Builder
		for b := make([]byte, 4096); !strings.HasSuffix(got.String(), "0\r\n\r\n"); {
			n, err := c.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got.Write(b[:n])
		}
	}
	ask()
	before := must[Tokens](t)(s.Tokens(to.Port()))
	raw := must[int](t)(unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP))
	defer unix.Close(raw)
	sent := 0
	for i := range uint32(64) {
		for _, words := range []byte{5, 6, 15} {
			b := segment(from, to, i<<26+12345, i, words, 0x10, uint16(i), strings.Repeat("POST / HTTP/1.1\r\n",
				1+int(i)))
			if unix.Sendto(raw, b, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}) == nil {
				sent++
			}
		}
	}
	after := must[Tokens](t)(s.Tokens(to.Port()))
	// Among 64 sequence numbers that are 2^26 apart, one may be inside the window.
	if sent == 0 || after.Requests > before.Requests+1 || after.Streams != before.Streams ||
		after.Unmeasured != before.Unmeasured {
		t.Errorf("after %d forged segments: %+v\nbefore: %+v", sent, after, before)
	}
	requests := after.Requests
	ask()
	last := must[Tokens](t)(s.Tokens(to.Port()))
	if last.Requests < requests || last.Streams != before.Streams+1 {
		t.Errorf("%d requests, %d streams, of %d and %d", last.Requests, last.Streams, requests, before.Streams)
	}
	if port := h.port(s, to.Port()); port.BytesReceived > 1000 {
		t.Errorf("forged bytes count: %+v", port)
	}
}
