package bpf

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// part is a piece of an answer that one write sends.
type part struct {
	after time.Duration // time since the part before, or since the request
	size  int           // bytes
}

// parts returns an answer: a first part, a first token some time later, and further tokens.
func parts(began time.Duration, first int, waits time.Duration, token int, gap time.Duration, more int) []part {
	all := []part{{began, first}, {waits, token}}
	for range more {
		all = append(all, part{gap, token})
	}
	return all
}

// talk is a connection to a watched port. The test holds both ends.
type talk struct {
	t              testing.TB
	s              *Set
	client, server net.Conn
	port           uint16
	took           time.Duration // time from requests to the ends of their answers
}

func (h *host) talk(t testing.TB, s *Set) *talk {
	t.Helper()
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	k := &talk{t: t, s: s, port: netip.MustParseAddrPort(l.Addr().String()).Port()}
	if err := s.WatchPort(k.port); err != nil {
		t.Fatal(err)
	}
	k.client = must[net.Conn](t)(net.Dial("tcp", l.Addr().String()))
	k.server = must[net.Conn](t)(l.Accept())
	t.Cleanup(func() {
		k.close()
		if err := s.UnwatchPort(k.port); err != nil { // another test may get the port
			t.Error(err)
		}
	})
	return k
}

func (k *talk) close() {
	_ = k.client.Close()
	_ = k.server.Close()
}

// ends closes the connection, waits until its end is counted, and returns the counts.
func (k *talk) ends(h *host) Tokens {
	k.t.Helper()
	k.close()
	within(k.t, "the connection is closed", func() bool { return h.port(k.s, k.port).Established == 0 })
	return k.tokens()
}

func (k *talk) tokens() Tokens {
	k.t.Helper()
	return must[Tokens](k.t)(k.s.Tokens(k.port))
}

// votes returns how often the programs have seen the port send its head alone.
func (k *talk) votes() uint32 {
	k.t.Helper()
	var v socketsTokens
	if err := k.s.maps["cgn_tokens"].Lookup(&socketsPortKey{Port: k.port}, &v); err != nil {
		k.t.Fatal(err)
	}
	return v.HeadVotes
}

// says sends bytes from one end and reads them at the other end.
func (k *talk) says(from, to net.Conn, b []byte) {
	k.t.Helper()
	must[int](k.t)(from.Write(b))
	must[int](k.t)(io.ReadFull(to, b))
}

// asks sends a request and its answer.
func (k *talk) asks(method string, answer ...part) {
	k.t.Helper()
	began := time.Now()
	k.says(k.client, k.server, []byte(method+" / HTTP/1.1\r\nHost: engine\r\n\r\n"+strings.Repeat("q", 100)))
	k.answers(answer...)
	k.took += time.Since(began)
}

func (k *talk) answers(answer ...part) {
	k.t.Helper()
	for _, p := range answer {
		pause(p.after)
		k.says(k.server, k.client, make([]byte, p.size))
	}
}

// pause stands for the engine's computing time.
func pause(d time.Duration) {
	var none []unix.PollFd
	for end := time.Now().Add(d); time.Now().Before(end); {
		_, _ = unix.Poll(none, int(max(time.Until(end), 0)/time.Millisecond)+1)
	}
}

const (
	prefill    = 150 * time.Millisecond
	decodeStep = 20 * time.Millisecond
	decodes    = 10
)

// counted checks the counts of n streams whose first token comes after least. Each stream is either
// measured or counted as unclear, and no time is a guess.
func (k *talk) counted(n int, least time.Duration) Tokens {
	k.t.Helper()
	c := k.tokens()
	k.t.Logf("TTFT %v of %d, %d unclear, ITL %v of %d, in %v", c.TTFT.Mean(), c.TTFT.Count, c.Unclear, c.ITL.Mean(),
		c.ITL.Count, k.took)
	if c.Requests != uint64(n) || c.Streams != uint64(n) || c.TTFT.Count+c.Unclear != uint64(n) ||
		c.Singles+c.Unmeasured+c.Coalesced != 0 {
		k.t.Errorf("of %d streams: %+v", n, c)
	}
	if c.TTFT.Sum < time.Duration(c.TTFT.Count)*least {
		k.t.Errorf("mean TTFT %v, and there is no token before %v", c.TTFT.Mean(), least)
	}
	// No gap includes the time to a first token.
	if c.ITL.Sum+max(c.TTFT.Sum, time.Duration(n)*least) > k.took {
		k.t.Errorf("gaps of %v and first tokens of %v in %v", c.ITL.Sum, c.TTFT.Sum, k.took)
	}
	return c
}

