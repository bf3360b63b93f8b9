//go:build linux && cgo && rdma

package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cognitora/dataplane/rdma"
)

const (
	defaultReads   = 64
	defaultWindows = 256
	defaultTimeout = 2 * time.Second

	// retries is the number of retries of a packet. The maximum, 7, means unlimited retries to
	// soft-RoCE.
	retries = 5
	// flushFor is how long the card has to flush a broken pair. After flushFor, the queue pair is
	// destroyed, so that the card writes nothing more.
	flushFor = time.Second
)

// pair is one end of a connection. A pair owns the channel, the completion queue, the queue pair
// and the windows. On a card without windows a pair also owns a domain, so that only the pair's
// other side can read memory granted in that domain.
type pair struct {
	d     *device
	o     rdma.PairOptions
	pd    *domain
	own   *mirror // set if pd is the pair's own domain
	ch    *channel
	cq    *completions
	local rdma.Endpoint
	reads *semaphore.Weighted // work requests of reads that may still be posted

	// mu guards posting, taking completions in order, and the fields below. The mutex is held
	// during calls of libibverbs that do not block.
	mu     sync.Mutex
	q      *queue
	chains chains
	armed  bool        // the next completion will send an event
	late   *time.Timer // calls overdue some time after arming; nil: never armed
	cause  error       // why the pair is broken; then no operation begins any more; set before broken is closed
	broken chan struct{}

	operations sync.WaitGroup
	reaper     sync.WaitGroup
	windows    windows

	closing  sync.Once
	closeErr error
}

