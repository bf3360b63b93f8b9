package transport

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// connect makes this side's ends of a peer's pairs. wire.ByStream: no end can be connected.
// wire.Busy: there is no room, or the host is making another session.
func (l *granter) connect(ctx context.Context, p *link, c *wire.Connection) (answer []byte, s *session, err error) {
	s = &session{l: l, remote: p.remote, host: p.host, ends: make([]*grantEnd, len(c.Ends)),
		grants: map[uint64]*grant{},
		over:   make(chan struct{})}
	cards := l.rails.usable(l.rails.o.GrantAny)
	most := min(l.suitable(c.Ends), len(cards))
	switch {
	case most == 0:
		err = wire.ByStream
	case !l.reserve(s, most):
		err = wire.Busy
	default:
		if err = l.join(ctx, s, cards, c.Ends); err == nil && !l.enter(s) {
			err = wire.Busy
		}
		if err != nil {
			s.closePairs()
		}
		l.settle(s, most, err == nil)
	}
	if err != nil {
		l.count.refused.Add(1)
		return nil, nil, err
	}
	return l.connected(s), s, nil
}

// suitable counts the peer's ends that may be connected to.
func (l *granter) suitable(ends []wire.End) (n int) {
	for i := range ends {
		if l.suits(&ends[i]) {
			n++
		}
	}
	return n
}

func (l *granter) suits(far *wire.End) bool {
	return far.QPN != 0 && (l.rails.o.GrantAny || l.rails.trusts(addrOf(far.GID)))
}

// reserve counts pairs that will be made, until settle. false: there is no room for them.
func (l *granter) reserve(s *session, pairs int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := l.pairs + pairs
	if oldest := l.yields(s.remote); oldest != nil {
		total -= oldest.pairs()
	}
	if l.closing || s.host.joining || total > mostPairs {
		return false
	}
	s.host.joining = true
	l.pairs += pairs
	return true
}

// settle replaces the reserved pairs by the pairs that were made, if the session stays.
func (l *granter) settle(s *session, reserved int, stays bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.host.joining = false
	if l.pairs -= reserved; stays {
		l.pairs += s.pairs()
	}
}

// yields returns the session that must give way to a further one of the same peer; nil: none. l.mu
// is held.
func (l *granter) yields(to Remote) (oldest *session) {
	n := 0
	for _, s := range l.sessions {
		if s.remote != to {
			continue
		}
		if n++; oldest == nil || s.used.Load() < oldest.used.Load() {
			oldest = s
		}
	}
	if n < mostHostSessions {
		return nil
	}
	return oldest
}

// join makes a pair for each of the peer's ends, as far as there are cards. It tries each card
// once.
func (l *granter) join(ctx context.Context, s *session, cards []*rail, ends []wire.End) error {
	for i := range ends {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(cards) == 0 || !l.suits(&ends[i]) {
			continue
		}
		from := addrOf(ends[i].GID)
		e := &grantEnd{rail: nearest(cards, from)}
		cards = slices.DeleteFunc(cards, func(r *rail) bool { return r == e.rail })
		err := e.connect(ctx, &ends[i], l.rails.probes[:probeSize])
		if err == nil {
			s.ends[i] = e
			continue
		}
		if e.pair != nil {
			_ = e.pair.Close()
		}
		l.s.warn("connect", "a peer's card cannot be connected to", "card", e.rail.name, "peer",
			s.remote.Host, "peer_card", from.String(), "error", err)
	}
	if s.pairs() == 0 {
		return wire.ByStream
	}
	return ctx.Err()
}

// connected encodes the answer to Connect.
func (l *granter) connected(s *session) []byte {
	a := &wire.Connected{Session: s.id, GrantMS: uint32(l.lasts.Milliseconds()),
		IdleMS: uint32(sessionIdle.Milliseconds()), Most: wire.MaxGrant, CRC: l.rails.crc,
		Ends: make([]wire.End, len(s.ends)), Probes: make([]wire.Window, len(s.ends))}
	for i, e := range s.ends {
		if a.Probes[i].Rail = uint32(i); e != nil {
			key := e.probe.Key()
			a.Ends[i], a.Probes[i] = wireEnd(e.pair.Local()), wire.Window{Rail: uint32(i), RKey: key.RKey,
				Addr: key.Addr, Length: probeSize}
		}
	}
	return a.Append(nil)
}

func (e *grantEnd) connect(ctx context.Context, far *wire.End, probe []byte) (err error) {
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

// nearest returns the first card whose address has the longest prefix in common with to; nil: there
// is no card.
func nearest(cards []*rail, to netip.Addr) (best *rail) {
	most := -1
	for _, r := range cards {
		if n := common(r.addr, to); n > most {
			best, most = r, n
		}
	}
	return best
}

// common returns the length of the common prefix of two addresses, in bits.
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
	return rdma.Endpoint{GID: e.GID, QPN: e.QPN, PSN: e.PSN, MTU: int(min(e.MTU, 4096)),
		MaxReads: int(min(e.Reads, 1<<16))}
}
