package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// fallback is the reason for which a block came by a stream and not from the peer's memory.
type fallback int

// Reasons for a fallback.
const (
	noSession fallback = iota
	tooManyWishes
	noGrant
	notGranted
	grantOver
	notHere
	accessRefused
	noAnswer
	cardGone
	pairBroke
	tooSlow
	wrongSum
	notLocked
	fallbacks
)

// fallbackNames are the label values of metrics.
var fallbackNames = [fallbacks]string{noSession: "no_session", tooManyWishes: "queue", noGrant: "no_grant",
	notGranted: "not_granted", grantOver: "grant_over", notHere: "not_registered",
	accessRefused: "access", noAnswer: "unreachable", cardGone: "card_gone", pairBroke: "broken", tooSlow: "timeout",
	wrongSum: "checksum", notLocked: "memlock"}

// whyNot returns the reason that an error of a read stands for.
func whyNot(err error) fallback {
	switch {
	case errors.Is(err, rdma.ErrNotRegistered):
		return notHere
	case errors.Is(err, rdma.ErrMemlock):
		return notLocked
	case errors.Is(err, rdma.ErrGone):
		return cardGone
	case errors.Is(err, rdma.ErrAccess):
		return accessRefused
	case errors.Is(err, rdma.ErrUnreachable):
		return noAnswer
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return tooSlow
	}
	return pairBroke
}

const (
	grantTries = 2 // attempts of one Get to get a grant, because a grant may end before its turn comes
	// leaveIn is how long a read may go on after its caller has left. Then its pair is broken,
	// because the memory is needed.
	leaveIn = 250 * time.Millisecond
)

// errAnew says that the grant has ended, or will end too soon to read the block.
var errAnew = errors.New("transport: the grant ends before the block could be read")

// once makes sure that Alloc is called once, although a block may be requested in two ways.
type once struct {
	alloc func(f Found, n int) ([]byte, error)
	done  bool
	found Found
	buf   []byte
}

func (o *once) take(f Found, n int) ([]byte, error) {
	if !o.done {
		buf, err := o.alloc(f, n)
		if err == nil {
			o.done, o.found, o.buf = true, f, buf
		}
		return buf, err
	}
	if n != len(o.buf) || f.CRC != o.found.CRC || f.Item.Expires != o.found.Item.Expires ||
		f.Item.Parent != o.found.Item.Parent ||
		string(f.Item.Key) != string(o.found.Item.Key) || string(f.Item.Attr) != string(o.found.Item.Attr) {
		return nil, errChanged
	}
	return o.buf, nil
}

// takes tells whether a block is read from the peer's memory. Parts of blocks are read from a
// stream, because they have no checksum. Small blocks are too, because a stream brings them sooner.
func (ge *grantee) takes(g *Get) bool {
	return g.Offset == 0 && g.Length == 0 && (g.Hint == 0 || g.Hint >= ge.p.pool.o.MinBlock)
}

// get reads a block from the peer's memory. !done: the block must come by a stream.
func (ge *grantee) get(ctx context.Context, g *Get) (found Found, done bool, err error) {
	if err := checkItem(&Item{Namespace: g.Namespace}, 0); err != nil {
		return Found{}, true, err
	}
	if ge.session() == nil {
		ge.miss()
		return Found{}, false, ge.fallen(noSession)
	}
	g.Alloc = (&once{alloc: g.Alloc}).take
	for range grantTries {
		w := ge.want(g.Addr)
		if w == nil {
			return Found{}, false, ge.fallen(tooManyWishes)
		}
		select {
		case p := <-w.answer:
			found, done, err = ge.fetch(ctx, g, &p)
		case <-ctx.Done():
			w.leave()
			return Found{}, true, context.Cause(ctx)
		}
		if !errors.Is(err, errAnew) {
			return found, done, err
		}
	}
	return Found{}, false, ge.fallen(grantOver)
}

// fallen counts a fallback.
func (ge *grantee) fallen(why fallback) error {
	ge.count.fallen[why].Add(1)
	return nil
}

// fetch reads the block of a promise.
func (ge *grantee) fetch(ctx context.Context, g *Get, p *promise) (found Found, done bool, err error) {
	switch {
	case p.block == nil:
		return found, false, ge.fallen(p.why)
	case p.block.Status == wire.Miss:
		return found, true, wire.Miss
	case p.block.Status != wire.OK:
		return found, false, ge.fallen(notGranted)
	}
	defer p.grant.done()
	e, s := p.block, p.grant.s
	found = Found{Length: int(e.Length), CRC: e.CRC, Stamp: p.stamp, Item: Item{Addr: g.Addr, Namespace: g.Namespace,
		Parent:  e.Parent,
		Expires: e.Expires, Key: clone(e.Key), Attr: clone(e.Attr)}}
	buf, err := g.Alloc(found, found.Length)
	if err == nil && len(buf) != found.Length {
		err = fmt.Errorf("transport: memory of %d bytes for %d", len(buf), found.Length)
	}
	if err != nil {
		if errors.Is(err, errChanged) {
			return found, true, err
		}
		return found, true, fmt.Errorf("%w: %w", errCaller, err)
	}
	leave, err := s.turn(ctx, len(buf), p.grant.until)
	if err != nil {
		return found, !errors.Is(err, errAnew), err
	}
	defer leave()
	if err := s.read(ctx, e.Parts, buf, p.grant.until.Add(-s.lasts/20)); err != nil {
		g.paid = true
		if ctx.Err() != nil {
			return found, true, context.Cause(ctx)
		}
		return found, false, ge.fallen(whyNot(err))
	}
	if g.Progress != nil {
		g.Progress()
	}
	if block.Sum(buf) != e.CRC {
		s.rotten(e)
		return found, false, ge.fallen(wrongSum)
	}
	ge.count.reads.Add(1)
	ge.count.bytes.Add(uint64(len(buf)))
	return found, true, nil
}

