package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// askedHosts is the number of holders that a pull asks for a block, one after the other.
const askedHosts = 2

// Pauses before a busy host is asked again, as long as PullTimeout lasts. Each pause is random,
// between half and one and a half of a value that doubles from busyFirst to busyLast.
const (
	busyFirst = 5 * time.Millisecond
	busyLast  = 200 * time.Millisecond
)

// pull is one transfer of a block to this host, shared by all callers that wait for the block.
type pull struct {
	waiting int  // guarded by View.mu; the last waiting caller to leave cancels the pull
	barred  bool // guarded by View.mu; the block was deleted here meanwhile
	cancel  context.CancelFunc
	done    chan struct{}
	began   time.Time
	counts  bool  // in View.pace; the pull's goroutine owns it
	came    int   // bytes that came; the pull's goroutine owns it
	err     error // valid once done is closed
}

// Pull brings a block to this host from the host with the given id. Pull asks the block's holders
// if from is empty. Pull does nothing if this host has the block. store.ErrMiss: no host has the
// block, or there are too many pulls.
func (v *View) Pull(ctx context.Context, a block.Addr, from string) error {
	for {
		p, joined := v.join(a, from)
		if p == nil {
			v.counts.pullsRefused.Add(1)
			return fmt.Errorf("%w: too many blocks are on their way here, or the daemon is stopping", store.ErrMiss)
		}
		select {
		case <-p.done:
		case <-ctx.Done():
		}
		if joined {
			v.leave(p)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if joined {
			return p.err
		}
	}
}

// join joins the pull of a block or starts one; nil: there are too many. joined is false for a pull
// that is ending because no caller waited for it; the caller must wait for its end and try again.
func (v *View) join(a block.Addr, from string) (p *pull, joined bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p = v.pulls[a]
	if p != nil && p.waiting == 0 {
		return p, false
	}
	if p == nil {
		if v.running == nil || len(v.pulls) >= maxPulls {
			return nil, false
		}
		life, cancel := context.WithTimeout(v.running, v.o.PullTimeout)
		p = &pull{cancel: cancel, done: make(chan struct{}), began: time.Now()}
		v.pulls[a] = p
		v.wg.Go(func() {
			defer cancel()
			p.err = v.fetch(life, p, a, from)
			if p.counts {
				v.pace.end(p.came, time.Now())
			}
			if p.came > 0 {
				v.pace.assume()
			}
			v.mu.Lock()
			delete(v.pulls, a)
			v.mu.Unlock()
			close(p.done)
		})
	}
	p.waiting++
	return p, true
}

func (v *View) leave(p *pull) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p.waiting--; p.waiting == 0 {
		p.cancel()
	}
}

// fetch finds a block and reads it into the arena.
func (v *View) fetch(ctx context.Context, p *pull, a block.Addr, from string) error {
	if _, err := v.Store.Stat(ctx, a); err == nil {
		return nil // the block arrived meanwhile
	}
	namespace := v.nameOf(a.Model)
	if namespace == "" {
		v.counts.unknownNamespaces.Add(1)
		return fmt.Errorf("%w: nobody here has said lately which namespace it is of", store.ErrMiss)
	}
	hosts := []location{{host: from}}
	if from == "" {
		located, _ := v.locate(ctx, []block.Addr{a}) // an error counts as no holder
		hosts = located[0]
	}
	hosts = hosts[:min(len(hosts), askedHosts)]
	retried := false
	for pause := busyFirst; ; pause = min(2*pause, busyLast) {
		again, err := v.readAny(ctx, p, a, namespace, hosts)
		switch {
		case err == nil, errors.Is(err, store.ErrFull), errors.Is(err, store.ErrQuota),
			errors.Is(err, store.ErrTooLarge):
			return err // this host's own error, so another source does not help
		case len(again) > 0 && await.For(ctx, pause/2+rand.N(pause)):
			v.counts.pullRetries.Add(1)
			hosts, retried = again, true
			continue
		// the time limit ended in a pause or in a repeated request
		case len(again) > 0, retried && ctx.Err() != nil:
			v.counts.pullsBusy.Add(1)
		case errors.Is(err, errNowhere):
			v.counts.pullMisses.Add(1)
		default:
			v.counts.pullsFailed.Add(1)
		}
		v.o.Logger.Debug("block not pulled", "error", err)
		return fmt.Errorf("%w: %w", store.ErrMiss, err)
	}
}

// errNowhere says that no host has a block.
var errNowhere = errors.New("fleet: no host has it")

// readAny reads a block from the first of the hosts that can send it. again has the busy hosts.
func (v *View) readAny(ctx context.Context, p *pull, a block.Addr, namespace string,
	hosts []location) (again []location, err error) {
	failed := errNowhere
	for _, h := range hosts {
		m := v.roster.Load().member(h.host)
		if m == nil || m.ID == v.o.Self {
			failed = fmt.Errorf("%w: %s", ErrUnknownHost, h.host)
			continue
		}
		n, err := v.read(ctx, p, m, a, namespace, int(h.length))
		switch {
		case err == nil:
			v.counts.pulled.Add(1)
			v.counts.pulledBytes.Add(uint64(n))
			p.came = n
			return nil, nil
		case errors.Is(err, wire.Miss):
			continue
		case errors.Is(err, wire.Busy):
			again = append(again, h)
		default:
			v.counts.pullErrors.Add(1)
		}
		failed = fmt.Errorf("fleet: %s: %w", m.ID, err)
		if errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrQuota) || errors.Is(err, store.ErrTooLarge) {
			return nil, err
		}
	}
	return again, failed
}

