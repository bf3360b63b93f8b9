package engine

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// Engine is one running simulated engine. Any goroutine may call the methods of an Engine.
type Engine struct {
	cfg     Config
	mux     http.Handler
	faults  *faults
	traffic traffic
	seen    recorder
	ids     atomic.Uint64

	network, addr string // as bound

	mu      sync.Mutex             // guards listener changes
	kv      *KVEvents              // with bound endpoints; nil without KV events
	door    *door                  // nil while connections are refused
	side    *door                  // nil as well, and without a connector
	sideAt  atomic.Pointer[string] // address of side, kept from the first listening
	starts  uint64                 // number of cores so far
	closed  bool
	quit    chan struct{} // closed by Close
	timers  sync.WaitGroup
	current atomic.Pointer[core]
}

// core is the state that a restart loses: the batches, the caches and all counters.
type core struct {
	ranks  []*rank // at least one
	stored *responses
	loras  *loras
	lender *lender
	start  uint64 // number of the start
}

// New starts an engine. The engine listens when New returns. The caller must Close the Engine.
func New(cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, kv: cfg.KVEvents, faults: newFaults(cfg.Seed), quit: make(chan struct{})}
	e.seen.keep = cfg.RecordRequests
	e.mux = e.routes()
	e.network, e.addr = "tcp", cfg.Listen
	if path, unix := strings.CutPrefix(cfg.Listen, "unix:"); unix {
		e.network, e.addr = "unix", path
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.boot(); err != nil {
		return nil, err
	}
	if err := e.open(); err != nil {
		e.halt()
		return nil, err
	}
	return e, nil
}

// Addr returns the bound host:port, or the path of the Unix socket.
func (e *Engine) Addr() string { return e.addr }

// URL returns the base URL of the engine, without a trailing slash. The URL of an engine that
// listens on every address names loopback.
func (e *Engine) URL() string {
	if e.network == "unix" {
		return "unix://" + e.addr
	}
	return "http://" + reachable(e.addr)
}

// reachable returns a bound host:port, with loopback for an unspecified host.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return addr
}

// Close ends all requests, connections and goroutines of the engine and waits for them. Close may
// be called again.
func (e *Engine) Close() {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.quit)
		e.halt()
		e.shut(false)
	}
	e.mu.Unlock()
	e.timers.Wait()
}

// Refuse closes the listener and every connection, like a host without an engine. The engine and
// its cache live on; see Accept.
func (e *Engine) Refuse() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shut(false)
}

// Accept listens again on the same address after Refuse or Kill. After Kill the cache is empty and
// the counters are zero, as after a restart.
func (e *Engine) Accept() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("engine: %s is closed", e.cfg.ID)
	}
	if e.core() == nil {
		if err := e.boot(); err != nil {
			return err
		}
	}
	if e.door != nil {
		return nil
	}
	return e.open()
}

// Kill resets every connection, refuses new ones and drops the cache and the counters, like a
// crash.
func (e *Engine) Kill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shut(true)
	e.halt()
}

// core returns the current core. core is nil after Kill.
func (e *Engine) core() *core { return e.current.Load() }

// boot makes a fresh core. The caller holds e.mu.
func (e *Engine) boot() error {
	publishers, err := newPublishers(e.kv, e.cfg.DataParallel)
	if err != nil {
		return fmt.Errorf("engine %s: %w", e.cfg.ID, err)
	}
	e.keepEndpoints(publishers[0])
	e.starts++
	c := &core{
		stored: newResponses(e.cfg.MaxStored), loras: newLoRAs(&e.cfg), lender: newLender(e.cfg.BlockLease),
		start: e.starts,
	}
	for i, pub := range publishers {
		c.ranks = append(c.ranks, newRank(i, e.cfg, pub, c))
	}
	e.current.Store(c)
	return nil
}

// halt ends the core. The caller holds e.mu.
func (e *Engine) halt() {
	c := e.current.Swap(nil)
	if c == nil {
		return
	}
	c.lender.close()
	for _, r := range c.ranks {
		r.sched.close()
		r.events.close()
	}
}

// keepEndpoints records the ports chosen by the system, so that a restarted engine gets them again.
// The caller holds e.mu.
func (e *Engine) keepEndpoints(p *publisher) {
	if p == nil {
		return
	}
	kv := p.form
	kv.Endpoint = endpointOf(p.pub)
	if p.replay != nil {
		kv.ReplayEndpoint = endpointOf(p.replay)
	}
	e.kv = &kv
}

// KVEndpoints returns the ZMQ endpoints of the first rank, for subscriptions and for replays. The
// endpoints are "" without KV events.
func (e *Engine) KVEndpoints() (events, replay string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.kv == nil {
		return "", ""
	}
	return reachableEndpoint(e.kv.Endpoint), reachableEndpoint(e.kv.ReplayEndpoint)
}

// open listens and serves. The caller holds e.mu.
func (e *Engine) open() error {
	l, err := net.Listen(e.network, e.addr)
	if err != nil {
		return fmt.Errorf("engine %s: %w", e.cfg.ID, err)
	}
	if e.addr != l.Addr().String() {
		e.addr = l.Addr().String() // only the first time; later the address is bound already
	}
	if err := e.openSide(); err != nil {
		_ = l.Close()
		return fmt.Errorf("engine %s: SideChannel: %w", e.cfg.ID, err)
	}
	e.door = newDoor(l, e, &e.traffic.connections)
	return nil
}

// shut closes listener and connections and waits for their goroutines. The caller holds e.mu.
func (e *Engine) shut(reset bool) {
	if e.door == nil {
		return
	}
	e.door.close(reset)
	if e.side != nil {
		e.side.close(reset)
	}
	e.door, e.side = nil, nil
}

func reachableEndpoint(endpoint string) string {
	if addr, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		return "tcp://" + reachable(addr)
	}
	return endpoint
}
