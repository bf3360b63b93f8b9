//go:build linux && cgo && rdma

package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/cognitora/dataplane/rdma"
)

// Read posts chains of a quarter of MaxReads. While the card processes one chain, the next chains
// wait at the card.
func (p *pair) Read(ctx context.Context, reads []rdma.Read) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := p.enter(); err != nil {
		return err
	}
	defer p.operations.Done()
	var few [4]C.struct_verbs_read
	parts, err := p.parts(few[:0], reads)
	if err != nil {
		return err
	}
	length := min(max(p.o.MaxReads/4, 1), C.VERBS_CHAIN)
	var of [4]*chain
	under := of[:0]
	for len(parts) > 0 && err == nil {
		n := min(length, len(parts))
		if !p.reads.TryAcquire(int64(n)) {
			if len(under) > 0 {
				err = p.await(ctx, under[0])
				under = under[1:]
				continue
			}
			// The holders of all units wait for their chains, or will wait soon.
			if p.reads.Acquire(ctx, int64(n)) != nil {
				return context.Cause(ctx)
			}
		}
		var c *chain
		if c, err = p.postReads(parts[:n]); c != nil {
			under = append(under, c)
		}
		parts = parts[n:]
	}
	for _, c := range under {
		if e := p.await(ctx, c); e != nil && err == nil {
			err = e
		}
	}
	return err
}

func (p *pair) postReads(parts []C.struct_verbs_read) (*chain, error) {
	return p.post(len(parts), func(id int) ([]C.struct_verbs_done, error) { return p.q.reads(id, parts) })
}

// parts appends the work requests for reads. parts splits reads that are longer than the card's
// messages.
func (p *pair) parts(parts []C.struct_verbs_read, reads []rdma.Read) ([]C.struct_verbs_read, error) {
	parts = slices.Grow(parts, len(reads))
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

// mirror registers the device's regions again in a pair's own domain, if the pair has one. mirror
// registers a region when the pair is made if the pair will read (rdma.PairOptions.Reads), and
// otherwise with the first read into it. The memory counts as pinned again.
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

// all registers all regions of the device.
func (m *mirror) all(d *device) error {
	for _, r := range *d.regions.Load() {
		if _, err := m.find(r); err != nil {
			return err
		}
	}
	return nil
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
