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
	"sync"

	"github.com/cognitora/dataplane/rdma"
)

// Read posts chains of a quarter of MaxReads: while the last is worked on, the next ones wait at the card.
func (p *pair) Read(ctx context.Context, reads []rdma.Read) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := p.enter(); err != nil {
		return err
	}
	defer p.operations.Done()
	parts, err := p.parts(reads)
	if err != nil {
		return err
	}
	length := min(max(p.o.MaxReads/4, 1), C.VERBS_CHAIN)
	var chains []*chain
	for len(parts) > 0 && err == nil {
		n := min(length, len(parts))
		var c *chain
		if c, err = p.postReads(ctx, parts[:n], len(chains) > 0); c != nil {
			chains = append(chains, c)
		}
		parts = parts[n:]
	}
	for _, c := range chains {
		if e := p.await(ctx, c); e != nil && err == nil {
			err = e
		}
	}
	return err
}

// postReads waits for room, and posts. Where ctx ends meanwhile and others of the same Read are under way, it breaks the pair.
func (p *pair) postReads(ctx context.Context, parts []C.struct_verbs_read, others bool) (*chain, error) {
	n := int64(len(parts))
	if !p.reads.TryAcquire(n) {
		p.look() // what is under way, perhaps by us, is to send an event
		if err := p.reads.Acquire(ctx, n); err != nil {
			err = context.Cause(ctx)
			if others {
				err = fmt.Errorf("%w: %w", rdma.ErrBroken, err)
				p.fail(err)
			}
			return nil, err
		}
	}
	c, err := p.post(len(parts), func(id uint64) error { return p.q.reads(id, parts) })
	if err != nil {
		p.reads.Release(n)
	}
	return c, err
}

// parts are the work requests for reads: none is longer than the card's messages.
func (p *pair) parts(reads []rdma.Read) ([]C.struct_verbs_read, error) {
	parts := make([]C.struct_verbs_read, 0, len(reads))
	most := uint64(p.d.limit.MaxMessage)
	for _, r := range reads {
		if len(r.Into) == 0 {
			continue
		}
		in, err := p.d.find(r.Into)
		if err == nil && p.own != nil {
			in, err = p.own.find(in)
		}
		if err != nil {
			return nil, err
		}
		size := uint64(len(r.Into))
		for at := uint64(0); at < size; at += most {
			parts = append(parts, C.struct_verbs_read{
				local: C.uint64_t(address(r.Into) + at), remote: C.uint64_t(r.From.Addr + r.Skip + at),
				length: C.uint32_t(min(most, size-at)), lkey: in.c.lkey, rkey: C.uint32_t(r.From.RKey),
			})
		}
	}
	return parts, nil
}

// mirror has the device's regions in a domain of a pair's own, where that has one: each that is read into is registered once more, with the first such read. It counts as pinned
// once more, too.
type mirror struct {
	pd *domain
	mu sync.Mutex
	of map[*region]*region
}

func (m *mirror) find(r *region) (*region, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if own := m.of[r]; own != nil {
		return own, nil
	}
	own, err := m.pd.region(r.mem, false)
	if err != nil {
		return nil, err
	}
	m.of[r] = own
	return own, nil
}

func (m *mirror) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, r := range m.of {
		errs = append(errs, r.close())
	}
	return errors.Join(append(errs, m.pd.close())...)
}
