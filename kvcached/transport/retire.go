package transport

import (
	"context"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// Peers are closed without a lock held, each on its own goroutine, because a peer with RDMA is told
// first. A forgotten peer is closed once its operations have ended.

// Forget closes a peer's connections once its operations have ended, or at once if MaxPeers
// forgotten peers wait for that already. New operations on the peer fail with ErrClosed. Forget
// does not wait.
func (p *Pool) Forget(t Target) {
	p.mu.Lock()
	peer := p.peers[t]
	if peer == nil {
		p.mu.Unlock()
		return
	}
	delete(p.peers, t)
	p.going[peer] = struct{}{}
	most := len(p.going) > p.o.MaxPeers
	p.mu.Unlock()
	if peer.retire() || most {
		p.closeSoon(peer)
	}
}

// closeSoon closes a peer of going on a goroutine. A closed pool has closed the peer itself.
func (p *Pool) closeSoon(peer *Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closing.Go(peer.close)
	}
}

// evict closes the peer that was used least recently, on a goroutine. The caller holds mu.
func (p *Pool) evict() {
	var oldest *Peer
	for _, peer := range p.peers {
		if oldest == nil || peer.used.Load() < oldest.used.Load() {
			oldest = peer
		}
	}
	delete(p.peers, oldest.target)
	p.going[oldest] = struct{}{}
	p.evicted.Add(1)
	p.closing.Go(oldest.close)
}

// close ends the connections and the operations that are running.
func (p *Peer) close() {
	p.once.Do(func() {
		p.retire()
		if p.grantee != nil {
			p.grantee.close()
		}
		for _, l := range p.lanes {
			if l != nil {
				l.close()
			}
		}
		p.pool.mu.Lock()
		delete(p.pool.going, p)
		p.pool.mu.Unlock()
	})
}

// retire refuses further operations, and tells whether none is running.
func (p *Peer) retire() (idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = true
	return p.ops == 0
}

// begin counts an operation, until end.
func (p *Peer) begin() error {
	p.used.Store(time.Now().UnixNano())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired {
		return ErrClosed
	}
	p.ops++
	return nil
}

// Held is a peer that its holder can use after the pool has forgotten it. Release is called once.
type Held struct{ p *Peer }

// Hold keeps a peer open until Release, even if the pool forgets it.
func (p *Peer) Hold() (*Held, error) {
	if err := p.begin(); err != nil {
		return nil, err
	}
	return &Held{p}, nil
}

// Get is Peer.Get.
func (h *Held) Get(ctx context.Context, g Get) (Found, error) { return h.p.get(ctx, g) }

// Stat is Peer.Stat. A server that is stopping answers it for a moment after the Get of a client's
// own key.
func (h *Held) Stat(ctx context.Context, addrs []block.Addr, out []wire.Info) error {
	return h.p.over(false, stat(ctx, addrs, out))
}

// Release ends the hold.
func (h *Held) Release() { h.p.end() }

func (p *Peer) end() {
	p.mu.Lock()
	p.ops--
	last := p.retired && p.ops == 0
	p.mu.Unlock()
	if last {
		p.pool.closeSoon(p)
	}
}
