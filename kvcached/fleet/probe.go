package fleet

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cognitora/dataplane/internal/await"
)

// Timing of the probes to a host that is left out. A probe's limit is longer than the limit of a
// handshake.
const (
	probeWithin = 8 * time.Second
	probeFirst  = 50 * time.Millisecond // first pause; pauses double up to probeLast
	probeLast   = time.Second
)

// suspect starts to probe a host. If gone is set, the host is left out at once.
func (v *View) suspect(h *health, gone bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.doubt(h, gone)
}

// doubt is suspect; the caller holds v.mu. One goroutine at a time probes a host. doubt does
// nothing before Run and after it.
func (v *View) doubt(h *health, gone bool) {
	ctx := v.running
	if ctx == nil || ctx.Err() != nil {
		return
	}
	if gone {
		v.leaveOut(h)
	}
	d := &v.doubts
	d.mu.Lock()
	defer d.mu.Unlock()
	if !h.probing && d.hosts[h.member.ID] == h {
		h.probing = true
		v.wg.Go(func() { v.probe(ctx, h) })
	}
}

// leaveOut ends the requests that wait for a host and stops further ones.
func (v *View) leaveOut(h *health) {
	d := &v.doubts
	d.mu.Lock()
	end := h.end
	was := h.life != nil && d.hosts[h.member.ID] == h
	if was {
		h.life, h.end, h.since = nil, nil, time.Now()
	}
	d.mu.Unlock()
	if was {
		end(errSlow)
		v.counts.leftOut.Add(1)
		v.seldom.Warn(v.o.Logger, "left out "+h.member.ID, "another cache does not answer, so it is not asked any more until it does",
			"cache", h.member.ID, "address", h.member.Address)
	}
}

// probe probes a host until the host answers and no request to it waits. The probing also ends if
// the host has left or restarted.
func (v *View) probe(ctx context.Context, h *health) {
	pause := probeFirst
	for {
		out, on := v.doubts.probed(h)
		if !on {
			return
		}
		err := v.tryProbe(ctx, h, out)
		wait := v.o.AnswerTimeout / 2
		switch {
		case ctx.Err() != nil:
			return
		case answered(err):
			v.readmit(h)
			pause = probeFirst
			if v.doubts.rests(h) {
				return
			}
		default:
			v.leaveOut(h)
			wait = pause/2 + rand.N(pause)
			pause = min(2*pause, probeLast)
		}
		if !await.For(ctx, wait) {
			return
		}
	}
}

// tryProbe sends one probe, unless the host has been heard a moment ago.
func (v *View) tryProbe(ctx context.Context, h *health, out bool) error {
	within := v.o.AnswerTimeout / 2
	if !out && time.Now().UnixNano()-h.heard.Load() < int64(within) {
		return nil
	}
	if out {
		within = probeWithin
	}
	peer, err := v.peer(&h.member)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, errSlow)
	defer cancel()
	v.counts.probes.Add(1)
	if err = peer.Probe(ctx); answered(err) {
		h.hear()
	}
	return err
}

// probed tells whether a host is left out, and whether probing goes on.
func (d *doubts) probed(h *health) (out, on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	on = d.hosts[h.member.ID] == h
	h.probing = on
	return h.life == nil, on
}

// rests tells whether no request waits for a host. rests ends the probing if no request waits.
func (d *doubts) rests(h *health) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h.asking.Load() > 0 {
		return false
	}
	h.probing = false
	return true
}

// readmit lets requests go to the host again.
func (v *View) readmit(h *health) {
	d := &v.doubts
	d.mu.Lock()
	out := h.life == nil
	if out {
		h.life, h.end = context.WithCancelCause(context.Background())
	}
	d.mu.Unlock()
	if out {
		v.o.Logger.Info("another cache answers again", "cache", h.member.ID)
	}
}
