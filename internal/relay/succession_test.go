package relay

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// scripted is an upstream that obeys the body of a request, letter by letter. chain.Event lists the
// letters of events.
func scripted(c net.Conn, r *bufio.Reader) {
	for {
		_, script, err := readRequest(r)
		if err != nil {
			return
		}
		if script == "json" {
			io.WriteString(c, okResponse)
			continue
		}
		out := new(bytes.Buffer)
		out.WriteString(sseHead)
		for i, letter := range script {
			switch letter {
			case '.': // ends properly
				out.WriteString(lastChunk)
			case ':':
				out.WriteString(chunk(": ping\n\n"))
			case '!': // ends inside an event
				out.WriteString(chunk("data: unfini"))
				c.Write(out.Bytes())
				return
			case '~': // sends no more
				c.Write(out.Bytes())
				io.Copy(io.Discard, r)
				return
			case '|': // begins another packet
				c.Write(out.Bytes())
				out.Reset()
				time.Sleep(time.Millisecond)
			default:
				out.WriteString(chunk(fmt.Sprintf("data: %c%d of %s\n\n", letter, i, script)))
			}
		}
		if _, err := c.Write(out.Bytes()); err != nil {
			return
		}
	}
}

// chain is a Follower with scripted sources.
type chain struct {
	pool   *Pool
	abort  *Abort
	next   []string // scripts of the further sources; "none" makes Next fail
	tail   string   // appended to report a last failure
	gate   chan struct{}
	ignore bool // Left does not make Next return
	idle   time.Duration
	total  time.Duration // time limit of each further source

	calls []string
	given []byte // the bytes that the client should get
	held  []byte
	holds atomic.Bool // the client holds up the present source
	left  chan struct{}
	asked chan struct{} // signalled when Next is called
	done  chan struct{}
}

func newChain(pool *Pool, next ...string) *chain {
	return &chain{
		pool: pool, next: next,
		left: make(chan struct{}, 8), asked: make(chan struct{}, 8), done: make(chan struct{}),
	}
}

var errNone = errors.New("no further source")

const bigBytes = 512 << 10

// Event forwards the event, unless its first letter asks for another treatment.
func (c *chain) Event(e sse.Event, out []byte, _ time.Time) (rest []byte, enough bool) {
	if e.Oversized() {
		out, c.held = append(out, c.held...), nil
		return out, false
	}
	c.calls = append(c.calls, "event "+string(e.Data))
	from := len(out)
	switch e.Data[0] {
	case 'h': // withhold it until the end
		c.held = append(c.held, e.Raw...)
	case 'd': // drop
	case 'l': // make it longer
		out = append(append(out, "id: "+strings.Repeat("l", 9000)+"\n"...), e.Raw...)
	case 's': // make it shorter
		out = append(out, "data\n\n"...)
	case 'u': // blank it
		copy(e.Data, "--")
		out = append(out, e.Raw...)
	case 'B': // replace it by more than sockets hold
		out = append(append(out, "data: "...), bytes.Repeat([]byte("b"), bigBytes)...)
		out = append(out, "\n\n"...)
	case 'e': // want no more
		enough = true
		fallthrough
	default:
		out = append(out, e.Raw...)
	}
	c.given = append(c.given, out[from:]...)
	return out, enough
}

func (c *chain) Held(held bool, _ time.Time) { c.holds.Store(held) }

func (c *chain) Body(piece []byte, _ bool) { c.given = append(c.given, piece...) }

func (c *chain) End(out []byte, o Outcome, err error) ([]byte, bool) {
	c.calls = append(c.calls, "end "+o.String())
	if errors.Is(err, errNone) || errors.Is(err, errNoEvents) {
		c.calls = append(c.calls, err.Error())
	}
	from := len(out)
	out, c.held = append(out, c.held...), nil
	if o != Complete && o != Enough && len(c.next) == 0 {
		out = append(out, c.tail...)
	}
	c.given = append(c.given, out[from:]...)
	return out, len(c.next) > 0
}

