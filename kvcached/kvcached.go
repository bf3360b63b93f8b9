package kvcached

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/logging"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/chunks"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// Limits of steps of a drain. No setting changes these limits.
const (
	leaveLimit  = 5 * time.Second
	deviceLimit = 3 * time.Second // extra time for an RDMA device that does not answer, in each of four steps
	storeLimit  = 30 * time.Second
	stuckLimit  = 5 * time.Second // extra time for a disk that does not answer
	adminLimit  = time.Second
)

// Daemon is one host's cache. Make a Daemon with New, then call Run once, or Close.
type Daemon struct {
	config    *Config
	log       *slog.Logger
	lock      io.Closer // lock of the data directory; nil: there is no directory
	store     *store.Store
	ledger    *purge.Ledger
	purges    *purges                    // the fleet's list of purges; nil if there is no fleet
	index     *residency.Index           // tiers of each block of this host
	chunks    *chunks.Table              // chunks of this host, of LMCache, vLLM's object tier and HiCache
	view      atomic.Pointer[fleet.View] // blocks of all hosts; nil: there is no fleet
	pool      *transport.Pool            // connections to other caches; nil if there is no fleet
	rails     *transport.Rails           // RDMA devices; nil: rdma.devices is empty
	parts     []*part                    // parts in the order of their start
	adminAt   net.Listener
	adminTLS  *tls.Config // nil: plain HTTP
	metrics   *instruments
	audit     *audit.Log           // nil: off
	bandwidth *transport.Bandwidth // shared by all other caches; nil until its first use
	id        *pki.Identity        // certificate for other caches; nil until its first use
	member    *membership
	recorder  *recording     // nil: accesses are not recorded
	notes     logging.Seldom // log lines about notes on chunks that cannot be kept
	serving   atomic.Bool
	draining  atomic.Bool
	stuck     atomic.Bool // the drain went on without waiting for an RDMA device
}

// part is one server of a daemon.
type part struct {
	name  string // name in the log and in /readyz
	where string // address of the part
	what  string // description for people
	peers bool   // serves other caches; ends after the servers of clients
	serve func() error
	// finish stops accepting, waits for running requests until ctx ends, and closes. serve has
	// returned by then, or returns soon.
	finish func(ctx context.Context) error
	close  func() // releases the listeners of a part that never serves
}

// New checks c, locks the data directory, opens the tiers and binds every listener. The SSD tier's
// index may still be loading when New returns. Clients are served and the cache is announced by
// Run; other caches are answered from New on.
func New(c Config) (*Daemon, error) {
	if err := config.Check(&c); err != nil {
		return nil, err
	}
	if err := c.Examine(); err != nil {
		return nil, err
	}
	d := &Daemon{config: &c, log: c.Logger, metrics: newInstruments(), notes: logging.Seldom{Every: notesEvery}}
	if d.log == nil {
		d.log = slog.Default()
	}
	for _, note := range c.advise() {
		d.log.Warn("the configuration may not work as meant", "why", note)
	}
	if err := d.prepare(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *Daemon) prepare() (err error) {
	if d.adminTLS, err = d.config.AdminTLS.Config(); err != nil {
		return err
	}
	if d.adminAt, err = listen.OpenFor("kvcached.admin", "--admin", d.config.Daemon.Admin); err != nil {
		return err
	}
	if d.config.Daemon.Data != "" {
		if d.lock, err = LockDir(d.config.Daemon.Data); err != nil {
			return err
		}
		if err = d.letGroupIn(); err != nil {
			return err
		}
	}
	for _, prepare := range []func() error{d.openAudit, d.makeRunDir, d.openRecording, d.openStore, d.openDevices,
		d.joinFleet,
		d.prepareGRPC, d.prepareLease, d.prepareRESP, d.prepareS3, d.prepareQUIC} {
		if err = prepare(); err != nil {
			return err
		}
	}
	if err = d.prepareMember(); err != nil {
		return err
	}
	d.metrics.watch(d)
	return nil
}

// add adds a part to the daemon.
func (d *Daemon) add(p *part) { d.parts = append(d.parts, p) }

// addStarted adds a server that already answers and only has to be shut down.
func (d *Daemon) addStarted(p *part, shut func(ctx context.Context) error) {
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	p.serve = func() error {
		<-ended
		return nil
	}
	p.finish = func(ctx context.Context) error {
		defer end()
		if shut == nil {
			return nil
		}
		return shut(ctx)
	}
	p.close = func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.finish(ended)
	}
	d.add(p)
}

