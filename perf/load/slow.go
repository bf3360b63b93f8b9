package load

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A slow client reads slowPiece bytes every slowPause. The client's socket buffer is small, so that
// the kernel holds little for it.
const (
	slowPiece  = 1 << 10
	slowPause  = 100 * time.Millisecond
	slowBuffer = 4 << 10
)

// Slow is a client that reads its answer slowly: 10 KB/s.
type Slow struct {
	c    *conn
	stop chan struct{}
	done sync.WaitGroup
	read atomic.Int64
}

// ReadSlowly sends request n and reads its answer until Leave, or until the other side ends it.
func ReadSlowly(target Target, bodies *Chat, n uint64) (*Slow, error) {
	const timeout = 10 * time.Second
	s := &Slow{c: newConn(&target, slowPiece), stop: make(chan struct{})}
	err := s.c.send(bodies, n, time.Now().Add(timeout))
	if err == nil {
		err = s.c.dialed.(*net.TCPConn).SetReadBuffer(slowBuffer)
		_, silent := s.c.r.Peek(1)
		err = errors.Join(err, silent, s.c.dialed.SetDeadline(time.Time{}))
	}
	if err != nil {
		s.c.close()
		return nil, err
	}
	s.done.Go(func() {
		piece := make([]byte, slowPiece)
		for {
			n, err := s.c.r.Read(piece)
			s.read.Add(int64(n))
			if err != nil {
				return
			}
			select {
			case <-s.stop:
				return
			case <-time.After(slowPause):
			}
		}
	})
	return s, nil
}

// Read returns how many bytes were read so far.
func (s *Slow) Read() int64 { return s.read.Load() }

// Leave closes the connection.
func (s *Slow) Leave() {
	close(s.stop)
	_ = s.c.dialed.Close()
	s.done.Wait()
}
