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
	"slices"
	"sync"

	"github.com/cognitora/dataplane/rdma"
)

// windows holds the windows of a pair. An invalidated memory window is bound again for another
// grant, with another key.
type windows struct {
	mu   sync.Mutex
	used int        // windows that are granted or about to be granted
	all  []*opening // all that were made
	idle []*opening // windows that are not bound
	open map[*window]struct{}
}

// window is a grant: a bound memory window, or a registration on a card without windows.
type window struct {
	of  *pair
	key rdma.Key
	o   *opening
	r   *region
}

func (w *window) Key() rdma.Key { return w.key }

// reserve counts n more windows as used. reserve fails if that is more than most.
func (ws *windows) reserve(n, most int) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if n > most-ws.used {
		return fmt.Errorf("%w: %d windows of a pair, and %d more wanted", rdma.ErrFull, ws.used, n)
	}
	ws.used += n
	return nil
}

func (ws *windows) release(n int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.used -= n
}

// take returns a memory window that is not bound.
func (ws *windows) take(d *domain) (*opening, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if n := len(ws.idle); n > 0 {
		o := ws.idle[n-1]
		ws.idle = ws.idle[:n-1]
		return o, nil
	}
	o, err := d.opening()
	if err == nil {
		ws.all = append(ws.all, o)
	}
	return o, err
}

func (ws *windows) put(os ...*opening) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.idle = append(ws.idle, os...)
}

// add marks windows as granted. remove ends that mark, and fails for windows without it.
func (ws *windows) add(of []rdma.Window) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.open == nil {
		ws.open = map[*window]struct{}{}
	}
	for _, w := range of {
		ws.open[w.(*window)] = struct{}{}
	}
}

func (ws *windows) remove(p *pair, of []rdma.Window) ([]*window, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var all []*window
	for _, w := range of {
		mine, ok := w.(*window)
		if _, open := ws.open[mine]; !ok || mine.of != p || !open || slices.Contains(all, mine) {
			return nil, errors.New("verbs: to revoke is what is no window of this pair, or was revoked")
		}
		all = append(all, mine)
	}
	for _, w := range all {
		delete(ws.open, w)
	}
	return all, nil
}

// close destroys all windows.
func (ws *windows) close() error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var errs []error
	for _, o := range ws.all {
		errs = append(errs, o.close())
	}
	for w := range ws.open {
		if w.r != nil {
			errs = append(errs, w.r.close())
		}
	}
	return errors.Join(errs...)
}

func (p *pair) Grant(ctx context.Context, mems [][]byte) ([]rdma.Window, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	granted, err := p.grant(ctx, mems)
	p.operations.Done()
	if err != nil && p.isBroken() {
		// some windows may have been bound, and a queue pair that could not be broken would serve
		// them
		return nil, errors.Join(err, p.Close())
	}
	return granted, err
}

func (p *pair) grant(ctx context.Context, mems [][]byte) ([]rdma.Window, error) {
	if err := p.windows.reserve(len(mems), p.o.MaxWindows); err != nil {
		return nil, err
	}
	grant := p.bind
	if p.own != nil {
		grant = p.register
	}
	granted, err := grant(ctx, mems)
	if err != nil {
		p.windows.release(len(mems))
		return nil, err
	}
	p.windows.add(granted)
	return granted, nil
}

// bind binds memory windows.
func (p *pair) bind(ctx context.Context, mems [][]byte) ([]rdma.Window, error) {
	binds := make([]C.struct_verbs_bind, len(mems))
	openings := make([]*opening, 0, len(mems))
	for i, mem := range mems {
		r, err := p.d.find(mem)
		var o *opening
		if err == nil {
			o, err = p.windows.take(p.pd)
		}
		if err != nil {
			p.windows.put(openings...)
			return nil, err
		}
		openings = append(openings, o)
		binds[i] = C.struct_verbs_bind{mw: o.c, mr: r.c, addr: C.uint64_t(address(mem)), length: C.uint64_t(len(mem)),
			rkey: o.rkey}
	}
	if err := p.chained(ctx, binds, p.q.binds); err != nil {
		if errors.Is(err, ErrOrder) {
			p.windows.put(openings...) // nothing was posted; otherwise the broken pair keeps them until it is closed
		}
		return nil, err
	}
	granted := make([]rdma.Window, len(mems))
	for i, o := range openings {
		o.rkey = binds[i].rkey
		granted[i] = &window{of: p, o: o, key: rdma.Key{Addr: uint64(binds[i].addr), RKey: uint32(o.rkey)}}
	}
	return granted, nil
}

