package bpf

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/perf/netpath"
)

// namespaces returns two network namespaces of the test's own, with a path between them.
func (h *host) namespaces() *netpath.Path {
	h.t.Helper()
	p, err := netpath.New(netpath.Options{Seed: 1})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		lack(h.t, "no network namespace can be made: "+err.Error())
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(p.Close)
	return p
}

// echo listens in a namespace and sends back all received bytes until the other side closes.
func (h *host) echo(at *netpath.Side, network, addr string) netip.AddrPort {
	h.t.Helper()
	var l net.Listener
	var err error
	at.Do(func() { l, err = net.Listen(network, addr) })
	if err != nil {
		h.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c) // ends with the connection
			_ = c.Close()
		}
	}()
	h.t.Cleanup(func() { _ = l.Close(); <-ended })
	return netip.MustParseAddrPort(l.Addr().String())
}

func dial(t testing.TB, from *netpath.Side, to netip.AddrPort) (c *net.TCPConn, err error) {
	t.Helper()
	from.Do(func() {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", to.String(), 20*time.Second); err == nil {
			c = conn.(*net.TCPConn)
		}
	})
	return c, err
}

// exchange sends n bytes, reads them back and closes.
func exchange(t testing.TB, c *net.TCPConn, n int) {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, n))
		sent <- errors.Join(err, c.CloseWrite())
	}()
	got, err := io.Copy(io.Discard, c)
	if err := errors.Join(err, <-sent, c.Close()); err != nil || got != int64(n) {
		t.Fatalf("%d of %d bytes: %v", got, n, err)
	}
}

func (h *host) peer(s *Set, addr netip.AddrPort) Sockets {
	h.t.Helper()
	for _, p := range must[[]Peer](h.t)(s.Peers()) {
		if p.Addr == addr {
			return p.Sockets
		}
	}
	return Sockets{}
}

// TestConnections compares the counts with known connections, over IPv4 and IPv6, at both ends.
func TestConnections(t *testing.T) {
	h := newHost(t)
	s := h.load()
	p := h.namespaces()
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		to := h.echo(p.A, "tcp", addr)
		if err := s.WatchPort(to.Port()); err != nil {
			t.Fatal(err)
		}
		const connections, size = 20, 100_000
		for range connections {
			c, err := dial(t, p.A, to)
			if err != nil {
				t.Fatal(err)
			}
			exchange(t, c, size)
		}
		within(t, "all are closed", func() bool {
			return h.peer(s, to).Closed == connections && h.port(s, to.Port()).Closed == connections
		})
		port, peer := h.port(s, to.Port()).Sockets, h.peer(s, to)
		for _, end := range []Sockets{port, peer} {
			if end.Opened != connections || end.Established != 0 || end.BytesSent != connections*size ||
				end.BytesReceived != connections*size {
				t.Errorf("%s: %+v", to, end)
			}
			if end.Refused+end.Unanswered+end.Abandoned+end.Resets+end.TimedOut != 0 || end.RTT <= 0 ||
				end.RTTMin > end.RTT+time.Second {
				t.Errorf("%s: %+v", to, end)
			}
		}
	}
	h.noDrops(s)
}

// TestEnds: a reset, a refused and a lasting connection are each counted by their kind.
func TestEnds(t *testing.T) {
	h := newHost(t)
	s := h.load()
	p := h.namespaces()
	var l net.Listener
	var err error
	p.B.Do(func() { l, err = net.Listen("tcp", p.B.Addr.String()+":0") })
	if err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort(l.Addr().String())
	events := must[*Events](t)(OpenEvents(h.root))
	defer events.Close()
	if _, err := OpenEvents(h.root); !errors.Is(err, ErrEventsTaken) {
		t.Errorf("a second reader: %v", err)
	}
	if err := events.Watch(to, 42); err != nil {
		t.Fatal(err)
	}
	next := func(want EventKind) Event {
		t.Helper()
		e, err := events.Next(time.Now().Add(30 * time.Second))
		if err != nil || e.Kind != want || e.ID != 42 || e.Peer != to || e.Age > 30*time.Second {
			t.Fatalf("%+v, %v, not %v", e, err, want)
		}
		return e
	}
	stays, err := dial(t, p.A, to)
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Close()
	other := must[net.Conn](t)(l.Accept()).(*net.TCPConn)
	defer other.Close()
	goes, err := dial(t, p.A, to)
	if err != nil {
		t.Fatal(err)
	}
	cut := must[net.Conn](t)(l.Accept()).(*net.TCPConn)
	_ = cut.SetLinger(0)
	_ = cut.Close()
	if _, err := goes.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Fatal(err)
	}
	_ = goes.Close()
	e := next(Reset)
	closes, err := dial(t, p.A, to)
	if err != nil {
		t.Fatal(err)
	}
	_ = must[net.Conn](t)(l.Accept()).Close()
	next(Closed)
	_ = closes.Close()
	t.Logf("the reset was read %v after it", e.Age)
	_ = l.Close()
	if _, err := dial(t, p.A, to); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatal(err)
	}
	next(Refused)
	if peer := h.peer(s, to); peer.Opened != 3 || peer.Established != 1 || peer.Resets != 1 || peer.Refused != 1 {
		t.Errorf("%+v", peer)
	}
	h.noDrops(s)
}

