//go:build linux && cgo && rdma

package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cognitora/dataplane/rdma"
)

const (
	maxRegions = 64
	maxGIDs    = 256
	// maxReads bounds the reads of a pair that the card processes at a time, in each direction.
	// More have no use, and cost the card memory.
	maxReads = 16
)

// device is an opened port. The device owns the context, the domain, the regions and the pairs.
type device struct {
	name  string
	card  *card
	pd    *domain
	port  int
	gid   gid
	limit rdma.Limits
	has   C.struct_verbs_port

	regions atomic.Pointer[[]*region] // Register replaces it with mu held

	mu     sync.Mutex
	pairs  map[*pair]struct{}
	making sync.WaitGroup // running calls of Pair and Register

	downFor atomic.Int64 // how long the port may be down, in ns

	over   chan struct{} // returned by Gone
	cause  error         // why over was closed; set before
	events sync.WaitGroup

	closing  sync.Once
	closeErr error
}

// Open opens a port of the card with this name in the kernel, such as "mlx5_0".
func Open(name string, o Options) (rdma.Device, error) {
	d, err := open(name, o)
	if err != nil {
		return nil, err
	}
	return d, nil
}

func open(name string, o Options) (*device, error) {
	d := &device{name: name, port: max(1, o.Port), pairs: map[*pair]struct{}{}, over: make(chan struct{})}
	d.regions.Store(new([]*region))
	d.downFor.Store(int64(downFor))
	var err error
	if d.card, err = openCard(name); err != nil {
		return nil, err
	}
	if err = d.query(o.Address); err == nil {
		d.limit.Windows = d.limit.Windows || o.LooseWindows
		d.pd, err = d.card.domain()
	}
	if err != nil {
		return nil, errors.Join(err, d.card.close())
	}
	d.events.Go(d.follow)
	return d, nil
}

// query reads the card's limits, and the GID of address.
func (d *device) query(address netip.Addr) error {
	if err := failed(C.verbs_query(d.card.c, C.int(d.port), &d.has)); err != nil {
		return fmt.Errorf("verbs: port %d of %s: %w", d.port, d.name, err)
	}
	if d.has.active == 0 {
		return fmt.Errorf("verbs: port %d of %s is down", d.port, d.name)
	}
	if d.has.ethernet == 0 {
		return fmt.Errorf("verbs: port %d of %s is of InfiniBand; only RoCE v2 is known here", d.port, d.name)
	}
	d.limit = rdma.Limits{
		MaxMessage: int(min(d.has.max_message, 1<<30)), MaxReads: min(maxReads, int(d.has.read_init),
			int(d.has.read_resp)),
		Windows: d.has.windows != 0, MTU: 128 << d.has.mtu,
	}
	if d.limit.MaxMessage < 1 || d.limit.MaxReads < 1 || d.has.mtu < 1 || d.has.mtu > 5 {
		return fmt.Errorf("verbs: port %d of %s cannot read: %+v", d.port, d.name, d.limit)
	}
	var err error
	d.gid, err = d.card.roce(d.port, address)
	return err
}

func (d *device) Name() string          { return d.name }
func (d *device) Limits() rdma.Limits   { return d.limit }
func (d *device) Gone() <-chan struct{} { return d.over }

// end marks the device as gone and breaks its pairs.
func (d *device) end(cause error) {
	d.mu.Lock()
	if d.cause == nil {
		d.cause = fmt.Errorf("%w: %w: %s: %w", rdma.ErrBroken, rdma.ErrGone, d.name, cause)
		close(d.over)
	}
	d.mu.Unlock()
	for _, p := range d.all() {
		p.fail(d.cause)
	}
}

func (d *device) all() []*pair {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*pair, 0, len(d.pairs))
	for p := range d.pairs {
		all = append(all, p)
	}
	return all
}

// enter begins the making of objects of the device. Close waits until the making has ended.
func (d *device) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cause != nil {
		return d.cause
	}
	d.making.Add(1)
	return nil
}

func (d *device) Close() error {
	d.closing.Do(func() { d.closeErr = d.close() })
	return d.closeErr
}

// close destroys all objects, each before the objects that it depends on. If an object cannot be
// destroyed, the objects that it depends on stay. The context is closed in any case, because the
// kernel does not release the card while it is open.
func (d *device) close() error {
	d.end(errors.New("closed"))
	d.making.Wait()
	var errs []error
	for _, p := range d.all() {
		errs = append(errs, p.Close())
	}
	for _, r := range *d.regions.Load() {
		errs = append(errs, r.close())
	}
	errs = append(errs, d.pd.close())
	_ = d.card.async.SetReadDeadline(past)
	d.events.Wait()
	err := d.card.close()
	if errors.Is(err, ErrInUse) {
		err = errors.Join(err, d.card.forsake(), d.card.abandon())
	}
	return errors.Join(append(errs, err)...)
}

func (d *device) Register(mem []byte) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.making.Done()
	if err := registrable(mem); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	have := *d.regions.Load()
	if len(have) >= maxRegions {
		return fmt.Errorf("%w: %d regions", rdma.ErrFull, len(have))
	}
	r, err := d.pd.region(mem, false)
	if err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	now := append(slices.Clip(have), r)
	d.regions.Store(&now)
	return nil
}

// find returns the region that mem lies in.
func (d *device) find(mem []byte) (*region, error) {
	from := address(mem)
	for _, r := range *d.regions.Load() {
		if at := address(r.mem); at <= from && from+uint64(len(mem)) <= at+uint64(len(r.mem)) {
			return r, nil
		}
	}
	return nil, fmt.Errorf("%w with %s", rdma.ErrNotRegistered, d.name)
}
