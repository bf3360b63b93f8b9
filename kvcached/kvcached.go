package kvcached

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// Bounds of the steps of a drain that the configuration does not set.
const (
	leaveLimit  = 5 * time.Second
	deviceLimit = 3 * time.Second // more, for an RDMA device that does not answer, in each of four steps
	storeLimit  = 30 * time.Second
	stuckLimit  = 5 * time.Second // more, for a disk that does not answer
	adminLimit  = time.Second
)

// Daemon is one host's cache. Make it with New, then Run it once, or Close it.
type Daemon struct {
	config    *Config
	log       *slog.Logger
	lock      *Lock // of the data directory; nil without one
	store     *store.Store
	ledger    *purge.Ledger
	purges    *purges                    // the fleet's; nil as view
	index     *residency.Index           // which block is where on this host
	view      atomic.Pointer[fleet.View] // all hosts' blocks; nil: this cache is alone
	pool      *transport.Pool            // connections to other caches; nil as view
	rails     *transport.Rails           // RDMA devices; nil: none are to be used
	parts     []*part                    // in the order in which they start
	adminAt   net.Listener
	metrics   *instruments
	bandwidth *transport.Bandwidth // of all other caches; nil until it is asked for
	id        *pki.Identity        // shown to other caches; nil until it is asked for
	member    *membership
	recorder  *recording // nil: accesses are not recorded
	serving   atomic.Bool
	draining  atomic.Bool
	stuck     atomic.Bool // a step of the drain was left behind, for an RDMA device that does not answer
}

// part is one server of a daemon.
type part struct {
	name  string // in the log and in /readyz
	where string // address that it is reached at
	what  string // for people
	peers bool   // it is for other caches, and serves them until clients have been served
	serve func() error
	// finish stops accepting, lets what runs end until ctx does, and closes. serve has returned, or
	// returns soon, then.
	finish func(ctx context.Context) error
	close  func() // gives back what was bound, where serve is never called
}

// Run is New followed by Daemon.Run. The end of ctx starts the drain.
func Run(ctx context.Context, c Config) error {
	d, err := New(c)
	if err != nil {
		return err
	}
	return d.Run(ctx, context.WithoutCancel(ctx))
}

// New checks c and what it names, locks the data directory, opens the tiers and binds every
// listener; the SSD tier's index may still be loading when it returns. Nothing
// is answered or announced before Run.
func New(c Config) (*Daemon, error) {
	if err := config.Check(&c); err != nil {
		return nil, err
	}
	if err := c.Examine(); err != nil {
		return nil, err
	}
	d := &Daemon{config: &c, log: c.Logger, metrics: newInstruments()}
	if d.log == nil {
		d.log = slog.Default()
	}
	for _, note := range c.Advise() {
		d.log.Warn("the configuration may not do", "why", note)
	}
	if err := d.prepare(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *Daemon) prepare() (err error) {
	if d.adminAt, err = listen.OpenFor("kvcached.admin", "--admin", d.config.Daemon.Admin); err != nil {
		return err
	}
	if d.config.Daemon.Data != "" {
		if d.lock, err = LockDir(d.config.Daemon.Data); err != nil {
			return err
		}
	}
	for _, prepare := range []func() error{d.openRecording, d.openStore, d.openDevices, d.joinFleet, d.prepareGRPC,
		d.prepareLease, d.prepareRESP, d.prepareS3, d.prepareQUIC} {
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

// add takes a server into the daemon.
func (d *Daemon) add(p *part) { d.parts = append(d.parts, p) }

// addStarted takes in a server that answers already, which only has to be closed.
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

// Close releases a daemon that is not going to run.
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
}

// AdminAddr is the address of the admin listener.
func (d *Daemon) AdminAddr() net.Addr { return d.adminAt.Addr() }

// Endpoint is where one of the daemon's servers is reached.
type Endpoint struct {
	Name  string `json:"name"` // lease, resp, s3, ...
	Where string `json:"where"`
	What  string `json:"what"`
}

// Endpoints lists what the daemon serves, and where.
func (d *Daemon) Endpoints() []Endpoint {
	all := make([]Endpoint, len(d.parts))
	for i, p := range d.parts {
		all[i] = Endpoint{p.name, p.where, p.what}
	}
	return all
}

// At is where the server of that name is reached; empty: it is not served.
func (d *Daemon) At(name string) string {
	for _, p := range d.parts {
		if p.name == name {
			return p.where
		}
	}
	return ""
}

// Run serves until ctx ends, then drains: the servers for clients stop to accept and finish what
// runs, at most for DrainTimeout, then those for other caches, for as long again, and the stores
// are closed, which takes at most 35 s. The end of force cuts all of that short: what is not
// durable may be lost, as by a crash, and Run returns at the latest after the 5 s that a disk has
// to answer, and the 12 s that RDMA devices have. Run returns an error where a part fails, after
// draining the others.
func (d *Daemon) Run(ctx, force context.Context) error {
	r := d.start()
	d.announce()
	select {
	case <-ctx.Done():
	case <-r.group.Context().Done():
		d.log.Error("a part of the daemon failed, stopping", "error", context.Cause(r.group.Context()))
	}
	d.log.Info("stopping: running operations have drain_timeout; a second signal ends it now", "drain_timeout",
		d.config.Daemon.DrainTimeout.String())
	d.draining.Store(true)
	err := r.drain(force)
	return errors.Join(d.ended(r.group.Wait), err)
}

// announce logs what runs where.
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

// openFor binds the listener of a part. A Unix socket is for its owner and the group.
func openFor(setting, flag, address string, group int) (net.Listener, string, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		l, err := listen.OpenUnix(path, 0o660, group)
		if err != nil {
			return nil, "", socketError(fmt.Sprintf("%s (%s)", setting, flag), err)
		}
		return l, address, nil
	}
	l, err := listen.OpenFor(setting, flag, address)
	if err != nil {
		return nil, "", err
	}
	return l, l.Addr().String(), nil
}

// socketError says which setting keeps a Unix socket from being made.
func socketError(setting string, err error) error {
	if errors.Is(err, listen.ErrGroup) {
		return fmt.Errorf("kvcached.socket_group: %w; name a group that the daemon's user is in", err)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s: %w: a program answers there, or the file is no socket; stop that program, or give "+
			"another path", setting, err)
	}
	return fmt.Errorf("%s: %w; give a path in a directory that can be written to", setting, err)
}

