package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// OneSided says whether blocks of a peer are read from its memory, if the cards of both hosts can.
type OneSided string

// The ways to read a peer's blocks.
const (
	NoCards  OneSided = ""         // by streams
	Trusted  OneSided = "trusted"  // by cards if both are in a trusted network
	Demanded OneSided = "demanded" // by cards; if that fails, by streams with an error in the log
)

const (
	firstRebuild = 100 * time.Millisecond // pause after a session broke or could not be made; it doubles
	lastRebuild  = 30 * time.Second
	errorEvery   = time.Minute      // between two errors in the log about the same demanded session
	steadyAfter  = 10 * time.Second // after a session that lasted this long, the next pause is firstRebuild again
	lookIn       = time.Second      // pause if this host has no card
	withoutFor   = time.Minute      // pause if the peer has said that it does not know RDMA
	// railBadFor is how long a failed card is left out if there are other cards. It is also the
	// first pause before a session with more rails is tried; the pause doubles.
	railBadFor = 30 * time.Second
	lastRetry  = 8 * time.Minute // longest of those pauses
	connectIn  = 5 * time.Second // time to make a session, with a probe of each rail
	probeIn    = 2 * time.Second
	// mayClose is the time after a session's last use in which the peer surely knows the session,
	// even without a connection to the peer.
	mayClose = time.Second
	// endIn is the time to tell the peer that a session has ended, once the pool closes. Before
	// that the time is releaseIn.
	endIn = 250 * time.Millisecond
	// mostFlight bounds the bytes that are read from one peer at a time. A larger block is read
	// alone. Further blocks wait.
	mostFlight = 32 << 20
)

// grantee reads blocks of one peer from its memory.
type grantee struct {
	p     *Peer
	rails *Rails
	must  bool // Demanded
	log   *slog.Logger
	count *readCounters
	life  context.Context // ends with close
	stop  context.CancelFunc
	work  sync.WaitGroup

	mu         sync.Mutex
	s          *readSession // nil: none
	connecting bool
	closed     bool
	pause      time.Duration
	until      time.Time            // until then no session is made
	bad        map[string]time.Time // until when a card of this host is left out, by name
	why        string               // why there is no session; empty: no block was asked for yet
	said       time.Time            // time of the last log line about why
	lastError  string
	lastAt     time.Time // of lastError
	missed     time.Time // last time that a block was asked for without a session
	queue      []*wish   // at most mostWishes
	asking     int       // goroutines that ask for the blocks in queue, at most mostGrants
	flushing   bool
}

// readSession is a session with one peer.
type readSession struct {
	grantee *grantee
	id      uint64
	lasts   time.Duration
	idle    time.Duration // the peer ends a session that is unused for this long
	most    int
	rails   []*rail
	pairs   []rdma.Pair // by rail; nil: not used
	flight  *semaphore.Weighted
	born    time.Time

	// Guarded by grantee.mu.
	opened   uint64        // Rails.opened when the rails were chosen; another number means that there may be more
	retry    time.Time     // from then on a session with more rails is tried; zero: all rails are used
	wait     time.Duration // last pause before retry
	done     []owed        // at most wire.MaxDone
	asking   int           // requests for grants without an answer yet
	asked    time.Time     // time of the last request for a grant
	grants   int64         // blocks that may be read now
	replaced bool          // another session has taken its place, so it gets no new blocks
	unused   chan struct{} // closed when it is replaced and no block is read any more
}

func newGrantee(p *Peer, rails *Rails, how OneSided, log *slog.Logger, count *readCounters) *grantee {
	b := &grantee{p: p, rails: rails, must: how == Demanded, log: log, count: count, bad: map[string]time.Time{}}
	b.life, b.stop = context.WithCancel(context.Background())
	return b
}

// close ends the session and all reads in it.
func (ge *grantee) close() {
	ge.mu.Lock()
	ge.closed = true
	s := ge.s
	ge.s = nil
	ge.mu.Unlock()
	ge.stop()
	if s != nil {
		ge.end(s)
	}
	ge.work.Wait()
}

