package fleet

import (
	"context"
	"math/rand/v2"
	"time"
)

// How a host that is left out is probed. Each time it has longer than a handshake may take.
const (
	probeWithin = 8 * time.Second
	probeFirst  = 50 * time.Millisecond // pause, which doubles up to
	probeLast   = time.Second
)

// suspect has a host probed. gone: it is left out at once.
func (v *View) suspect(h *health, gone bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.doubt(h, gone)
}

// doubt is suspect with v.mu held. A host is probed by one goroutine at a time, while Run goes on;
// it does nothing before and after.
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

// leaveOut ends what waits for a host, and has nothing more asked of it.
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
		v.warn("left out "+h.member.ID, "another cache does not answer, so it is not asked any more until it does",
			"cache", h.member.ID, "address", h.member.Address)
	}
}

// probe finds out whether a host answers, and goes on until it does and nothing asked of it waits,
// or until it has left or started anew.
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
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// tryProbe asks a host for a sign of life, unless there has just been one.
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

// probed tells whether a host is left out, and whether it is still to be probed.
func (d *doubts) probed(h *health) (out, on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	on = d.hosts[h.member.ID] == h
	h.probing = on
	return h.life == nil, on
}

// rests tells whether nothing is asked of a host, which is not probed any more then.
func (d *doubts) rests(h *health) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h.asking.Load() > 0 {
		return false
	}
	h.probing = false
	return true
}

// readmit has a host that answers asked again.
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
