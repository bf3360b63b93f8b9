package load

import (
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// Held holds open, idle connections until Close.
type Held struct{ conns []*conn }

// Hold opens n connections and sends one request over each.
func Hold(target Target, bodies *Chat, n int, timeout time.Duration) (*Held, error) {
	h := &Held{conns: make([]*conn, n)}
	var workers errgroup.Group
	workers.SetLimit(64)
	for i := range h.conns {
		c := newConn(&target, 1<<10)
		h.conns[i] = c
		workers.Go(func() error {
			err := c.exchange(bodies, uint64(i), time.Now().Add(timeout), nil)
			c.body = nil
			return err
		})
	}
	if err := workers.Wait(); err != nil {
		h.Close()
		return nil, fmt.Errorf("not all of %d connections were served: %s", n, reason(err))
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

// Ask sends request n over a connection of its own. If begun is set, Ask returns when the answer
// has begun.
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
