//go:build linux

package lease

import (
	"sync"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kvcached/store"
)

// long has the buffers of a connection for a frame that does not fit into its small buffers.
type long struct {
	in    [frame.MaxFrame]byte
	out   [frame.HeaderSize + frame.MaxBatch*frame.GrantSize]byte
	addrs [frame.MaxBatch]block.Addr
	infos [frame.MaxBatch]store.Info
}

// buffers makes long buffers and bounds their number.
type buffers struct {
	tokens chan struct{}
	pool   *sync.Pool
}

func newBuffers(n int) buffers {
	return buffers{make(chan struct{}, n), &sync.Pool{New: func() any { return new(long) }}}
}

// lengthen gives c long buffers. It waits while too many connections have them.
func (c *conn) lengthen() error {
	if c.long == nil {
		select {
		case c.server.buffers.tokens <- struct{}{}:
		case <-c.server.ctx.Done():
			return ErrClosed
		}
		c.long = c.server.buffers.pool.Get().(*long)
	}
	if len(c.in) < len(c.long.in) {
		copy(c.long.in[:], c.in[:c.n])
		c.in = c.long.in[:]
	}
	return nil
}

// shorten gives c's long buffers back. They must be empty.
func (c *conn) shorten() {
	if c.long == nil {
		return
	}
	c.server.buffers.pool.Put(c.long)
	<-c.server.buffers.tokens
	c.long = nil
	c.in, c.out = c.small.in[:], c.small.out[:0]
}
