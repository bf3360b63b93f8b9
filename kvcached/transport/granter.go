package transport

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// Bounds on what is granted, in addition to the Server's bounds on bytes.
const (
	// mostPairs bounds the pairs of all sessions. A session has at most one pair on a card. Beyond
	// the bound no session begins.
	mostPairs = 1024
	// mostHostSessions bounds the sessions of one host in one role. A further session ends the one
	// that was used least recently.
	mostHostSessions = 8
	mostGranted      = 64                // grants of one session; beyond it, blocks go by stream
	mostKept         = 1                 // the same bound for a session whose last ended grant was not given back
	mostWindows      = 2 * wire.MaxGrant // windows of a pair, and one more for probes
	sessionIdle      = 5 * time.Minute   // a session that is unused for this long ends
	// bindWithin is the time a card has to make or revoke windows. After it the pair is closed,
	// which revokes its windows, too.
	bindWithin  = 5 * time.Second
	drainGrants = time.Second // time that peers have to read granted blocks while the server closes
)

// granter grants blocks of this host to peers that read them by RDMA.
type granter struct {
	s     *Server
	rails *Rails
	lasts time.Duration
	count grantCounters
	bytes atomic.Int64   // bytes that are granted, or will be soon
	work  sync.WaitGroup // ends of grants, and watchers of pairs

	mu       sync.Mutex
	sessions map[uint64]*session
	pairs    int // pairs that are not closed, including those that will be made soon
	closing  bool
}

// grantCounters count for GrantStats.
type grantCounters struct {
	asked, blocks, bytes, byStream, ended, sessions, refused atomic.Uint64
	grants, granted                                          atomic.Int64
}

// session lets one peer read this host's memory.
type session struct {
	granter *granter
	id      uint64
	remote  Remote
	host    *host
	ends    []*grantEnd  // by rail; nil: the rail is not used
	used    atomic.Int64 // Unix ns of the last use
	turn    atomic.Uint64

	mu     sync.Mutex
	grants map[uint64]*grant
	making int  // grants that reserve has kept room for
	kept   bool // the last grant that ended was not given back
	// undone are the numbers of the last grants that the peer gave back before they began. These
	// grants never begin, even if their Grant comes late.
	undone [mostGranted]uint64
	oldest int           // index in undone of the oldest number
	over   chan struct{} // closed when the session has ended
	ended  bool
}

// grantEnd is this host's end of a pair.
type grantEnd struct {
	rail  *rail
	pair  rdma.Pair
	probe rdma.Window
}

func newGranter(s *Server, o *ServerOptions) *granter {
	return &granter{s: s, rails: o.Rails, lasts: orDuration(o.Grant, 5*time.Second), sessions: map[uint64]*session{}}
}

// grants carries out a Connect, Grant or Release.
func (op *operation) grants(ctx context.Context, body []byte) (answer []byte, err error) {
	gr := op.link.s.granter
	if gr == nil {
		return nil, wire.UnknownOp
	}
	switch op.f.Op {
	case wire.Connect:
		c, err := wire.ParseConnection(body)
		if err != nil {
			return nil, err
		}
		answer, op.session, err = gr.connect(ctx, op.link, c)
		return answer, err
	case wire.Grant:
		w, err := wire.ParseWanted(body)
		if err != nil {
			return nil, err
		}
		s, err := gr.find(w.Session, op.link.remote)
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
	s, err := gr.find(r.Session, op.link.remote)
	if err != nil {
		return nil, err
	}
	if s.giveBack(r.Grants); r.End {
		s.end()
	}
	return nil, nil
}

// find returns the caller's session. wire.Miss: the session has ended, or is another host's.
func (gr *granter) find(id uint64, who Remote) (*session, error) {
	gr.mu.Lock()
	defer gr.mu.Unlock()
	s := gr.sessions[id]
	if s == nil || s.remote != who {
		return nil, wire.Miss
	}
	s.used.Store(time.Now().UnixNano())
	return s, nil
}

// untold ends the session or grant that the operation has begun, because the peer did not hear of
// it.
func (op *operation) untold() {
	switch {
	case op.grant != 0:
		op.session.giveBack([]uint64{op.grant})
	case op.session != nil && op.f.Op == wire.Connect:
		op.session.end()
	}
}

// enter registers a new session. false: the server closes.
func (gr *granter) enter(s *session) bool {
	s.used.Store(time.Now().UnixNano())
	gr.s.attach(s.host)
	gr.mu.Lock()
	defer gr.mu.Unlock()
	if gr.closing {
		gr.work.Go(func() { gr.s.detach(s.remote.Host) }) // in the background, because detach's lock comes before gr.mu
		return false
	}
	if oldest := gr.yields(s.remote); oldest != nil {
		delete(gr.sessions, oldest.id)
		gr.work.Go(oldest.end)
	}
	for s.id == 0 || gr.sessions[s.id] != nil {
		var b [8]byte
		_, _ = rand.Read(b[:])
		s.id = binary.LittleEndian.Uint64(b[:])
	}
	gr.sessions[s.id] = s
	gr.count.sessions.Add(1)
	for _, e := range s.ends {
		if e != nil {
			gr.work.Go(func() { s.watch(e.pair) })
		}
	}
	return true
}

// watch ends the session when a pair breaks, or when the session is unused for sessionIdle.
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

// end ends the session. It closes the pairs first, so that nobody reads any more, and then releases
// the granted blocks. It may be called again.
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
	gr := s.granter
	gr.mu.Lock()
	delete(gr.sessions, s.id)
	gr.mu.Unlock()
	s.closePairs()
	gr.mu.Lock()
	gr.pairs -= s.pairs()
	gr.mu.Unlock()
	for _, g := range grants {
		if g.timer.Stop() {
			gr.work.Done()
		}
		g.letGo()
	}
	gr.s.detach(s.remote.Host)
}

// pairs returns the number of its pairs.
func (s *session) pairs() int { return len(s.railsUsed()) }

func (s *session) closePairs() {
	for _, e := range s.ends {
		if e != nil {
			_ = e.pair.Close()
		}
	}
}

// abandon ends the sessions of a host that is no longer connected, in the background. The host has
// gone, or begins anew.
func (gr *granter) abandon(host string) {
	gr.mu.Lock()
	defer gr.mu.Unlock()
	for _, s := range gr.sessions {
		if s.remote.Host == host && !gr.closing {
			gr.work.Go(s.end)
		}
	}
}

// drain grants nothing new, and waits until the granted blocks have been read or ctx has ended, at
// most drainGrants.
func (gr *granter) drain(ctx context.Context) {
	gr.mu.Lock()
	gr.closing = true
	gr.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, drainGrants)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for gr.count.grants.Load() > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-look.C:
		}
	}
}

// close ends all sessions.
func (gr *granter) close() {
	gr.mu.Lock()
	var all []*session
	for _, s := range gr.sessions {
		all = append(all, s)
	}
	gr.mu.Unlock()
	for _, s := range all {
		s.end()
	}
	gr.work.Wait()
}
