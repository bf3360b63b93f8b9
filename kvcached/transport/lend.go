package transport

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// Bounds of what is lent, besides Server's on bytes.
const (
	mostPairs        = 1024              // of all sessions, none of which has two on one card; beyond, no session begins
	mostHostSessions = 8                 // of one host in one role; a further one takes the place of that which was used least recently
	mostLeases       = 64                // of one session; beyond, blocks go by stream
	mostWindows      = 2 * wire.MaxGrant // of a pair, and one for probes
	sessionIdle      = 5 * time.Minute   // a session that is not used for so long ends
	revokeWithin     = 5 * time.Second   // for a card to revoke windows; then the pair is closed, which revokes them, too
	drainLeases      = time.Second       // that peers have to read what is lent when the server closes
)

// lender lends blocks of this host to peers that read them by themselves.
type lender struct {
	s     *Server
	rails *Rails
	lease time.Duration
	count lendCounters
	work  sync.WaitGroup // ends of leases, and watchers of pairs

	mu       sync.Mutex
	sessions map[uint64]*session
	closing  bool
}

// lendCounters are what LendStats reports.
type lendCounters struct {
	grants, blocks, bytes, byStream, ended, sessions, refused atomic.Uint64
	leases, leased                                            atomic.Int64
}

// session is what one peer reads through.
type session struct {
	l      *lender
	id     uint64
	remote Remote
	host   *host
	ends   []*lentEnd   // by rail; nil: this rail is not used
	used   atomic.Int64 // when, in Unix ns
	turn   atomic.Uint64

	mu     sync.Mutex
	leases map[uint64]*lease
	making int           // leases that there is room for
	last   uint64        // lease
	over   chan struct{} // closed when it has ended
	ended  bool
}

// lentEnd is the owner's end of a pair.
type lentEnd struct {
	rail  *rail
	pair  rdma.Pair
	probe rdma.Window
}

func newLender(s *Server, o *ServerOptions) *lender {
	return &lender{s: s, rails: o.Rails, lease: orDuration(o.Lease, 5*time.Second), sessions: map[uint64]*session{}}
}

// lends carries out Connect, Grant or Release.
func (op *operation) lends(ctx context.Context, body []byte) ([]byte, error) {
	l := op.link.s.lender
	if l == nil {
		return nil, wire.UnknownOp
	}
	switch op.f.Op {
	case wire.Connect:
		c, err := wire.ParseConnection(body)
		if err != nil {
			return nil, err
		}
		return l.connect(ctx, op.link, c)
	case wire.Grant:
		w, err := wire.ParseWanted(body)
		if err != nil {
			return nil, err
		}
		s, err := l.find(w.Session, op.link.who())
		if err != nil {
			return nil, err
		}
		return s.grant(ctx, w)
	}
	r, err := wire.ParseReturned(body)
	if err != nil {
		return nil, err
	}
	s, err := l.find(r.Session, op.link.who())
	if err != nil {
		return nil, err
	}
	if s.giveBack(r.Leases); r.End {
		s.end()
	}
	return nil, nil
}

// find is the session of who asks. wire.Miss: there is none, for it has ended, or is another's.
func (l *lender) find(id uint64, who Remote) (*session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sessions[id]
	if s == nil || s.remote != who {
		return nil, wire.Miss
	}
	s.used.Store(time.Now().UnixNano())
	return s, nil
}

// connect makes the other ends of a peer's pairs. wire.ByStream: it cannot be, on any of its rails.
func (l *lender) connect(ctx context.Context, p *link, c *wire.Connection) ([]byte, error) {
	s := &session{l: l, remote: p.who(), host: p.host, ends: make([]*lentEnd, len(c.Ends)), leases: map[uint64]*lease{}, over: make(chan struct{})}
	a := &wire.Connected{LeaseMS: uint32(l.lease.Milliseconds()), IdleMS: uint32(sessionIdle.Milliseconds()), Most: wire.MaxGrant, CRC: l.rails.crc,
		Ends: make([]wire.End, len(c.Ends)), Probes: make([]wire.Window, len(c.Ends))}
	cards, some := l.rails.usable(l.rails.o.LendAny), false
	for i := range c.Ends {
		a.Probes[i].Rail = uint32(i)
		if e := l.join(ctx, cards, &c.Ends[i]); e != nil {
			s.ends[i], some = e, true
			cards = slices.DeleteFunc(cards, func(r *rail) bool { return r == e.rail })
			key := e.probe.Key()
			a.Ends[i], a.Probes[i] = wireEnd(e.pair.Local()), wire.Window{Rail: uint32(i), RKey: key.RKey, Addr: key.Addr, Length: probeSize}
		}
	}
	if !some {
		l.count.refused.Add(1)
		return nil, wire.ByStream
	}
	if !l.enter(s) {
		s.closePairs()
		l.count.refused.Add(1)
		return nil, wire.Busy
	}
	a.Session = s.id
	return a.Append(nil), nil
}