func (d *device) Pair(o rdma.PairOptions) (rdma.Pair, error) {
	p, err := d.pair(o)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (d *device) pair(o rdma.PairOptions) (*pair, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.making.Done()
	p := &pair{d: d, o: defaults(o), pd: d.pd, broken: make(chan struct{})}
	p.reads = semaphore.NewWeighted(int64(p.o.MaxReads))
	if depth := p.depth(); depth > int(d.has.max_wr) || depth >= int(d.has.max_cqe) {
		return nil, fmt.Errorf("%w: %d work requests in a pair, where %s has room for %d", rdma.ErrFull, depth, d.name,
			min(d.has.max_wr, d.has.max_cqe-1))
	}
	var psn [4]byte
	_, _ = rand.Read(psn[:]) // never fails
	p.local = rdma.Endpoint{GID: d.gid.raw, PSN: binary.LittleEndian.Uint32(psn[:]) & 0xffffff, MTU: d.limit.MTU,
		MaxReads: d.limit.MaxReads}
	if err := p.make(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", d.name, err), p.destroy())
	}
	p.local.QPN = p.q.qpn()
	p.reaper.Go(p.reap)
	d.mu.Lock()
	d.pairs[p] = struct{}{}
	cause := d.cause
	d.mu.Unlock()
	if cause != nil { // the device has ended meanwhile
		p.fail(cause)
	}
	return p, nil
}

func defaults(o rdma.PairOptions) rdma.PairOptions {
	o.MaxReads, o.MaxWindows = cmp.Or(max(o.MaxReads, 0), defaultReads), cmp.Or(max(o.MaxWindows, 0), defaultWindows)
	o.Timeout = cmp.Or(max(o.Timeout, 0), defaultTimeout)
	return o
}

// depth returns the depth of the queue. A window is never bound and invalidated at the same time,
// so it needs one place.
func (p *pair) depth() int { return p.o.MaxReads + p.o.MaxWindows }

// make makes the verbs objects, each after the objects that it depends on.
func (p *pair) make() (err error) {
	if !p.d.limit.Windows {
		if p.pd, err = p.d.card.domain(); err != nil {
			return err
		}
		p.own = &mirror{pd: p.pd, of: map[*region]*region{}}
		if p.o.Reads {
			if err = p.own.all(p.d); err != nil {
				return err
			}
		}
	}
	if p.ch, err = p.d.card.channel(); err != nil {
		return err
	}
	if p.cq, err = p.d.card.completions(p.ch, p.depth()+1); err != nil {
		return err
	}
	p.q, err = p.pd.queue(p.cq, p.depth(), p.d.port)
	return err
}

// destroy destroys the verbs objects in the opposite order. Nothing may use these objects any more.
func (p *pair) destroy() error {
	var errs []error
	if p.q != nil {
		errs = append(errs, p.drop())
	}
	if p.cq != nil {
		errs = append(errs, p.cq.close())
	}
	if p.ch != nil {
		err := p.ch.close()
		if errs = append(errs, err); err != nil {
			p.ch.forsake()
		}
	}
	if p.own != nil {
		errs = append(errs, p.own.close())
	}
	return errors.Join(errs...)
}

// drop destroys the windows and the queue pair, and ends all chains. After drop, the card neither
// reads nor writes for the pair. If the queue pair cannot be destroyed, drop abandons the device
// before it ends the chains.
func (p *pair) drop() error {
	p.mu.Lock()
	err := p.windows.close()
	stays := p.q.close()
	p.mu.Unlock()
	if stays != nil {
		err = errors.Join(err, stays)
		p.d.abandon(stays)
		p.reaper.Wait() // until the kernel has ended the channel's events
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.chains.all {
		if !c.over {
			c.end(p.cause)
			p.finish(c)
		}
	}
	return err
}

func (p *pair) Local() rdma.Endpoint    { return p.local }
func (p *pair) Broken() <-chan struct{} { return p.broken }

func (p *pair) Connect(remote rdma.Endpoint) error {
	path, err := p.path(remote)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != nil {
		return p.cause
	}
	if err := p.q.connect(&path); err != nil {
		if !errors.Is(err, ErrOrder) {
			err = fmt.Errorf("%w: %w", rdma.ErrBroken, err)
			p.failLocked(err)
		}
		return err
	}
	return nil
}

// path returns the path to the other side, whose endpoint is remote.
func (p *pair) path(remote rdma.Endpoint) (C.struct_verbs_path, error) {
	mtu := min(remote.MTU, p.local.MTU)
	if mtu < 256 || mtu > 4096 || bits.OnesCount(uint(mtu)) != 1 || remote.QPN>>24 != 0 || remote.PSN>>24 != 0 ||
		remote.MaxReads < 1 {
		return C.struct_verbs_path{}, fmt.Errorf("verbs: no endpoint to connect to: %+v", remote)
	}
	path := C.struct_verbs_path{
		port: C.int(p.d.port), gid_index: C.int(p.d.gid.index), mtu: C.int(bits.Len(uint(mtu)) - 8),
		reads:   C.int(min(remote.MaxReads, p.local.MaxReads)),
		timeout: C.int(exponent(p.o.Timeout)), retries: retries, qpn: C.uint32_t(remote.QPN),
		remote_psn: C.uint32_t(remote.PSN), local_psn: C.uint32_t(p.local.PSN),
	}
	for i, b := range remote.GID {
		path.gid[i] = C.uint8_t(b)
	}
	return path, nil
}

// exponent returns the timeout of a packet in the unit of cards: 4.096 µs times a power of two,
// with an exponent of 1 to 31. All retries of an exact card take between half of total and total.
// InfiniBand's specification allows a card four times the configured timeout.
func exponent(total time.Duration) int {
	each := total / (retries + 1) / 4096
	return min(max(bits.Len64(uint64(each))-1, 1), 31)
}

// fail breaks the pair. Operations in progress end with cause.
func (p *pair) fail(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failLocked(cause)
}

func (p *pair) failLocked(cause error) {
	if p.cause != nil {
		return
	}
	p.cause = cause
	_ = p.q.fail() // drop ends the requests that the card does not flush
	if p.late != nil {
		p.late.Stop()
	}
	close(p.broken)
}

func (p *pair) isBroken() bool {
	select {
	case <-p.broken:
		return true
	default:
		return false
	}
}

// enter begins an operation. Close waits for the operation.
func (p *pair) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != nil {
		return p.cause
	}
	p.operations.Add(1)
	return nil
}

func (p *pair) Close() error {
	p.closing.Do(func() {
		p.fail(fmt.Errorf("%w: closed", rdma.ErrBroken))
		p.operations.Wait()
		err := p.drop()
		_ = p.ch.file.SetReadDeadline(past)
		p.reaper.Wait()
		p.closeErr = errors.Join(err, p.destroy())
		p.d.mu.Lock()
		delete(p.d.pairs, p)
		p.d.mu.Unlock()
	})
	return p.closeErr
}
