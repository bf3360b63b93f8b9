// Package shared bounds what tenants, keys and their use of models may take of several routers
// together. The counts are in Redis.
//
// By default a router leases blocks of units ahead and spends them without a round trip. In exact
// mode each request asks Redis. A request reserves all its limits or none, and settles once. While
// Redis does not answer, the router goes on alone, admits everything or refuses everything.
package shared

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cognitora/dataplane/internal/await"
)

// MaxLimits is the most limits of one request.
const MaxLimits = 40

// Bounds of the keeper's queues.
const (
	maxAsks    = 4096  // requests that wait for a lease
	maxRefills = 4096  // subjects whose lease runs short
	maxSettles = 65536 // settlements in exact mode
	maxLeased  = 65536 // subjects with a lease
	maxBatch   = 256   // calls in one round trip
)

// Limiter bounds requests together with the other routers of its Redis.
type Limiter struct {
	o       Options
	db      redis.UniversalClient
	scripts *scripts
	log     *slog.Logger
	id      string // of this router in Redis

	serial  atomic.Uint64 // of reservations and subjects
	routers atomic.Int64  // that Redis has last heard of
	until   atomic.Int64  // leases may be spent until then, in ns on this process's clock
	away    atomic.Bool   // Redis does not answer; only keeper asks it

	failed  chan struct{} // wakes keeper when away
	asks    chan *ask
	refills chan *Subject
	settles chan *settlement
	pending atomic.Int64 // settlements that Redis has not seen
	flying  sync.Map     // *Subject → nil: those with running requests in exact mode

	counts counts
}

// New returns a limiter. Run must run while it is used. New does not ask Redis, so that a router
// starts without it.
func New(o Options, log *slog.Logger) (*Limiter, error) {
	o = o.withDefaults()
	db, err := o.dial()
	if err != nil {
		return nil, err
	}
	random := make([]byte, 6)
	_, _ = rand.Read(random) // never fails
	l := &Limiter{o: o, db: db, scripts: newScripts(), log: log, id: hex.EncodeToString(random),
		failed: make(chan struct{}, 1), asks: make(chan *ask, maxAsks),
		refills: make(chan *Subject, maxRefills), settles: make(chan *settlement, maxSettles)}
	l.routers.Store(1)
	return l, nil
}

// Subject returns a new subject of a tenant. Rules are in the order of Subject.Bucket.
func (l *Limiter) Subject(tenant, name string, rules ...Rule) *Subject {
	s := &Subject{hash: SubjectKey(tenant, name), mark: tenantKey(tenant) + "r:", holder: l.next(),
		buckets: make([]Bucket, len(rules)), lease: leaseState{used: make([]int64, len(rules))}}
	for i, r := range rules {
		b := &s.buckets[i]
		b.subject, b.field, b.window, b.atOnce = s, r.Name, r.Window, r.AtOnce
	}
	return s
}

// next returns a name in Redis that nobody has had.
func (l *Limiter) next() string {
	return l.id + "-" + strconv.FormatUint(l.serial.Add(1), 36)
}

// Refusal says which limit has no room for a request.
type Refusal struct {
	Limit int           // place among the request's limits
	Used  int64         // units that count, or requests at a time
	Wait  time.Duration // until there is room; 0: unknown, or never
	Never bool          // the request asks for more than the limit
}

// Verdict is what becomes of a request.
type Verdict uint8

// The verdicts.
const (
	Admitted    Verdict = iota
	Refused             // a limit has no room
	Unavailable         // Redis is away, and OnFailure is closed
)

