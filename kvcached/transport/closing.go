package transport

import (
	"context"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A closing server lets peers finish. Until all operations have ended, connected hosts get answers
// to everything but new blocks, over new connections, too.

const (
	// confirmFor is how long a closing server goes on after a client's own key was read. The reader
	// then asks whether the key still has the same value, and drops the value if there is no answer
	// (kvcached/fleet).
	confirmFor = 500 * time.Millisecond
	closeLook  = 5 * time.Millisecond
)

// keyRead notes the time if the block belongs to a client's own key.
func (s *Server) keyRead(namespace string) {
	if block.OfKeys(namespace) {
		s.lastKey.Store(time.Now().UnixNano())
	}
}

// quiet returns when no operation is running, or ctx has ended.
func (s *Server) quiet(ctx context.Context) {
	if s.granter != nil {
		s.granter.drain(ctx)
	}
	look := time.NewTicker(closeLook)
	defer look.Stop()
	for s.running.Load() > 0 || time.Since(time.Unix(0, s.lastKey.Load())) < s.confirm {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// begins tells whether an operation begins something new for the peer.
func begins(f *wire.Frame) bool {
	return f.Op == wire.Get && f.Offset == 0 || f.Op == wire.Put || f.Op == wire.Connect || f.Op == wire.Grant
}
