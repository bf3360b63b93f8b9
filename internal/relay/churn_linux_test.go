package relay

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// openFiles returns the number of open descriptors of this process.
func openFiles(t testing.TB) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// churnEngine is an upstream that obeys the body of a request: the number of events, and the way to
// end. The upstream sends events one by one.
func churnEngine(c net.Conn, r *bufio.Reader) {
	for {
		_, body, err := readRequest(r)
		if err != nil {
			return
		}
		events, how := int(body[0]), body[1]
		io.WriteString(c, sseHead)
		for range events {
			if _, err := io.WriteString(c, chunk("data: a\n\n")); err != nil {
				return
			}
		}
		switch how {
		case 'd': // ends inside an event
			io.WriteString(c, chunk("data: unfini"))
			return
		case 'r': // ends with a reset
			c.(*net.TCPConn).SetLinger(0)
			return
		case 's': // sends no more
			io.Copy(io.Discard, r)
			return
		case 'g': // sends an invalid body
			io.WriteString(c, "nonsense\r\n")
			return
		case 'f': // announces a close, and does not close
			io.WriteString(c, chunk("data: b\n\n"))
		}
		io.WriteString(c, lastChunk)
	}
}

// churnEnds lists the ways to end. A letter's count is its weight.
const churnEnds = "ccccccccccccccccddddrrrrggggffffffs"

// churnClient sends requests on one connection until it leaves.
type churnClient struct {
	t      *testing.T
	o      *observed
	addr   string
	random *rand.Rand
	stalls bool // has had an answer that stalled, which takes the idle time
}

// run sends up to streams requests and returns their number.
func (k *churnClient) run(streams int) (made int) {
	c, err := net.Dial("tcp", k.addr)
	if err != nil {
		k.t.Error(err)
		return 0
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for made < streams {
		events, how := byte(1+k.random.IntN(60)), churnEnds[k.random.IntN(len(churnEnds))]
		if how == 's' && k.stalls {
			how = 'c'
		}
		k.stalls = k.stalls || how == 's'
		c.SetDeadline(time.Now().Add(6 * soon))
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n%c%c", events, how)
		made++
		switch k.random.IntN(8) {
		case 0: // leaves in the middle of an answer
			io.CopyN(io.Discard, r, int64(k.random.IntN(100)))
			if k.random.IntN(2) == 0 {
				c.(*net.TCPConn).SetLinger(0)
			}
			return made
		case 1: // shuts down its sending side
			r.Peek(1)
			c.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, r)
			return made
		}
		if !k.read(r, int(events), how) {
			return made
		}
	}
	return made
}

// read checks an answer.
func (k *churnClient) read(r *bufio.Reader, events int, how byte) bool {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		k.t.Errorf("%d events, %c: %v", events, how, err)
		return false
	}
	got, err := io.ReadAll(resp.Body)
	want := strings.Repeat("data: a\n\n", events)
	switch how {
	case 'f':
		want += "data: b\n\n"
	case 'd', 's', 'g':
		want += k.o.tail
	case 'r': // a reset loses bytes that were not read yet
		n := len(got) - len(k.o.tail)
		if err != nil || n < 0 || !strings.HasPrefix(want, string(got[:n])) || string(got[n:]) != k.o.tail {
			k.t.Errorf("%d events, %c: %q, %v", events, how, got, err)
		}
		return err == nil
	}
	if err != nil || string(got) != want {
		k.t.Errorf("%d events, %c: %d bytes of %d: %v", events, how, len(got), len(want), err)
	}
	return err == nil
}

// churnSeed returns CHURN_SEED, which a failed test has logged, or a new seed.
func churnSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("CHURN_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal("CHURN_SEED:", err)
		}
	}
	t.Logf("seed: CHURN_SEED=%d", seed)
	return seed
}

// TestChurn opens streams and ends them at random in all possible ways, on reused connections. Each
// stream is accounted for, and no descriptor leaks.
func TestChurn(t *testing.T) {
	streams, clients := 600, 24
	if thorough {
		streams, clients = 10_000, 128
	}
	seed := churnSeed(t)
	before := openFiles(t)
	o := newObserved()
	o.done = make(chan Outcome, 2*streams)
	f := newFront(t, rawServer(t, "tcp", churnEngine), func(f *front) {
		f.follower, f.idle = passing{o}, 6*time.Second // longer than a busy machine pauses
	})
	var left sync.WaitGroup
	for i := range clients {
		left.Go(func() {
			k := churnClient{t: t, o: o, addr: f.addr, random: rand.New(rand.NewPCG(seed, uint64(i)))}
			for n := 0; n < streams/clients && !t.Failed(); {
				n += k.run(streams/clients - n)
			}
		})
	}
	left.Wait()
	for end := soonest(); f.parking.Loops.busy.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d streams are left", f.parking.Loops.busy.Load())
		}
	}
	if idle, open := f.pool.Stats(); idle != open {
		t.Errorf("%d idle of %d connections", idle, open)
	}
	f.close()
	// The upstream's listener and its connections may stay.
	for end := soonest(); openFiles(t) > before+3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors, %d before", openFiles(t), before)
		}
	}
}

// TestStopAtAnyTime: streams are stopped from outside, some before they begin and some after their
// end. In any case the client gets only whole events.
func TestStopAtAnyTime(t *testing.T) {
	const streams, clients, event = 800, 16, "data: a\n\n"
	seed := churnSeed(t)
	o := newObserved()
	o.done = make(chan Outcome, streams)
	aborts := make(chan *Abort, clients)
	f := newFront(t, rawServer(t, "tcp", churnEngine), func(f *front) { f.follower, f.aborts = passing{o}, aborts })
	random := rand.New(rand.NewPCG(seed, 0))
	var stoppers, all sync.WaitGroup
	stoppers.Go(func() {
		for a := range aborts {
			delay := time.Duration(random.IntN(3000)) * time.Microsecond
			stoppers.Add(1)
			time.AfterFunc(delay, func() {
				defer stoppers.Done()
				a.Stop()
			})
		}
	})
	for range clients {
		c := dial(t, f.addr)
		all.Go(func() {
			for range streams / clients {
				c.SetDeadline(soonest())
				io.WriteString(c.Conn, strings.Replace(request, "{}", "(c", 1))
				resp, err := http.ReadResponse(c.r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				left := strings.ReplaceAll(string(body), event, "")
				if err != nil || resp.StatusCode == 200 && left != "" && left != o.tail {
					t.Errorf("%d %q %v", resp.StatusCode, left, err)
					return
				}
			}
		})
	}
	all.Wait()
	f.close()
	close(aborts)
	stoppers.Wait()
}

// passing is an observed that stores no events.
type passing struct{ *observed }

func (passing) Event(e sse.Event, out []byte, _ time.Time) ([]byte, bool) {
	return append(out, e.Raw...), false
}
