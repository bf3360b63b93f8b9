package fleet

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// A host that has died is told from a slow one, so that nobody waits for it until etcd counts it
// out. Where something asked of it has had no answer for half of AnswerTimeout, and nothing else
// came from it meanwhile, one goroutine probes it (probe.go); it has the other half. If that has no
// answer either, or the host cannot be connected to, it is left out: what waits for it fails, and
// nothing more is asked of it, until it has answered the prober. What it is asked otherwise may
// take as long as the question allows.

const (
	headWithin = 2 * time.Second // in which a host that is asked for a block must say that it has it
	// in which it must answer a notice, an announcement or a step of a purge that waits for nothing
	noticeWithin = 2 * time.Second
)

// errSlow ends what a host did not answer in time.
var errSlow error = slow{}

// slow is a timeout for the transport, too, which prefers another lane then.
type slow struct{}

func (slow) Error() string { return "fleet: no answer in time" }
func (slow) Timeout() bool { return true }

// errDoubted says that a host was not even asked.
var errDoubted = errors.New("fleet: the host does not answer, and is not asked until it has answered a probe")

// doubts is how the other hosts answer.
type doubts struct {
	share int64 // Options.PeerBytes

	mu    sync.Mutex
	hosts map[string]*health // by id; at most maxMembers, and those that have just left
}

// health is how a host answers.
type health struct {
	member Member
	heard  atomic.Int64        // when something came from it last, in Unix ns
	asking atomic.Int64        // what it has not answered yet
	coming *semaphore.Weighted // bytes of blocks on their way from it; nil: any

	// Guarded by doubts.mu.
	probing bool
	life    context.Context // ends when the host is left out; nil: it is
	since   time.Time       // when it was
	end     context.CancelCauseFunc
}

func (h *health) hear() { h.heard.Store(time.Now().UnixNano()) }

// healthOf returns that of a host as it is now.
func (v *View) healthOf(m *Member) *health {
	d := &v.doubts
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.hosts[m.ID]
	if h == nil {
		if now := v.roster.Load().member(m.ID); now != nil {
			m = now
		}
		h = d.renew(*m)
	}
	return h
}

// renew begins anew with a host. d.mu is held.
func (d *doubts) renew(m Member) *health {
	h := &health{member: m}
	h.life, h.end = context.WithCancelCause(context.Background())
	if d.share > 0 {
		h.coming = semaphore.NewWeighted(d.share)
	}
	d.hosts[m.ID] = h
	return h
}

// about tells whether a host is left out.
func (d *doubts) about(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.hosts[id]
	return h != nil && h.life == nil
}

// Silent tells since when a host is left out because it does not answer; zero: it is not.
func (v *View) Silent(id string) time.Time {
	d := &v.doubts
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.hosts[id]; h != nil && h.life == nil {
		return h.since
	}
	return time.Time{}
}

func (d *doubts) leftOut() (n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.hosts {
		if h.life == nil {
			n++
		}
	}
	return n
}

// retain forgets those who are not in the fleet any more, and begins anew with those who have
// started anew.
func (d *doubts) retain(now *roster) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, h := range d.hosts {
		switch m := now.member(id); {
		case m == nil:
			delete(d.hosts, id)
		case *m != h.member:
			d.renew(*m)
		}
	}
}

// within asks a host something that it has to answer in time.
func (v *View) within(ctx context.Context, limit time.Duration, m *Member,
	ask func(context.Context, *transport.Peer) error) error {
	return v.watched(ctx, limit, m, func(ctx context.Context, _ *health) error {
		peer, err := v.peer(m)
		if err != nil {
			return err
		}
		return ask(ctx, peer)
	})
}

// watched calls what waits for a host, with a context that ends when that is left out.
func (v *View) watched(parent context.Context, limit time.Duration, m *Member,
	wait func(context.Context, *health) error) error {
	return v.watch(parent, limit, v.healthOf(m), wait)
}

// watch is watched for a host that may have left since its health was looked up.
func (v *View) watch(parent context.Context, limit time.Duration, h *health,
	wait func(context.Context, *health) error) error {
	v.doubts.mu.Lock()
	life := h.life
	v.doubts.mu.Unlock()
	if life == nil {
		return errDoubted
	}
	ctx, cancel := context.WithTimeoutCause(parent, limit, errSlow)
	defer cancel()
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	defer context.AfterFunc(life, func() { cut(errSlow) })()
	h.asking.Add(1)
	timer := time.AfterFunc(v.o.AnswerTimeout/2, func() { v.suspect(h, false) })
	err := wait(ctx, h)
	timer.Stop()
	h.asking.Add(-1)
	switch {
	case answered(err):
		h.hear()
	// who asked has gone
	case parent.Err() != nil, errors.Is(err, transport.ErrClosed), errors.Is(err, errDoubted),
		errors.Is(err, ErrUnknownHost):
	default:
		v.suspect(h, errors.Is(err, transport.ErrUnreachable) && ctx.Err() == nil)
	}
	return err
}

// answered tells whether a host has said something.
func answered(err error) bool {
	var status wire.Status
	return err == nil || errors.As(err, &status)
}