// Close releases a daemon whose Run was not called.
func (d *Daemon) Close() {
	for i := len(d.parts) - 1; i >= 0; i-- {
		d.parts[i].close()
	}
	if d.adminAt != nil {
		_ = d.adminAt.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	_ = d.leaveFleet(ctx)
	_ = d.closeDevices(ctx)
	_ = d.closeStore(context.Background())
	_ = d.audit.Close() // its losses are counted and logged
}

// AdminAddr is the address of the admin listener.
func (d *Daemon) AdminAddr() net.Addr { return d.adminAt.Addr() }

// Endpoint is the address of one of the daemon's servers.
type Endpoint struct {
	Name  string `json:"name"` // lease, resp, s3, ...
	Where string `json:"where"`
	What  string `json:"what"`
}

// Endpoints lists the servers of the daemon with their addresses.
func (d *Daemon) Endpoints() []Endpoint {
	all := make([]Endpoint, len(d.parts))
	for i, p := range d.parts {
		all[i] = Endpoint{p.name, p.where, p.what}
	}
	return all
}

// At is the address of the server with that name; empty: there is no such server.
func (d *Daemon) At(name string) string {
	for _, p := range d.parts {
		if p.name == name {
			return p.where
		}
	}
	return ""
}

// Run serves until ctx ends and then drains. The servers for clients stop accepting and finish
// their requests for at most DrainTimeout. The servers for other caches follow, with the same
// limit. Closing the stores takes at most 35 s. The end of force cuts the drain short: blocks that
// are not durable may be lost, as by a crash. Run then returns within the 5 s that a disk has to
// answer and the 12 s that RDMA devices have. Run drains and returns an error if a part fails.
func (d *Daemon) Run(ctx, force context.Context) error {
	r := d.start()
	d.announce()
	d.started()
	defer d.audit.Close()
	select {
	case <-ctx.Done():
		d.audit.Stops(nil)
	case <-r.group.Context().Done():
		failed := context.Cause(r.group.Context())
		d.log.Error("a part of the daemon failed, stopping", "error", failed)
		d.audit.Stops(failed)
	}
	d.log.Info("stopping: running operations have drain_timeout; a second signal ends it now", "drain_timeout",
		d.config.Daemon.DrainTimeout.String())
	d.draining.Store(true)
	err := r.drain(force)
	return errors.Join(d.ended(r.group.Wait), err)
}

// announce logs the servers and their addresses.
func (d *Daemon) announce() {
	c := d.config
	d.log.Info("cache daemon runs", "version", buildinfo.Version(), "pid", os.Getpid(), "data", c.Daemon.Data,
		"ram", c.Daemon.RAM.String(), "ssd", d.ssdState(), "admin", d.adminAt.Addr().String(), "etcd", d.member.state())
	for _, p := range d.parts {
		d.log.Info("serving", "part", p.name, "at", p.where, "for", p.what)
	}
}

func (d *Daemon) ssdState() string {
	if d.config.onDisk() {
		return d.config.Daemon.SSD.String()
	}
	return "none"
}

// openFor binds the listener of a part. Only the owner and the group may use a Unix socket.
func openFor(setting, flag, address string, group int) (net.Listener, string, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		l, err := listen.OpenUnix(path, 0o660, group)
		if err != nil {
			return nil, "", socketError(setting, flag, path, err)
		}
		return l, address, nil
	}
	l, err := listen.OpenFor(setting, flag, address)
	if err != nil {
		return nil, "", err
	}
	return l, l.Addr().String(), nil
}

// socketError returns an error that names the setting of a Unix socket that cannot be made.
func socketError(setting, flag, path string, err error) error {
	if errors.Is(err, listen.ErrGroup) {
		return fmt.Errorf("kvcached.socket_group: %w; name a group that the daemon's user is in", err)
	}
	return listen.Explain(setting, flag, "unix://"+path, err)
}

// running is the started parts of a daemon, with the functions that end them.
type running struct {
	daemon *Daemon
	group  *lifecycle.Group
	admin  *adminport.Server
	leave  context.CancelFunc
	leftAt chan struct{}
	tasks  context.CancelFunc
	pulls  context.CancelFunc // ends pulls and announcements
	pulled chan struct{}
}

