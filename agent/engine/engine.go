package engine

import (
	"cmp"
	"log/slog"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/apikey"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/enginemetrics"
	"github.com/cognitora/dataplane/internal/lora"
)

// State holds the known figures of the engine. A State is immutable once published.
type State struct {
	Ready        bool
	Reason       string       // why the engine is not ready
	Models       []string     // sorted; while not ready, the last known names
	Adapters     []lora.State // LoRA adapters among Models, sorted by name
	AdapterSlots int          // adapters that the engine can use at once; 0: unknown
	Epoch        int64        // start of the engine's present life; it changes when the engine's cache is lost
	Stats        enginemetrics.Stats
	Beyond       float64              // requests at the last look that Options.Held does not count; 0 if unknown
	Slots        int                  // requests that the engine computes at once; 0: unknown
	Version      string               // of the engine; empty: unknown
	Ranks        int                  // data-parallel ranks; 0: unknown
	ByRank       []enginemetrics.Rank // of the last look, like Stats; nil: the engine has one rank
	Restarts     int64
}

// Options of New beyond the configuration.
type Options struct {
	TP            int      // tensor-parallel size for a started engine
	DataParallel  int      // data-parallel ranks of a started engine
	DType         string   // data type for a started engine
	MaxConcurrent int      // concurrent requests of a started engine; 0: its own choice
	Role          string   // the node's role: prefill, decode or both
	Host          string   // host under which other nodes reach this one
	GPUs          []string // GPUs that a started engine may see: index or UUID; empty: all of the environment's
	// PortTaken tells whether a free port is reserved, for example for another engine that is to
	// start. With nil no port is.
	PortTaken func(port int) bool
	StateDir  string     // directory for LMCache's configuration
	Node      string     // id of the node, under which the connector kvcached says what the engine can read
	Held      func() int // returns the agent's own requests at the engine; nil: none
	Counters  Counters
	Logger    *slog.Logger
}

// Counters are the counters of an engine; a nil counter is not counted.
type Counters struct {
	Restarts         prometheus.Counter // restarts of a started engine
	Answered, Failed prometheus.Counter // looks by result
}

func inc(c prometheus.Counter) {
	if c != nil {
		c.Inc()
	}
}

// Engine is one engine, attached to or started. Run owns all its goroutines.
type Engine struct {
	config   *Config
	endpoint address.Address
	key      string
	prober   *prober
	sup      *supervisor // nil if the engine is attached to
	log      *slog.Logger

	state    atomic.Pointer[State]
	adapters lora.Set
	changed  chan struct{}
	relist   chan struct{} // asks for a look at the models
	changes  changes
	count    Counters
	holds    func() int // Options.Held

	life    life // owned by the goroutine of Run
	leftOut int  // models left out of the announcement at the last look; owned by the goroutine of Run
	told    struct {
		reason string // logged reason for not being ready
		at     time.Time
	} // owned by the goroutine of Run
}

// New prepares the engine. New starts and asks nothing; Run does.
func New(c *Config, o Options) (*Engine, error) {
	e := &Engine{config: c, log: cmp.Or(o.Logger, slog.Default()), count: o.Counters, holds: o.Held,
		changed: make(chan struct{}, 1), relist: make(chan struct{}, 1)}
	e.changes.init()
	var err error
	if e.key, err = readKey(c.APIKeyFile); err != nil {
		return nil, err
	}
	if c.Spawns() {
		err = e.prepareSpawn(o)
	} else {
		e.endpoint, err = address.Parse(c.URL)
	}
	if err != nil {
		return nil, err
	}
	if e.prober, err = newProber(c, e.endpoint, e.key); err != nil {
		return nil, err
	}
	e.state.Store(&State{Reason: "not looked at yet", Models: c.Models})
	return e, nil
}

func readKey(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	key, err := apikey.Read(file)
	if err != nil {
		return "", wrong("api_key_file", "%w; name a file that holds the engine's key alone", err)
	}
	return key, nil
}