func (c *chain) Next() (*Exchange, error) {
	c.holds.Store(false)
	script := c.next[0]
	c.calls, c.next = append(c.calls, "next "+script), c.next[1:]
	c.asked <- struct{}{}
	if c.gate != nil {
		left := c.left
		if c.ignore {
			left = nil
		}
		select {
		case <-left:
			return nil, errNone
		case <-c.gate:
		}
	}
	if script == "none" {
		return nil, errNone
	}
	e, err := c.pool.Send(&Request{Method: "POST", Body: [][]byte{[]byte(script)}, Abort: c.abort}, soonest())
	if err != nil {
		return nil, err
	}
	if err = e.ReadHead(soonest()); err == nil {
		err = e.AwaitBody(soonest())
	}
	if err != nil {
		e.Close()
		return nil, errNone
	}
	if e.SetIdleTimeout(c.idle); c.total > 0 {
		e.SetReadDeadline(time.Now().Add(c.total))
	}
	return e, nil
}

func (c *chain) Left() { c.left <- struct{}{} }

func (c *chain) Done(o Outcome, sent int64, err error) {
	c.calls = append(c.calls, fmt.Sprintf("done %v %d %v", o, sent, err != nil))
	close(c.done)
}

// wait waits for the end of the response and checks its outcome.
func (c *chain) wait(t testing.TB, want Outcome) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(soon):
		t.Fatal("the response has not ended")
	}
	if last := c.calls[len(c.calls)-1]; !strings.HasPrefix(last, "done "+want.String()) {
		t.Fatalf("%v, want %v; %q", last, want, c.calls)
	}
}

// ways lists the ways in which a front relays.
var ways = []string{"loops", "goroutines", "TLS client", "TLS upstream"}

// succession is a front for scripted. A succession's followers are chains.
type succession struct {
	*front
	clients *tls.Config
	chains  chan *chain // chains of the next requests
}

func newSuccession(t testing.TB, way string, setup func(*front)) *succession {
	t.Helper()
	config, roots := certificate(t)
	s := &succession{chains: make(chan *chain, 1)}
	serve := scripted
	if way == "TLS upstream" {
		serve = secured(config, scripted)
	}
	target := rawServer(t, "tcp", serve)
	if way == "TLS upstream" {
		target.TLS = &tls.Config{RootCAs: roots}
	}
	kept := parkStreams
	parkStreams = way != "goroutines"
	defer func() { parkStreams = kept }()
	s.front = newFront(t, target, func(f *front) {
		f.follow = func(a *Abort) Follower {
			c := <-s.chains
			c.abort = a
			return c
		}
		if way == "TLS client" {
			f.secure = config
		}
		if setup != nil {
			setup(f)
		}
	})
	if way == "TLS client" {
		s.clients = &tls.Config{RootCAs: roots}
	}
	return s
}

func (s *succession) dial(t testing.TB) *client {
	t.Helper()
	c := dial(t, s.addr)
	if s.clients != nil {
		config := s.clients.Clone()
		config.ServerName = "127.0.0.1"
		secure := tls.Client(c.Conn, config)
		c = &client{secure, bufio.NewReader(secure)}
	}
	return c
}

// ask sends a request with the first script. ch follows its response.
func (s *succession) ask(c *client, ch *chain, script string) {
	s.chains <- ch
	fmt.Fprintf(c.Conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(script), script)
}