// turn waits until n bytes may be read under a grant, and counts them until leave. The error is
// errAnew if the grant ends first.
func (s *readSession) turn(ctx context.Context, n int, until time.Time) (leave func(), err error) {
	late := until.Add(-s.lasts / 5)
	if !time.Now().Before(late) {
		return nil, errAnew
	}
	wait, cancel := context.WithDeadline(ctx, late)
	defer cancel()
	part := min(int64(n), mostFlight)
	if err = s.flight.Acquire(wait, part); err == nil {
		if err = s.grantee.p.pool.o.Bandwidth.wait(wait, inward, n); err == nil {
			return func() { s.flight.Release(part) }, nil
		}
		s.flight.Release(part)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, errAnew
}

// read fills buf. After it returns, no card writes to buf any more.
func (s *readSession) read(ctx context.Context, parts []wire.Window, buf []byte, until time.Time) error {
	reads := make([][]rdma.Read, len(s.pairs))
	for at, i := 0, 0; i < len(parts); i++ {
		w := &parts[i]
		if s.pairs[w.Rail] == nil {
			return fmt.Errorf("%w: a window of a rail that is not used", rdma.ErrBroken)
		}
		reads[w.Rail] = append(reads[w.Rail], rdma.Read{Into: buf[at:][:w.Length],
			From: rdma.Key{Addr: w.Addr, RKey: w.RKey}})
		at += int(w.Length)
	}
	life, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	stop := whenDone(ctx, func() {
		if await.For(life, leaveIn) {
			cancel()
		}
	})
	defer stop()
	defer cancel()
	var failed atomic.Pointer[error]
	s.each(reads, func(rail int) {
		if err := s.pairs[rail].Read(life, reads[rail]); err != nil {
			failed.CompareAndSwap(nil, &err)
			s.suspect(rail, err)
		}
	})
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// each calls fn for all rails with reads, at the same time.
func (s *readSession) each(reads [][]rdma.Read, fn func(rail int)) {
	var rails []int
	for i := range reads {
		if len(reads[i]) > 0 {
			rails = append(rails, i)
		}
	}
	others := make(chan struct{}, len(rails))
	for _, rail := range rails[min(1, len(rails)):] {
		go func() { // the loop below waits for it
			fn(rail)
			others <- struct{}{}
		}()
	}
	if len(rails) > 0 {
		fn(rails[0])
	}
	for range len(rails) - 1 {
		<-others
	}
}

// suspect ends the session if an error shows that its pair cannot read: the pair is broken, or a
// card misbehaves. Two errors show nothing about the pair: memory outside the registered arena, and
// a time that was over before the card got a request.
func (s *readSession) suspect(rail int, err error) {
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if errors.Is(err, rdma.ErrNotRegistered) ||
		late && !errors.Is(err, rdma.ErrBroken) && !errors.Is(err, rdma.ErrGone) {
		return
	}
	if errors.Is(err, rdma.ErrUnreachable) {
		s.grantee.blame(s.rails[rail])
	}
	if s.grantee.fail(s, "a read failed", err) && errors.Is(err, rdma.ErrMemlock) {
		s.grantee.log.Error("a card may not lock the memory that blocks are read into, blocks go over QUIC or TLS meanwhile",
			"card", s.rails[rail].name, "reason", err)
	}
}

// rotten ends a session that has read wrong bytes, and leaves out its cards if there are others.
// The checksum of the stream then shows whether the owner has the right block.
func (s *readSession) rotten(e *wire.GrantedBlock) {
	ge := s.grantee
	ge.count.corrupt.Add(1)
	var cards []string
	for i := range e.Parts {
		if r := s.rails[e.Parts[i].Rail]; !slices.Contains(cards, r.name) {
			cards = append(cards, r.name)
			ge.blame(r)
		}
	}
	if ge.fail(s, "checksum", wire.Corrupt) { // logged once for each session
		ge.log.Warn("bytes that were read by RDMA are not the block's, it is asked for over QUIC or TLS", "cards", cards,
			"length", e.Length)
	}
}
