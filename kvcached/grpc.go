package kvcached

import (
	"context"
	"net"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/rpc"
)

// prepareGRPC serves cognitora.v1.Kv on the Unix socket, and on TCP if grpc.listen is set.
func (d *Daemon) prepareGRPC() error {
	srv, err := rpc.New(rpc.Options{
		Store: local{d.blocks("grpc")}, Purge: d.purge(), Residency: d.index, Chunks: d.chunks,
		Fleet: d.mover(), Pulled: d.pulled(), Lanes: lanes{d},
		Parts: d.partStats,
		Drain: max(d.config.Daemon.DrainTimeout.Std(), 1), Logger: d.log, Audit: d.audit,
	})
	if err != nil {
		return err
	}
	d.metrics.rpc = srv
	sock, _ := d.config.Sockets()
	l, err := listen.OpenUnix(sock, 0o660, d.config.Daemon.Group)
	if err != nil {
		return socketError("kvcached.sock", "--sock", sock, err)
	}
	d.addGRPC(srv, "grpc-sock", sock, l, nil)
	if d.config.GRPC.Listen == "" {
		return nil
	}
	id, err := d.identity()
	if err != nil {
		return err
	}
	tcp, where, err := openFor("grpc.listen", "--grpc", d.config.GRPC.Listen, d.config.Daemon.Group)
	if err == nil {
		d.addGRPC(srv, "grpc", where, tcp, id)
	}
	return err
}

func (d *Daemon) addGRPC(srv *rpc.Server, name, where string, l net.Listener, id *pki.Identity) {
	serving, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	d.add(&part{
		name: name, where: where, what: "cognitora.v1.Kv: lookups, and cgn-ctl kv",
		serve: func() error {
			defer close(ended)
			return srv.Serve(serving, l, id)
		},
		finish: func(ctx context.Context) error {
			stop()
			return await.Closed(ctx, ended) // the server's own Drain bounds the wait
		},
		close: func() {
			stop()
			_ = l.Close()
		},
	})
}

// partStats returns the counters of the other servers, for cgn-ctl kv stats.
func (d *Daemon) partStats() map[string]any {
	m := d.metrics
	parts := map[string]any{"chunks": d.chunks.Stats()}
	if m.lease != nil {
		parts["lease"] = m.lease.Stats()
	}
	if m.resp != nil {
		parts["resp"] = m.resp.Stats()
	}
	if m.s3 != nil {
		parts["s3"] = m.s3.Stats()
	}
	if m.peers != nil {
		parts["peer"] = m.peers.Stats()
	}
	if m.fleet != nil {
		parts["fleet"], parts["pool"] = m.fleet.Stats(), m.pool.Stats()
	}
	return parts
}
