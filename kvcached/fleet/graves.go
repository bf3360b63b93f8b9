package fleet

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A host that etcd counts out may come back with what was set or deleted meanwhile on its SSD.
// While one is away, whoever sets or deletes a key or says when it is over, its keeper and the
// hosts that drop it remember that. A host that has to tell another one everything anew first asks
// that for what to forget, and forgets it, except for keys that it was given itself since it was
// last heard. Until it has asked all it has not joined (join.go), and answers nobody with keys. One
// that goes on while it cannot reach etcd answers its own clients with the old value.
//
// What is remembered is in RAM, the last maxGraves and for mournFor: if all hosts that remember a
// deletion have been started anew, or more has happened since, the old value comes back.

// Bounds of what is remembered.
const (
	maxGraves  = 1 << 16
	mournFor   = 24 * time.Hour
	gravesPage = wire.MaxBatch
	maxPages   = 4 * maxGraves / gravesPage // more may be added while a host reads them
)

// errEndless says that a host goes on and on about what to forget.
var errEndless = errors.New("fleet: the host names more keys to forget than it can remember")

type graves struct {
	any atomic.Bool // somebody is away

	mu   sync.Mutex
	away map[string]absence // by host; at most maxMembers
	dug  map[block.Addr]uint64
	ring []block.Addr // by number modulo maxGraves; made when somebody is away
	next uint64       // number of the next one
	lost uint64       // forgotten before a host that is away has been told
}

// absence is since when a host is away.
type absence struct {
	grave uint64 // number of the first one that it has not seen
	at    time.Time
}

func newGraves() *graves {
	return &graves{away: map[string]absence{}, dug: map[block.Addr]uint64{}, next: 1}
}

// left notes that hosts are away.
func (g *graves) left(hosts ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for id, a := range g.away {
		if now.Sub(a.at) > mournFor {
			delete(g.away, id)
		}
	}
	for _, id := range hosts {
		if _, known := g.away[id]; !known && len(g.away) < maxMembers {
			g.away[id] = absence{g.next, now}
		}
	}
	g.settle()
}

// back notes that a host has been told all.
func (g *graves) back(host string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.away, host)
	g.settle()
}

// settle forgets everything when nobody is away. g.mu is held.
func (g *graves) settle() {
	g.any.Store(len(g.away) > 0)
	if len(g.away) == 0 {
		clear(g.dug)
		g.ring = nil
	}
}

// bury remembers that a key was set or deleted.
func (g *graves) bury(a block.Addr) {
	if !g.any.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ring == nil {
		g.ring = make([]block.Addr, maxGraves)
	}
	at := &g.ring[g.next%maxGraves]
	if n, there := g.dug[*at]; there && n+maxGraves == g.next {
		delete(g.dug, *at)
		g.lost++
	}
	*at, g.dug[a] = a, g.next
	g.next++
}

// page is what a host has to forget, from a number on, and where to go on; 0: that was all.
func (g *graves) page(host string, from uint64) (addrs []block.Addr, next uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a, known := g.away[host]
	if !known || g.ring == nil {
		return nil, 0
	}
	from = max(from, a.grave, 1)
	if g.next > maxGraves {
		from = max(from, g.next-maxGraves)
	}
	for ; from < g.next; from++ {
		if len(addrs) == gravesPage {
			return addrs, from
		}
		if at := g.ring[from%maxGraves]; g.dug[at] == from {
			addrs = append(addrs, at)
		}
	}
	return addrs, 0
}

// absent are hosts that are away, as many as an answer names.
func (g *graves) absent() (hosts []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range g.away {
		if len(hosts) < wire.MaxTexts {
			hosts = append(hosts, id)
		}
	}
	return hosts
}

func (g *graves) stats() (kept int64, lost uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int64(len(g.dug)), g.lost
}

// exhume asks a host what is to be forgotten here, and forgets it.
func (l *link) exhume(ctx context.Context) error {
	o := wire.Order{Host: l.v.o.Self}
	for range maxPages {
		var r *wire.Reply
		err := l.v.within(ctx, dropWithin, &l.member, func(ctx context.Context, peer *transport.Peer) (err error) {
			r, err = peer.Order(ctx, wire.Graves, &o)
			return err
		})
		if err != nil {
			return err
		}
		since := time.Time{}
		if at := l.heard.Load(); at != nil {
			since = *at
		}
		for _, a := range r.Addrs {
			if l.v.fresh.after(a, since) {
				continue
			}
			there, err := l.v.Store.Delete(ctx, a)
			if err != nil {
				return err
			}
			if there {
				l.v.counts.exhumed.Add(1)
			}
		}
		now := l.v.roster.Load()
		for _, id := range r.Texts {
			if now.member(id) == nil {
				l.v.graves.left(id)
			}
		}
		if o.Number = r.Number; o.Number == 0 {
			l.exhumed.Store(true)
			l.v.judge()
			return nil
		}
	}
	return errEndless
}

// Serves tells whether other hosts may be answered with a block that is here: a key only when this
// host has joined.
func (v *View) Serves(i *store.Info) bool { return !v.stale(i.Item.Namespace) }

// Order does what another host asks; it is transport.Handler's.
func (v *View) Order(ctx context.Context, op wire.Op, o *wire.Order) (*wire.Reply, error) {
	if o.Host != "" && (o.Host == v.o.Self || v.roster.Load().member(o.Host) == nil) {
		return nil, wire.Forbidden // it will try again, and be known by then
	}
	switch {
	case op == wire.Expire && !v.joining.joined.Load():
		return nil, wire.Busy // what is here may have been deleted elsewhere
	case op == wire.Expire && len(o.Addrs) <= wire.MaxBatch:
		r := &wire.Reply{}
		for _, a := range o.Addrs {
			mark, err := v.expireHere(ctx, a, o.Moment)
			if err != nil {
				return nil, err
			}
			r.Marks = append(r.Marks, mark)
		}
		return r, nil
	case op == wire.Purge && o.Host != "":
		n, err := v.purge(ctx, o)
		return &wire.Reply{Number: n}, err
	case op == wire.Claim && o.Host != "" && len(o.Addrs) == 1:
		return &wire.Reply{Number: v.keeper.claim(o)}, nil
	case op == wire.Graves && o.Host != "":
		if !v.drops.wait(ctx) || v.doubts.owes(o.Host) {
			return nil, wire.Busy // it is told to drop what it is owed first, and has not joined until then
		}
		r := &wire.Reply{Texts: v.graves.absent()}
		r.Addrs, r.Number = v.graves.page(o.Host, o.Number)
		return r, nil
	case op == wire.Settle && o.Host != "":
		v.keeper.settle(o.Host, uint64(o.Moment), o.Number)
		v.graves.back(o.Host)
		return &wire.Reply{}, nil
	}
	return nil, wire.BadFrame
}
