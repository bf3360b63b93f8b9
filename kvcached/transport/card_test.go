package transport

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"github.com/cognitora/dataplane/rdma"
)

// fabric is a network of cards in memory. It holds them to what rdma.Device promises: nobody reads but through a window of the other end of its own pair.
type fabric struct {
	mu    sync.Mutex
	cards map[string]*fakeCard // that are there
	pairs map[uint32]*fakePair
	last  uint32 // number of a pair or a window
	down  bool   // the link
	reads int

	reading func(r rdma.Read) // called for each read, before it; nil: nothing is
	granted func()            // called before a grant
	spoil   func(b []byte)    // called with what was read of a block
	refuse  error             // of reads of blocks, which leaves the pair whole; nil: none
}

func newFabric() *fabric {
	return &fabric{cards: map[string]*fakeCard{}, pairs: map[uint32]*fakePair{}}
}

// fakeCard is one.
type fakeCard struct {
	f       *fabric
	name    string
	addr    netip.Addr
	serial  string
	dev     *fakeDevice // opened; nil: not
	windows int         // of a pair at most, 0: as asked
	noPairs error       // of who wants one; nil: they are made
}

// plug has a card be there.
func (f *fabric) plug(name, addr string) *fakeCard {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	c := &fakeCard{f: f, name: name, addr: netip.MustParseAddr(addr), serial: fmt.Sprint(name, f.last)}
	f.cards[name] = c
	return c
}

// unplug takes a card away, and tells its user, if it has one.
func (f *fabric) unplug(name string) {
	f.mu.Lock()
	c := f.cards[name]
	delete(f.cards, name)
	dev := c.dev
	f.mu.Unlock()
	if dev != nil {
		dev.away.Do(func() { close(dev.gone) })
		dev.breakAll(rdma.ErrGone)
	}
}

func (f *fabric) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// present is of RailsOptions, for the cards whose names are given.
func (f *fabric) present(names ...string) func() map[string]string {
	return func() map[string]string {
		f.mu.Lock()
		defer f.mu.Unlock()
		out := map[string]string{}
		for _, name := range names {
			if c := f.cards[name]; c != nil {
				out[name] = c.serial
			}
		}
		return out
	}
}

func (f *fabric) open(name string) (rdma.Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.cards[name]
	if c == nil {
		return nil, fmt.Errorf("%w: %s", rdma.ErrGone, name)
	}
	c.dev = &fakeDevice{f: f, card: c, gone: make(chan struct{}), pairs: map[*fakePair]struct{}{}}
	return c.dev, nil
}

// opened tells whether a card is in use.
func (f *fabric) opened(c *fakeCard) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return c.dev != nil
}

type fakeDevice struct {
	f       *fabric
	card    *fakeCard
	gone    chan struct{}
	away    sync.Once
	regions [][]byte
	pairs   map[*fakePair]struct{} // guarded by f.mu
}

func (d *fakeDevice) Name() string          { return d.card.name }
func (d *fakeDevice) Gone() <-chan struct{} { return d.gone }
func (d *fakeDevice) Limits() rdma.Limits {
	return rdma.Limits{MaxMessage: 8 << 20, Windows: true, MTU: 1024}
}

func (d *fakeDevice) Register(mem []byte) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.regions = append(d.regions, mem)
	return nil
}

func (d *fakeDevice) registered(b []byte) bool {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for _, r := range d.regions {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(r)))
		if at >= begin && at+uintptr(len(b)) <= begin+uintptr(len(r)) {
			return true
		}
	}
	return false
}

func (d *fakeDevice) Pair(o rdma.PairOptions) (rdma.Pair, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if d.card.noPairs != nil {
		return nil, d.card.noPairs
	}
	if o.MaxWindows == 0 {
		o.MaxWindows = 256
	}
	if d.card.windows != 0 {
		o.MaxWindows = d.card.windows
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
	d.f.last++
	p := &fakePair{d: d, o: o, qpn: d.f.last, windows: map[uint32]*fakeWindow{}, broken: make(chan struct{})}
	d.f.pairs[p.qpn], d.pairs[p] = p, struct{}{}
	return p, nil
}

func (d *fakeDevice) breakAll(why error) {
	d.f.mu.Lock()
	var all []*fakePair
	for p := range d.pairs {
		all = append(all, p)
	}
	d.f.mu.Unlock()
	for _, p := range all {
		p.fail(why)
	}
}

func (d *fakeDevice) Close() error {
	d.away.Do(func() { close(d.gone) })
	d.breakAll(rdma.ErrGone)
	d.f.mu.Lock()
	var all []*fakePair
	for p := range d.pairs {
		all = append(all, p)
	}
	d.f.mu.Unlock()
	for _, p := range all {
		_ = p.Close()
	}
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.card.dev = nil
	return nil
}

type fakePair struct {
	d      *fakeDevice
	o      rdma.PairOptions
	qpn    uint32
	remote uint32
	reads  sync.WaitGroup

	mu      sync.RWMutex // held for reading by who copies from a window
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

// enter counts a read, which Close waits for.
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
		if spoil != nil && len(r.Into) > probeSize {
			spoil(r.Into)
		}
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.why
}

// wait is for an answer that does not come.
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

// serve copies what a window has: a card that cannot be revoked from in the middle.
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

func (p *fakePair) Grant(_ context.Context, mems [][]byte) ([]rdma.Window, error) {
	f := p.d.f
	f.mu.Lock()
	hook := f.granted
	f.last += uint32(len(mems))
	key := f.last
	f.mu.Unlock()
	if hook != nil {
		hook()
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
		w := &fakeWindow{rdma.Key{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), RKey: key - uint32(i)}, mem}
		p.windows[w.key.RKey] = w
		out = append(out, w)
	}
	return out, nil
}

func (p *fakePair) Revoke(_ context.Context, windows []rdma.Window) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range windows {
		delete(p.windows, w.Key().RKey)
	}
	return p.why
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

// readable tells whether some window is onto a part of b.
func (f *fabric) readable(b []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pairs {
		if p.shows(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), uint64(len(b))) {
			return true
		}
	}
	return false
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

// left is what is open on the fabric.
func (f *fabric) left() (cards, pairs int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.cards {
		if c.dev != nil {
			cards++
		}
	}
	return cards, len(f.pairs)
}
