package transport

import (
	"context"
	"errors"
	"time"

	"github.com/cognitora/dataplane/kvcached/wire"
)

// probeAlso is the time after which Probe also tries the other lane. If the other lane answers, the
// first one has as long again.
const probeAlso = 20 * time.Millisecond

// Probe pings the peer over its lane, and also over the other lane if the first one is slow. Any
// answer counts as success. If only one lane answers, the other one is not used for 10 s.
func (p *Peer) Probe(ctx context.Context) error {
	if err := p.begin(); err != nil {
		return err
	}
	defer p.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		which int
		err   error
	}
	answers, waiting := make(chan answer, 2), 0
	ping := func(which int) {
		if l := p.lanes[which]; l != nil {
			waiting++
			go func() { // the loop below waits for it
				answers <- answer{which, l.call(ctx, wire.Ping, 0, 0, nil, func(wire.Stamp, []byte) error {
					return nil
				})}
			}()
		}
	}
	first := p.choice.pick(false)
	ping(first)
	timer, both, good := time.NewTimer(probeAlso), false, false
	defer timer.Stop()
	var failed [2]error
	for waiting > 0 {
		also := false
		select {
		case <-timer.C:
			if also = !both; both {
				cancel() // the other lane has answered
			}
		case a := <-answers:
			waiting--
			var status wire.Status
			switch {
			case a.err != nil && !errors.As(a.err, &status):
				failed[a.which] = a.err
				if blamed(a.err) {
					p.carried[a.which].note(a.err)
				}
				also = a.which == first && !both
			case a.which == first:
				good = true
				cancel()
			default:
				good = true
				timer.Reset(probeAlso)
			}
		}
		if also && !good {
			both = true
			ping(1 - first)
		}
	}
	if good && failed[first] != nil {
		p.choice.failed(first, failed[first])
	}
	if !good {
		return errors.Join(failed[:]...)
	}
	return nil
}
