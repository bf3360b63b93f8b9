package load

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Held holds open, idle connections until Close.
type Held struct{ conns []*conn }

// Hold opens n connections and sends one request over each.
func Hold(target Target, bodies *Chat, n int, timeout time.Duration) (*Held, error) {
	const atOnce = 64
	h := &Held{conns: make([]*conn, n)}
	var next, failed atomic.Int64
	var first atomic.Value
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				c := newConn(&target, 1<<10)
				if err := c.exchange(bodies, uint64(i), time.Now().Add(timeout), nil); err != nil {
					failed.Add(1)
					first.CompareAndSwap(nil, reason(err))
				}
				c.out = nil
				h.conns[i] = c
			}
		})
	}
	workers.Wait()
	if failed.Load() > 0 {
		h.Close()
		return nil, fmt.Errorf("%d of %d connections failed: %v", failed.Load(), n, first.Load())
	}
	return h, nil
}

// Close closes all connections.
func (h *Held) Close() {
	for _, c := range h.conns {
		c.close()
	}
}

// Waiting is a request whose answer is not read.
type Waiting struct{ c *conn }

// Ask sends request n over a connection of its own. With begun, Ask returns when the answer has
// begun.
func Ask(target Target, bodies *Chat, n uint64, begun bool, timeout time.Duration) (*Waiting, error) {
	w := &Waiting{newConn(&target, 1<<10)}
	err := w.c.send(bodies, n, time.Now().Add(timeout))
	if err == nil && begun {
		_, err = w.c.r.Peek(1)
	}
	if err != nil {
		w.c.close()
		return nil, err
	}
	return w, nil
}

// Leave closes the connection.
func (w *Waiting) Leave() { w.c.close() }
