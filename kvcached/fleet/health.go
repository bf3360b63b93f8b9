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

// A dead host is distinguished from a slow one, so that no request waits for it until etcd removes
// the dead host. If a request has had no answer for half of AnswerTimeout, and the host sent
// nothing else meanwhile, one goroutine probes the host (probe.go). The probe has the other half of
// AnswerTimeout. A host is left out if it does not answer the probe or refuses connections. Waiting
// requests to a host that is left out fail. The host gets no further requests until it answers a
// probe. A request to a host that answers probes may take its full time limit.

const noticeWithin = 2 * time.Second // limit of one round of notices

// errSlow ends requests that were not answered in time.
var errSlow error = slow{}

// slow is a timeout also for the transport, which then prefers another lane.
type slow struct{}

func (slow) Error() string { return "fleet: no answer in time" }
func (slow) Timeout() bool { return true }

// errDoubted says that a request was not sent because the host is left out.
var errDoubted = errors.New("fleet: the host does not answer, and is not asked until it has answered a probe")

// doubts is the health of the other hosts.
type doubts struct {
	share int64 // Options.PeerBytes

	mu    sync.Mutex
	hosts map[string]*health // hosts by id; at most maxMembers, plus hosts that have just left
}

// health records whether a host answers.
type health struct {
	member Member
	heard  atomic.Int64        // time of the last bytes from the host, in Unix ns
	asking atomic.Int64        // requests to the host without an answer
	coming *semaphore.Weighted // bytes of blocks that are being pulled from the host; nil: there is no bound

	// Guarded by doubts.mu.
	probing bool
	life    context.Context // ends when the host is left out; nil: the host is left out
	since   time.Time       // time when the host was left out
	end     context.CancelCauseFunc
}

func (h *health) hear() { h.heard.Store(time.Now().UnixNano()) }

// healthOf returns the health of a host in its current instance.
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

// renew replaces the health of a host by a new one. The caller holds d.mu.
func (d *doubts) renew(m Member) *health {
	h := &health{member: m}
	h.life, h.end = context.WithCancelCause(context.Background())
	if d.share > 0 {
		h.coming = semaphore.NewWeighted(d.share)
	}
	d.hosts[m.ID] = h
	return h
}

// Silent returns the time since when a host is left out; zero: the host is not left out.
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

// retain deletes the health of hosts that have left and renews that of hosts that have restarted.
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

// within sends a request to a host with a time limit.
func (v *View) within(ctx context.Context, limit time.Duration, m *Member,
	ask func(context.Context, *transport.Peer) error) error {
	return v.watch(ctx, limit, v.healthOf(m), func(ctx context.Context, _ *health) error {
		peer, err := v.peer(m)
		if err != nil {
			return err
		}
		return ask(ctx, peer)
	})
}

// watch calls wait with a context that ends after limit, or when the host of h is left out. The
// host may have left the fleet meanwhile.
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
	// the requester gave up, or the request was never sent
	case parent.Err() != nil, errors.Is(err, transport.ErrClosed), errors.Is(err, errDoubted),
		errors.Is(err, ErrUnknownHost):
	default:
		v.suspect(h, errors.Is(err, transport.ErrUnreachable) && ctx.Err() == nil)
	}
	return err
}

// answered tells whether the host has answered, be it with an error.
func answered(err error) bool {
	var status wire.Status
	return err == nil || errors.As(err, &status)
}
