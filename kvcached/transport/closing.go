package transport

import (
	"context"
	"sync"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A server that closes lets peers finish what they have begun: hosts that are connected have what
// is no new block answered, over further connections, too, until all that is under way has ended.
// Who has just read a client's own key is about to ask whether it is still the same, and cannot
// keep it without an answer (kvcached/fleet): for that it has confirmFor.

const (
	confirmFor = 2 * time.Second
	maxUnsure  = 4096 // answers remembered for that; further ones are not waited for
	closeLook  = 5 * time.Millisecond
)

// unsure are clients' own keys that were read from here and not asked about since.
type unsure struct {
	within time.Duration // that they are waited for: confirmFor

	mu sync.Mutex
	at map[reading]time.Time // at most maxUnsure
}

type reading struct {
	by   *host
	addr block.Addr
}

// read notes that a host has read a block.
func (u *unsure) read(by *host, it *Item) {
	if !block.OfKeys(it.Namespace) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.at) >= maxUnsure {
		u.expire()
	}
	if u.at == nil {
		u.at = map[reading]time.Time{}
	}
	if len(u.at) < maxUnsure {
		u.at[reading{by, it.Addr}] = time.Now()
	}
}

// asked notes that a host has asked about blocks.
func (u *unsure) asked(by *host, addrs []block.Addr) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := 0; i < len(addrs) && len(u.at) > 0; i++ {
		delete(u.at, reading{by, addrs[i]})
	}
}

// gone notes that a host has no connection any more.
func (u *unsure) gone(by *host) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for r := range u.at {
		if r.by == by {
			delete(u.at, r)
		}
	}
}

// none tells whether nobody is waited for.
func (u *unsure) none() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expire()
	return len(u.at) == 0
}

// expire forgets whom nobody waits for any more. mu is held.
func (u *unsure) expire() {
	for r, at := range u.at {
		if time.Since(at) >= u.within {
			delete(u.at, r)
		}
	}
}

// quiet returns when nothing is under way any more, or ctx has ended.
func (s *Server) quiet(ctx context.Context) {
	if s.granter != nil {
		s.granter.drain(ctx)
	}
	look := time.NewTicker(closeLook)
	defer look.Stop()
	for s.running.Load() > 0 || !s.unsure.none() {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// begins tells whether an operation brings a peer to what it has not begun yet.
func begins(f *wire.Frame) bool {
	return f.Op == wire.Get && f.Offset == 0 || f.Op == wire.Put || f.Op == wire.Connect || f.Op == wire.Grant
}
