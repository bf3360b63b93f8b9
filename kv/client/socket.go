//go:build linux

package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/frame"
	"golang.org/x/sys/unix"
)

// socket is one connection. The caller that took a socket from the pool may send a request and read
// the answer.
type socket struct {
	client  *Client
	net     *net.UnixConn
	arena   *arena // of the daemon at the other end; the socket holds a reference
	welcome frame.Welcome
	dead    atomic.Bool // set before the socket is closed, which ends its leases

	out   []byte // the request
	start int    // begin of the request in out, behind the notices
	seq   uint64 // of the request
	text  []byte // namespace of the last put
	read  uint64 // sequence number of the last answer read
	in    []byte // answers
	r, w  int    // in[r:w] has been read and not parsed
	files []int  // descriptors that came with answers

	segment *segment // staging memory; nil: none

	mu       sync.Mutex
	released []uint64 // leases to return with the next request, or soon; at most releaseBatch
	dropped  []uint32 // segments to return, likewise
	notice   []byte   // memory for the frames that return leases
	timer    *time.Timer
	armed    bool
}

const (
	releaseBatch = 64                    // leases returned at once
	releaseDelay = 10 * time.Millisecond // how long a released lease waits for a request
	maxStale     = 16                    // abandoned answers on one socket; one more closes it
)

// begin starts a request with the given number of entries. Notices go before the request.
func (s *socket) begin(op frame.Op, count int) {
	s.mu.Lock()
	s.out = s.notices(s.out[:0])
	s.mu.Unlock()
	s.seq++
	s.start = len(s.out)
	s.out = frame.Append(s.out, frame.Header{Op: op, Count: uint16(count), Seq: s.seq})
}

// notices appends the frames that return leases and segments. The caller holds mu.
func (s *socket) notices(b []byte) []byte {
	if len(s.released) > 0 {
		start := len(b)
		b = frame.Append(b, frame.Header{Op: frame.OpRelease, Count: uint16(len(s.released))})
		for _, id := range s.released {
			b = binary.LittleEndian.AppendUint64(b, id)
		}
		b = frame.End(b, start)
		s.released = s.released[:0]
	}
	for _, id := range s.dropped {
		start := len(b)
		b = frame.Append(b, frame.Header{Op: frame.OpUnstage})
		b = frame.End(binary.LittleEndian.AppendUint32(b, id), start)
	}
	s.dropped = s.dropped[:0]
	return b
}

// giveBack returns a lease: with the next request, with a full batch, or after releaseDelay.
func (s *socket) giveBack(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = append(s.released, id)
	if len(s.released) >= releaseBatch {
		s.tell()
	} else if !s.armed && !s.dead.Load() {
		s.armed = true
		s.timer.Reset(releaseDelay)
	}
}

// tell writes the notices without a request. Any caller may do so, because the bytes of two Writes
// never mix. The caller holds mu.
func (s *socket) tell() {
	if s.notice = s.notices(s.notice[:0]); len(s.notice) == 0 || s.dead.Load() {
		return
	}
	if n, err := s.net.Write(s.notice); n > 0 && n < len(s.notice) ||
		err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		s.kill()
	}
}

// late is the timer's function.
func (s *socket) late() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	s.tell()
}

// kill ends the connection. kill marks the leases as ended first.
func (s *socket) kill() {
	if s.dead.CompareAndSwap(false, true) {
		s.net.Close()
	}
}

// exchange sends the prepared request and returns its answer, whose body is valid until the next
// request. The answer is skipped later if ctx ends first.
func (s *socket) exchange(ctx context.Context) (frame.Header, []byte, error) {
	s.out = frame.End(s.out, s.start)
	if ctx.Err() != nil {
		s.seq--
		_, err := s.net.Write(s.out[:s.start])
		return frame.Header{}, nil, errors.Join(context.Cause(ctx), err)
	}
	if s.seq-s.read > maxStale {
		return frame.Header{}, nil, s.gone(errors.New("answers do not come"))
	}
	if ctx.Done() == nil {
		return s.trade(ctx)
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = s.net.SetDeadline(time.Unix(1, 0))
		close(fired)
	})
	h, body, err := s.trade(ctx)
	if !stop() {
		<-fired
		_ = s.net.SetDeadline(time.Time{})
	}
	return h, body, err
}

