package engine

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A side channel is the TCP listener from which other engines read an engine's blocks, in place of
// RDMA. A client sends one blockRequest as a line of JSON. The answer is the number of tokens and
// the tokens, as little-endian 32-bit integers. Zero tokens mean that there are no such blocks.
const (
	maxSideRequest = 4 << 10          // bytes of a request
	maxSideTokens  = 64 << 20         // tokens of an answer
	maxSideConns   = 1024             // at one time; more wait to be accepted
	sideTimeout    = 10 * time.Second // for one exchange
)

type blockRequest struct {
	Engine  string `json:"engine_id"`
	Request string `json:"request_id"`
}

// These errors say why blocks cannot be read.
var (
	errNoBlocks = errors.New("engine: the blocks are gone")
	errNoPeer   = errors.New("engine: nobody has the blocks")
)

// sideChannel serves read.
type sideChannel struct {
	l    net.Listener
	read func(blockRequest) []uint32

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil after close
	open  sync.WaitGroup
}

func listenSide(addr string, read func(blockRequest) []uint32) (*sideChannel, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &sideChannel{l: l, read: read, conns: make(map[net.Conn]struct{})}
	s.open.Go(s.accept)
	return s, nil
}

func (s *sideChannel) accept() {
	slots := make(chan struct{}, maxSideConns)
	for {
		slots <- struct{}{}
		c, err := s.l.Accept()
		if err != nil {
			return // closed
		}
		if !s.keep(c) {
			_ = c.Close()
			return
		}
		s.open.Go(func() {
			s.serve(c)
			<-slots
		})
	}
}

// keep notes a connection for close. keep returns false after close.
func (s *sideChannel) keep(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

// serve answers one request.
func (s *sideChannel) serve(c net.Conn) {
	defer func() {
		_ = c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	_ = c.SetDeadline(time.Now().Add(sideTimeout))
	line, err := bufio.NewReaderSize(io.LimitReader(c, maxSideRequest), maxSideRequest).ReadSlice('\n')
	var q blockRequest
	if err != nil || json.Unmarshal(line, &q) != nil {
		return
	}
	tokens := s.read(q)
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+4*len(tokens)), uint32(len(tokens)))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	_, _ = c.Write(b) // the reader may have left
}

// close closes listener and connections and waits for their goroutines. close of nil does nothing.
func (s *sideChannel) close() {
	if s == nil {
		return
	}
	_ = s.l.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.open.Wait()
}

// readBlocks reads the tokens of a prompt from another engine's side channel. The error is
// errNoBlocks if that engine does not have them, else errNoPeer.
func readBlocks(ctx context.Context, addr string, q blockRequest) ([]uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPeer, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	line, err := json.Marshal(q)
	if err != nil || len(line) >= maxSideRequest {
		return nil, errNoBlocks
	}
	if _, err := c.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPeer, err)
	}
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPeer, err)
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 {
		return nil, errNoBlocks
	}
	if n > maxSideTokens {
		return nil, fmt.Errorf("%w: %d tokens are too many", errNoPeer, n)
	}
	b, err := io.ReadAll(io.LimitReader(c, int64(n)*4))
	if err != nil || len(b) != int(n)*4 {
		return nil, errNoPeer
	}
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return tokens, nil
}
