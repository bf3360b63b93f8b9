package gpu

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/await"
)

// driver is a loaded NVML. One goroutine uses the driver.
type driver interface {
	// read returns the present figures of every device. An error means that the driver is lost and
	// must be opened anew.
	read() ([]Device, error)
	close()
}

var errBuiltWithout = errors.New("built without NVML")

// Waits of the monitor.
const (
	retryFirst = 5 * time.Second
	retryMost  = time.Minute
	stopLimit  = 2 * time.Second
	grace      = 2 * time.Second // added to three intervals gives the age at which a reading is stale
)

// Monitor reads the GPUs periodically. New makes a Monitor.
type Monitor struct {
	config *Config
	log    *slog.Logger
	open   func(library string) (driver, error)
	stop   time.Duration

	latest atomic.Pointer[reading]
	state  atomic.Pointer[string]
	failed atomic.Int64
}

type reading struct {
	devices []Device
	at      time.Time
}

// New prepares a monitor. New does not load NVML; Run does.
func New(c *Config, log *slog.Logger) *Monitor {
	m := &Monitor{config: c, log: log, open: open, stop: stopLimit}
	m.enter("starting")
	switch {
	case c.NVML == "off":
		m.enter("off")
	case !BuiltIn:
		m.enter(errBuiltWithout.Error())
	}
	return m
}

// State returns the state of NVML: "ok", "off", "starting", "built without NVML", or an error.
func (m *Monitor) State() string { return *m.state.Load() }

// Failures returns how often NVML could not be opened or was lost.
func (m *Monitor) Failures() int64 { return m.failed.Load() }

func (m *Monitor) enter(state string) (changed bool) {
	if old := m.state.Load(); old != nil && *old == state {
		return false
	}
	next := state // a copy: the parameter's address would move it to the heap
	m.state.Store(&next)
	return true
}

// Devices returns the host's devices; nil without a fresh reading. The slice is shared: do not
// write to it.
func (m *Monitor) Devices() []Device {
	r := m.latest.Load()
	if r == nil || time.Since(r.at) > 3*m.config.Interval.Std()+grace {
		return nil
	}
	return r.devices
}

// Run reads until ctx ends. Then Run waits for a running call to the driver, but at most 2 s: the
// thread of a hanging driver ends with the process.
func (m *Monitor) Run(ctx context.Context) {
	if m.config.NVML == "off" {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.loop(ctx)
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(m.stop):
		m.log.Error("a call of NVML does not return; it is left behind")
	}
}

// loop opens the driver, and opens it again when it is lost.
func (m *Monitor) loop(ctx context.Context) {
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		d, err := m.open(m.config.Library)
		if err == nil {
			if err = m.follow(ctx, d); err == nil {
				return
			}
			wait = retryFirst
		}
		m.latest.Store(nil)
		if errors.Is(err, errBuiltWithout) {
			m.log.Info("GPUs are not read", "reason", err)
			return
		}
		m.failed.Add(1)
		if m.enter(err.Error()) {
			m.log.Warn("GPUs cannot be read, trying again", "error", err)
		}
		if !await.For(ctx, wait) {
			return
		}
	}
}

// follow reads d until ctx ends (nil) or the driver is lost, and closes d.
func (m *Monitor) follow(ctx context.Context, d driver) error {
	defer d.close()
	ticker := time.NewTicker(m.config.Interval.Std())
	defer ticker.Stop()
	for {
		devices, err := d.read()
		if err != nil {
			return err
		}
		m.latest.Store(&reading{devices, time.Now()})
		if m.enter("ok") {
			m.tell(devices)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// tell logs each device once, with the figures that it does not report.
func (m *Monitor) tell(devices []Device) {
	for i := range devices {
		d := &devices[i]
		m.log.Info("GPU is read", "gpu", d.Name, "uuid", d.UUID, "model", d.Model, "split", d.Split, "sm_unknown",
			d.Why)
	}
	if len(devices) == 0 {
		m.log.Warn("NVML works and shows no GPU")
	}
}
