package shared

import (
	"context"
	"time"

	"github.com/cognitora/dataplane/internal/await"
)

// Times of keeper.
const (
	maxSettled = 32                    // settlements in one round trip, so that no request waits behind many
	gatherTime = 50 * time.Millisecond // in which refills and settlements gather for one round trip
	hearEvery  = 3                     // looks, of a second each, between signs of life
	renewEvery = 10                    // looks between renewals of what the router holds
	probeFirst = 100 * time.Millisecond
	probeLast  = time.Second
	farewell   = time.Second // most that keeper takes to give back what it has, at the end
	routersKey = "cgn:{routers}"
)

// keeper does all that no request waits for, and asks Redis for requests that found their lease
// empty. The goroutine of Run owns it.
type keeper struct {
	l        *Limiter
	tick     *time.Ticker
	looks    int
	round    uint64 // of flushes
	calls    []*call
	settles  []*settlement
	asks     []*ask
	short    []*Subject
	subjects map[*Subject]struct{} // that have a lease
}

// Run keeps the leases until ctx ends. Then Run gives back what is not spent.
func (l *Limiter) Run(ctx context.Context) error {
	k := &keeper{l: l, tick: time.NewTicker(l.o.look), subjects: map[*Subject]struct{}{}}
	defer k.tick.Stop()
	k.hear()
	for k.flush(ctx); ctx.Err() == nil; k.flush(ctx) {
		if l.away.Load() {
			k.probe(ctx)
		}
		k.gather(ctx)
	}
	k.end()
	return l.db.Close()
}

// gather waits until there is something to tell Redis.
func (k *keeper) gather(ctx context.Context) {
	var ripe <-chan time.Time
	for len(k.short) < maxBatch && len(k.settles) < maxSettled {
		if ripe == nil && len(k.short)+len(k.settles) > 0 {
			ripe = time.After(gatherTime)
		}
		select {
		case <-ctx.Done():
			return
		case <-k.l.failed:
			return
		case a := <-k.l.asks:
			k.asks = append(k.asks, a)
			k.drain()
			return
		case s := <-k.l.refills:
			k.short = append(k.short, s)
		case c := <-k.l.settles:
			k.settles = append(k.settles, c)
		case <-ripe:
			return
		case <-k.tick.C:
			k.look()
			return
		}
	}
}

// drain takes what else waits. Settlements that were there before an ask go before it.
func (k *keeper) drain() {
	for len(k.asks) < maxBatch {
		select {
		case a := <-k.l.asks:
			k.asks = append(k.asks, a)
			continue
		default:
		}
		break
	}
	for range len(k.l.settles) {
		k.settles = append(k.settles, <-k.l.settles)
	}
	for range len(k.l.refills) {
		k.short = append(k.short, <-k.l.refills)
	}
}

// flush tells Redis what has gathered.
func (k *keeper) flush(ctx context.Context) {
	k.round++
	settles := k.settles
	k.settles = nil
	for n := 0; len(settles) > 0; settles = settles[n:] {
		n = min(len(settles), maxSettled)
		k.run(ctx, k.settling(settles[:n]))
	}
	for _, s := range k.short {
		s.short.Store(false)
		k.report(s, false)
	}
	for _, a := range k.asks {
		for i := range a.limits {
			k.report(a.limits[i].Bucket.subject, false)
		}
	}
	for _, s := range k.short {
		k.refill(s)
	}
	for _, a := range k.asks {
		if c := k.asking(a); c != nil {
			k.calls = append(k.calls, c)
		}
	}
	calls := k.calls
	k.calls, k.short, k.asks = nil, k.short[:0], k.asks[:0]
	for len(calls) > 0 {
		n := min(len(calls), maxBatch)
		k.run(ctx, calls[:n])
		calls = calls[n:]
	}
}

// run runs calls in one round trip. While Redis is away they fail at once.
func (k *keeper) run(ctx context.Context, calls []*call) {
	if k.l.away.Load() {
		for _, c := range calls {
			c.tell(nil, errAway)
		}
		return
	}
	_ = k.try(ctx, calls) // each call has been told
}

// try runs calls in one round trip.
func (k *keeper) try(ctx context.Context, calls []*call) error {
	bounded, cancel := context.WithTimeout(ctx, k.l.o.Timeout)
	defer cancel()
	sent := now()
	k.l.counts.trips.Add(1)
	if err := k.l.scripts.runAll(bounded, k.l.db, calls); err != nil {
		if ctx.Err() == nil {
			k.l.fail(err)
		}
		return err
	}
	k.l.until.Store(sent + int64(leaseLife))
	return nil
}

// probe asks Redis from time to time until it answers. Meanwhile no request waits.
func (k *keeper) probe(ctx context.Context) {
	for pause := probeFirst; ; pause = min(2*pause, probeLast) {
		for len(k.l.asks) > 0 {
			k.refuse(<-k.l.asks)
		}
		if !await.About(ctx, pause) {
			return
		}
		k.hear()
		calls := k.calls
		k.calls = nil
		if k.try(ctx, calls) == nil {
			k.renewAll()
			break
		}
	}
	select {
	case <-k.l.failed: // by the probes
	default:
	}
	k.l.away.Store(false)
	k.l.log.Info("Redis answers again", "routers", k.l.routers.Load())
}

// refuse answers an ask while Redis is away.
func (k *keeper) refuse(a *ask) {
	if a.call != nil {
		a.call.tell(nil, errAway)
		return
	}
	a.reply(answer{verdict: Unavailable})
}

// hear tells Redis that this router lives, and hears how many do.
func (k *keeper) hear() {
	c := k.l.scripts.newHear(k.l.id)
	c.done = func(reply []int64, err error) {
		if err == nil {
			k.l.routers.Store(max(reply[0], 1))
		}
	}
	k.calls = append(k.calls, c)
}

// look looks after leases and slots, each second.
func (k *keeper) look() {
	k.looks++
	if k.looks%hearEvery == 0 {
		k.hear()
	}
	for s := range k.subjects {
		k.tend(s)
	}
	if k.looks%renewEvery == 0 {
		k.renewAll()
	}
}

// renewAll renews all that the router holds. Of leases Redis then also knows again what it has
// lost.
func (k *keeper) renewAll() {
	for s := range k.subjects {
		k.report(s, true)
	}
	k.l.flying.Range(func(key, _ any) bool {
		s := key.(*Subject)
		if s.flying.Load() == 0 {
			k.l.flying.Delete(s)
			if s.flying.Load() == 0 {
				return true
			}
			k.l.flying.Store(s, nil)
		}
		k.calls = append(k.calls, k.l.scripts.newRenew(s))
		return true
	})
}

// end gives back what is not spent, and settles what has ended.
func (k *keeper) end() {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	k.drain()
	for s := range k.subjects {
		k.giveBack(s, func(b *Bucket) int64 { return b.left.Load() })
	}
	k.flush(ctx)
	for s := range k.subjects {
		k.report(s, false) // what was used after a report without an answer
	}
	k.flush(ctx)
	_ = k.l.db.ZRem(ctx, routersKey, k.l.id).Err() // it expires by itself
	k.l.away.Store(true)
}