// TestLoss: the counted retransmissions equal the kernel's counts of the sockets. A peer that is
// cut off causes timeout events, and a recovery event when it is back.
func TestLoss(t *testing.T) {
	h := newHost(t)
	s := h.load()
	p := h.namespaces()
	to := h.echo(p.B, "tcp", p.B.Addr.String()+":0")
	p.Set(netpath.Conditions{Delay: 2 * time.Millisecond, Loss: 0.02})
	c, err := dial(t, p.A, to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 400_000)
	if _, err := c.Write(buf); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, buf); err != nil {
		t.Fatal(err)
	}
	p.Set(netpath.Conditions{Delay: 2 * time.Millisecond})
	if _, err := c.Write(buf[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, buf[:1]); err != nil {
		t.Fatal(err)
	}
	info := tcpInfo(t, c)
	_ = c.Close()
	within(t, "what is left to count is counted with the end", func() bool { return h.peer(s, to).Closed == 1 })
	peer := h.peer(s, to)
	t.Logf("retransmits %d, of the socket %d; RTT %v, of the socket %v", peer.Retransmits, info.Total_retrans, peer.RTT,
		time.Duration(info.Rtt)*time.Microsecond)
	if peer.Retransmits != uint64(info.Total_retrans) || peer.Retransmits == 0 ||
		peer.SegmentsSent != uint64(info.Data_segs_out) || peer.BytesSent != 400_001 || peer.BytesReceived != 400_001 {
		t.Errorf("%+v; of the socket %d retransmits", peer, info.Total_retrans)
	}
	if peer.DeliveryRate == 0 || peer.RTTMin < 4*time.Millisecond || peer.RTT < 4*time.Millisecond {
		t.Errorf("the path takes 4 ms: %+v", peer)
	}

	if c, err = dial(t, p.A, to); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	events := must[*Events](t)(OpenEvents(h.root))
	defer events.Close()
	if err := events.Watch(to, 7); err != nil { // the connection is established already
		t.Fatal(err)
	}
	p.Set(netpath.Conditions{Loss: 1})
	if _, err := c.Write(buf[:1]); err != nil {
		t.Fatal(err)
	}
	await := func(kind EventKind) (e Event) {
		t.Helper()
		for e.Kind != kind || kind == Timeout && e.Timeouts < 2 {
			var err error
			if e, err = events.Next(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(kind, err)
			}
		}
		return e
	}
	if e := await(Timeout); e.ID != 7 {
		t.Errorf("%+v", e)
	}
	p.Set(netpath.Conditions{})
	await(Recovered)
	h.noDrops(s)
}

func tcpInfo(t testing.TB, c *net.TCPConn) *unix.TCPInfo {
	t.Helper()
	raw := must[interface {
		Control(func(uintptr)) error
	}](t)(c.SyscallConn())
	var info *unix.TCPInfo
	var err error
	if err := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// TestStalls: a receiver that does not read causes counted stalls at both ends.
func TestStalls(t *testing.T) {
	h := newHost(t)
	s := h.load()
	p := h.namespaces()
	var l net.Listener
	var err error
	p.A.Do(func() { l, err = net.Listen("tcp", "127.0.0.1:0") })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := netip.MustParseAddrPort(l.Addr().String())
	if err := s.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	c, err := dial(t, p.A, to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	deaf := must[net.Conn](t)(l.Accept())
	defer deaf.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, 64<<20))
		ended <- err
	}()
	within(t, "the sender stalls", func() bool {
		return h.peer(s, to).StallsSend > 0 && h.port(s, to.Port()).StallsReceive > 0
	})
	_ = deaf.Close()
	if err := <-ended; err == nil {
		t.Error("64 MiB were sent to who does not read")
	}
}

// TestAdopted: connections that existed before their port was watched are counted with their next
// packet.
func TestAdopted(t *testing.T) {
	h := newHost(t)
	p := h.namespaces()
	to := h.echo(p.A, "tcp", "127.0.0.1:0")
	c, err := dial(t, p.A, to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := h.load()
	if err := s.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	exchange(t, c, 1000)
	within(t, "it is closed", func() bool { return h.port(s, to.Port()).Closed == 1 })
	if port := h.port(s, to.Port()); port.Opened != 1 || port.BytesReceived != 1000 {
		t.Errorf("%+v", port)
	}
}
