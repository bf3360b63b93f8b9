package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

var errStranger = errors.New("the other cache's card has no address in rdma.trusted_networks of this one")

// connect makes a session and reads a probe over each of its rails.
func (ge *grantee) connect() (s *readSession, err error) {
	s = &readSession{grantee: ge, flight: semaphore.NewWeighted(mostFlight), born: time.Now(),
		unused: make(chan struct{})}
	if s.rails, s.retry = ge.choose(); len(s.rails) == 0 {
		return nil, ge.rails.lack()
	}
	defer func() {
		if err != nil { // s is not nil here
			s.shut()
			s = nil
		}
	}()
	var c wire.Connection
	for _, r := range s.rails {
		pair, err := r.dev.Pair(rdma.PairOptions{Reads: true})
		if err != nil {
			ge.blame(r)
			return s, fmt.Errorf("%s: %w", r.name, err)
		}
		s.pairs = append(s.pairs, pair)
		c.Ends = append(c.Ends, wireEnd(pair.Local()))
	}
	ctx, cancel := context.WithTimeout(ge.life, connectIn)
	defer cancel()
	var a *wire.Connected
	if err = ge.ask(ctx, wire.Connect, 0, c.Append(nil), func(_ wire.Stamp, body []byte) (err error) {
		a, err = wire.ParseConnected(body, len(c.Ends))
		return err
	}); err != nil {
		return s, err
	}
	s.id, s.most = a.Session, int(min(a.Most, wire.MaxGrant))
	s.lasts, s.idle, s.asked = time.Duration(a.GrantMS)*time.Millisecond, time.Duration(a.IdleMS)*time.Millisecond,
		time.Now()
	if s.most == 0 || s.lasts == 0 {
		return s, wire.BadFrame
	}
	if err = s.try(ctx, a); err != nil {
		ge.tell(s) // so that the peer ends its side
	}
	return s, err
}

// choose returns the cards for a session, and the time from which there may be more.
func (ge *grantee) choose() (use []*rail, retry time.Time) {
	all := ge.rails.usable(ge.must)
	ge.mu.Lock()
	defer ge.mu.Unlock()
	now := time.Now()
	for _, r := range all {
		if until := ge.bad[r.name]; now.Before(until) {
			retry = until
		} else {
			use = append(use, r)
			delete(ge.bad, r.name)
		}
	}
	if len(use) == 0 {
		use, retry = all, time.Time{}
	}
	return use[:min(len(use), wire.MaxRails)], retry
}

// blame leaves a card out for railBadFor if there are others.
func (ge *grantee) blame(r *rail) {
	ge.mu.Lock()
	defer ge.mu.Unlock()
	ge.bad[r.name] = time.Now().Add(railBadFor)
}

// try connects the pairs and reads a probe over each. It leaves out pairs for which the peer has no
// card.
func (s *readSession) try(ctx context.Context, a *wire.Connected) error {
	used := 0
	for i, r := range s.rails {
		if a.Ends[i].QPN == 0 {
			_ = s.pairs[i].Close()
			s.pairs[i] = nil
			s.retry = time.Now().Add(railBadFor)
			continue
		}
		if !s.grantee.must && !s.grantee.rails.trusts(addrOf(a.Ends[i].GID)) {
			return errStranger
		}
		if err := s.probe(ctx, i, a); err != nil {
			s.grantee.blame(r)
			return fmt.Errorf("%s to %s: %w", r.name, addrOf(a.Ends[i].GID), err)
		}
		used++
	}
	if used == 0 {
		return wire.ByStream
	}
	return nil
}

func (s *readSession) probe(ctx context.Context, i int, a *wire.Connected) error {
	if err := s.pairs[i].Connect(cardEnd(&a.Ends[i])); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeIn)
	defer cancel()
	r := s.grantee.rails
	select {
	case at := <-r.slots:
		defer func() { r.slots <- at }()
		into := r.probes[at:][:probeSize]
		w := a.Probes[i]
		if w.Length != probeSize {
			return fmt.Errorf("%w: a probe of %d bytes", wire.BadFrame, w.Length)
		}
		clear(into)
		if err := s.pairs[i].Read(ctx, []rdma.Read{{Into: into, From: rdma.Key{Addr: w.Addr, RKey: w.RKey}}}); err !=
			nil {
			return err
		}
		if block.Sum(into) != a.CRC {
			return fmt.Errorf("%w: what a probe read is not what the owner has", wire.Corrupt)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
