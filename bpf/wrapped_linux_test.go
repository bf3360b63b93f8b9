package bpf

import (
	"encoding/binary"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/perf/stopwatch"
	"github.com/cognitora/dataplane/sim/engine"
)

// behind sets the programs' memory of a socket to 32-bit counts from before a wrap.
func behind(t *testing.T, s *Set, fd int, segments, retransmits uint32) {
	t.Helper()
	m := s.maps["cgn_socks"]
	l := must[layout](t)(wanted(must[*ebpf.CollectionSpec](t)(programs()).Maps["cgn_socks"]))
	state := must[[]byte](t)(m.LookupBytes(int32(fd)))
	for _, f := range l.value {
		switch f.path {
		case "value.segments":
			binary.NativeEndian.PutUint32(state[f.offset:], segments)
		case "value.retransmits":
			binary.NativeEndian.PutUint32(state[f.offset:], retransmits)
		}
	}
	if err := m.Put(int32(fd), state); err != nil {
		t.Fatal(err)
	}
}

// TestWrapped: every byte, request and segment is counted once, though the connection's sequence
// numbers and the kernel's counts of its segments and retransmissions pass 2^32 in the middle.
func TestWrapped(t *testing.T) {
	h := newHost(t)
	s := h.load()
	server := h.serve(s, (*httptest.Server).Start, streamed)
	to := netip.MustParseAddrPort(server.Listener.Addr().String())
	request := fmt.Sprintf("POST / HTTP/1.1\r\nHost: engine\r\nContent-Length: 300\r\n\r\n%s", strings.Repeat("q", 300))
	const requests = 4

	fd := must[int](t)(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	first := uint32(-len(request) * 3 / 2) // instead of the kernel's random number; the second request passes 0
	for _, o := range []struct{ option, value int }{{unix.TCP_REPAIR, 1}, {unix.TCP_REPAIR_QUEUE, 2},
		{unix.TCP_QUEUE_SEQ, int(int32(first))}, {unix.TCP_REPAIR, -1}} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, o.option, o.value); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
	behind(t, s, fd, 1<<32-1000, 1<<32-5)
	for range requests {
		must[int](t)(unix.Write(fd, []byte(request)))
		for got, b := "", make([]byte, 4096); !strings.HasSuffix(got, "0\r\n\r\n"); {
			n := must[int](t)(unix.Read(fd, b))
			got += string(b[:n])
		}
	}
	kernel := must[*unix.TCPInfo](t)(unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO))
	_ = unix.Close(fd)
	server.CloseClientConnections()
	within(t, "it is closed", func() bool { return h.port(s, to.Port()).Closed == 1 && h.peer(s, to).Closed == 1 })
	port, peer, k := h.port(s, to.Port()), h.peer(s, to), must[Tokens](t)(s.Tokens(to.Port()))
	// If the client moves to another CPU after its last packet of the handshake, its request
	// overtakes that packet (TestRequestOpens). On a busy emulated machine this happens.
	measured := k.Requests == requests && k.Streams == requests ||
		testing.Short() && k.Unmeasured == 1 && k.Requests == 0
	if want := uint64(requests * len(request)); port.BytesReceived != want || peer.BytesSent != want || !measured {
		t.Errorf("%d bytes received and %d sent of %d; %d requests and %d streams of %d, %d connections unmeasured",
			port.BytesReceived, peer.BytesSent, want, k.Requests, k.Streams, requests, k.Unmeasured)
	}
	if segments, again := 1000+uint64(kernel.Data_segs_out),
		5+uint64(kernel.Total_retrans); peer.SegmentsSent != segments || peer.Retransmits != again {
		t.Errorf("%d segments sent and %d of them again, of %d and %d", peer.SegmentsSent, peer.Retransmits, segments,
			again)
	}
	h.noDrops(s)
}

// TestClockSteps: setting the clock forth and back by an hour changes no figure.
func TestClockSteps(t *testing.T) {
	if os.Getenv("BPF_CLOCK") != "1" {
		t.Skip("it sets the machine's clock: make check-bpf-vm")
	}
	h := newHost(t)
	s := h.load()
	e := must[*engine.Engine](t)(engine.New(engine.Config{PrefillTokensPerSecond: 2000,
		DecodeStep: 12 * time.Millisecond, NoPrefixCache: true}))
	defer e.Close()
	to := netip.MustParseAddrPort(e.Addr())
	if err := s.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	root := h.burning(s, times(3, 0))
	from, began := h.usage(s, root), must[[]CPU](t)(s.CPUs())
	step := time.Hour
	body := `{"model":"sim","prompt":"how long does it take","stream":true,"max_tokens":12}`
	seen := must[stopwatch.Streams](t)(stopwatch.Completions(to, body, 6, func() error {
		now := unix.NsecToTimespec(time.Now().Add(step).UnixNano())
		step = -step
		return unix.ClockSettime(unix.CLOCK_REALTIME, &now)
	}))
	k := must[Tokens](t)(s.Tokens(to.Port()))
	agrees(t, "TTFT", k.TTFT, seen.Read.TTFT, seen.Came.TTFT)
	agrees(t, "ITL", k.ITL, seen.Read.ITL, seen.Came.ITL)
	h.used(s, root, from)
	agree(t, from, h.usage(s, root))
	for i, c := range must[[]CPU](t)(s.CPUs()) {
		if used := c.Busy + c.Idle - began[i].Busy - began[i].Idle; used < 0 || used > 30*time.Minute {
			t.Errorf("CPU %d: %v", c.ID, used)
		}
	}
}

// TestOpen: the time since a CPU's last switch is never negative, whatever the clocks show.
func TestOpen(t *testing.T) {
	for _, c := range []struct {
		cpu  schedCpu
		now  uint64
		want time.Duration
	}{
		{schedCpu{StartNs: 100, BusyNs: 20, IdleNs: 30, AheadNs: 1000}, 1200, 50},
		// now was read before the switch
		{schedCpu{StartNs: 100, BusyNs: 20, IdleNs: 30, AheadNs: 1000}, 1100, 0},
		// the run queue's clock is ahead
		{schedCpu{StartNs: 100, BusyNs: 20, IdleNs: 30, AheadNs: ^uint64(0) - 9}, 200, 60},
		{schedCpu{StartNs: ^uint64(0) - 49, BusyNs: 20, IdleNs: 30, AheadNs: 0}, 7, 7}, // the clock wrapped
		// the values make no sense
		{schedCpu{StartNs: ^uint64(0) - 49, BusyNs: 20, IdleNs: 30, AheadNs: ^uint64(0)}, 1 << 63, 0},
	} {
		if got := c.cpu.open(c.now); got != c.want {
			t.Errorf("%+v at %d: %v, not %v", c.cpu, c.now, got, c.want)
		}
	}
}

// TestOddEvents: an event that is too short is refused. Unknown values are returned as they are,
// and additional bytes are ignored.
func TestOddEvents(t *testing.T) {
	whole := make([]byte, 48)
	for n := range whole {
		if _, err := decode(whole[:n]); err == nil {
			t.Errorf("%d bytes are an event", n)
		}
	}
	for i := range whole {
		whole[i] = 0xff
	}
	e, err := decode(whole)
	if err != nil || e.Age != 0 || e.Kind.String() != "kind 4294967295" || e.LocalPort != 65535 {
		t.Errorf("%+v, %v", e, err)
	}
	if later, err := decode(append(whole, 1, 2, 3)); err != nil || later != e {
		t.Errorf("a longer event: %+v, %v", later, err)
	}
}