// register registers each of mems as a region of the pair's own domain.
func (p *pair) register(_ context.Context, mems [][]byte) ([]rdma.Window, error) {
	var granted []rdma.Window
	for _, mem := range mems {
		_, err := p.d.find(mem)
		var r *region
		if err == nil {
			r, err = p.pd.region(mem, true)
		}
		if err != nil {
			return nil, errors.Join(err, p.deregister(granted))
		}
		granted = append(granted, &window{of: p, r: r, key: rdma.Key{Addr: address(mem), RKey: uint32(r.c.rkey)}})
	}
	return granted, nil
}

// unregister ends a registration. A registration that cannot be ended counts as granted, so that
// closing the pair tries again.
func (p *pair) unregister(w *window) error {
	err := w.r.close()
	if err != nil {
		p.windows.add([]rdma.Window{w})
	}
	return err
}

// deregister undoes register, and breaks the pair if it fails.
func (p *pair) deregister(granted []rdma.Window) error {
	var errs []error
	for _, w := range granted {
		errs = append(errs, p.unregister(w.(*window)))
	}
	err := errors.Join(errs...)
	if err != nil {
		p.fail(fmt.Errorf("%w: a grant could not be undone: %w", rdma.ErrBroken, err))
	}
	return err
}

// chained posts work requests for windows in chains, and waits for all chains.
func (p *pair) chained(ctx context.Context, binds []C.struct_verbs_bind,
	post func(int, []C.struct_verbs_bind) ([]C.struct_verbs_done, error)) error {
	var chains []*chain
	var err error
	for part := range slices.Chunk(binds, C.VERBS_CHAIN) {
		var c *chain
		if c, err = p.post(0, func(id int) ([]C.struct_verbs_done, error) { return post(id, part) }); err != nil {
			break
		}
		if c != nil {
			chains = append(chains, c)
		}
	}
	for _, c := range chains {
		if e := p.await(ctx, c); e != nil && err == nil {
			err = e
		}
	}
	return err
}

// Revoke closes the pair if the card does not confirm the revocation, or if of contains anything
// but granted windows of this pair. So when Revoke returns, even with an error, nobody can read
// through the windows any more (drop).
func (p *pair) Revoke(ctx context.Context, of []rdma.Window) error {
	if err := p.enter(); err != nil {
		return errors.Join(err, p.Close())
	}
	all, err := p.windows.remove(p, of)
	if err == nil {
		err = p.end(ctx, all)
	}
	p.operations.Done()
	if err != nil {
		p.fail(fmt.Errorf("%w: windows could not be revoked: %w", rdma.ErrBroken, err))
		return errors.Join(err, p.Close())
	}
	p.windows.release(len(all))
	return nil
}

func (p *pair) end(ctx context.Context, all []*window) error {
	var errs []error
	binds := make([]C.struct_verbs_bind, 0, len(all))
	openings := make([]*opening, 0, len(all))
	for _, w := range all {
		if w.r != nil {
			errs = append(errs, p.unregister(w))
			continue
		}
		openings = append(openings, w.o)
		binds = append(binds, C.struct_verbs_bind{rkey: w.o.rkey})
	}
	if len(binds) > 0 {
		if err := p.chained(ctx, binds, p.q.invalidates); err != nil {
			return err
		}
		p.windows.put(openings...)
	}
	return errors.Join(errs...)
}
