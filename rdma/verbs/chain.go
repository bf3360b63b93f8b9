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

// chain is a few work requests that were posted by one call. The card works on them in order, and says so of the last only. If one fails, it says so of that and of all after it,
// which it flushes: the last always ends the chain.
type chain struct {
	reads int64 // that it has of pair.reads
	err   error // read after done is closed
	done  chan struct{}
}

// end keeps the first error.
func (c *chain) end(err error) {
	if c.err == nil {
		c.err = err
	}
}

// post posts a chain, whose number post gets.
func (p *pair) post(reads int, post func(id uint64) error) (*chain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != nil {
		return nil, p.cause
	}
	c := &chain{reads: int64(reads), done: make(chan struct{})}
	p.next++
	p.chains[p.next] = c
	err := post(p.next)
	if err == nil {
		return c, nil
	}
	if errors.Is(err, ErrOrder) {
		delete(p.chains, p.next)
		return nil, err
	}
	// Some of it may be posted, without the last, which would end it: drop does, once the card has had its time to flush.
	p.failLocked(fmt.Errorf("%w: a work request was refused: %w", rdma.ErrBroken, err))
	return c, nil
}

// finish gives back what a chain has, and tells who waits for it.
func (p *pair) finish(id uint64, c *chain) {
	delete(p.chains, id)
	p.reads.Release(c.reads)
	close(c.done)
}

// await returns when the card has nothing to do with a chain any more. Where ctx ends before, the pair is broken for that.
func (p *pair) await(ctx context.Context, c *chain) error {
	p.look()
	select {
	case <-c.done:
		return c.err
	case <-p.broken:
	case <-ctx.Done():
		p.fail(fmt.Errorf("%w: %w", rdma.ErrBroken, context.Cause(ctx)))
	}
	limit := time.NewTimer(flushFor)
	defer limit.Stop()
	select {
	case <-c.done:
	case <-limit.C:
		_ = p.drop() // Close says what it could not destroy
		<-c.done
	}
	return c.err
}

// look takes the completions that there are, and has the card send an event for the next, if a chain is under way yet. What is done at once costs no event so.
func (p *pair) look() {
	p.looking.Lock()
	defer p.looking.Unlock()
	err := p.cq.drain(p.deliver)
	if err == nil && p.busy() && !p.armed {
		// What comes between drain and arm sends no event.
		if err = p.cq.arm(); err == nil {
			p.armed = true
			err = p.cq.drain(p.deliver)
		}
	}
	if err != nil {
		p.fail(fmt.Errorf("%w: its completions cannot be followed: %w", rdma.ErrBroken, err))
	}
}

func (p *pair) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.chains) > 0
}

// reap takes events as they come, until the channel is closed. It parks in the netpoller.
func (p *pair) reap() {
	raw, err := p.ch.file.SyscallConn()
	for err == nil {
		var failed error
		err = raw.Read(func(uintptr) bool {
			failed = p.cq.event()
			return failed != syscall.EAGAIN
		})
		if err == nil && failed == nil {
			p.looking.Lock()
			p.armed = false
			p.looking.Unlock()
			p.look()
		}
		if err == nil {
			err = failed
		}
	}
	p.fail(fmt.Errorf("%w: its completions cannot be followed: %w", rdma.ErrBroken, err)) // closed already, if all is well
}

// deliver tells the chains of completions.
func (p *pair) deliver(done []C.struct_verbs_done) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range done {
		id, last := uint64(d.id)>>1, d.id&1 == 1
		c := p.chains[id]
		if c == nil {
			continue // dropped
		}
		if d.status != C.IBV_WC_SUCCESS {
			if p.cause == nil {
				p.failLocked(statusError(d.status))
			}
			c.end(p.cause)
		}
		if last {
			p.finish(id, c)
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