// Reserve reserves all limits, at most MaxLimits of one tenant, or none. r keeps what is reserved.
// Reserve waits for Redis no longer than Options.Timeout, in exact mode up to joinTime more.
// Reserve does not allocate if the lease suffices.
func (l *Limiter) Reserve(r *Reservation, limits []Limit) (Refusal, Verdict) {
	r.l, r.by, r.id, r.n = l, nothing, "", copy(r.limits[:], limits)
	if len(limits) == 0 {
		return Refusal{}, Admitted
	}
	at := now()
	for i := range limits {
		limit := &limits[i]
		if limit.Bucket.limit.Load() != limit.Max {
			limit.Bucket.limit.Store(limit.Max)
		}
		if limit.Units > limit.Max {
			r.n = 0
			return Refusal{Limit: i, Used: limit.counts(), Never: true}, Refused
		}
	}
	var no Refusal
	v := Admitted
	if l.o.Exact {
		no, v = l.reserveExact(r, at)
	} else {
		no, v = l.reserveLeased(r, at)
	}
	if v == Unavailable {
		no, v = l.reserveAlone(r, at)
	}
	if v == Admitted {
		return no, v
	}
	if r.id != "" { // Redis may have counted it
		l.settle(r, nil)
	}
	r.n = 0
	if v == Refused {
		l.counts.refused.Add(1)
	} else {
		l.counts.closed.Add(1)
	}
	return no, v
}

// counts returns how many units count, as far as this router knows.
func (l *Limit) counts() int64 { return max(l.Max-l.Left().Remaining, 0) }

// used returns what a request has used of the i-th limit. all is as in Reservation.Settle.
func (l *Limit) used(all []int64, i int) int64 {
	if all == nil || l.Bucket.window == 0 {
		return 0
	}
	return max(all[i], 0)
}

// reserveAlone decides without Redis.
func (l *Limiter) reserveAlone(r *Reservation, at int64) (Refusal, Verdict) {
	routers := l.routers.Load()
	switch l.o.OnFailure {
	case Closed:
		return Refusal{}, Unavailable
	case Open:
		l.add(r, routers, at)
		r.by = alone
		l.counts.open.Add(1)
		return Refusal{}, Admitted
	}
	for i := range r.limits[:r.n] {
		limit := &r.limits[i]
		wait, ok := limit.Bucket.admit(limit, routers, at)
		if ok {
			continue
		}
		used := limit.Bucket.word.Load()
		if limit.Bucket.window != 0 {
			used = min(limit.units(time.Duration(max(used-at, 0))), limit.Max)
		}
		for j := range r.limits[:i] {
			r.limits[j].Bucket.add(&r.limits[j], -r.limits[j].Units, routers, at)
		}
		return Refusal{Limit: i, Used: used, Wait: wait}, Refused
	}
	r.by = alone
	l.counts.local.Add(1)
	return Refusal{}, Admitted
}

// add counts r with what the router has admitted.
func (l *Limiter) add(r *Reservation, routers, at int64) {
	for i := range r.limits[:r.n] {
		r.limits[i].Bucket.add(&r.limits[i], r.limits[i].Units, routers, at)
	}
}

// fail records that Redis has not answered. From then on requests do without it, until keeper finds
// that it answers.
func (l *Limiter) fail(err error) {
	l.counts.failures.Add(1)
	if l.away.CompareAndSwap(false, true) {
		l.log.Warn("Redis does not answer", "error", l.o.explain(err), "on_failure", l.o.OnFailure,
			"meanwhile", withoutRedis[l.o.OnFailure])
		await.Wake(l.failed)
	}
}

// by says how a request was admitted.
type by uint8

const (
	nothing by = iota // or settled
	byLease
	byRedis
	alone
)

// Reservation is what a request has reserved. The zero Reservation has nothing. One goroutine at a
// time uses a reservation.
type Reservation struct {
	l      *Limiter
	by     by
	n      int
	id     string // in Redis; empty: Redis does not know it
	limits [MaxLimits]Limit
}

// Settle counts what the request has used of each limit in place of what it has reserved; nil:
// nothing. Requests at a time end with it. Calls after the first do nothing.
func (r *Reservation) Settle(used []int64) {
	how := r.by
	if how == nothing {
		return
	}
	routers, at := r.l.routers.Load(), now()
	for i := range r.limits[:r.n] {
		limit := &r.limits[i]
		less := limit.Units - limit.used(used, i)
		limit.Bucket.add(limit, -less, routers, at)
		if how != byLease {
			continue
		}
		limit.Bucket.back(limit.Units, less)
		if limit.Bucket.left.Load() < 0 {
			r.l.short(limit.Bucket.subject)
		}
	}
	if r.id != "" {
		r.l.settle(r, used)
	}
	r.by, r.n = nothing, 0
}
