package bpf

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/perf/stopwatch"
	"github.com/cognitora/dataplane/sim/engine"
)

// histogramOf counts durations as the kernel does.
func histogramOf(all []time.Duration) (h Histogram) {
	var buckets [histogramBuckets]uint64
	sum := uint64(0)
	for _, d := range all {
		buckets[bucketOf(d)]++
		sum += uint64(d)
	}
	h.add(uint64(len(all)), sum, &buckets)
	return h
}

// agrees compares the kernel's times with those of packets at the client's socket. Packet times do
// not depend on who waits for a CPU. Means must agree within 1 ms, and quantiles must lie in the
// same bucket or the next one. One gap in a hundred may have been classified differently, because
// packets arrive a few microseconds later. An emulated processor needs milliseconds to bring a
// packet to its socket.
func agrees(t testing.TB, what string, kernel Histogram, read, came []time.Duration) {
	t.Helper()
	client, seen := histogramOf(read), histogramOf(came)
	t.Logf("%s: kernel mean %v of %d, packets %v of %d, client %v of %d", what, kernel.Mean(), kernel.Count,
		seen.Mean(), seen.Count, client.Mean(), client.Count)
	apart := max(int(kernel.Count)-len(came), len(came)-int(kernel.Count))
	if apart > times(1, 3)+len(came)/100 {
		t.Errorf("%s: %d times, not %d", what, kernel.Count, len(came))
	}
	// largest effect of differently classified gaps on the sum
	most := max(kernel.Quantile(1), seen.Quantile(1)) * time.Duration(apart)
	if off := kernel.Mean() - seen.Mean(); off.Abs() > time.Millisecond*time.Duration(times(1, 10))+
		most/time.Duration(len(came)) {
		t.Errorf("mean %s is off by %v", what, off)
	}
	for _, q := range []float64{0.5, 0.9, 0.99} {
		rank := float64(1+apart) / float64(len(came)) // largest shift of a quantile by differently classified gaps
		if 1-q < rank {
			continue // too few values
		}
		ours, least, most := kernel.Quantile(q), seen.Quantile(q-rank), seen.Quantile(q+rank)
		t.Logf("%v of %s: kernel %v, packets %v, client %v", q, what, ours, seen.Quantile(q), client.Quantile(q))
		if next := times(1, 3); bucketOf(ours) < bucketOf(least)-next || bucketOf(ours) > bucketOf(most)+next {
			t.Errorf("%v of %s is not from %v to %v, or in the next bucket", q, what, least, most)
		}
	}
}