func (s *socket) trade(ctx context.Context) (frame.Header, []byte, error) {
	n, writeErr := s.net.Write(s.out)
	if errors.Is(writeErr, os.ErrDeadlineExceeded) {
		return frame.Header{}, nil, s.fail(ctx, writeErr, n > 0)
	}
	for { // even if the daemon has stopped reading, because it may have written the reason
		h, body, err := frame.Answer(s.in[s.r:s.w])
		switch {
		case errors.Is(err, frame.ErrIncomplete):
			if err := s.fill(); err != nil {
				return h, nil, s.fail(ctx, errors.Join(writeErr, err), len(s.files) > 0)
			}
			continue
		case err != nil:
			s.kill()
			return h, nil, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		s.r += int(h.Size)
		switch {
		case h.Op == frame.OpError:
			s.kill()
			return h, nil, fmt.Errorf("%w: the daemon says: %s", errorOf(h.Status), body)
		case h.Seq == s.seq && h.Op == frame.Op(s.out[s.start+4]):
			s.read = h.Seq
			return h, body, nil
		case h.Seq <= s.read || h.Seq >= s.seq:
			s.kill()
			return h, nil, fmt.Errorf("%w: an answer to nothing", ErrProtocol)
		}
		s.skip(h, body)
	}
}

// skip returns the leases and segments of an abandoned answer.
func (s *socket) skip(h frame.Header, body []byte) {
	s.read = h.Seq
	if h.Op != frame.OpGet {
		return
	}
	for i := range int(h.Count) {
		if g := frame.ParseGrant(body, i); g.Status == frame.StatusOK {
			s.giveBack(g.Lease)
		}
	}
}

// fill reads more bytes of answers.
func (s *socket) fill() error {
	if s.r == s.w {
		s.r, s.w = 0, 0
	} else if s.w == len(s.in) {
		s.w = copy(s.in, s.in[s.r:s.w])
		s.r = 0
	}
	op := frame.Op(s.out[s.start+4])
	if op != frame.OpHello && op != frame.OpStage {
		n, err := s.net.Read(s.in[s.w:])
		s.w += n
		return err
	}
	control := make([]byte, unix.CmsgSpace(4*4))
	n, m, _, _, err := s.net.ReadMsgUnix(s.in[s.w:], control)
	if n == 0 && err == nil {
		err = net.ErrClosed
	}
	s.w += max(n, 0)
	return errors.Join(err, s.collect(control[:m]))
}

// collect takes the descriptors from a control message.
func (s *socket) collect(control []byte) error {
	messages, err := unix.ParseSocketControlMessage(control)
	for i := range messages {
		fds, rightsErr := unix.ParseUnixRights(&messages[i])
		if rightsErr == nil {
			s.files = append(s.files, fds...)
		}
	}
	return err
}

// file returns the descriptor that came with the last answer.
func (s *socket) file() (*os.File, error) {
	if len(s.files) != 1 {
		s.closeFiles()
		return nil, fmt.Errorf("%w: memory was to come, and did not", ErrProtocol)
	}
	f := os.NewFile(uintptr(s.files[0]), "memory")
	s.files = s.files[:0]
	return f, nil
}

func (s *socket) closeFiles() {
	for _, fd := range s.files {
		unix.Close(fd)
	}
	s.files = s.files[:0]
}

// fail returns the error of an ended exchange: the context's, or ErrGone.
func (s *socket) fail(ctx context.Context, err error, torn bool) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return s.gone(err)
	}
	if op := frame.Op(s.out[s.start+4]); torn || op == frame.OpStage || op == frame.OpHello {
		s.kill()
	}
	return context.Cause(ctx)
}

func (s *socket) gone(err error) error {
	s.kill()
	if s.client.closed.Load() {
		return ErrClosed
	}
	return fmt.Errorf("%w (%w)", ErrGone, err)
}