// body reads a response. err is not nil if it was cut.
func (c *client) body(t testing.TB) (body string, err error) {
	t.Helper()
	r, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

// any is like body, for a response that may not come.
func (c *client) any() (status int, body string, err error) {
	r, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

func event(script string, at int) string {
	return fmt.Sprintf("data: %c%d of %s\n\n", script[at], at, script)
}

const failed = "data: failed\n\n" // a chain's report of a failure

// turns holds the scripts of a succession and the expected results.
type turns struct {
	scripts string // the first word is the request of the client
	want    string // empty: only compared with chain.given
	calls   string // empty: not compared
	outcome Outcome
	cut     bool // the chain reports no failure
}

var long = "id: " + strings.Repeat("l", 9000) + "\n" // prefix that 'l' puts before an event

var inTurn = map[string]turns{
	"one": {scripts: "aa.", want: event("aa.", 0) + event("aa.", 1), calls: "event event end done"},
	"two": {scripts: "a. aa.", want: event("a.", 0) + event("aa.", 0) + event("aa.", 1),
		calls: "event end next event event end done"},
	"three, and enough of two": {scripts: "aa|eaaa. e~ a.",
		want: event("aa|eaaa.", 0) + event("aa|eaaa.", 1) + event("aa|eaaa.", 3) +
			event("e~", 0) + event("a.", 0),
		calls: "event event event end next event end next event end done"},
	"held back": {scripts: "hah. ah. hd.",
		want: event("hah.", 1) + event("hah.", 0) + event("hah.", 2) + event("ah.", 0) + event("ah.", 1) +
			event("hd.", 0)},
	"rewritten": {scripts: "ls. sd|l.",
		want: long + event("ls.", 0) + "data\n\ndata\n\n" + long + event("sd|l.", 3)},
	"blanked": {scripts: "u. |u.", want: "data: -- of u.\n\ndata: -- of |u.\n\n"},
	"comments and failures": {scripts: ":a:! :a! a.",
		want: ": ping\n\n" + event(":a:!", 1) + ": ping\n\n: ping\n\n" + event(":a!", 1) + event("a.", 0)},
	"the last fails": {scripts: "a! ah!", want: event("a!", 0) + event("ah!", 0) + event("ah!", 1) + failed,
		outcome: UpstreamFailed},
	"there is none": {scripts: "a. none", want: event("a.", 0) + failed, outcome: UpstreamFailed,
		calls: "event end next end no done"},
	"none, then one": {scripts: "a. none a.", want: event("a.", 0) + event("a.", 0),
		calls: "event end next end no next event end done"},
	"no event stream": {scripts: "a. json", want: event("a.", 0) + failed, outcome: UpstreamFailed,
		calls: "event end next end next done"},
	"nothing is told":  {scripts: "a. a!", want: event("a.", 0) + event("a!", 0), outcome: UpstreamFailed, cut: true},
	"nothing at first": {scripts: "d. hd. a.", want: event("hd.", 0) + event("a.", 0)},
	"big":              {scripts: "aB. aBe~ a."},
}

// TestSourcesInTurn: the client's body consists exactly of the follower's bytes, in order, whatever
// ends a source. The client's connection then serves the next request.
func TestSourcesInTurn(t *testing.T) {
	for name, c := range inTurn {
		for _, way := range ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				s := newSuccession(t, way, nil)
				conn := s.dial(t)
				for range 2 {
					s.check(t, conn, c)
					if c.cut {
						conn = s.dial(t)
					}
				}
				s.allIdle(t)
			})
		}
	}
}

// check makes one request and compares the results.
func (s *succession) check(t *testing.T, conn *client, c turns) {
	t.Helper()
	scripts := strings.Fields(c.scripts)
	ch := newChain(s.pool, scripts[1:]...)
	if !c.cut {
		ch.tail = failed
	}
	s.ask(conn, ch, scripts[0])
	body, err := conn.body(t)
	ch.wait(t, c.outcome)
	if c.want != "" && body != c.want {
		t.Fatalf("%q, want %q", body, c.want)
	}
	if !strings.Contains(body, ": ping") && body != string(ch.given) {
		t.Fatalf("%d bytes, the follower gave %d", len(body), len(ch.given))
	}
	want := fmt.Sprintf("done %v %d %v", c.outcome, len(body), c.outcome != Complete)
	if last := ch.calls[len(ch.calls)-1]; last != want {
		t.Errorf("%q, want %q", last, want)
	}
	if got := firstWords(ch.calls); c.calls != "" && got != c.calls {
		t.Errorf("calls %q, want %q", got, c.calls)
	}
	if (err != nil) != c.cut {
		t.Fatal(err)
	}
}

