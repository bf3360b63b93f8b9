package power

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/await"
)

// GPUs returns the power of all GPUs of the host together, and the time of that reading.
type GPUs func() (watts float64, at time.Time, known bool)

// nvidiaGPUs is the directory in which NVIDIA's driver lists its GPUs.
const nvidiaGPUs = "/proc/driver/nvidia/gpus"

// gpuSearch is the time between two searches for GPUs while there are none. A driver may be loaded
// later.
const gpuSearch = 15 * time.Second

// Source is the status of one way to read power, for metrics and people.
type Source struct {
	Name  string // redfish, dcmi, rapl
	State string // ok, off, starting, or an error
	Read  int64  // successful readings
	Fail  int64  // failed readings
}

// Meter reads every source periodically. New makes a Meter.
type Meter struct {
	config  *Config
	log     *slog.Logger
	gpus    GPUs
	gpuSeen func() bool // tells whether NVIDIA's driver has GPUs

	bmc  *bmc
	rapl *rapl
	ipmi func(path string) (port, error)

	redfishSource, dcmiSource, raplSource source

	mu        sync.Mutex
	state     state
	gpuSought time.Time // when gpuSeen was last called
}

type source struct {
	name       string
	state      atomic.Pointer[string]
	read, fail atomic.Int64
}

func (s *source) enter(state string) (changed bool) {
	if old := s.state.Load(); old != nil && *old == state {
		return false
	}
	s.state.Store(new(state))
	return true
}

func (s *source) show() Source {
	return Source{s.name, *s.state.Load(), s.read.Load(), s.fail.Load()}
}

// New prepares a meter. New opens RAPL's files. Run opens the other sources. gpus may be nil.
func New(c *Config, gpus GPUs, log *slog.Logger) (*Meter, error) {
	m := &Meter{config: c, log: log, gpus: gpus, gpuSeen: hasNVIDIA, ipmi: openIPMI,
		state: state{start: time.Now(), hold: c.StaleAfter.Std()}}
	for s, name := range map[*source]string{&m.redfishSource: "redfish", &m.dcmiSource: "dcmi", &m.raplSource: "rapl"} {
		s.name = name
		s.enter("off")
	}
	if c.Redfish.Address != "" {
		var err error
		if m.bmc, err = newBMC(&c.Redfish); err != nil {
			return nil, err
		}
		m.redfishSource.enter("starting")
	}
	if c.IPMIDevice != "off" {
		m.dcmiSource.enter("starting")
	}
	if c.RAPL != "off" {
		m.openRAPL(powercap)
	}
	return m, nil
}

func (m *Meter) openRAPL(root string) {
	r, err := openRAPL(root)
	if err != nil {
		m.raplSource.enter(err.Error())
		m.raplSource.fail.Add(1)
		m.log.Info("the CPUs' power is not read", "reason", err)
		return
	}
	m.rapl = r
	m.raplSource.enter("starting")
	m.state.expected[cpu], m.state.expected[dram] = true, r.has(dram)
}

func hasNVIDIA() bool {
	entries, err := os.ReadDir(nvidiaGPUs)
	return err == nil && len(entries) > 0
}

// Close releases a meter that is not going to run.
func (m *Meter) Close() { m.rapl.close() }

// Run reads until ctx ends, and waits for the goroutines that it started. Run ends the session at
// the BMC, within 2 s.
func (m *Meter) Run(ctx context.Context) {
	defer m.rapl.close()
	var wg sync.WaitGroup
	defer wg.Wait()
	interval := m.config.Interval.Std()
	if m.rapl == nil && m.gpus == nil {
		interval = max(interval, gpuSearch)
	}
	wg.Go(func() { m.every(ctx, interval, m.readHost) })
	if m.config.IPMIDevice != "off" {
		wg.Go(func() { m.followDCMI(ctx) })
	}
	if m.bmc != nil {
		wg.Go(func() { m.followRedfish(ctx) })
	}
}