// source is the host from which a block is read. The connection to a source stays usable after the
// source has left the fleet.
type source struct {
	*Member
	health *health
	peer   *transport.Held
}

// read reads a block from one host.
func (v *View) read(ctx context.Context, p *pull, m *Member, a block.Addr, namespace string,
	hint int) (int, error) {
	peer, err := v.peer(m)
	if err != nil {
		return 0, err
	}
	from := source{Member: m, health: v.healthOf(m)}
	if from.peer, err = peer.Hold(); err != nil {
		return 0, err
	}
	defer from.peer.Release()
	var draft *store.Draft
	defer func() {
		if draft != nil {
			draft.Abort()
		}
	}()
	found, err := v.bring(ctx, &from, transport.Get{
		Addr: a, Namespace: namespace, Hint: hint,
		Alloc: func(f transport.Found, n int) ([]byte, error) {
			if f.Item.Addr != a || n != f.Length {
				return nil, wire.BadFrame
			}
			p.counts = p.counts || v.pace.begin(p.began, n, time.Now())
			var err error
			if draft, err = v.Store.Create(ctx, store.Item(f.Item), n); err != nil {
				return nil, err
			}
			return draft.Bytes(), nil
		},
	})
	if err != nil {
		return 0, err
	}
	_, err = draft.Commit(ctx, store.CommitOptions{
		CRC: found.CRC, CheckCRC: true, IfAbsent: true, Copy: true,
		Unless: func() bool {
			return v.isBarred(p) || v.notices.bars(a) || v.Bars(found.Stamp, namespace, found.Item.Key)
		},
	})
	switch {
	case errors.Is(err, store.ErrExists):
		return found.Length, nil // a value that a client wrote here stays
	case err == nil && block.OfKeys(namespace):
		v.settle(ctx, &from, a, &found)
	}
	return found.Length, err
}

// isBarred tells whether a pulled block must be dropped.
func (v *View) isBarred(p *pull) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return p.barred
}

// bring requests a block from a host. bring first waits until the pulls from that host stay within
// PeerBytes.
func (v *View) bring(ctx context.Context, from *source, g transport.Get) (found transport.Found, err error) {
	if share := from.health.coming; share != nil && g.Hint > 0 {
		n := min(int64(g.Hint), v.o.PeerBytes)
		if err := share.Acquire(ctx, n); err != nil {
			return found, fmt.Errorf("%w: so much comes from there already: %w", wire.Busy, err)
		}
		defer share.Release(n)
	}
	err = v.watch(ctx, v.o.PullTimeout, from.health, func(ctx context.Context, h *health) (err error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		head := time.AfterFunc(v.o.HeadTimeout, func() { cancel(errSlow) })
		defer head.Stop()
		alloc := g.Alloc
		g.Progress = h.hear
		g.Alloc = func(f transport.Found, n int) ([]byte, error) {
			head.Stop()
			h.hear()
			return alloc(f, n)
		}
		found, err = from.peer.Get(ctx, g)
		return err
	})
	return found, err
}

// ErrKey says that a block with a client's key is not pushed to other hosts.
var ErrKey = errors.New("fleet: only blocks of models are pushed")

// Push sends a block of this host to another host. ErrKey: the block has a client's key.
func (v *View) Push(ctx context.Context, a block.Addr, to string) error {
	m := v.roster.Load().member(to)
	if m == nil || m.ID == v.o.Self {
		return fmt.Errorf("%w: %s", ErrUnknownHost, to)
	}
	ctx, cancel := context.WithTimeout(ctx, v.o.PullTimeout)
	defer cancel()
	stamp := v.Stamp()
	b, err := v.Store.Get(ctx, a)
	if err != nil {
		return err
	}
	defer b.Release()
	if block.OfKeys(b.Info().Item.Namespace) {
		return ErrKey
	}
	peer, err := v.peer(m)
	if err != nil {
		return err
	}
	i := b.Info()
	return peer.Put(ctx, transport.Put{Item: transport.Item(i.Item), Payload: b.Bytes(), CRC: i.CRC, IfAbsent: true,
		Stamp: stamp})
}

// hot queues a block for replication when it becomes hot.
func (v *View) hot(b *store.Block) {
	if v.o.Replicas == 0 {
		return
	}
	if i := b.Info(); i.Uses == hotUses && !block.OfKeys(i.Item.Namespace) {
		select {
		case v.replicates <- i.Item.Addr:
		default:
			v.counts.replicasDropped.Add(1)
		}
	}
}

// replicate pushes hot blocks, one at a time, to the hosts with the highest rank for their
// addresses.
func (v *View) replicate(ctx context.Context) {
	for {
		var a block.Addr
		select {
		case a = <-v.replicates:
		case <-ctx.Done():
			return
		}
		left := v.o.Replicas
		for _, m := range v.roster.Load().keepers(&a, left+1) {
			if m.ID == v.o.Self || left == 0 {
				continue
			}
			left--
			if err := v.Push(ctx, a, m.ID); err != nil {
				v.counts.replicasDropped.Add(1)
			} else {
				v.counts.replicated.Add(1)
			}
		}
	}
}
