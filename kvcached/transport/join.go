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
func (gr *granter) connect(ctx context.Context, p *link, c *wire.Connection) (answer []byte, s *session, err error) {
	s = &session{granter: gr, remote: p.remote, host: p.host, ends: make([]*grantEnd, len(c.Ends)),
		grants: map[uint64]*grant{},
		over:   make(chan struct{})}
	cards := gr.rails.usable(gr.rails.o.GrantAny)
	most := min(gr.suitable(c.Ends), len(cards))
	switch {
	case most == 0:
		err = wire.ByStream
	case !gr.reserve(s, most):
		err = wire.Busy
	default:
		if err = gr.join(ctx, s, cards, c.Ends); err == nil && !gr.enter(s) {
			err = wire.Busy
		}
		if err != nil {
			s.closePairs()
		}
		gr.settle(s, most, err == nil)
	}
	if err != nil {
		gr.count.refused.Add(1)
		return nil, nil, err
	}
	return gr.connected(s), s, nil
}

// suitable counts the peer's ends that may be connected to.
func (gr *granter) suitable(ends []wire.End) (n int) {
	for i := range ends {
		if gr.suits(&ends[i]) {
			n++
		}
	}
	return n
}

func (gr *granter) suits(far *wire.End) bool {
	return far.QPN != 0 && (gr.rails.o.GrantAny || gr.rails.trusts(addrOf(far.GID)))
}

// reserve counts pairs that will be made, until settle. false: there is no room for them.
func (gr *granter) reserve(s *session, pairs int) bool {
	gr.mu.Lock()
	defer gr.mu.Unlock()
	total := gr.pairs + pairs
	if oldest := gr.yields(s.remote); oldest != nil {
		total -= oldest.pairs()
	}
	if gr.closing || s.host.joining || total > mostPairs {
		return false
	}
	s.host.joining = true
	gr.pairs += pairs
	return true
}

// settle replaces the reserved pairs by the pairs that were made, if the session stays.
func (gr *granter) settle(s *session, reserved int, stays bool) {
	gr.mu.Lock()
	defer gr.mu.Unlock()
	s.host.joining = false
	if gr.pairs -= reserved; stays {
		gr.pairs += s.pairs()
	}
}

// yields returns the session that must give way to a further one of the same peer; nil: none. gr.mu
// is held.
func (gr *granter) yields(to Remote) (oldest *session) {
	n := 0
	for _, s := range gr.sessions {
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
func (gr *granter) join(ctx context.Context, s *session, cards []*rail, ends []wire.End) error {
	for i := range ends {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(cards) == 0 || !gr.suits(&ends[i]) {
			continue
		}
		from := addrOf(ends[i].GID)
		e := &grantEnd{rail: nearest(cards, from)}
		cards = slices.DeleteFunc(cards, func(r *rail) bool { return r == e.rail })
		err := e.connect(ctx, &ends[i], gr.rails.probes[:probeSize])
		if err == nil {
			s.ends[i] = e
			continue
		}
		if e.pair != nil {
			_ = e.pair.Close()
		}
		gr.s.warn("connect", "a peer's card cannot be connected to", "card", e.rail.name, "peer",
			s.remote.Host, "peer_card", from.String(), "error", err)
	}
	if s.pairs() == 0 {
		return wire.ByStream
	}
	return ctx.Err()
}

// connected encodes the answer to Connect.
func (gr *granter) connected(s *session) []byte {
	a := &wire.Connected{Session: s.id, GrantMS: uint32(gr.lasts.Milliseconds()),
		IdleMS: uint32(sessionIdle.Milliseconds()), Most: wire.MaxGrant, CRC: gr.rails.crc,
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
