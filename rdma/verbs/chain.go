//go:build linux && cgo && rdma

package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/cognitora/dataplane/rdma"
)

// overdueIn is the time after arming at which completions are checked for a lost event. Soft-RoCE
// loses some events: Linux 6.1 enters a completion under a lock, and checks only after the unlock
// whether an event is wanted (rxe_cq.c, rxe_cq_post).
const overdueIn = time.Second

// chain is a group of work requests that one call has posted. The card processes the requests in
// order, and reports a completion for the last only. If a request fails, the card flushes all later
// requests, and reports a completion for each of them and for the failed one. So a completion of
// the last request always ends the chain. pair.mu guards a chain.
type chain struct {
	id     int
	reads  int64 // units of pair.reads that it holds
	err    error
	over   bool          // the card is done with it, and err no longer changes
	parked bool          // a goroutine waits for done
	done   chan struct{} // gets a value when the chain is over, if a goroutine waits
}

// end stores err, unless an error is stored already.
func (c *chain) end(err error) {
	if c.err == nil {
		c.err = err
	}
}

// chains holds the chains of a pair, as many as were ever in progress at a time. The zero value is
// empty.
type chains struct {
	all   []*chain // by chain id
	idle  []*chain // chains that no goroutine waits for
	under int      // number of idle chains that are not over
}

func (cs *chains) take(reads int64) *chain {
	if len(cs.idle) == 0 {
		cs.idle = append(cs.idle, &chain{id: len(cs.all), over: true, done: make(chan struct{}, 1)})
		cs.all = append(cs.all, cs.idle[0])
	}
	c := cs.idle[len(cs.idle)-1]
	cs.idle = cs.idle[:len(cs.idle)-1]
	c.reads, c.err, c.over, c.parked = reads, nil, false, false
	cs.under++
	return c
}

// put adds an ended chain to the idle ones, and returns the chain's error.
func (cs *chains) put(c *chain) error {
	cs.idle = append(cs.idle, c)
	return c.err
}

// post posts a chain that holds reads units of pair.reads. The callback gets the chain's id. If
// nothing was posted, or the chain is over already, post returns no chain but the chain's error.
func (p *pair) post(reads int, post func(id int) ([]C.struct_verbs_done, error)) (*chain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != nil {
		p.reads.Release(int64(reads))
		return nil, p.cause
	}
	c := p.chains.take(int64(reads))
	done, err := post(c.id)
	switch {
	case err == nil:
		p.deliver(done)
	case errors.Is(err, ErrOrder):
		c.end(err)
		p.finish(c)
	default:
		// A part of the chain may be posted without its last request, whose completion would end
		// it. Then drop ends the chain, after the card has had time to flush.
		p.failLocked(fmt.Errorf("%w: a work request was refused: %w", rdma.ErrBroken, err))
	}
	if c.over {
		return nil, p.chains.put(c)
	}
	return c, nil
}

// finish releases a chain's units, and wakes the goroutine that waits for it.
func (p *pair) finish(c *chain) {
	c.over = true
	p.chains.under--
	p.reads.Release(c.reads)
	if c.parked {
		c.done <- struct{}{}
	}
}

// await returns when the card is done with a chain. If ctx ends before, await breaks the pair.
func (p *pair) await(ctx context.Context, c *chain) error {
	if !p.look(c) {
		p.park(ctx, c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.chains.put(c)
}

func (p *pair) park(ctx context.Context, c *chain) {
	select {
	case <-c.done:
		return
	case <-p.broken:
	case <-ctx.Done():
		p.fail(fmt.Errorf("%w: %w", rdma.ErrBroken, context.Cause(ctx)))
	}
	limit := time.NewTimer(flushFor)
	defer limit.Stop()
	select {
	case <-c.done:
	case <-limit.C:
		_ = p.drop() // the card is done with c even on an error, which Close returns
		<-c.done
	}
}

// look takes the available completions. If a chain is still in progress, look makes the card send
// an event for the next completion. look tells whether c is over; if not, c.done will say so.
func (p *pair) look(c *chain) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.over {
		p.check(p.take())
	}
	c.parked = !c.over
	return c.over
}

// take takes the available completions, and arms if a chain is in progress. The caller holds mu.
func (p *pair) take() error {
	if p.armed || p.chains.under == 0 {
		return p.cq.all(p.deliver)
	}
	return p.arm()
}

// check breaks the pair if taking its completions has failed. The caller holds mu.
func (p *pair) check(err error) {
	if err != nil {
		p.failLocked(fmt.Errorf("%w: its completions cannot be followed: %w", rdma.ErrBroken, err))
	}
}

// arm makes the card send an event for the next completion. arm also takes the available
// completions, for which the card sends none. The caller holds mu.
func (p *pair) arm() error {
	p.armed = true
	if p.late == nil {
		p.late = time.AfterFunc(overdueIn, p.overdue)
	} else {
		p.late.Reset(overdueIn)
	}
	return p.cq.arm(p.deliver)
}

// overdue takes completions although no event has come, and arms again.
func (p *pair) overdue() {
	if p.enter() != nil {
		return
	}
	defer p.operations.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	p.check(p.take())
}

// event takes an event and the completions that it announces. event returns EAGAIN if there is no
// event.
func (p *pair) event() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.cq.event(p.deliver)
	if err != nil {
		return err
	}
	if p.armed = false; p.chains.under > 0 {
		err = p.arm()
	}
	return err
}

// reap takes events until the channel is closed. After each event, reap parks in the netpoller.
// reap need not look for a second event before it parks. The completions of a second event are
// taken already, and the event itself can be taken with the next.
func (p *pair) reap() {
	raw, err := p.ch.file.SyscallConn()
	if err == nil {
		var failed error
		err = raw.Read(func(uintptr) bool {
			failed = p.event()
			return failed != nil && failed != syscall.EAGAIN
		})
		if err == nil {
			err = failed
		}
	}
	// changes nothing in a pair that is closed, which is the usual case
	p.fail(fmt.Errorf("%w: its completions cannot be followed: %w", rdma.ErrBroken, err))
}

// deliver applies completions to their chains. The caller holds mu.
func (p *pair) deliver(done []C.struct_verbs_done) {
	for _, d := range done {
		c, last := p.chains.all[d.id>>1], d.id&1 == 1
		if c.over {
			continue // drop has ended the chain
		}
		if d.status != C.IBV_WC_SUCCESS {
			if p.cause == nil {
				p.failLocked(statusError(d.status))
			}
			c.end(p.cause)
		}
		if last {
			p.finish(c)
		}
	}
}

// statusError returns the error for a failed completion.
func statusError(status C.int) error {
	kind := rdma.ErrBroken
	switch status {
	case C.IBV_WC_REM_ACCESS_ERR:
		kind = rdma.ErrAccess
	case C.IBV_WC_RETRY_EXC_ERR, C.IBV_WC_RNR_RETRY_EXC_ERR:
		kind = rdma.ErrUnreachable
	}
	return fmt.Errorf("%w (%s)", kind, C.GoString(C.ibv_wc_status_str(C.enum_ibv_wc_status(status))))
}
