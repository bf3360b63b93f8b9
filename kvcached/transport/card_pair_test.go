package transport

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cognitora/dataplane/rdma"
)

// fakePair breaks as the pair of a card does, when its context ends during an operation.
type fakePair struct {
	d      *fakeDevice
	o      rdma.PairOptions
	qpn    uint32
	remote uint32
	reads  sync.WaitGroup

	mu      sync.RWMutex // held for reading while a window is copied
	windows map[uint32]*fakeWindow
	why     error
	broken  chan struct{}
}

type fakeWindow struct {
	key rdma.Key
	mem []byte
}

func (w *fakeWindow) Key() rdma.Key { return w.key }

func (p *fakePair) Local() rdma.Endpoint {
	return rdma.Endpoint{GID: p.d.card.addr.As16(), QPN: p.qpn, PSN: 1, MTU: 1024}
}

func (p *fakePair) Connect(remote rdma.Endpoint) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remote = remote.QPN
	return p.why
}

func (p *fakePair) Broken() <-chan struct{} { return p.broken }

// fail breaks the pair, unless it is broken.
func (p *fakePair) fail(why error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why == nil {
		p.why = why
		clear(p.windows)
		close(p.broken)
	}
	return p.why
}

// enter counts a read, so that Close waits for it.
func (p *fakePair) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why == nil {
		p.reads.Add(1)
	}
	return p.why
}

func (p *fakePair) Read(ctx context.Context, reads []rdma.Read) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.reads.Done()
	for _, r := range reads {
		if !p.d.registered(r.Into) {
			return rdma.ErrNotRegistered
		}
	}
	f := p.d.f
	for _, r := range reads {
		f.mu.Lock()
		far, down, hook, spoil, refuse := f.pairs[p.remote], f.down, f.reading, f.spoil, f.refuse
		f.reads++
		f.mu.Unlock()
		if hook != nil {
			hook(r)
		}
		if refuse != nil && len(r.Into) > probeSize {
			return refuse
		}
		if err := ctx.Err(); err != nil {
			return p.fail(fmt.Errorf("%w: %w", rdma.ErrBroken, err))
		}
		if far == nil || down {
			return p.wait(ctx)
		}
		if err := far.serve(p, r); err != nil {
			return p.fail(err)
		}
		if spoil != nil {
			spoil(r.Into)
		}
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.why
}

// wait blocks as if the other side did not answer.
func (p *fakePair) wait(ctx context.Context) error {
	t := time.NewTimer(p.o.Timeout)
	defer t.Stop()
	select {
	case <-t.C:
		return p.fail(rdma.ErrUnreachable)
	case <-ctx.Done():
		return p.fail(fmt.Errorf("%w: %w", rdma.ErrBroken, context.Cause(ctx)))
	case <-p.broken:
		return p.fail(nil)
	}
}

// serve copies the bytes of a window. It holds the lock, because a card cannot revoke a window in
// the middle of a copy.
func (p *fakePair) serve(to *fakePair, r rdma.Read) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	w := p.windows[r.From.RKey]
	at := r.From.Addr + r.Skip
	if p.remote != to.qpn || p.why != nil {
		return rdma.ErrUnreachable
	}
	if w == nil || at < w.key.Addr || at+uint64(len(r.Into)) > w.key.Addr+uint64(len(w.mem)) {
		return rdma.ErrAccess
	}
	copy(r.Into, w.mem[at-w.key.Addr:])
	return nil
}

func (p *fakePair) Grant(ctx context.Context, mems [][]byte) ([]rdma.Window, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	f := p.d.f
	f.mu.Lock()
	hook := f.granted
	f.last += uint32(len(mems))
	key := f.last
	f.mu.Unlock()
	if hook != nil {
		hook()
	}
	if ctx.Err() != nil {
		return nil, p.fail(fmt.Errorf("%w: %w", rdma.ErrBroken, context.Cause(ctx)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why != nil {
		return nil, p.why
	}
	if len(p.windows)+len(mems) > p.o.MaxWindows {
		return nil, rdma.ErrFull
	}
	var out []rdma.Window
	for i, mem := range mems {
		if !p.d.registered(mem) {
			return nil, rdma.ErrNotRegistered
		}
		w := &fakeWindow{rdma.Key{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), RKey: key - uint32(i)},
			mem}
		p.windows[w.key.RKey] = w
		out = append(out, w)
	}
	return out, nil
}

func (p *fakePair) Revoke(ctx context.Context, windows []rdma.Window) error {
	f := p.d.f
	f.mu.Lock()
	hook := f.revoked
	f.mu.Unlock()
	if hook != nil {
		hook()
	}
	if err := p.revoke(windows); err != nil {
		f.set(func() { f.misused = append(f.misused, err.Error()) })
		return p.fail(err)
	}
	if ctx.Err() != nil {
		p.fail(fmt.Errorf("%w: %w", rdma.ErrBroken, context.Cause(ctx)))
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.why
}

// revoke ends all of windows. It refuses a window that is not this pair's, or was revoked before.
func (p *fakePair) revoke(windows []rdma.Window) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why != nil {
		return nil // the pair has no windows
	}
	for i, w := range windows {
		if p.windows[w.Key().RKey] != w || slices.Contains(windows[:i], w) {
			return fmt.Errorf("to revoke is what is no window of this pair, or was revoked: %v", w.Key())
		}
	}
	for _, w := range windows {
		delete(p.windows, w.Key().RKey)
	}
	return nil
}

func (p *fakePair) Close() error {
	p.fail(rdma.ErrBroken)
	p.reads.Wait()
	f := p.d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pairs, p.qpn)
	delete(p.d.pairs, p)
	return nil
}

func (p *fakePair) shows(at, n uint64) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, w := range p.windows {
		if w.key.Addr < at+n && at < w.key.Addr+uint64(len(w.mem)) {
			return true
		}
	}
	return false
}
