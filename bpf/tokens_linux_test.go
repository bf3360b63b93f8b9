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
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/engine"
	"github.com/cognitora/dataplane/perf/stopwatch"
)

// histogramOf counts as the kernel does.
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

// agrees holds the kernel's times to a client's: means to 1 ms, quantiles to the same bucket or the next one. Of the gaps, a tenth may have been told apart otherwise by
// whichever side had to wait for a CPU.
func agrees(t testing.TB, what string, kernel Histogram, client []time.Duration) {
	t.Helper()
	seen := histogramOf(client)
	t.Logf("%s: kernel mean %v of %d, client %v of %d", what, kernel.Mean(), kernel.Count, seen.Mean(), seen.Count)
	if apart := int(kernel.Count) - len(client); max(apart, -apart) > len(client)/10 {
		t.Errorf("%s: %d times, not %d", what, kernel.Count, len(client))
	}
	// An emulated processor takes milliseconds to wake the client.
	if off := kernel.Mean() - seen.Mean(); off.Abs() > time.Millisecond*time.Duration(times(1, 50)) {
		t.Errorf("mean %s is off by %v", what, off)
	}
	for _, q := range []float64{0.5, 0.9, 0.99} {
		if (1-q)*float64(len(client)) < 1 {
			continue // one that waited for a CPU would decide
		}
		ours, theirs := kernel.Quantile(q), seen.Quantile(q)
		t.Logf("%v of %s: kernel %v, client %v", q, what, ours, theirs)
		if off := bucketOf(ours) - bucketOf(theirs); !testing.Short() && max(off, -off) > 1 {
			t.Errorf("%v of %s is off by %d buckets", q, what, off)
		}
	}
}

// TestTokens holds the kernel's times to a client's, with an engine that sends its head long before the first token.
func TestTokens(t *testing.T) {
	h := newHost(t)
	e, err := engine.New(engine.Config{PrefillTokensPerSecond: 2000, DecodeStep: 12 * time.Millisecond, NoPrefixCache: true})
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
	body := fmt.Sprintf(`{"model":"sim","prompt":%q,"stream":true,"max_tokens":%d}`, strings.Repeat("how long does it take ", 40), tokens)
	seen := must[stopwatch.Times](t)(stopwatch.Completions(to, body, streams, nil))
	k := must[Tokens](t)(s.Tokens(to.Port()))
	if k.Requests != streams || k.Streams != streams || k.TTFT.Count != streams || k.Singles+k.Unmeasured != 0 {
		t.Errorf("%d requests and %d streams of %d: %+v", k.Requests, k.Streams, streams, k)
	}
	t.Logf("%d joined, %d coalesced", k.Joined, k.Coalesced)
	agrees(t, "TTFT", k.TTFT, seen.TTFT)
	agrees(t, "ITL", k.ITL, seen.ITL)
	h.noDrops(s)
}

// serve answers requests with f until the test ends, and has its port watched.
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

// streamed writes pieces with a millisecond and more between them.
func streamed(w http.ResponseWriter, _ *http.Request) {
	for range 4 {
		yield()
		fmt.Fprintf(w, "data: %s\n\n", strings.Repeat("x", 200))
		_ = http.NewResponseController(w).Flush() // the client reads to the end
	}
}

// TestNotGuessed: what cannot be measured is counted as such.
func TestNotGuessed(t *testing.T) {
	h := newHost(t)
	s := h.load()
	get := func(server *httptest.Server) {
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
	for name, start := range map[string]func(*httptest.Server){
		"TLS":   (*httptest.Server).StartTLS,
		"HTTP2": func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() },
	} {
		t.Run(name, func(t *testing.T) {
			server := h.serve(s, start, streamed)
			get(server)
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
		get(server)
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
		get(server)
		server.CloseClientConnections()
		within(t, "the answer is counted", func() bool { return must[Tokens](t)(s.Tokens(portOf(server))).Singles == 1 })
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