func (e *Engine) prepareSpawn(o Options) error {
	port, err := e.config.Port, error(nil)
	if port == 0 {
		if port, err = freePort(e.config.listenHost(), o.PortTaken); err != nil {
			return err
		}
	}
	if err := e.config.writeLMCacheFile(o.StateDir); err != nil {
		return err
	}
	launch := Launch{
		Port: port, TP: o.TP, DataParallel: o.DataParallel, DType: o.DType, MaxConcurrent: o.MaxConcurrent,
		APIKey: e.key, GPUs: o.GPUs, Role: o.Role, Host: o.Host, StateDir: o.StateDir, Node: o.Node,
	}
	argv, env := e.config.Command(launch)
	if argv[0], err = lookUp(argv[0]); err != nil {
		return err
	}
	addr := net.JoinHostPort(e.config.dialHost(), strconv.Itoa(port))
	e.endpoint = address.Address{Network: "tcp", Addr: addr, Host: addr}
	e.sup = &supervisor{
		argv: argv, env: environment(env), log: e.log, event: make(chan struct{}, 1),
		fallback: e.config.fallback(launch, argv[0]),
		grace:    e.config.StopGrace.Std(),
		backoff: backoff{first: e.config.RestartDelay.Std(), most: e.config.RestartDelayMax.Std(),
			stable: e.config.StableAfter.Std()},
		reason: "engine not started yet",
		count:  e.count.Restarts,
	}
	return nil
}

// lookUp finds the program of a started engine.
func lookUp(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", wrong("binary", "%q cannot be run (%w); install it, give its path, or set %s to attach to a "+
			"running engine", program, err, config.Mention{Key: "url"})
	}
	return path, nil
}

// freePort returns a port that nothing listens on at host now and for which taken is false. taken
// may be nil.
func freePort(host string, taken func(port int) bool) (int, error) {
	for range 64 {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return 0, wrong("port", "0, and no port is free: %w", err)
		}
		port := ln.Addr().(*net.TCPAddr).Port
		_ = ln.Close()
		if taken == nil || !taken(port) {
			return port, nil
		}
	}
	return 0, wrong("port", "0, and the kernel gives ports only that other engines are to listen on; set it")
}

// Endpoint returns the engine's address, which never changes.
func (e *Engine) Endpoint() address.Address { return e.endpoint }

// Authorization returns the header value that the engine asks for, or "".
func (e *Engine) Authorization() string {
	if e.key == "" {
		return ""
	}
	return "Bearer " + e.key
}

// State returns the present state. The caller must not change the returned State.
func (e *Engine) State() *State { return e.state.Load() }

// Bases returns the models that are no LoRA adapters.
func (s *State) Bases() (names []string) {
	for _, name := range s.Models {
		if !slices.ContainsFunc(s.Adapters, func(a lora.State) bool { return a.Name == name }) {
			names = append(names, name)
		}
	}
	return names
}

// UsedAdapter notes that the engine computes for a LoRA adapter. name is not kept.
func (e *Engine) UsedAdapter(name []byte) { e.adapters.UseBytes(name, time.Now()) }

// Changed is signalled when readiness, models, loaded adapters or epoch have changed. Several
// changes may give one signal. There is one receiver.
func (e *Engine) Changed() <-chan struct{} { return e.changed }

// PID returns the process id of the engine that the agent has started; 0: none runs now. ok is
// false for an engine that the agent has not started.
func (e *Engine) PID() (pid int, ok bool) {
	if e.sup == nil {
		return 0, false
	}
	if run, _ := e.sup.running(); run != nil {
		return run.pid, true
	}
	return 0, true
}

// URL returns the engine's address for messages.
func (e *Engine) URL() string {
	switch {
	case e.endpoint.Network == "unix":
		return "unix://" + e.endpoint.Addr
	case e.endpoint.TLS:
		return "https://" + e.endpoint.Host + e.endpoint.BasePath
	}
	return "http://" + e.endpoint.Host + e.endpoint.BasePath
}
