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
	// railBadFor is how long a card that failed is left out if there are others. It is also the
	// first pause before a session with more rails is tried; the pause doubles.
	railBadFor = 30 * time.Second
	lastRetry  = 8 * time.Minute // longest of those pauses
	connectIn  = 5 * time.Second // time to make a session, with a probe of each rail
	probeIn    = 2 * time.Second
	// mayClose is how long after its last use a session is surely known to the peer, even without a
	// connection to it.
	mayClose = time.Second
	// endIn is the time to tell the peer that a session has ended while the pool closes. Otherwise
	// it is releaseIn.
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
	b      *grantee
	id     uint64
	lasts  time.Duration
	idle   time.Duration // the peer ends a session that is unused for this long
	most   int
	rails  []*rail
	pairs  []rdma.Pair // by rail; nil: not used
	flight *semaphore.Weighted
	born   time.Time

	// Guarded by b.mu.
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

// session returns the session, or nil. If there is none, it starts making one, unless it is too
// early for that.
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

// forgotten tells whether a session was unused for so long that the peer has ended it, or soon
// will. The peer ends it after IdleMS, and also when it has no connection of this host any more;
// TLS connections are closed earlier than that. b.mu is held.
func (s *readSession) forgotten(now time.Time) bool {
	if s.asking > 0 || s.grants > 0 {
		return false
	}
	unused := now.Sub(s.asked)
	return s.idle > 0 && unused > s.idle-s.idle/8 || unused > mayClose && !s.b.p.connected()
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
func (b *grantee) rebuild() {
	opened := b.rails.opened.Load()
	s, err := b.connect()
	b.mu.Lock()
	b.connecting = false
	old, useless := b.s, s
	switch {
	case b.closed:
	case old != nil && (err != nil || s.used() <= old.used()): // it goes on with its rails
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

// take makes s the session that is used from now on. mu is held.
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

// retire ends a session that was replaced, once its granted blocks were read or can no longer be
// read.
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

// quiet closes unused if nothing is read any more in a session that was replaced. b.mu is held.
func (s *readSession) quiet() {
	if s.replaced && s.asking == 0 && s.grants == 0 {
		close(s.unused)
	}
}

// rest sets the pause until the next session is made, because of err. mu is held.
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

// watch ends the session when one of its pairs breaks, even a pair that is not in use.
func (s *readSession) watch(pair rdma.Pair) {
	select {
	case <-pair.Broken():
		s.b.fail(s, "a pair broke", rdma.ErrBroken)
	case <-s.b.life.Done():
	}
}

// fail ends s because of err, or the present session if s is nil. Another session is made after a
// pause. false: the session had ended before.
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
	b.work.Go(func() { b.end(s) }) // close waits for this; after closed there is no session
	return true
}

// end closes a session that is not used any more, and lets the peer release its granted blocks.
func (b *grantee) end(s *readSession) {
	b.count.open.Add(-1)
	b.tell(s)
	s.shut()
}

// tell tells the peer that a session has ended. Without it, the peer ends the session once that was
// unused for long enough.
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

// ask sends a small request over a stream. If request is 0, it gets the next request number.
func (b *grantee) ask(ctx context.Context, op wire.Op, request uint64, body []byte,
	got answered) error {
	return b.p.over(false, func(l lane, _ int) error { return l.call(ctx, op, 0, request, body, got) })
}
