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

// OneSided says whether blocks of a peer are read from its memory, where cards of both sides can.
type OneSided string

// How a peer's blocks come.
const (
	NoCards  OneSided = ""         // by streams
	Trusted  OneSided = "trusted"  // by cards, where both are in a trusted network
	Demanded OneSided = "demanded" // by cards; by streams only as long as that cannot be, which is said as an error
)

const (
	firstRebuild = 100 * time.Millisecond // pause after a session broke or could not be made; it doubles
	lastRebuild  = 30 * time.Second
	errorEvery   = time.Minute      // why there is no session, where it must be
	steadyAfter  = 10 * time.Second // a session that lasted so long has the next pause be the first again
	lookIn       = time.Second      // pause after there was no card here
	withoutFor   = time.Minute      // pause after a peer has said that it does not know RDMA
	// for which a rail that broke is left out where there are others; pause before a session of
	// more rails is tried, which doubles
	railBadFor = 30 * time.Second
	lastRetry  = 8 * time.Minute // the longest of those pauses
	connectIn  = 5 * time.Second // a session is made of pairs, with a probe of each rail
	probeIn    = 2 * time.Second
	// a session that was used later is taken to be known to the peer, whatever became of
	// connections to it
	mayClose = time.Second
	// the peer is told that a session has ended, when the pool closes; else there is releaseIn for
	// it
	endIn = 250 * time.Millisecond
	// bytes that are read from one peer at a time; one block alone may be more. Others wait
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
	until      time.Time            // no session is made before
	bad        map[string]time.Time // until when a card of ours is left out, by name; as many as we have
	why        string               // no session; empty: not asked for yet
	said       time.Time            // that, in the log
	lastError  string
	lastAt     time.Time // of lastError
	missed     time.Time // a block was asked for last that no session was there for
	queue      []*wish   // at most mostWishes
	asking     int       // goroutines that ask for what is in queue, at most mostGrants
	flushing   bool
}

// readSession is a session.
type readSession struct {
	b      *grantee
	id     uint64
	lasts  time.Duration
	idle   time.Duration // after which the peer ends it
	most   int
	rails  []*rail
	pairs  []rdma.Pair // by rail; nil: not used
	flight *semaphore.Weighted
	born   time.Time

	// Guarded by b.mu.
	opened   uint64        // Rails.opened when its cards were chosen: with another number there may be more
	retry    time.Time     // from when on another is tried, of more rails; zero: all are used
	wait     time.Duration // before that
	done     []owed        // at most wire.MaxDone
	asking   int           // grants under way
	asked    time.Time     // of the last grant
	grants   int64         // blocks that may be read now
	replaced bool          // by another: nothing more is asked for
	unused   chan struct{} // closed when replaced and nothing is read any more
}

func newGrantee(p *Peer, rails *Rails, how OneSided, log *slog.Logger, count *readCounters) *grantee {
	b := &grantee{p: p, rails: rails, must: how == Demanded, log: log, count: count, bad: map[string]time.Time{}}
	b.life, b.stop = context.WithCancel(context.Background())
	return b
}

// close ends the session, and what is read in it.
func (b *grantee) close() {
	b.mu.Lock()
	b.closed = true
	s := b.s
	b.s = nil
	b.mu.Unlock()
	b.stop()
	if s != nil {
		b.end(s)
	}
	b.work.Wait()
}

// session is the one there is; nil: there is none, and one is being made if it is time.
func (b *grantee) session() *readSession {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.s != nil && !b.closed && b.s.forgotten(now) {
		old := b.s
		b.s = nil
		b.work.Go(func() { b.end(old) })
	}
	if b.connecting || b.closed || b.s != nil && !b.s.mayGrow(now) || now.Before(b.until) {
		return b.s
	}
	b.connecting = true
	b.work.Go(b.rebuild)
	return b.s
}

// miss notes that a block was asked for without a session.
func (b *grantee) miss() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missed = time.Now()
}

// mayGrow tells whether another session may have more rails. b.mu is held.
func (s *readSession) mayGrow(now time.Time) bool {
	return s.opened != s.b.rails.opened.Load() || !s.retry.IsZero() && !now.Before(s.retry)
}

// forgotten tells whether a session was not used for so long that the peer ends it, or has: after
// IdleMS, or when it has no connection of this host any more, of which one over TLS is closed
// earlier. b.mu is held.
func (s *readSession) forgotten(now time.Time) bool {
	if s.asking > 0 || s.grants > 0 {
		return false
	}
	unused := now.Sub(s.asked)
	return s.idle > 0 && unused > s.idle-s.idle/8 || unused > mayClose && !s.b.p.connected()
}

// used is over how many rails a session reads.
func (s *readSession) used() (n int) {
	for _, pair := range s.pairs {
		if pair != nil {
			n++
		}
	}
	return n
}