// session returns the session, or nil. If there is none, it starts making one, unless it is too
// early for that.
func (ge *grantee) session() *readSession {
	ge.mu.Lock()
	defer ge.mu.Unlock()
	now := time.Now()
	if ge.s != nil && !ge.closed && ge.s.forgotten(now) {
		old := ge.s
		ge.s = nil
		ge.work.Go(func() { ge.end(old) })
	}
	if ge.connecting || ge.closed || ge.s != nil && !ge.s.mayGrow(now) || now.Before(ge.until) {
		return ge.s
	}
	ge.connecting = true
	ge.work.Go(ge.rebuild)
	return ge.s
}

// miss notes that a block was asked for without a session.
func (ge *grantee) miss() {
	ge.mu.Lock()
	defer ge.mu.Unlock()
	ge.missed = time.Now()
}

// mayGrow tells whether another session may have more rails. grantee.mu is held.
func (s *readSession) mayGrow(now time.Time) bool {
	return s.opened != s.grantee.rails.opened.Load() || !s.retry.IsZero() && !now.Before(s.retry)
}

// forgotten tells whether a session was unused for so long that the peer has ended it, or soon
// will. The peer ends it after IdleMS, and also when it has no connection of this host any more;
// TLS connections are closed earlier than that. grantee.mu is held.
func (s *readSession) forgotten(now time.Time) bool {
	if s.asking > 0 || s.grants > 0 {
		return false
	}
	unused := now.Sub(s.asked)
	return s.idle > 0 && unused > s.idle-s.idle/8 || unused > mayClose && !s.grantee.p.connected()
}

// used returns the number of rails that a session reads over.
func (s *readSession) used() (n int) {
	for _, pair := range s.pairs {
		if pair != nil {
			n++
		}
	}
	return n
}

// rebuild makes a session, and replaces one with fewer rails. If it fails, it notes why there is no
// session.
func (ge *grantee) rebuild() {
	opened := ge.rails.opened.Load()
	s, err := ge.connect()
	ge.mu.Lock()
	ge.connecting = false
	old, useless := ge.s, s
	switch {
	case ge.closed:
	case old != nil && (err != nil || s.used() <= old.used()): // it goes on with its rails
		old.wait = min(max(2*old.wait, railBadFor), lastRetry)
		if old.opened, old.retry = opened, time.Now().Add(old.wait); err == nil && s.retry.IsZero() {
			old.retry = time.Time{}
		}
	case err != nil:
		ge.rest(err)
	default:
		useless = nil
		s.opened = opened
		ge.take(s)
	}
	ge.mu.Unlock()
	if useless != nil {
		ge.tell(useless)
		useless.shut()
	}
}

// take makes s the session that is used from now on. mu is held.
func (ge *grantee) take(s *readSession) {
	if old := ge.s; old != nil {
		old.replaced = true
		old.quiet()
		ge.work.Go(func() { ge.retire(old) })
	}
	ge.s, ge.until = s, time.Time{}
	ge.count.sessions.Add(1)
	ge.count.open.Add(1)
	ge.told("")
	for _, pair := range s.pairs {
		if pair != nil {
			ge.work.Go(func() { s.watch(pair) })
		}
	}
}

// retire ends a session that was replaced, once its granted blocks were read or can no longer be
// read.
func (ge *grantee) retire(s *readSession) {
	t := time.NewTimer(ge.p.pool.o.GrantIn + s.lasts)
	defer t.Stop()
	select {
	case <-s.unused:
	case <-t.C:
	case <-ge.life.Done():
	}
	ge.end(s)
}

// quiet closes unused if nothing is read any more in a replaced session. grantee.mu is held.
func (s *readSession) quiet() {
	if s.replaced && s.asking == 0 && s.grants == 0 {
		close(s.unused)
	}
}

// rest sets the pause until the next session is made, because of err. mu is held.
func (ge *grantee) rest(err error) {
	ge.lastError, ge.lastAt = err.Error(), time.Now()
	var none noRails
	if ge.count.unmade.Add(1); errors.As(err, &none) {
		ge.until = time.Now().Add(lookIn)
		ge.told(reasonOf(err))
		return
	}
	ge.pause = min(max(2*ge.pause, firstRebuild), lastRebuild)
	pause := ge.pause/2 + rand.N(ge.pause)
	if errors.Is(err, wire.UnknownOp) || errors.Is(err, wire.Forbidden) {
		pause = withoutFor
	}
	ge.until = time.Now().Add(pause)
	ge.told(reasonOf(err))
}