// TestTokens compares the kernel's times with a client's. The engine sends its head long before the
// first token.
func TestTokens(t *testing.T) {
	h := newHost(t)
	e, err := engine.New(engine.Config{PrefillTokensPerSecond: 2000, DecodeStep: 12 * time.Millisecond,
		NoPrefixCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	to := netip.MustParseAddrPort(e.Addr())
	s := h.load()
	if err := s.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	const streams, tokens = 12, 24
	body := fmt.Sprintf(`{"model":"sim","prompt":%q,"stream":true,"max_tokens":%d}`,
		strings.Repeat("how long does it take ", 40), tokens)
	seen := must[stopwatch.Streams](t)(stopwatch.Completions(to, body, streams, nil))
	k := must[Tokens](t)(s.Tokens(to.Port()))
	if k.Requests != streams || k.Streams != streams || k.TTFT.Count != streams || k.Singles+k.Unmeasured != 0 {
		t.Errorf("%d requests and %d streams of %d: %+v", k.Requests, k.Streams, streams, k)
	}
	t.Logf("%d joined, %d coalesced", k.Joined, k.Coalesced)
	agrees(t, "TTFT", k.TTFT, seen.Read.TTFT, seen.Came.TTFT)
	agrees(t, "ITL", k.ITL, seen.Read.ITL, seen.Came.ITL)
	h.noDrops(s)
}

// serve answers requests with f until the test ends, and watches its port.
func (h *host) serve(s *Set, start func(*httptest.Server), f http.HandlerFunc) *httptest.Server {
	h.t.Helper()
	server := httptest.NewUnstartedServer(f)
	start(server)
	h.t.Cleanup(server.Close)
	if err := s.WatchPort(netip.MustParseAddrPort(server.Listener.Addr().String()).Port()); err != nil {
		h.t.Fatal(err)
	}
	return server
}

func portOf(s *httptest.Server) uint16 {
	return netip.MustParseAddrPort(s.Listener.Addr().String()).Port()
}

// streamed writes pieces that are at least a millisecond apart.
func streamed(w http.ResponseWriter, _ *http.Request) {
	for range 4 {
		yield()
		fmt.Fprintf(w, "data: %s\n\n", strings.Repeat("x", 200))
		_ = http.NewResponseController(w).Flush() // on failure the client sees the end
	}
}

// ask sends a server a request and reads the answer to its end.
func ask(t *testing.T, server *httptest.Server) {
	t.Helper()
	c := server.Client()
	r, err := c.Post(server.URL, "application/json", strings.NewReader(strings.Repeat("q", 100)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdleConnections()
	defer r.Body.Close()
	if _, err := bytes.NewBuffer(nil).ReadFrom(r.Body); err != nil {
		t.Fatal(err)
	}
}

// TestNotGuessed: exchanges that cannot be measured are counted as unmeasured.
func TestNotGuessed(t *testing.T) {
	h := newHost(t)
	s := h.load()
	for name, start := range map[string]func(*httptest.Server){
		"TLS":   (*httptest.Server).StartTLS,
		"HTTP2": func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() },
	} {
		t.Run(name, func(t *testing.T) {
			server := h.serve(s, start, streamed)
			ask(t, server)
			k := must[Tokens](t)(s.Tokens(portOf(server)))
			if k.UnmeasuredTLS != 1 || k.Requests != 0 || k.TTFT.Count != 0 || k.ITL.Count != 0 {
				t.Errorf("%+v", k)
			}
		})
	}
	t.Run("h2c", func(t *testing.T) {
		server := h.serve(s, func(s *httptest.Server) {
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
		}, streamed)
		tr := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{}}
		tr.Protocols.SetUnencryptedHTTP2(true)
		server.Client().Transport = tr
		ask(t, server)
		k := must[Tokens](t)(s.Tokens(portOf(server)))
		if k.UnmeasuredHTTP != 1 || k.Requests != 0 || k.TTFT.Count != 0 {
			t.Errorf("%+v", k)
		}
	})
	t.Run("one piece", func(t *testing.T) {
		server := h.serve(s, (*httptest.Server).Start, func(w http.ResponseWriter, r *http.Request) {
			yield()
			fmt.Fprint(w, strings.Repeat("x", 2000))
		})
		ask(t, server)
		server.CloseClientConnections()
		within(t, "the answer is counted", func() bool {
			return must[Tokens](t)(s.Tokens(portOf(server))).Singles == 1
		})
		k := must[Tokens](t)(s.Tokens(portOf(server)))
		if k.Requests != 1 || k.Streams != 0 || k.TTFT.Count != 0 || k.SinglesTime < time.Millisecond {
			t.Errorf("%+v", k)
		}
	})
	t.Run("something else", func(t *testing.T) {
		l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
		defer l.Close()
		port := netip.MustParseAddrPort(l.Addr().String()).Port()
		if err := s.WatchPort(port); err != nil {
			t.Fatal(err)
		}
		c := must[net.Conn](t)(net.Dial("tcp", l.Addr().String()))
		defer c.Close()
		fmt.Fprint(c, "\x00\x00\x12\x04 frames of something, more than thirty-two bytes")
		within(t, "the connection is counted", func() bool { return must[Tokens](t)(s.Tokens(port)).Unmeasured == 1 })
	})
}

// TestRequestOpens: a connection is unmeasured as a whole if its first request also completes the
// handshake. A first request completes the handshake when the client's last handshake packet is
// lost, overtaken or held back (TCP_DEFER_ACCEPT, HAProxy's tcp-smart-connect). In these cases the
// first request arrives at the listening socket, and the programs see the request only there.
func TestRequestOpens(t *testing.T) {
	h := newHost(t)
	s := h.load()
	server := h.serve(s, func(server *httptest.Server) {
		raw := must[syscall.RawConn](t)(server.Listener.(*net.TCPListener).SyscallConn())
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 5)
		})
		if err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		server.Start()
	}, streamed)
	c := must[net.Conn](t)(net.Dial("tcp", server.Listener.Addr().String()))
	defer c.Close()
	for range 2 {
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: engine\r\nContent-Length: 300\r\n\r\n%s", strings.Repeat("q", 300))
		for got, b := "", make([]byte, 4096); !strings.HasSuffix(got, "0\r\n\r\n"); {
			got += string(b[:must[int](t)(c.Read(b))])
		}
	}
	if k := must[Tokens](t)(s.Tokens(portOf(server))); k.Unmeasured != 1 || k.Requests != 0 || k.TTFT.Count != 0 ||
		k.ITL.Count != 0 {
		t.Errorf("%+v", k)
	}
}