// start starts every part. No part ends with the group. If one part fails, the drain ends the other
// parts in order.
func (d *Daemon) start() *running {
	life := context.Background()
	memberLife, leave := context.WithCancel(life)
	tasksLife, endTasks := context.WithCancel(life)
	fleetLife, endFleet := context.WithCancel(life)
	r := &running{daemon: d, group: lifecycle.NewGroup(life), admin: d.admin(), leave: leave,
		leftAt: make(chan struct{}), tasks: endTasks,
		pulls: endFleet, pulled: make(chan struct{})}
	for _, p := range d.parts {
		r.group.Go(p.name, func(context.Context) error { return p.serve() })
	}
	r.group.Go("admin", func(context.Context) error { return r.admin.Serve(d.adminAt) })
	r.group.Go("registration", func(context.Context) error {
		defer close(r.leftAt)
		return d.member.run(memberLife)
	})
	r.group.Go("fleet", func(context.Context) error {
		defer close(r.pulled)
		return d.runFleet(fleetLife)
	})
	r.group.Go("loading", func(context.Context) error {
		d.tellLoading(tasksLife)
		return nil
	})
	r.group.Go("tasks", func(context.Context) error {
		d.runTasks(tasksLife)
		return nil
	})
	r.group.Go("chunks", func(context.Context) error {
		d.chunks.Keep(tasksLife, d.annotate)
		return nil
	})
	if d.recorder != nil {
		r.group.Go("recording", func(context.Context) error {
			d.recorder.keep(tasksLife, d.log)
			return nil
		})
	}
	d.serving.Store(true)
	return r
}

func (r *running) drain(force context.Context) error {
	d := r.daemon
	_ = lifecycle.Drain(force, d.log, // failed steps are logged already
		// clients' servers first: their requests may need other caches, which serve fleet members
		// only
		lifecycle.Step{Name: "finish the servers", Run: d.finish(false)},
		lifecycle.Step{Name: "leave the fleet", Limit: leaveLimit, Run: func(ctx context.Context) error {
			r.leave()
			return await.Closed(ctx, r.leftAt)
		}},
		lifecycle.Step{Name: "finish the servers of other caches", Run: d.finish(true)},
		lifecycle.Step{Name: "stop to pull", Limit: leaveLimit, Run: func(ctx context.Context) error {
			r.pulls()
			return await.Closed(ctx, r.pulled)
		}},
		lifecycle.Step{Name: "close connections to other caches", Limit: leaveLimit, Run: d.leaveFleet},
		lifecycle.Step{Name: "close the RDMA devices", Limit: leaveLimit, Run: d.closeDevices})
	r.tasks()
	err := lifecycle.Drain(force, d.log, lifecycle.Step{Name: "close the stores", Limit: storeLimit, Run: d.closeStore})
	if force.Err() != nil && !errors.Is(err, errStuck) {
		err = nil // force was ended on purpose, and this is logged already
	}
	_ = lifecycle.Drain(force, d.log, lifecycle.Step{Name: "close the admin port", Limit: adminLimit,
		Run: r.admin.Stop})
	return err
}

// finish ends all servers for clients, or all for other caches, at the same time. All these servers
// together take no longer than DrainTimeout.
func (d *Daemon) finish(peers bool) func(context.Context) error {
	return func(ctx context.Context) error {
		var all sync.WaitGroup
		limit := max(d.config.Daemon.DrainTimeout.Std(), time.Millisecond)
		for _, p := range d.parts {
			if p.peers != peers {
				continue
			}
			all.Go(func() {
				_ = lifecycle.Drain(ctx, d.log, lifecycle.Step{Name: "finish " + p.name, Limit: limit, Run: p.finish})
			})
		}
		all.Wait()
		return nil // failed steps are logged already
	}
}

// unnamed is the reason why the caches of the fleet are not known.
const unnamed = "etcd, at etcd.endpoints, has not named the caches of the fleet yet, this one among them; reads are " +
	"misses until the fleet's purges are read"

// unready says why the daemon is not ready; empty: the daemon is ready.
func (d *Daemon) unready() string {
	switch {
	case d.draining.Load():
		return "the daemon is stopping"
	case !d.serving.Load():
		return "the daemon starts"
	}
	if v := d.view.Load(); v != nil && !v.Known() {
		return unnamed
	}
	if d.purges != nil && d.purges.pending() {
		return "the fleet's purges are not read yet, from etcd or from another cache, so reads are misses"
	}
	return ""
}

// wrapped adds the name of the part that failed to start.
func wrapped(part string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", part, err)
}