// reasonOf returns why there is no session, in words for an operator.
func reasonOf(err error) string {
	var none noRails
	switch {
	case errors.As(err, &none), errors.Is(err, errStranger):
		return err.Error()
	case errors.Is(err, wire.UnknownOp):
		return "the other cache has no RDMA: its rdma.devices names none, or it was built without"
	case errors.Is(err, wire.ByStream):
		return "the other cache grants nothing to this host's cards: none of its own is open, or they or these " +
			"are in " +
			"none of its rdma.trusted_networks; cgn-ctl kv peers there says which"
	case errors.Is(err, wire.Busy):
		return "the other cache has as many sessions as it takes, or is making another one of this host's"
	}
	return "no session: " + err.Error()
}

// told notes why there is no session. It logs a new reason, and repeats an error for as long as
// RDMA is demanded. mu is held.
func (ge *grantee) told(why string) {
	again := ge.must && why != "" && time.Since(ge.said) > errorEvery
	if ge.why == why && (why != "" || ge.s == nil) && !again {
		return
	}
	was := ge.why == "" && !ge.said.IsZero()
	ge.why, ge.said = why, time.Now()
	switch {
	case why == "":
		ge.log.Info("blocks of a peer are read by RDMA", "rails", ge.s.used(), "grant", ge.s.lasts.String())
	case ge.must:
		ge.log.Error("fleet.lane or [[fleet.peers]] demands RDMA and it cannot be, blocks go over QUIC or TLS meanwhile",
			"reason", why)
	case was:
		ge.log.Warn("blocks of a peer are not read by RDMA any more, they go over QUIC or TLS meanwhile", "reason", why)
	default:
		ge.log.Info("blocks of a peer are not read by RDMA, they go over QUIC or TLS", "reason", why)
	}
}

// watch ends the session when one of its pairs breaks, even a pair that is not in use.
func (s *readSession) watch(pair rdma.Pair) {
	select {
	case <-pair.Broken():
		s.grantee.fail(s, "a pair broke", rdma.ErrBroken)
	case <-s.grantee.life.Done():
	}
}

// fail ends s because of err, or the present session if s is nil. Another session is made after a
// pause. false: the session had ended before.
func (ge *grantee) fail(s *readSession, why string, err error) (ended bool) {
	ge.mu.Lock()
	defer ge.mu.Unlock()
	if ge.s == nil || s != nil && ge.s != s {
		return false
	}
	s = ge.s
	ge.s = nil
	if time.Since(s.born) > steadyAfter {
		ge.pause = 0
	}
	ge.count.broken.Add(1)
	ge.rest(fmt.Errorf("%s: %w", why, err))
	ge.work.Go(func() { ge.end(s) }) // close waits for this; after closed there is no session
	return true
}

// end closes a session that is not used any more, and lets the peer release its granted blocks.
func (ge *grantee) end(s *readSession) {
	ge.count.open.Add(-1)
	ge.tell(s)
	s.shut()
}

// tell tells the peer that a session has ended. If the message does not arrive, the peer ends the
// session once it was unused for long enough.
func (ge *grantee) tell(s *readSession) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseIn)
	defer cancel()
	defer whenDone(ge.life, func() { time.AfterFunc(endIn, cancel) })()
	_ = ge.ask(ctx, wire.Release, 0, (&wire.Returned{Session: s.id, End: true}).Append(nil),
		func(wire.Stamp, []byte) error { return nil })
}

func (s *readSession) shut() {
	for _, pair := range s.pairs {
		if pair != nil {
			_ = pair.Close()
		}
	}
}

// ask sends a small request over a stream. If request is 0, it gets the next request number.
func (ge *grantee) ask(ctx context.Context, op wire.Op, request uint64, body []byte,
	got answered) error {
	return ge.p.over(false, func(l lane, _ int) error { return l.call(ctx, op, 0, request, body, got) })
}
