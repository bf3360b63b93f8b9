package transport

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"github.com/cognitora/dataplane/rdma"
)

// fabric is a network of cards in memory. It keeps the promises of rdma.Device: a pair can only
// read through windows of its own other end.
type fabric struct {
	mu    sync.Mutex
	cards map[string]*fakeCard // cards that are plugged in
	pairs map[uint32]*fakePair
	last  uint32 // number of a pair or a window
	down  bool   // the link is down
	reads int

	reading func(r rdma.Read) // called before each read; nil: no call
	granted func()            // called while a card makes windows
	revoked func()            // called while a card revokes windows
	misused []string          // misuses of cards
	spoil   func(b []byte)    // called with the bytes of each read
	refuse  error             // error of reads of blocks, which leaves the pair whole; nil: none
}

func newFabric() *fabric {
	return &fabric{cards: map[string]*fakeCard{}, pairs: map[uint32]*fakePair{}}
}

// fakeCard is a card of a fabric.
type fakeCard struct {
	f       *fabric
	name    string
	addr    netip.Addr
	serial  string
	dev     *fakeDevice // nil: the card is not open
	windows int         // most windows of a pair; 0: as many as requested
	noPairs error       // error for a new pair; nil: pairs can be made
	asked   int         // number of requests for pairs
}

// plug adds a card.
func (f *fabric) plug(name, addr string) *fakeCard {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	c := &fakeCard{f: f, name: name, addr: netip.MustParseAddr(addr), serial: fmt.Sprint(name, f.last)}
	f.cards[name] = c
	return c
}

// unplug removes a card, and tells its user if there is one.
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

// present is RailsOptions.Present for the named cards.
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

// opened tells whether a card is open.
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
	if d.card.asked++; d.card.noPairs != nil {
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

// readable tells whether some window contains a part of b.
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

// left returns how many cards and pairs are open.
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
