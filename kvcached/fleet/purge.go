package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A purge has two steps, so that no block goes from a host that is still to be purged to one that
// has been: in the first every host takes in no more blocks of those namespaces from others, waits
// until its own pushes have ended, and deletes what it has. The second, when all have answered,
// says that it is over. What was on its way meanwhile is not taken in even then.

// Bounds of a purge.
const (
	purgeWithin = 50 * time.Second
	// how long a host takes nothing in if it is not told that the purge is over, and how long it
	// remembers it
	fenceFor  = 2 * time.Minute
	maxFences = 256 // purges remembered; one more is refused with wire.Busy
	maxSpaces = wire.MaxTexts - 2
)

// What says what is purged: the namespaces that have all that is given, or with Everything all.
type What struct {
	Namespaces    []string // one of these canonical texts; none: any. At most 62
	Model, Tenant string   // empty: any
	Everything    bool
}

// ErrWhat says that nothing is named.
var ErrWhat = errors.New("fleet: a purge of nothing; name 1 to 62 namespaces, a model or a tenant, or say " +
	"everything alone")

func (w *What) check() error {
	if given := len(w.Namespaces) > 0 || w.Model != "" || w.Tenant != ""; given == w.Everything ||
		len(w.Namespaces) > maxSpaces {
		return ErrWhat
	}
	return nil
}

// Matches tells whether a namespace is purged.
func (w *What) Matches(text string) bool {
	if w.Everything {
		return true
	}
	n, err := block.ParseNamespace(text)
	return err == nil && (len(w.Namespaces) == 0 || slices.Contains(w.Namespaces, text)) &&
		(w.Model == "" || w.Model == n.Model) && (w.Tenant == "" || w.Tenant == n.Tenant)
}

func (w *What) texts() []string {
	if w.Everything {
		return nil
	}
	return append([]string{w.Model, w.Tenant}, w.Namespaces...)
}

func whatOf(texts []string) What {
	if len(texts) < 2 {
		return What{Everything: len(texts) == 0}
	}
	return What{Model: texts[0], Tenant: texts[1], Namespaces: texts[2:]}
}

// Purged is what a purge has done on one host.
type Purged struct {
	Host   string
	Blocks int
	Err    error // it was not reached or failed: it may still have blocks, and others may pull them
}

// fence keeps blocks of other hosts out while those are purged.
type fence struct {
	what   What
	number uint64 // in the order in which they came here
	until  time.Time
	ended  bool
}

type fenceKey struct {
	host   string
	number uint64
}

// PurgeAll removes the blocks of namespaces from all hosts, and tells what became of each, this one
// first. The error is of what was asked; each host's own is in the list. A host that etcd has
// counted out keeps what it has.
func (v *View) PurgeAll(ctx context.Context, w What) ([]Purged, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	if !v.Known() {
		return nil, store.ErrUnnamed
	}
	o := wire.Order{Host: v.o.Self, Number: uint64(time.Now().UnixNano()), Moment: 1, Texts: w.texts()}
	hosts := []string{v.o.Self}
	for _, m := range v.Others() {
		hosts = append(hosts, m.ID)
	}
	out := make([]Purged, len(hosts))
	v.orderEach(hosts, func(i int, m *Member) {
		n, err := v.purgeAt(ctx, m, &o)
		out[i] = Purged{hosts[i], int(n), err}
	})
	o.Moment = 2
	ctx = context.WithoutCancel(ctx)
	// who is not told goes on after fenceFor
	v.orderEach(hosts, func(_ int, m *Member) { _, _ = v.purgeAt(ctx, m, &o) })
	return out, nil
}

// orderEach calls order with some hosts at a time; those that have left are nil.
func (v *View) orderEach(hosts []string, order func(i int, m *Member)) {
	r := v.roster.Load()
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i, id := range hosts {
		group.Go(func() error {
			order(i, r.member(id))
			return nil
		})
	}
	_ = group.Wait()
}

// purgeAt has one host do a step.
func (v *View) purgeAt(ctx context.Context, m *Member, o *wire.Order) (blocks uint64, err error) {
	switch {
	case m == nil:
		return 0, ErrUnknownHost
	case m.ID == v.o.Self:
		return v.purge(ctx, o)
	}
	err = v.within(ctx, purgeWithin, m, func(ctx context.Context, peer *transport.Peer) error {
		r, err := peer.Order(ctx, wire.Purge, o)
		if err == nil {
			blocks = r.Number
		}
		return err
	})
	return blocks, err
}

// purge does a step here.
func (v *View) purge(ctx context.Context, o *wire.Order) (uint64, error) {
	w := whatOf(o.Texts)
	if err := w.check(); err != nil {
		return 0, wire.BadFrame
	}
	if !v.fence(fenceKey{o.Host, o.Number}, w, o.Moment) {
		return 0, wire.Busy
	}
	if o.Moment != 1 {
		return 0, nil
	}
	v.pushing.Lock() // waits for those that have begun; none begins past the fence
	//lint:ignore SA2001 the wait is all
	v.pushing.Unlock()
	n, err := v.Store.Purge(ctx, w.Matches)
	log := v.o.Logger.With("namespaces", w.Namespaces, "model", w.Model, "tenant", w.Tenant, "everything", w.Everything,
		"blocks", n, "asked_by", o.Host)
	if err != nil {
		log.Warn("blocks could not all be purged for the fleet", "error", err)
	} else {
		log.Info("blocks purged for the fleet")
	}
	return uint64(n), err
}

// fence puts one up, or says that it is over; false: there are too many.
func (v *View) fence(key fenceKey, w What, step int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if step != 1 {
		if f := v.fences[key]; f != nil {
			f.ended, f.until = true, now.Add(fenceFor)
		}
		return true
	}
	for other, f := range v.fences {
		if now.After(f.until) {
			delete(v.fences, other)
		}
	}
	if len(v.fences) >= maxFences {
		return false
	}
	v.fenced++
	v.fences[key] = &fence{what: w, number: v.fenced, until: now.Add(fenceFor)}
	return true
}

// Admit is asked when a block of a namespace begins to come from another host. The function tells
// whether a purge bars it since.
func (v *View) Admit(namespace string) (barred func() bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	since := v.fenced
	return func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		if len(v.fences) == 0 {
			return false
		}
		now := time.Now()
		for _, f := range v.fences {
			if now.Before(f.until) && (!f.ended || f.number > since) && f.what.Matches(namespace) {
				return true
			}
		}
		return false
	}
}
