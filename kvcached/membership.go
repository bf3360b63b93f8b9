package kvcached

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/cluster"
)

// membership announces the cache in etcd and follows the other caches there. The zero value of
// config means that there is no etcd.
type membership struct {
	config       cluster.Config
	registration cluster.Registration
	cacheID      string
	purges       *purges  // the fleet's list of purges; nil if there is no fleet
	others       *members // updated with the other caches in etcd; nil: there is no fleet
	ownCA        bool     // the daemon made its own CA, whose certificates no other cache accepts
	log          *slog.Logger
	client       atomic.Pointer[cluster.Client] // nil: etcd was not reached yet
	link         atomic.Pointer[string]         // last state of the connection to etcd; nil: not known yet
}

func (d *Daemon) prepareMember() error {
	etcd, err := d.config.Etcd.Config()
	if err != nil {
		return err
	}
	if err := d.cacheHealth().Check(); err != nil {
		return fmt.Errorf("kvcached.cache_id, kvcached.advertise: %w", err)
	}
	token, err := cluster.Token(d.config.Daemon.Data)
	if err != nil {
		return fmt.Errorf("kvcached.data: %w", err)
	}
	d.member = &membership{config: etcd, ownCA: d.config.inFleet() && d.config.TLS.Cert == "", log: d.log,
		others: d.followed(), purges: d.purges, cacheID: d.config.cacheID(), registration: cluster.Registration{
			Health: d.health, Heartbeat: d.config.Daemon.Heartbeat.Std(), Instance: token,
			Reclaimed: d.metrics.reclaimed.Inc, Logger: d.log,
		}}
	return nil
}

// health is the record of this cache in etcd.
func (d *Daemon) health() cluster.Record { return d.cacheHealth() }

func (d *Daemon) cacheHealth() *cluster.CacheHealth {
	c := d.config
	h := &cluster.CacheHealth{
		CacheID: c.cacheID(), QUIC: d.advertised("quic"), TLS: d.advertised("tls-lane"), GRPC: d.advertised("grpc"),
		RAMBytes: int64(c.Daemon.RAM), Ready: d.unready() == "", Version: buildinfo.Version(),
	}
	if h.GRPC == "" && c.GRPC.Announce {
		h.GRPC = "unix://" + d.At("grpc-sock")
	}
	if c.onDisk() {
		h.SSDBytes = int64(c.Daemon.SSD)
	}
	return h
}

// advertised is the address of a part for other hosts; empty: the part is not served.
func (d *Daemon) advertised(part string) string {
	where := d.At(part)
	host, port, err := net.SplitHostPort(where)
	if err != nil {
		return ""
	}
	if d.config.Daemon.Advertise != "" {
		host = d.config.Daemon.Advertise
	} else if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = hostname()
	}
	return net.JoinHostPort(host, port)
}

func (c *Config) cacheID() string {
	if c.Daemon.CacheID != "" {
		return c.Daemon.CacheID
	}
	return hostname()
}

// hostname is the host's name; "localhost" if the kernel has none.
func hostname() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	return name
}

// run keeps the cache announced until ctx ends, then removes it from etcd. run fails if another
// daemon holds the same id.
func (m *membership) run(ctx context.Context) error {
	if len(m.config.Endpoints) == 0 {
		m.log.Info("no etcd endpoints: the cache is not announced")
		return nil
	}
	client, err := cluster.Connect(ctx, m.config, m.log)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return err
	}
	defer client.Close()
	m.client.Store(client)
	life := ctx
	ctx, end := context.WithCancelCause(ctx)
	var follow sync.WaitGroup
	defer follow.Wait()
	defer end(nil)
	listed, began := make(chan struct{}), time.Now()
	follow.Go(func() { m.follow(ctx, client, sync.OnceFunc(func() { close(listed) }), end) })
	if m.ownCA {
		select {
		case <-listed:
		case <-ctx.Done():
		}
		if err := stranger(ctx); err != nil && time.Since(began) < strangerAtStart {
			return err
		}
	}
	if m.others != nil {
		m.registration.Claimed = m.others.claim
		follow.Go(func() { m.purges.follow(ctx, client) })
	}
	err = cluster.NewRegistrar(client, m.registration).Run(ctx)
	if _, duplicate := errors.AsType[*cluster.DuplicateError](err); duplicate {
		return fmt.Errorf("kvcached.cache_id (--cache-id): %w", err)
	}
	if why := stranger(ctx); why != nil {
		m.enter("left")
		m.others.named() // there is no fleet any more
		m.purges.current()
		m.log.Error("the cache has left the fleet and serves this host alone", "why", why)
		<-life.Done()
		return nil
	}
	return err
}

// strangerAtStart is how long after its start a daemon ends if etcd lists a stranger. Later the
// daemon has clients, so it leaves the fleet instead.
const strangerAtStart = 10 * time.Second

// strangerError says that etcd lists a stranger: a cache that does not accept the certificates of
// this one.
type strangerError struct{ id string }

func (e *strangerError) Error() string {
	return fmt.Sprintf("etcd names another cache, %q, and this one has only certificates that it made for itself, "+
		"which no other takes; "+
		"give it those of the fleet: cgn-ctl pki bootstrap, or on a further host join, --role kvcached, then tls.ca, "+
		"tls.cert and tls.key", e.id)
}

// stranger returns the strangerError that ended ctx, or nil.
func stranger(ctx context.Context) error {
	if e := (*strangerError)(nil); errors.As(context.Cause(ctx), &e) {
		return e
	}
	return nil
}

// follow updates link and others from etcd until ctx ends. listed is called after each full
// listing. refuse is called with the reason why this cache must not be in the fleet.
func (m *membership) follow(ctx context.Context, client *cluster.Client, listed func(), refuse func(error)) {
	prefix := cluster.CacheKey(m.cacheID)
	h := cluster.Handler{List: func(cluster.Listing) {}, Put: func(cluster.Entry) {}, Delete: func(string) {}}
	if m.others != nil {
		if m.ownCA {
			m.others.alone(m.cacheID, refuse)
		}
		prefix, h = cluster.CachesPrefix, m.others.handler()
	}
	list := h.List
	h.List = func(l cluster.Listing) {
		if m.enter("connected") {
			m.log.Info("etcd answers", "endpoints", m.config.Endpoints)
		}
		list(l)
		listed()
	}
	h.Lost = func(err error) {
		m.enter("lost")
		serving := "etcd does not answer; the cache serves on"
		if m.purges != nil && m.purges.pending() {
			serving = "etcd does not answer; reads are misses until it does, or until another cache sends the purges"
		}
		m.log.Warn(serving, "endpoints", m.config.Endpoints, "error", err)
	}
	_ = client.Watch(ctx, prefix, h) // the end of ctx is Watch's only error
}

// state is the state of the connection to etcd: off, connecting, connected, lost or left.
func (m *membership) state() string {
	if len(m.config.Endpoints) == 0 {
		return "off"
	}
	if link := m.link.Load(); link != nil {
		return *link
	}
	return "connecting"
}

// enter sets the state and tells whether it has changed.
func (m *membership) enter(link string) bool {
	old := m.link.Swap(&link)
	return old == nil || *old != link
}
