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

// overdueIn is how long after the card was armed it is looked whether the event was lost. Soft-RoCE
// loses some: Linux 6.1 looks whether an event is wanted after it has let go of the lock under
// which it has entered the completion (rxe_cq.c, rxe_cq_post).
const overdueIn = time.Second

// chain is a few work requests that were posted by one call. The card works on them in order, and
// says so of the last only. If one fails, it says so of that and of all after it, which it flushes:
// the last always ends the chain. pair.mu guards it.
type chain struct {
	id     int
	reads  int64 // that it has of pair.reads
	err    error
	over   bool          // the card has nothing to do with it any more, and err stays
	parked bool          // somebody waits for done
	done   chan struct{} // has one when it is over, if somebody waits
}

// end keeps the first error.
func (c *chain) end(err error) {
	if c.err == nil {
		c.err = err
	}
}

// chains are those of a pair: as many as have ever been under way at a time. The zero value has
// none.
type chains struct {
	all   []*chain // by id
	idle  []*chain // of all, those that nobody waits for
	under int      // of all, those that are not over
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

// put takes back what is over, and returns its error.
func (cs *chains) put(c *chain) error {
	cs.idle = append(cs.idle, c)
	return c.err
}

// post posts a chain, whose number post gets, and which has reads of pair.reads. Where nothing was
// posted, or it is over already, it returns none, but the error.
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
		// Some of it may be posted, without the last, which would end it: drop does, once the card
		// has had its time to flush.
		p.failLocked(fmt.Errorf("%w: a work request was refused: %w", rdma.ErrBroken, err))
	}
	if c.over {
		return nil, p.chains.put(c)
	}
	return c, nil
}

// finish gives back what a chain has, and tells who waits for it.
func (p *pair) finish(c *chain) {
	c.over = true
	p.chains.under--
	p.reads.Release(c.reads)
	if c.parked {
		c.done <- struct{}{}
	}
}

// await returns when the card has nothing to do with a chain any more. Where ctx ends before, the
// pair is broken for that.
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
		_ = p.drop() // whatever the error, the card has done with c; Close says it
		<-c.done
	}
}

// look takes the completions that there are, and has the card send an event for the next, if a
// chain is under way yet. It tells whether c is over; if not, c.done says when it is.
func (p *pair) look(c *chain) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.over {
		p.check(p.take())
	}
	c.parked = !c.over
	return c.over
}

// take takes the completions that there are, and arms if a chain is under way. mu is held.
func (p *pair) take() error {
	if p.armed || p.chains.under == 0 {
		return p.cq.all(p.deliver)
	}
	return p.arm()
}

// check breaks the pair for an error of its completions. mu is held.
func (p *pair) check(err error) {
	if err != nil {
		p.failLocked(fmt.Errorf("%w: its completions cannot be followed: %w", rdma.ErrBroken, err))
	}
}

// arm has the card send an event for the next completion, and takes those that there are, for which
// it sends none. mu is held.
func (p *pair) arm() error {
	p.armed = true
	if p.late == nil {
		p.late = time.AfterFunc(overdueIn, p.overdue)
	} else {
		p.late.Reset(overdueIn)
	}
	return p.cq.arm(p.deliver)
}

// overdue looks although no event has come, and has the card send another.
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

// event takes an event that has come, and what it tells of: EAGAIN without.
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

// reap takes events as they come, until the channel is closed. It parks in the netpoller, each time
// that it has taken one: if another had come with it, all that this tells of is seen already, and
// it can be taken with the next.
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
	// closed already, if all is well
	p.fail(fmt.Errorf("%w: its completions cannot be followed: %w", rdma.ErrBroken, err))
}

// deliver tells the chains of completions. mu is held.
func (p *pair) deliver(done []C.struct_verbs_done) {
	for _, d := range done {
		c, last := p.chains.all[d.id>>1], d.id&1 == 1
		if c.over {
			continue // dropped
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

// statusError says what a failed completion means.
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