// running is the started parts of a daemon, with what ends each of them.
type running struct {
	daemon *Daemon
	group  *lifecycle.Group
	admin  *adminServer
	leave  context.CancelFunc
	leftAt chan struct{}
	tasks  context.CancelFunc
	pulls  context.CancelFunc // ends what goes on with other caches
	pulled chan struct{}
}

// start starts every part. None of them ends with the group: when one fails,
// the drain ends the others in order.
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
	r.group.Go("admin", func(context.Context) error { return r.admin.serve(d.adminAt) })
	r.group.Go("registration", func(context.Context) error {
		defer close(r.leftAt)
		return d.member.run(memberLife)
	})
	r.group.Go("fleet", func(context.Context) error {
		defer close(r.pulled)
		return d.runFleet(fleetLife)
	})
	r.group.Go("tasks", func(context.Context) error {
		d.runTasks(tasksLife)
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
	_ = lifecycle.Drain(force, d.log, // what fails in it has been logged
		// first: what clients wait for may come from other caches, which tell members only
		lifecycle.Step{Name: "finish the servers", Run: d.finish(false)},
		lifecycle.Step{Name: "leave the fleet", Limit: leaveLimit, Run: func(ctx context.Context) error {
			r.leave()
			return await(ctx, r.leftAt)
		}},
		lifecycle.Step{Name: "finish the servers of other caches", Run: d.finish(true)},
		lifecycle.Step{Name: "stop to pull", Limit: leaveLimit, Run: func(ctx context.Context) error {
			r.pulls()
			return await(ctx, r.pulled)
		}},
		lifecycle.Step{Name: "close connections to other caches", Limit: leaveLimit, Run: d.leaveFleet},
		lifecycle.Step{Name: "close the RDMA devices", Limit: leaveLimit, Run: d.closeDevices})
	r.tasks()
	err := lifecycle.Drain(force, d.log, lifecycle.Step{Name: "close the stores", Limit: storeLimit, Run: d.closeStore})
	if force.Err() != nil && !errors.Is(err, errStuck) {
		err = nil // that it was cut short was asked for, and has been logged
	}
	_ = lifecycle.Drain(force, d.log, lifecycle.Step{Name: "close the admin port", Limit: adminLimit,
		Run: r.admin.shutdown})
	return err
}

// finish ends the servers for clients, or for other caches, at the same time, so that together they
// take no longer than DrainTimeout.
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
		return nil // what fails in it has been logged
	}
}

// unready says why the daemon is not ready; "" while it is.
func (d *Daemon) unready() string {
	switch {
	case d.draining.Load():
		return "the daemon is stopping"
	case !d.serving.Load():
		return "the daemon starts"
	}
	if v := d.view.Load(); v != nil && !v.Known() {
		return "etcd has not named the caches of the fleet yet, this one among them"
	}
	if d.purges != nil && d.purges.pending() {
		return "the fleet's purges are not read yet, from etcd or from another cache, so reads are misses"
	}
	return ""
}

func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wrapped names the part that could not be made.
func wrapped(part string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", part, err)
}
