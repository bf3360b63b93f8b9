package load

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/perf/instant"
)

// Target is the server that requests are sent to.
type Target struct {
	Address string      // host:port
	TLS     *tls.Config // with the server's name; nil: plain TCP
	Key     string      // bearer token, if any
	// KeyOf, if set, returns the bearer token of request n, beside an empty Key.
	KeyOf func(n uint64) string
	// Status is the status that every answer must have. Default 200.
	Status int
	// NewEvery, if not 0, is the distance between two requests that are sent over new connections.
	NewEvery uint64
}

func (t *Target) head() []byte {
	b := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n",
		t.Address)
	if t.Key != "" {
		b = fmt.Appendf(b, "Authorization: Bearer %s\r\n", t.Key)
	}
	return append(b, "Content-Length: "...)
}

// Reasons why a request counts as failed.
var (
	errBroken = errors.New("broken answer")
	errCount  = errors.New("tokens missing or too many")
	errOrder  = errors.New("token lost, repeated or out of order")
	errStray  = errors.New("token of another stream")
	errClosed = errors.New("stream without [DONE]")
	errEvent  = errors.New("error event")
)

// statusError is an answer with another status than the target's.
type statusError struct {
	status int
	body   []byte // the first sampleBytes
}

func (e statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

// sampleBytes is how many bytes of a failed answer are kept for display.
const sampleBytes = 200

// conn is one keep-alive connection. One goroutine uses a conn; only cut may be called by others.
type conn struct {
	target     *Target
	dialed     net.Conn // nil: not connected
	open       atomic.Pointer[net.TCPConn]
	stopped    atomic.Bool // set by cut
	r          *bufio.Reader
	head, body []byte // of the last request
	prefix     []byte
	buf        []byte // for pieces of answers
	events     events
	used       bool // an answer has come over dialed
}

const readBuffer = 16 << 10

func newConn(t *Target, buffer int) *conn {
	return &conn{target: t, prefix: t.head(), r: bufio.NewReaderSize(nil, buffer),
		buf: make([]byte, min(buffer, 4<<10))}
}

func (c *conn) close() {
	if c.dialed != nil {
		_ = c.dialed.Close()
		c.dialed = nil
	}
}

// cut makes an exchange on another goroutine fail.
func (c *conn) cut() {
	c.stopped.Store(true)
	if d := c.open.Load(); d != nil {
		_ = d.Close()
	}
}

// send writes request n, over a new connection if there is none. send replaces a connection once if
// the server closed it between two requests.
func (c *conn) send(bodies *Chat, n uint64, deadline time.Time) error {
	c.body = bodies.Append(c.body[:0], n)
	c.head = strconv.AppendInt(append(c.head[:0], c.prefix...), int64(len(c.body)), 10)
	if c.target.KeyOf != nil {
		c.head = append(append(c.head, "\r\nAuthorization: Bearer "...), c.target.KeyOf(n)...)
	}
	c.head = append(c.head, "\r\n\r\n"...)
	if c.dialed == nil {
		d, err := net.DialTimeout("tcp", c.target.Address, 10*time.Second)
		if err != nil {
			return err
		}
		c.dialed, c.used = d, false
		c.open.Store(d.(*net.TCPConn))
		if c.stopped.Load() {
			return net.ErrClosed
		}
		if c.target.TLS != nil {
			c.dialed = tls.Client(d, c.target.TLS)
		}
		c.r.Reset(c.dialed)
	}
	if err := c.dialed.SetDeadline(deadline); err != nil {
		return err
	}
	_, err := (&net.Buffers{c.head, c.body}).WriteTo(c.dialed)
	return err
}

// answer is the head of a response.
type answer struct {
	status int
	instant.Framing
}

func (c *conn) readHead() (a answer, err error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return a, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return a, errBroken
	}
	a.Framing = instant.Framing{Length: -1, Close: line[7] == '0'}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return a, errBroken
	}
	return a, a.ReadFields(c.r)
}

// readBody passes the payload without its framing to fn, in pieces of any size.
func (c *conn) readBody(a answer, fn func([]byte) error) error {
	var refused error
	err := a.Each(c.r, c.buf, func(b []byte) error {
		refused = fn(b)
		return refused
	})
	if err != nil && refused == nil {
		return errors.Join(errBroken, err)
	}
	return err
}

func drop([]byte) error { return nil }

// exchange sends request n and reads the whole answer. sink gets the tokens of a stream; nil: not a
// stream.
func (c *conn) exchange(bodies *Chat, n uint64, deadline time.Time, sink *sink) error {
	err := c.try(bodies, n, deadline, sink)
	if errors.Is(err, errStale) {
		err = c.try(bodies, n, deadline, sink)
	}
	if err != nil {
		c.close()
	}
	return err
}

// errStale means that a kept connection ended before any byte of an answer.
var errStale = errors.New("kept connection was closed")

func (c *conn) try(bodies *Chat, n uint64, deadline time.Time, sink *sink) error {
	if every := c.target.NewEvery; every > 0 && n%every == 0 {
		c.close()
	}
	kept := c.dialed != nil && c.used
	err := c.send(bodies, n, deadline)
	var a answer
	if err == nil {
		a, err = c.readHead()
	}
	if err != nil {
		c.close()
		var timeout net.Error
		if kept && !(errors.As(err, &timeout) && timeout.Timeout()) && !errors.Is(err, errBroken) {
			return errStale
		}
		return err
	}
	c.used = true
	if a.status != cmp.Or(c.target.Status, 200) {
		failed := statusError{status: a.status}
		_ = c.readBody(a, func(b []byte) error {
			failed.body = append(failed.body, b[:min(len(b), sampleBytes-len(failed.body))]...)
			return nil
		})
		c.close()
		return failed
	}
	if sink == nil {
		err = c.readBody(a, drop)
	} else {
		c.events.reset(sink)
		if err = c.readBody(a, c.events.feed); err == nil {
			err = c.events.end()
		}
	}
	if err == nil && (a.Close || !a.Chunked && a.Length < 0) {
		c.close()
	}
	return err
}
