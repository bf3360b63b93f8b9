package transport

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// Bounds of what is granted, besides Server's on bytes.
const (
	// of all sessions, none of which has two on one card; beyond, none is made, and no session
	// begins that needs one
	mostPairs = 1024
	// of one host in one role; a further one takes the place of that which was used least recently
	mostHostSessions = 8
	mostGranted      = 64                // of one session; beyond, blocks go by stream
	mostKept         = 1                 // the same, of one whose last grant to end was not given back
	mostWindows      = 2 * wire.MaxGrant // of a pair, and one for probes
	sessionIdle      = 5 * time.Minute   // a session that is not used for so long ends
	// for a card to make windows, or to revoke them; then the pair is closed, which revokes them,
	// too
	bindWithin  = 5 * time.Second
	drainGrants = time.Second // that peers have to read what is granted when the server closes
)

// granter grants blocks of this host to peers that read them by themselves.
type granter struct {
	s                               *Server
	rails                           *Rails
	lasts                           time.Duration
	count                           grantCounters
	bytes                           atomic.Int64 // granted, or about to be
	unconnected, ungranted, unfound seldom
	work                            sync.WaitGroup // ends of grants, and watchers of pairs

	mu       sync.Mutex
	sessions map[uint64]*session
	pairs    int // made and not closed yet, or about to be made
	closing  bool
}

// grantCounters are what GrantStats reports.
type grantCounters struct {
	asked, blocks, bytes, byStream, ended, sessions, refused atomic.Uint64
	grants, granted                                          atomic.Int64
}

// seldomIn is how often one thing that peers cause is logged.
const seldomIn = time.Minute

// seldom logs what peers can cause as often as they want: the first, and after seldomIn the next,
// with how many were left out.
type seldom struct{ until, left atomic.Int64 }

func (s *seldom) warn(to *slog.Logger, what string, args ...any) {
	now, until := time.Now().UnixNano(), s.until.Load()
	if now < until || !s.until.CompareAndSwap(until, now+int64(seldomIn)) {
		s.left.Add(1)
		return
	}
	to.Warn(what, append(args, "left_out", s.left.Swap(0))...)
}

// session is what one peer reads through.
type session struct {
	l      *granter
	id     uint64
	remote Remote
	host   *host
	ends   []*grantEnd  // by rail; nil: this rail is not used
	used   atomic.Int64 // when, in Unix ns
	turn   atomic.Uint64

	mu     sync.Mutex
	grants map[uint64]*grant
	making int  // grants that there is room for
	kept   bool // the last grant that has ended was not given back
	// numbers that were given back and are none of grants: they do not begin, should their Grants
	// come late. The oldest makes room
	undone [mostGranted]uint64
	oldest int           // of undone
	over   chan struct{} // closed when it has ended
	ended  bool
}

// grantEnd is the owner's end of a pair.
type grantEnd struct {
	rail  *rail
	pair  rdma.Pair
	probe rdma.Window
}

func newGranter(s *Server, o *ServerOptions) *granter {
	return &granter{s: s, rails: o.Rails, lasts: orDuration(o.Grant, 5*time.Second), sessions: map[uint64]*session{}}
}

// grants carries out Connect, Grant or Release.
func (op *operation) grants(ctx context.Context, body []byte) (answer []byte, err error) {
	l := op.link.s.granter
	if l == nil {
		return nil, wire.UnknownOp
	}
	switch op.f.Op {
	case wire.Connect:
		c, err := wire.ParseConnection(body)
		if err != nil {
			return nil, err
		}
		answer, op.session, err = l.connect(ctx, op.link, c)
		return answer, err
	case wire.Grant:
		w, err := wire.ParseWanted(body)
		if err != nil {
			return nil, err
		}
		s, err := l.find(w.Session, op.link.remote)
		if err != nil {
			return nil, err
		}
		op.session = s
		answer, op.grant, err = s.grant(ctx, w, wire.GrantOf(op.f.Request))
		return answer, err
	}
	r, err := wire.ParseReturned(body)
	if err != nil {
		return nil, err
	}
	s, err := l.find(r.Session, op.link.remote)
	if err != nil {
		return nil, err
	}
	if s.giveBack(r.Grants); r.End {
		s.end()
	}
	return nil, nil
}

// find is the session of who asks. wire.Miss: there is none, for it has ended, or is another's.
func (l *granter) find(id uint64, who Remote) (*session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sessions[id]
	if s == nil || s.remote != who {
		return nil, wire.Miss
	}
	s.used.Store(time.Now().UnixNano())
	return s, nil
}

// untold ends what the operation has begun and the peer has not been told of.
func (op *operation) untold() {
	switch {
	case op.grant != 0:
		op.session.giveBack([]uint64{op.grant})
	case op.session != nil && op.f.Op == wire.Connect:
		op.session.end()
	}
}

// enter takes in a session that was made; false: the server closes.
func (l *granter) enter(s *session) bool {
	s.used.Store(time.Now().UnixNano())
	l.s.attach(s.host)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		l.work.Go(func() { l.s.detach(s.remote.Host) }) // whose lock comes before this one
		return false
	}
	if oldest := l.yields(s.remote); oldest != nil {
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

// end ends the session: its pairs first, so that nobody reads any more, then what was granted is
// let go of. It may be called again.
func (s *session) end() {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended = true
	grants := s.grants
	s.grants = nil
	s.mu.Unlock()
	close(s.over)
	l := s.l
	l.mu.Lock()
	delete(l.sessions, s.id)
	l.mu.Unlock()
	s.closePairs()
	l.mu.Lock()
	l.pairs -= s.pairs()
	l.mu.Unlock()
	for _, t := range grants {
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

// abandon ends the sessions of a host that is not connected any more, in the background: it has
// gone, or begins anew.
func (l *granter) abandon(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sessions {
		if s.remote.Host == host && !l.closing {
			l.work.Go(s.end)
		}
	}
}

// drain grants nothing new and waits until what is granted has been read or ctx has ended, for
// drainGrants at most.
func (l *granter) drain(ctx context.Context) {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, drainGrants)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for l.count.grants.Load() > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-look.C:
		}
	}
}

// close ends all sessions.
func (l *granter) close() {
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
