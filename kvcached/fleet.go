package kvcached

import (
	"context"
	"time"

	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// inFleet tells whether the cache reaches those of other hosts: it finds them in etcd, and they
// find it by its cgn-kv/1 port.
func (c *Config) inFleet() bool {
	return len(c.Etcd.Endpoints) > 0 && (c.QUIC.Listen != "" || c.QUIC.tlsLane() != "")
}

// joinFleet makes the view of all hosts' blocks. Until etcd names others, it is that of this host.
func (d *Daemon) joinFleet() error {
	if !d.config.inFleet() {
		return nil
	}
	id, err := d.identity()
	if err != nil {
		return err
	}
	d.pool, err = transport.NewPool(transport.PoolOptions{Identity: id, Tuning: d.config.QUIC.tuning(),
		Stripes: d.config.QUIC.Stripes, Bandwidth: d.caps(), Pulled: d.metrics.latency.pulled, Logger: d.log,
		Rails: d.rails, MinBlock: int(d.config.RDMA.MinBlock)})
	if err != nil {
		return wrapped("fleet", err)
	}
	c := &d.config.Fleet
	view, err := fleet.New(fleet.Options{
		Store: d.store, Pool: d.pool, Self: d.config.cacheID(), Epoch: uint64(time.Now().UnixNano()),
		LocateTimeout: c.LocateTimeout.Std(), AnswerTimeout: c.AnswerTimeout.Std(),
		PeerBytes:   max(1, int64(d.config.QUIC.InFlight)/transport.HostShare),
		PullTimeout: c.PullTimeout.Std(), MaxPulls: c.MaxPulls, MaxLocations: c.MaxLocations,
		Replicas: c.Replicas, HotUses: c.HotUses,
		Logger: d.log,
	})
	if err != nil {
		return wrapped("fleet", err)
	}
	d.view.Store(view) // what the tiers told before is told when the first other host comes
	return nil
}

// runFleet tells other caches what is here, and pulls and replicates, until ctx ends.
func (d *Daemon) runFleet(ctx context.Context) error {
	if v := d.view.Load(); v != nil {
		return v.Run(ctx)
	}
	<-ctx.Done()
	return nil
}

// leaveFleet closes what was opened to other caches.
func (d *Daemon) leaveFleet(ctx context.Context) error {
	if d.pool == nil {
		return nil
	}
	return d.aroundDevices(ctx, d.pool.Close)
}

// followed keeps the view's members as etcd names them; nil where there is no view.
func (d *Daemon) followed() *members {
	v := d.view.Load()
	if v == nil {
		return nil
	}
	return &members{config: &d.config.Fleet, log: d.log, self: d.config.cacheID(), set: v.SetMembers, named: v.Named,
		caches: map[string]fleet.Member{}}
}
