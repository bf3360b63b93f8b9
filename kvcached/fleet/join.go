package fleet

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// A host that starts has joined once etcd has named all members, itself among them, and each of the
// others has told it what was set or deleted while it was away (exhume), after it has paid what it
// owes. As those refuse to say that to who is no member for them, and every host names itself in
// etcd first, of two hosts one knows the other before both have joined. Before it has joined it is
// certain of no client's key, sets none and has none to read; blocks of tokens it has and takes as
// ever. It joins once: a fleet that runs does not mind a dead etcd.
//
// A member that does not answer holds that up until etcd counts it out, for a lease at most from
// when members were named; then the host joins without it, and asks it when it answers. One that
// answers is waited for.

// joinPatience is how long a host may take to join before that is logged.
const joinPatience = 5 * time.Second

const joinPause = 200 * time.Millisecond

// errUnnamed is why a host has not joined before etcd has named all members.
const errUnnamed = "etcd has not named its caches yet, this one among them"

// joining is how far a host has joined.
type joining struct {
	joined atomic.Bool

	mu    sync.Mutex
	named time.Time     // zero: etcd has not named all members
	done  chan struct{} // closed when it has joined
}

// Named says that SetMembers has been told all that etcd names, this host among them.
func (v *View) Named() {
	v.joining.mu.Lock()
	if v.joining.named.IsZero() {
		v.joining.named = time.Now()
	}
	v.joining.mu.Unlock()
	v.judge()
}

// Joined tells whether this host has joined its fleet, and else why not.
func (v *View) Joined() (why string, joined bool) {
	if v.joining.joined.Load() {
		return "", true
	}
	v.joining.mu.Lock()
	named := v.joining.named
	v.joining.mu.Unlock()
	if named.IsZero() {
		return errUnnamed, false
	}
	hosts := v.untold(named)
	return fmt.Sprintf("%s has not told yet which keys were set or deleted while this cache was away",
		strings.Join(hosts[:min(len(hosts), 8)], ", ")), false
}

// untold are the hosts that hold up joining.
func (v *View) untold(named time.Time) (hosts []string) {
	patient := time.Since(named) < v.o.Lease
	links := *v.links.Load()
	for _, m := range v.roster.Load().members {
		if l := links[m.ID]; m.ID != v.o.Self && (l == nil || l.member != m || !l.exhumed.Load()) &&
			(patient || !v.doubts.about(m.ID)) {
			hosts = append(hosts, m.ID)
		}
	}
	return hosts
}

// judge has this host join when nothing holds that up any more.
func (v *View) judge() {
	j := &v.joining
	if j.joined.Load() {
		return
	}
	v.mu.Lock() // no members come or go
	defer v.mu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.named.IsZero() || len(v.untold(j.named)) > 0 || j.joined.Swap(true) {
		return
	}
	close(j.done)
}

// pause is that between two tries to be told by one host, until this one has joined at most
// joinPause.
func (v *View) pause(wait time.Duration) time.Duration {
	v.judge() // the host may hold it up no more
	if v.joining.joined.Load() {
		return wait
	}
	return min(wait, joinPause)
}

// tellJoining logs once that this host has not joined for long, and when it has.
func (v *View) tellJoining(ctx context.Context) {
	timer := time.NewTimer(joinPatience)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.joining.done:
			v.o.Logger.Info("the cache has joined its fleet", "members", len(v.roster.Load().members), "after",
				time.Since(v.began).Round(time.Millisecond).String())
			return
		case <-timer.C:
			if why, joined := v.Joined(); !joined {
				v.o.Logger.Warn("the cache has not joined its fleet, so clients' own keys are misses and cannot be "+
					"set; blocks by address are served; "+
					"see that etcd answers at etcd.endpoints, to etcd.ca, etcd.cert and etcd.key, and the other "+
					"caches at their [quic] port", "why", why)
			}
		}
	}
}

// unjoined is the *store.JoiningError of a host that has not joined; nil: it has.
func (v *View) unjoined() error {
	if v.joining.joined.Load() {
		return nil
	}
	why, joined := v.Joined()
	if joined {
		return nil
	}
	return &store.JoiningError{Why: why}
}

// unsure is unjoined for what may be a client's own key.
func (v *View) unsure(a *block.Addr) error {
	if v.joining.joined.Load() {
		return nil
	}
	if !v.mayBeKey(a) {
		return nil
	}
	return v.unjoined()
}

// stale tells whether a block that is here may have been set anew or deleted elsewhere while this
// host was away.
func (v *View) stale(namespace string) bool {
	return !v.joining.joined.Load() && block.OfKeys(namespace)
}

// Create is that of the store. A client's own key is not set before this host has joined: the
// others could not be told.
func (v *View) Create(ctx context.Context, it store.Item, length int) (*store.Draft, error) {
	if block.OfKeys(it.Namespace) {
		if err := v.unjoined(); err != nil {
			return nil, err
		}
	}
	return v.Store.Create(ctx, it, length)
}