// join makes the other end of one of the peer's pairs; nil: none of the cards is for it.
func (l *lender) join(ctx context.Context, cards []*rail, far *wire.End) *lentEnd {
	from := addrOf(far.GID)
	if far.QPN == 0 || !l.rails.o.LendAny && !l.rails.trusts(from) {
		return nil
	}
	r := nearest(cards, from)
	if r == nil {
		return nil
	}
	e := &lentEnd{rail: r}
	err := e.connect(ctx, far, l.rails.page[:probeSize])
	if err == nil {
		return e
	}
	if e.pair != nil {
		_ = e.pair.Close()
	}
	l.s.o.Logger.Warn("a peer's card cannot be connected to", "card", r.name, "peer_card", from.String(), "error", err)
	return nil
}

func (e *lentEnd) connect(ctx context.Context, far *wire.End, probe []byte) (err error) {
	if e.pair, err = e.rail.dev.Pair(rdma.PairOptions{MaxWindows: mostWindows + 1}); err != nil {
		return err
	}
	if err = e.pair.Connect(cardEnd(far)); err != nil {
		return err
	}
	windows, err := e.pair.Grant(ctx, [][]byte{probe})
	if err == nil {
		e.probe = windows[0]
	}
	return err
}

// nearest is the card whose address has most in common with another, the first of several; nil: there is none.
func nearest(cards []*rail, to netip.Addr) (best *rail) {
	most := -1
	for _, r := range cards {
		if n := common(r.addr, to); n > most {
			best, most = r, n
		}
	}
	return best
}

// common is how many bits two addresses begin with.
func common(a, b netip.Addr) (bits int) {
	for bits < 128 {
		p, err := a.Prefix(bits + 1)
		if err != nil || a.BitLen() != b.BitLen() || !p.Contains(b) {
			break
		}
		bits++
	}
	return bits
}

func wireEnd(e rdma.Endpoint) wire.End {
	return wire.End{GID: e.GID, QPN: e.QPN, PSN: e.PSN, MTU: uint32(e.MTU), Reads: uint32(e.MaxReads)}
}

func cardEnd(e *wire.End) rdma.Endpoint {
	return rdma.Endpoint{GID: e.GID, QPN: e.QPN, PSN: e.PSN, MTU: int(min(e.MTU, 4096)), MaxReads: int(min(e.Reads, 1<<16))}
}

// enter takes in a session; false where that would be too many.
func (l *lender) enter(s *session) bool {
	s.used.Store(time.Now().UnixNano())
	l.s.attach(s.host)
	l.mu.Lock()
	defer l.mu.Unlock()
	pairs := s.pairs()
	for _, other := range l.sessions {
		pairs += other.pairs()
	}
	if l.closing || pairs > mostPairs {
		l.work.Go(func() { l.s.detach(s.remote.Host) }) // whose lock comes before this one
		return false
	}
	var oldest *session
	n := 0
	for _, other := range l.sessions {
		if other.remote != s.remote {
			continue
		}
		if n++; oldest == nil || other.used.Load() < oldest.used.Load() {
			oldest = other
		}
	}
	if n >= mostHostSessions {
		delete(l.sessions, oldest.id)
		l.work.Go(oldest.end)
	}
	for s.id == 0 || l.sessions[s.id] != nil {
		var b [8]byte
		_, _ = rand.Read(b[:])
		s.id = binary.LittleEndian.Uint64(b[:])
	}
	l.sessions[s.id] = s
	l.count.sessions.Add(1)
	for _, e := range s.ends {
		if e != nil {
			l.work.Go(func() { s.watch(e.pair) })
		}
	}
	return true
}

// watch ends the session when a pair breaks or nobody uses it.
func (s *session) watch(pair rdma.Pair) {
	look := time.NewTicker(sessionIdle / 4)
	defer look.Stop()
	for {
		select {
		case <-s.over:
			return
		case <-pair.Broken():
			s.end()
			return
		case <-look.C:
			if time.Since(time.Unix(0, s.used.Load())) >= sessionIdle {
				s.end()
				return
			}
		}
	}
}

// end ends the session: its pairs first, so that nobody reads any more, then what was lent is let go of. It may be called again.
func (s *session) end() {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended = true
	leases := s.leases
	s.leases = nil
	s.mu.Unlock()
	close(s.over)
	l := s.l
	l.mu.Lock()
	delete(l.sessions, s.id)
	l.mu.Unlock()
	s.closePairs()
	for _, t := range leases {
		if t.timer.Stop() {
			l.work.Done()
		}
		t.letGo()
	}
	l.s.detach(s.remote.Host)
}

// pairs is how many it has.
func (s *session) pairs() int { return len(s.railsUsed()) }

func (s *session) closePairs() {
	for _, e := range s.ends {
		if e != nil {
			_ = e.pair.Close()
		}
	}
}

// abandon ends the sessions of a host that is not connected any more, in the background: it has gone, or begins anew.
func (l *lender) abandon(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sessions {
		if s.remote.Host == host && !l.closing {
			l.work.Go(s.end)
		}
	}
}

// drain lends nothing new and waits until what is lent has been read or ctx has ended, for drainLeases at most.
func (l *lender) drain(ctx context.Context) {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, drainLeases)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for l.count.leases.Load() > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-look.C:
		}
	}
}

// close ends all sessions.
func (l *lender) close() {
	l.mu.Lock()
	var all []*session
	for _, s := range l.sessions {
		all = append(all, s)
	}
	l.mu.Unlock()
	for _, s := range all {
		s.end()
	}
	l.work.Wait()
}