// every calls fn at once and then each interval until ctx ends.
func (m *Meter) every(ctx context.Context, interval time.Duration, fn func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		fn()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// readHost reads the sources that cost microseconds: RAPL, and the last reading of the GPUs.
func (m *Meter) readHost() {
	if m.rapl != nil {
		watts, known, err := m.rapl.read(m.state.now) // start never changes, so the clock needs no lock
		m.outcome(&m.raplSource, err)
		m.take(watts, known)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); !m.state.expected[gpu] && now.Sub(m.gpuSought) >= gpuSearch-time.Second {
		m.gpuSought, m.state.expected[gpu] = now, m.gpuSeen()
	}
	if m.gpus == nil {
		return
	}
	if watts, at, known := m.gpus(); known {
		m.state.add(gpu, at.Sub(m.state.start), watts)
	}
}

// take adds the known readings of a source.
func (m *Meter) take(watts [components]float64, known [components]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.state.now()
	for c := range components {
		if known[c] {
			m.state.add(c, now, watts[c])
		}
	}
}

// outcome counts a reading, and logs a change of the source's state.
func (m *Meter) outcome(s *source, err error) {
	if err == nil {
		s.read.Add(1)
		if s.enter("ok") {
			m.log.Info("power is read", "source", s.name)
		}
		return
	}
	s.fail.Add(1)
	if s.enter(err.Error()) {
		m.log.Warn("power cannot be read, trying again", "source", s.name, "error", err)
	}
}

// Readings returns every fresh reading, the whole host's first.
func (m *Meter) Readings() []Reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.state.now()
	list := make([]Reading, 0, components+1)
	if r, known := m.state.node(now); known {
		list = append(list, r)
	}
	for c := range components {
		if r, fresh := m.state.of(c, now); fresh {
			list = append(list, r)
		}
	}
	return list
}

// Node returns the host's power, if it is known now.
func (m *Meter) Node() (Reading, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.node(m.state.now())
}

// Sources returns the status of each source.
func (m *Meter) Sources() []Source {
	return []Source{m.redfishSource.show(), m.dcmiSource.show(), m.raplSource.show()}
}

// Waits after failures.
const (
	retryMost   = time.Minute
	refusedWait = 5 * time.Minute // long, because BMCs lock accounts after a few wrong passwords
)

// followDCMI reads the BMC's power through the kernel's device, and opens the device if needed.
func (m *Meter) followDCMI(ctx context.Context) {
	path, auto := m.config.IPMIDevice, m.config.IPMIDevice == "auto"
	if auto {
		path = ipmiAuto
	}
	var d *dcmi
	defer func() {
		if d != nil {
			_ = d.port.Close()
		}
	}()
	wait := m.config.BMCInterval.Std()
	for {
		err := m.readDCMI(ctx, path, &d)
		if auto && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) || errors.Is(err, errNoDCMI) {
			m.dcmiSource.enter(err.Error())
			m.log.Info("DCMI is not read", "reason", err)
			return
		}
		if ctx.Err() != nil {
			return
		}
		m.outcome(&m.dcmiSource, err)
		if wait = min(2*wait, retryMost); err == nil {
			wait = m.config.BMCInterval.Std()
		}
		if !await.For(ctx, wait) {
			return
		}
	}
}

func (m *Meter) readDCMI(ctx context.Context, path string, d **dcmi) error {
	if *d == nil {
		p, err := m.ipmi(path)
		if err != nil {
			return err
		}
		*d = &dcmi{port: p, limit: ipmiTimeout}
	}
	watts, err := (*d).read(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.add(system, m.state.now(), watts)
	return nil
}

// followRedfish reads the BMC's power through its Redfish service.
func (m *Meter) followRedfish(ctx context.Context) {
	defer m.bmc.close()
	interval := m.config.BMCInterval.Std()
	wait := interval
	for {
		watts, known, err := m.bmc.read(ctx)
		if ctx.Err() != nil {
			return
		}
		m.outcome(&m.redfishSource, err)
		m.take(watts, known)
		switch {
		case err == nil:
			wait = interval
		case errors.Is(err, errRefused):
			wait = refusedWait
		default:
			wait = min(2*wait, retryMost)
		}
		if !await.For(ctx, wait) {
			return
		}
	}
}