func firstWords(calls []string) string {
	words := make([]string, len(calls))
	for i, c := range calls {
		words[i], _, _ = strings.Cut(c, " ")
	}
	return strings.Join(words, " ")
}

// allIdle checks that no connection to the upstream is still in use.
func (s *succession) allIdle(t testing.TB) {
	t.Helper()
	if idle, open := s.pool.Stats(); idle != open {
		t.Errorf("%d idle of %d connections", idle, open)
	}
}

// TestClientLeavesBetweenSources: Left is called while Next runs. A source that Next still returns
// is closed.
func TestClientLeavesBetweenSources(t *testing.T) {
	for _, way := range ways {
		for _, ignore := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", way, ignore), func(t *testing.T) {
				s := newSuccession(t, way, nil)
				conn := s.dial(t)
				ch := newChain(s.pool, "a.", "a.")
				ch.gate, ch.ignore = make(chan struct{}), ignore
				s.ask(conn, ch, "a.")
				<-ch.asked
				conn.Close()
				if ignore {
					<-ch.left
					ch.abort = nil // a Watcher also cancels the Abort
					close(ch.gate)
				}
				ch.wait(t, ClientGone)
				if got := firstWords(ch.calls); got != "event end next done" {
					t.Errorf("%q", ch.calls)
				}
				if len(ch.left) != 0 {
					t.Error("told twice that the client has left")
				}
				s.allIdle(t)
			})
		}
	}
}

