package instant

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/perf/serve"
)

// Config describes one engine.
type Config struct {
	// Listen is host:port. Default 127.0.0.1:0.
	Listen string
	// Left, if set, is called when a client leaves before its answer is complete.
	Left func(at time.Time)
}

// Engine serves until Close.
type Engine struct {
	cfg     Config
	addr    string
	server  *serve.Server
	pacer   pacer
	writers sync.WaitGroup // goroutines that wait to write a token to a full socket, or end a stream
	serials atomic.Uint32
	steps   chan struct{}
	closing chan struct{}

	requests, tokens atomic.Int64
}

// Start listens and serves.
func Start(cfg Config) (*Engine, error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, addr: ln.Addr().String(), steps: make(chan struct{}, 1), closing: make(chan struct{})}
	e.pacer.start()
	e.server = serve.Start(ln, e.serve)
	return e, nil
}

// Addr returns host:port.
func (e *Engine) Addr() string { return e.addr }

// URL returns the engine's URL.
func (e *Engine) URL() string { return "http://" + e.Addr() }

// Requests returns the number of chat requests read so far.
func (e *Engine) Requests() int64 { return e.requests.Load() }

// Tokens returns the number of tokens sent so far.
func (e *Engine) Tokens() int64 { return e.tokens.Load() }

// Step lets a stream that asked for steps send its next token. Several calls of Step count as one
// until the stream has sent its next token.
func (e *Engine) Step() {
	select {
	case e.steps <- struct{}{}:
	default:
	}
}

// Close cuts every connection and waits.
func (e *Engine) Close() {
	close(e.closing)
	e.server.Close()
	e.pacer.stop()
	e.writers.Wait()
}

// readBuffer is the buffer of a waiting connection. A longer body passes through the buffer in
// pieces.
const readBuffer = 4 << 10

func (e *Engine) serve(c net.Conn) {
	r := bufio.NewReaderSize(c, readBuffer)
	var q request
	var out []byte
	buf := make([]byte, readBuffer)
	for {
		if err := q.read(r, buf); err != nil {
			return
		}
		if !q.chat {
			page, ok := pages[q.path]
			if !ok {
				page = notFound
			}
			if _, err := c.Write(page); err != nil || q.close {
				return
			}
			continue
		}
		e.requests.Add(1)
		serial := e.serials.Add(1)
		switch {
		case q.hang == 1:
			_, _ = r.Peek(1) // returns when the client leaves
			e.left()
			return
		case q.stream:
			if !e.stream(c, r, &q, serial) {
				return
			}
		default:
			out = appendAnswer(out[:0], serial, &q)
			if _, err := c.Write(out); err != nil {
				return
			}
		}
		if q.close {
			return
		}
	}
}

func (e *Engine) left() {
	if e.cfg.Left != nil {
		e.cfg.Left(time.Now())
	}
}

// stream answers with a stream and reports whether the connection stays open.
func (e *Engine) stream(c net.Conn, r *bufio.Reader, q *request, serial uint32) bool {
	s, err := newStreamedAnswer(e, c, q, serial)
	if err != nil {
		return false
	}
	if q.step == 1 {
		return s.climb() == nil
	}
	if q.pace == 0 {
		if s.flood() != nil {
			e.left()
			return false
		}
		return true
	}
	e.pacer.add(s, time.Now().Add(s.pace))
	_, err = r.Peek(1) // the client leaves, or sends a request after the stream's end
	if s.end() {
		e.left()
		return false
	}
	return err == nil
}
