package kvcached

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// inFleet tells whether this cache exchanges blocks with caches of other hosts. A fleet needs etcd
// and a cgn-kv/1 port.
func (c *Config) inFleet() bool {
	return len(c.Etcd.Endpoints) > 0 && (c.QUIC.Listen != "" || c.QUIC.tlsLane() != "")
}

// joinFleet makes the view of all hosts' blocks. The view covers this host until etcd lists other
// caches.
func (d *Daemon) joinFleet() error {
	if !d.config.inFleet() {
		return nil
	}
	id, err := d.identity()
	if err != nil {
		return err
	}
	stamp := func() wire.Stamp { return wire.Stamp(d.ledger.Stamp()) }
	d.pool, err = transport.NewPool(transport.PoolOptions{Identity: id, Stamp: stamp, Tuning: d.config.QUIC.tuning(),
		Stripes: d.config.QUIC.Stripes, Bandwidth: d.caps(), Pulled: d.metrics.latency.pulled, Logger: d.log,
		Rails: d.rails, MinBlock: int(d.config.RDMA.MinBlock)})
	if err != nil {
		return wrapped("fleet", err)
	}
	c := &d.config.Fleet
	d.purges = &purges{config: c, dir: d.config.Daemon.Data, ledger: d.ledger, log: d.log,
		turn: semaphore.NewWeighted(1), done: make(chan struct{})}
	view, err := fleet.New(fleet.Options{
		Store: d.store, Pool: d.pool, Ledger: d.ledger, Register: d.purges, Self: d.config.cacheID(),
		Epoch:         uint64(time.Now().UnixNano()),
		LocateTimeout: c.LocateTimeout.Std(), AnswerTimeout: c.AnswerTimeout.Std(),
		PeerBytes:   max(1, int64(d.config.QUIC.InFlight)/transport.HostShare),
		PullTimeout: c.PullTimeout.Std(), MaxLocations: c.MaxLocations,
		Replicas: c.Replicas, Logger: d.log,
	})
	if err != nil {
		return wrapped("fleet", err)
	}
	d.purges.view = view
	d.purges.last = d.purges.remembered() // before this run remembers others
	d.warnForgotten()
	d.view.Store(view) // earlier changes of the tiers are announced when the first other host comes
	return nil
}

// warnForgotten warns if the list of purges was removed: a cache that has met others has a list.
func (d *Daemon) warnForgotten() {
	if d.store.Stats().SSD.Segments == 0 || d.ledger.List().History != 0 || len(d.purges.last) == 0 {
		return
	}
	d.log.Warn("the list of purges is gone from the data directory, and blocks are on SSD; purges that neither etcd nor "+
		"another cache knows are forgotten, and blocks that they name may be served", "file",
		filepath.Join(d.config.Daemon.Data, purge.File))
}

// purge returns the function that carries out a purge on all hosts.
func (d *Daemon) purge() purge.Func {
	switch v := d.view.Load(); {
	case v != nil:
		return v.PurgeAll
	case len(d.config.Etcd.Endpoints) > 0:
		return d.purgeHere
	default:
		return d.ledger.Purge
	}
}

// purgeHere carries out a purge on a cache that is in etcd and exchanges no blocks. The other
// caches in etcd do not confirm the purge.
func (d *Daemon) purgeHere(ctx context.Context, s purge.Selector) ([]purge.Done, error) {
	client := d.member.client.Load()
	if client == nil {
		return nil, purge.ErrNoEtcd
	}
	caches, err := client.Caches(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", purge.ErrNoEtcd, err)
	}
	done, err := d.ledger.Purge(ctx, s)
	if err != nil {
		return nil, err
	}
	done[0].Host = d.config.cacheID()
	for _, id := range caches {
		if id != d.config.cacheID() {
			done = append(done, purge.Done{Host: id, Err: purge.ErrAlone})
		}
	}
	return done, nil
}

// runFleet runs the view until ctx ends: it announces blocks, pulls and replicates.
func (d *Daemon) runFleet(ctx context.Context) error {
	v := d.view.Load()
	if v == nil {
		<-ctx.Done()
		return nil
	}
	var asking sync.WaitGroup
	asking.Go(func() { d.purges.askPeers(ctx) })
	err := v.Run(ctx)
	asking.Wait()
	return err
}

// leaveFleet closes the connections to other caches.
func (d *Daemon) leaveFleet(ctx context.Context) error {
	if d.pool == nil {
		return nil
	}
	return d.aroundDevices(ctx, d.pool.Close)
}

// followed returns the members that keep the view in step with etcd; nil: there is no view.
func (d *Daemon) followed() *members {
	v := d.view.Load()
	if v == nil {
		return nil
	}
	return &members{config: &d.config.Fleet, log: d.log, self: d.config.cacheID(), set: func(all []fleet.Member) {
		v.SetMembers(all)
		d.purges.remember(v.Others())
	}, named: v.Named,
		caches: map[string]fleet.Member{}}
}
