package transport

import (
	"context"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A server that closes lets peers finish: connected hosts get answers to everything but new blocks,
// over further connections, too, until all operations have ended.

const (
	// confirmFor is the time for which a closing server answers after a client's own key was read:
	// the reader asks whether the key is still the same, and drops it without an answer
	// (kvcached/fleet).
	confirmFor = 500 * time.Millisecond
	closeLook  = 5 * time.Millisecond
)

// keyRead notes that a block was read, if it is a client's own key.
func (s *Server) keyRead(namespace string) {
	if block.OfKeys(namespace) {
		s.lastKey.Store(time.Now().UnixNano())
	}
}

// quiet returns when nothing is under way any more, or ctx has ended.
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

// begins tells whether an operation brings a peer to something that it has not begun yet.
func begins(f *wire.Frame) bool {
	return f.Op == wire.Get && f.Offset == 0 || f.Op == wire.Put || f.Op == wire.Connect || f.Op == wire.Grant
}