// rebuild makes a session, in the place of one with less rails if there is one, or notes why there
// is none.
func (b *grantee) rebuild() {
	opened := b.rails.opened.Load()
	s, err := b.connect()
	b.mu.Lock()
	b.connecting = false
	old, useless := b.s, s
	switch {
	case b.closed:
	case old != nil && (err != nil || s.used() <= old.used()): // it goes on with what it has
		old.wait = min(max(2*old.wait, railBadFor), lastRetry)
		if old.opened, old.retry = opened, time.Now().Add(old.wait); err == nil && s.retry.IsZero() {
			old.retry = time.Time{}
		}
	case err != nil:
		b.rest(err)
	default:
		useless = nil
		s.opened = opened
		b.take(s)
	}
	b.mu.Unlock()
	if useless != nil {
		b.tell(useless)
		useless.shut()
	}
}

// take has a session be used from now on. mu is held.
func (b *grantee) take(s *readSession) {
	if old := b.s; old != nil {
		old.replaced = true
		old.quiet()
		b.work.Go(func() { b.retire(old) })
	}
	b.s, b.until = s, time.Time{}
	b.count.sessions.Add(1)
	b.count.open.Add(1)
	b.told("")
	for _, pair := range s.pairs {
		if pair != nil {
			b.work.Go(func() { s.watch(pair) })
		}
	}
}

// retire ends a session that was replaced, when what it has granted was read, or can be read no
// longer.
func (b *grantee) retire(s *readSession) {
	t := time.NewTimer(b.p.pool.o.GrantIn + s.lasts)
	defer t.Stop()
	select {
	case <-s.unused:
	case <-t.C:
	case <-b.life.Done():
	}
	b.end(s)
}

// quiet notes where nothing is read any more in a session that was replaced. b.mu is held.
func (s *readSession) quiet() {
	if s.replaced && s.asking == 0 && s.grants == 0 {
		close(s.unused)
	}
}

// rest has no session be made for a while, because of err. mu is held.
func (b *grantee) rest(err error) {
	b.lastError, b.lastAt = err.Error(), time.Now()
	var none noRails
	if b.count.unmade.Add(1); errors.As(err, &none) {
		b.until = time.Now().Add(lookIn)
		b.told(reasonOf(err))
		return
	}
	b.pause = min(max(2*b.pause, firstRebuild), lastRebuild)
	pause := b.pause/2 + rand.N(b.pause)
	if errors.Is(err, wire.UnknownOp) || errors.Is(err, wire.Forbidden) {
		pause = withoutFor
	}
	b.until = time.Now().Add(pause)
	b.told(reasonOf(err))
}

// reasonOf says why there is no session.
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

// told notes why there is no session, and logs it where that has changed, or as an error for long.
// mu is held.
func (b *grantee) told(why string) {
	again := b.must && why != "" && time.Since(b.said) > errorEvery
	if b.why == why && (why != "" || b.s == nil) && !again {
		return
	}
	was := b.why == "" && !b.said.IsZero()
	b.why, b.said = why, time.Now()
	switch {
	case why == "":
		b.log.Info("blocks of a peer are read by RDMA", "rails", b.s.used(), "grant", b.s.lasts.String())
	case b.must:
		b.log.Error("fleet.lane or [[fleet.peers]] demands RDMA and it cannot be, blocks go over QUIC or TLS meanwhile",
			"reason", why)
	case was:
		b.log.Warn("blocks of a peer are not read by RDMA any more, they go over QUIC or TLS meanwhile", "reason", why)
	default:
		b.log.Info("blocks of a peer are not read by RDMA, they go over QUIC or TLS", "reason", why)
	}
}

// watch ends the session when one of its pairs breaks, used or not.
func (s *readSession) watch(pair rdma.Pair) {
	select {
	case <-pair.Broken():
		s.b.fail(s, "a pair broke", rdma.ErrBroken)
	case <-s.b.life.Done():
	}
}

// fail ends a session, or whichever there is, because of err; another is made after a pause. false:
// it had ended.
func (b *grantee) fail(s *readSession, why string, err error) (ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.s == nil || s != nil && b.s != s {
		return false
	}
	s = b.s
	b.s = nil
	if time.Since(s.born) > steadyAfter {
		b.pause = 0
	}
	b.count.broken.Add(1)
	b.rest(fmt.Errorf("%s: %w", why, err))
	b.work.Go(func() { b.end(s) }) // close waits for it: with closed there is no session
	return true
}

// end closes a session that is not used any more, and has the peer let go of what it has granted.
func (b *grantee) end(s *readSession) {
	b.count.open.Add(-1)
	b.tell(s)
	s.shut()
}

// tell tells the peer that a session has ended. A peer that does not hear of it finds out by
// itself, when it was not used for long.
func (b *grantee) tell(s *readSession) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseIn)
	defer cancel()
	defer whenDone(b.life, func() { time.AfterFunc(endIn, cancel) })()
	_ = b.ask(ctx, wire.Release, 0, (&wire.Returned{Session: s.id, End: true}).Append(nil),
		func(wire.Stamp, []byte) error { return nil })
}

func (s *readSession) shut() {
	for _, pair := range s.pairs {
		if pair != nil {
			_ = pair.Close()
		}
	}
}

// ask sends a small question over a stream, with the next request's number where request is 0.
func (b *grantee) ask(ctx context.Context, op wire.Op, request uint64, body []byte,
	got answered) error {
	return b.p.over(false, func(l lane, _ int) error { return l.call(ctx, op, 0, request, body, got) })
}