// TestHeads: a head that goes out long before the first token is not taken for a token, whatever
// its size. If the programs cannot distinguish a head from a token, they measure no time to the
// first token.
func TestHeads(t *testing.T) {
	h := newHost(t)
	s := h.load()
	const n = 4
	for _, size := range []struct{ head, token int }{{180, 206}, {53, 206}, {300, 206}, {250, 146}, {330, 206},
		{450, 206}, {2000, 206}, {5000, 206}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			k := h.talk(t, s)
			for range n {
				k.asks("POST", parts(0, size.head, prefill, size.token, decodeStep, decodes)...)
			}
			if c := k.counted(n, prefill); c.ITL.Count != n*decodes || c.TTFT.Count == 0 {
				t.Errorf("%d gaps of %d, %d first tokens of %d", c.ITL.Count, n*decodes, c.TTFT.Count, n)
			}
		})
	}
	t.Run("with the token", func(t *testing.T) {
		k := h.talk(t, s)
		for range n {
			k.asks("POST", parts(prefill, 450, decodeStep, 206, decodeStep, decodes)...)
		}
		if c := k.counted(n, prefill); c.ITL.Count != n*decodes+c.TTFT.Count || c.TTFT.Count == 0 {
			t.Errorf("%d gaps, %d first tokens of %d", c.ITL.Count, c.TTFT.Count, n)
		}
	})
	t.Run("unclear", func(t *testing.T) { // the first token may be the first part, or the second
		k := h.talk(t, s)
		for range n {
			k.asks("POST", parts(0, 450, decodeStep, 206, decodeStep, decodes)...)
		}
		if c := k.counted(n, 0); c.Unclear == 0 {
			t.Errorf("%+v", c)
		}
	})
	// looks like a head with the token, but earlier streams have shown that the port sends heads
	// alone
	t.Run("late and known", func(t *testing.T) {
		k := h.talk(t, s)
		asked := 0
		within(t, "the head is known", func() bool {
			k.asks("POST", parts(0, 450, prefill, 206, decodeStep, 2)...)
			asked++
			return k.votes() > 2
		})
		before := k.tokens()
		k.asks("POST", parts(2*decodeStep, 451, decodeStep, 206, decodeStep, decodes)...)
		c := k.tokens()
		if ttft := c.TTFT.Since(before.TTFT); c.Streams != uint64(asked)+1 ||
			ttft.Sum < time.Duration(ttft.Count)*3*decodeStep || ttft.Count+c.Unclear-before.Unclear != 1 {
			t.Errorf("%+v", c)
		}
	})
}

// TestShortAnswers: an answer smaller than any token also ends its request, and 100 Continue does
// not.
func TestShortAnswers(t *testing.T) {
	h := newHost(t)
	s := h.load()
	const n = 3
	stream := parts(0, 180, prefill, 206, decodeStep, decodes)
	for name, first := range map[string]struct {
		method string
		size   int
		posts  uint64
	}{"GET": {"GET", 75, 0}, "POST": {"POST", 75, n}, "a line": {"POST", 27, n},
		"DELETE with a line": {"DELETE", 27, 0}} {
		t.Run(name, func(t *testing.T) {
			k := h.talk(t, s)
			for range n {
				k.asks(first.method, part{0, first.size})
				pause(2 * prefill)
				k.took = 0
				before := k.tokens()
				k.asks("POST", stream...)
				c := k.tokens()
				ttft := c.TTFT.Since(before.TTFT)
				if ttft.Count != 1 || ttft.Sum < prefill || ttft.Sum > k.took {
					t.Errorf("first token after %v, of an answer that took %v", ttft.Sum, k.took)
				}
			}
			if c := k.ends(h); c.Requests != n+first.posts || c.Streams != n || c.Unmeasured != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
	t.Run("100 Continue", func(t *testing.T) {
		k := h.talk(t, s)
		for range n {
			k.says(k.client, k.server, []byte("POST / HTTP/1.1\r\nHost: engine\r\nExpect: 100-continue\r\n\r\n"))
			k.says(k.server, k.client, []byte("HTTP/1.1 100 Continue\r\n\r\n"))
			pause(prefill)
			k.says(k.client, k.server, []byte(`{"prompt":"what"}`))
			k.answers(stream...)
		}
		if c := k.ends(h); c.Requests != n || c.Streams != n || c.Unmeasured != 0 || c.TTFT.Sum < n*2*prefill {
			t.Errorf("%+v", c)
		}
	})
}

// TestNoStreams: answers to other methods and answers without tokens count in no figure of tokens.
func TestNoStreams(t *testing.T) {
	h := newHost(t)
	s := h.load()
	const n = 5
	for _, method := range []string{"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		t.Run(method, func(t *testing.T) {
			k := h.talk(t, s)
			for range n {
				k.asks(method, parts(time.Millisecond, 300, time.Millisecond, 1500, time.Millisecond, 4)...)
			}
			if c := k.ends(h); c.Requests+c.Streams+c.Singles+c.TTFT.Count+c.ITL.Count+c.Joined+c.Unmeasured != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
	for name, answer := range map[string][]part{
		"head and body": {{0, 400}, {time.Millisecond, 2000}},
		"one and end":   {{0, 180}, {prefill, 206}, {decodeStep, 5}},
		"large pieces":  {{0, 400}, {time.Millisecond, 32 << 10}, {time.Millisecond, 32 << 10}, {time.Millisecond, 32 << 10}, {time.Millisecond, 300}, {time.Millisecond, 300}},
	} {
		t.Run(name, func(t *testing.T) {
			k := h.talk(t, s)
			for range n {
				k.asks("POST", answer...)
			}
			if c := k.ends(h); c.Requests != n || c.Singles != n || c.Streams+c.TTFT.Count+c.ITL.Count != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
	for _, size := range []int{200 << 10, 12 << 20} {
		t.Run(fmt.Sprint(size, " to a slow reader"), func(t *testing.T) {
			k := h.talk(t, s)
			k.says(k.client, k.server, []byte("POST / HTTP/1.1\r\n\r\n"))
			sent := make(chan error)
			go func() {
				_, err := k.server.Write(make([]byte, 400))
				if err == nil {
					pause(time.Millisecond)
					_, err = k.server.Write(make([]byte, size))
				}
				sent <- err
			}()
			for got, b := 0, make([]byte, 16<<10); got < size+400; {
				yield()
				got += must[int](t)(k.client.Read(b))
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			if c := k.ends(h); c.Singles != 1 || c.Streams+c.TTFT.Count+c.ITL.Count != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
}