// TestHTTP10Succession: all sources are read before the client gets an answer.
func TestHTTP10Succession(t *testing.T) {
	for _, c := range []struct {
		scripts []string
		want    string
		outcome Outcome
		cut     bool
	}{
		{scripts: []string{"a.", "hl.", "e~"}, outcome: Complete},
		{scripts: []string{"a.", "none"}, outcome: UpstreamFailed},
		{scripts: []string{"a.", "a!"}, outcome: UpstreamFailed, cut: true},
		{scripts: []string{"a.", strings.Repeat("B", 17) + "a.", "a."}, outcome: UpstreamFailed, cut: true},
	} {
		s := newSuccession(t, "loops", nil)
		conn := s.dial(t)
		ch := newChain(s.pool, c.scripts[1:]...)
		if !c.cut {
			ch.tail = failed
		}
		s.chains <- ch
		fmt.Fprintf(conn.Conn, "POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(c.scripts[0]), c.scripts[0])
		body, err := conn.body(t)
		ch.wait(t, c.outcome)
		if (err != nil) != c.cut || body != string(ch.given) {
			t.Errorf("%v: %d bytes of %d, %v", c.scripts, len(body), len(ch.given), err)
		}
		s.allIdle(t)
	}
}

// TestTornSource: a source that ends inside an event is not continued by the next one.
func TestTornSource(t *testing.T) {
	huge := "data: " + strings.Repeat("x", sse.MaxEventBytes+100)
	for first, want := range map[string]string{
		"data: a\n\ndata: b\n": "data: a\n\ndata: b\n\n\n",
		"data: a\n\n: open":    "data: a\n\n: open\n\n",
		huge:                   huge + "\n\n",
		"data: h\n\n" + huge:   "data: h\n\n" + huge + "\n\n", // withheld until it becomes too long
	} {
		for _, way := range ways[:2] {
			s := newSuccession(t, way, nil)
			s.pool = newPool(t, rawServer(t, "tcp", answering(sseHead+chunk(first)+lastChunk)))
			second := newPool(t, rawServer(t, "tcp", scripted))
			conn := s.dial(t)
			ch := newChain(second, "a.")
			s.ask(conn, ch, "{}")
			body, err := conn.body(t)
			if want += event("a.", 0); body != want || err != nil {
				t.Errorf("%.40q, %s: %d bytes, want %d, %v", first, way, len(body), len(want), err)
			}
			ch.wait(t, Complete)
			want = strings.TrimSuffix(want, event("a.", 0))
		}
	}
}

// TestTimeoutsOfFurtherSources: a further source has the timeouts of its own exchange.
func TestTimeoutsOfFurtherSources(t *testing.T) {
	for _, way := range ways {
		for _, last := range []string{"", "a."} {
			for how, set := range map[Outcome]func(*chain){
				IdleTimeout:  func(ch *chain) { ch.idle = 30 * time.Millisecond },
				TotalTimeout: func(ch *chain) { ch.idle, ch.total = soon, 30*time.Millisecond },
			} {
				s := newSuccession(t, way, func(f *front) { f.idle = soon })
				ch := newChain(s.pool, "a~")
				want, outcome := event("a.", 0)+event("a~", 0)+failed, how
				if ch.tail = failed; last != "" {
					ch.next = append(ch.next, last)
					want, outcome = event("a.", 0)+event("a~", 0)+event("a.", 0), Complete
				}
				set(ch)
				conn := s.dial(t)
				s.ask(conn, ch, "a.")
				if body, err := conn.body(t); body != want || err != nil {
					t.Errorf("%s, %v: %q %v", way, how, body, err)
				}
				ch.wait(t, outcome)
				if !slices.Contains(ch.calls, "end "+how.String()) {
					t.Errorf("%s, %v: %q", way, how, ch.calls)
				}
			}
		}
	}
}

// TestClosingOfEachSource: the closing event of the first source does not close the next one.
func TestClosingOfEachSource(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
	for _, way := range ways[:2] {
		s := newSuccession(t, way, nil)
		s.pool = newPool(t, rawServer(t, "tcp", once(head+"data: a\n\ndata: [DONE]\n")))
		cut := newPool(t, rawServer(t, "tcp", once(head+"data: a\n\n")))
		conn := s.dial(t)
		ch := newChain(cut, "a.")
		ch.tail = failed
		s.ask(conn, ch, "a.")
		want := "data: a\n\ndata: [DONE]\n\n\ndata: a\n\ndata: failed\n\n"
		if body, err := conn.body(t); body != want || err != nil {
			t.Errorf("%s: %q %v", way, body, err)
		}
		ch.wait(t, UpstreamFailed)
	}
}

// TestSuccessionsAlike: loops and goroutines make the same calls of followers, and send the client
// the same bytes.
func TestSuccessionsAlike(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rounds := 60
	if thorough {
		rounds = 400
	}
	scripts := make([][]string, rounds)
	for i := range scripts {
		for range 1 + random.IntN(4) {
			scripts[i] = append(scripts[i], randomScript(random))
		}
	}
	var bodies, calls [2][]string
	var both sync.WaitGroup
	for w, way := range ways[:2] {
		s := newSuccession(t, way, nil)
		both.Go(func() {
			conn := s.dial(t)
			for _, script := range scripts {
				conn.SetDeadline(soonest())
				ch := newChain(s.pool, script[1:]...)
				ch.tail = failed
				s.ask(conn, ch, script[0])
				body, err := conn.body(t)
				if err != nil {
					t.Error(way, script, err)
				}
				<-ch.done
				bodies[w] = append(bodies[w], body)
				calls[w] = append(calls[w], strings.Join(ch.calls, "\n"))
			}
		})
	}
	both.Wait()
	for i := range scripts {
		if bodies[0][i] != bodies[1][i] || calls[0][i] != calls[1][i] {
			t.Errorf("%q:\n%s\n\n%s", scripts[i], calls[0][i], calls[1][i])
		}
	}
}

func randomScript(random *rand.Rand) string {
	if random.IntN(10) == 0 {
		return "none"
	}
	script := []byte("a")
	for range random.IntN(8) {
		script = append(script, "aaahdlsue:||"[random.IntN(12)])
	}
	if random.IntN(8) == 0 {
		script[0] = ':'
	}
	if slices.Contains(script, 'e') && random.IntN(2) == 0 {
		return string(append(script, '~'))
	}
	return string(append(script, "...!"[random.IntN(4)]))
}
