package bpf

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/perf/engine"
)

// timing is what a client saw of its streams: the time to each first token, and the gaps before the others. As in the kernel, there is no gap before several tokens that
// come at once: an engine that waits for a CPU sends what it has made meanwhile.
type timing struct{ ttft, itl []time.Duration }

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
		ours, theirs := kernel.Quantile(q), seen.Quantile(q)
		t.Logf("%v of %s: kernel %v, client %v", q, what, ours, theirs)
		if off := bucketOf(ours) - bucketOf(theirs); !testing.Short() && max(off, -off) > 1 {
			t.Errorf("%v of %s is off by %d buckets", q, what, off)
		}
	}
}

// stream asks for a stream and takes the time of each token, on a thread that runs as soon as something comes.
func (c *client) stream(path, body string) error {
	request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	sent := time.Now()
	if _, err := unix.Write(c.fd, []byte(request)); err != nil {
		return err
	}
	var buf [16 << 10]byte
	var last time.Time
	var got []byte
	for {
		n, err := unix.Read(c.fd, buf[:])
		at := time.Now()
		if err != nil || n == 0 {
			return fmt.Errorf("the stream ended: %d bytes, %v, %q", n, err, got)
		}
		got = append(got, buf[:n]...)
		tokens := bytes.Count(buf[:n], []byte(`"text":"`))
		if last.IsZero() && tokens > 0 {
			c.ttft = append(c.ttft, at.Sub(sent))
		} else if tokens == 1 {
			c.itl = append(c.itl, at.Sub(last))
		}
		if tokens > 0 {
			last = at
		}
		if bytes.Contains(got, []byte("[DONE]")) && bytes.HasSuffix(got, []byte("0\r\n\r\n")) {
			return nil
		}
	}
}

// client is a connection that is read on a thread of its own, with priority: a client that waits for a CPU measures that wait.
type client struct {
	fd int
	timing
}

// clients runs f on a thread with priority, with a connection.
func withClient(t *testing.T, to netip.AddrPort, f func(c *client) error) timing {
	t.Helper()
	// With few of Go's processors, the thread would wait for one that another thread holds while it waits for a CPU.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	type result struct {
		timing
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with its priority
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
		c := client{}
		var err error
		if c.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			defer unix.Close(c.fd)
			if err = unix.Connect(c.fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err == nil {
				err = f(&c)
			}
		}
		done <- result{c.timing, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.timing
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
	seen := withClient(t, to, func(c *client) error {
		for range streams {
			if err := c.stream("/v1/completions", body); err != nil {
				return err
			}
		}
		return nil
	})
	k := must[Tokens](t)(s.Tokens(to.Port()))
	if k.Requests != streams || k.Streams != streams || k.TTFT.Count != streams || k.Singles+k.Unmeasured != 0 {
		t.Errorf("%d requests and %d streams of %d: %+v", k.Requests, k.Streams, streams, k)
	}
	t.Logf("%d joined, %d coalesced", k.Joined, k.Coalesced)
	agrees(t, "TTFT", k.TTFT, seen.ttft)
	agrees(t, "ITL", k.ITL, seen.itl)
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
