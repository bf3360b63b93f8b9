package kvcached

import (
	"context"
	"errors"
	"net"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/kvcached/lease"
)

// prepareLease serves programs of this host that read blocks in shared memory.
func (d *Daemon) prepareLease() error {
	_, path := d.config.Sockets()
	c := &d.config.Lease
	blocks := d.blocks("lease")
	srv, err := lease.New(local{blocks}, lease.Options{
		Lease: c.Duration.Std(), MaxLeased: int64(c.MaxLeased), MaxStagingTotal: int64(c.MaxStagingTotal),
		Find: blocks.StatAll, Readers: d.index, Logger: d.log, Audit: d.audit,
	})
	if err != nil {
		return wrapped("lease", err)
	}
	l, err := listen.OpenUnix(path, 0o660, d.config.Daemon.Group)
	if err != nil {
		_ = srv.Close()
		return socketError("kvcached.sock", "--sock", path, err)
	}
	d.metrics.lease = srv
	d.add(&part{
		name: "lease", where: path, what: "blocks without a copy for programs of this host (package kv/client)",
		serve: func() error {
			if err := srv.Serve(l); !errors.Is(err, lease.ErrClosed) && !errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil
		},
		finish: func(ctx context.Context) error { return srv.Shutdown(ctx) },
		close: func() {
			_ = l.Close()
			_ = srv.Close()
		},
	})
	return nil
}
