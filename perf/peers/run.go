package peers

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/procfs"

	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/process"
	"github.com/cognitora/dataplane/perf/replay"
)

// Place is what a run measures: a window of the trace at a load, or the burst.
type Place struct {
	// Window counts from 1. 0 is the burst.
	Window int `json:"window"`
	// Load is a share, in percent, of the rate that round robin holds. The burst has none.
	Load int `json:"load_percent"`
	// Repeat counts from 1.
	Repeat int `json:"repeat"`
}

// String names the place.
func (p Place) String() string {
	if p.Window == 0 {
		return fmt.Sprintf("burst %d", p.Repeat)
	}
	return fmt.Sprintf("%d %%, window %d, repeat %d", p.Load, p.Window, p.Repeat)
}

// Run is the result of one contestant at one place.
type Run struct {
	Place
	Contestant string  `json:"contestant"`
	PerSecond  float64 `json:"requests_per_second"`
	// Replay has the figures as the client saw them.
	Replay *replay.Result `json:"replay,omitempty"`
	// Busiest is the number of requests of the busiest worker divided by the mean.
	Busiest float64 `json:"busiest_to_mean"`
	// CPU is the share of the host's CPU that was busy. Own is the part that the run itself took:
	// workers, router and client. CPU is at least Own, since the kernel counts the host's busy
	// time in ticks, which miss short work.
	CPU float64 `json:"host_cpu"`
	Own float64 `json:"own_cpu"`
	// Void says why the figures do not count; empty: they do.
	Void string `json:"void,omitempty"`
}

const (
	// settle is the time in which a router that has answered finds its other workers.
	settle = 2 * time.Second
	// requestTimeout is the time limit of one request.
	requestTimeout = 3 * time.Minute
)

// playFresh starts fresh workers and a fresh router, and sends the workload at the rate.
func (b *bench) playFresh(ctx context.Context, c *contestant, w *Workload, rate float64) (*Run, error) {
	dir := filepath.Join(b.dir, "run")
	if err := prepare(dir); err != nil {
		return nil, err
	}
	f, err := b.start(ctx, dir, c.native)
	if err != nil {
		return nil, err
	}
	defer f.Stop()
	addrs := f.Addrs
	if c.shim {
		s, err := startShim(f.Addrs)
		if err != nil {
			return nil, err
		}
		defer s.stop()
		addrs = s.Addrs
	}
	site, err := compare.NewSiteBefore(b.Root, modelName, addrs)
	if err != nil {
		return nil, err
	}
	defer site.Close()
	row := c.row(b, f)
	router, err := site.Start(ctx, &row)
	if err != nil {
		return nil, err
	}
	defer router.Stop()
	if c.native {
		if err := b.awaitNative(ctx, router.Addr()); err != nil {
			return nil, err
		}
	}
	if err := wait(ctx, b.settle); err != nil {
		return nil, err
	}
	return b.measure(ctx, f, router.Addr(), w, rate)
}

// measure sends the workload to a router that is ready.
func (b *bench) measure(ctx context.Context, f *Fleet, addr string, w *Workload, rate float64) (*Run, error) {
	before, err := f.Requests(ctx)
	if err != nil {
		return nil, err
	}
	from, err := readCPU()
	if err != nil {
		return nil, err
	}
	requests := source(w.requests)
	result, err := replay.Run(ctx, replay.Config{URL: "http://" + addr, Source: &requests, Body: w.body,
		Speed: rate / w.perSecond, Timeout: requestTimeout})
	if err != nil {
		return nil, err
	}
	to, err := readCPU()
	if err != nil {
		return nil, err
	}
	after, err := f.Requests(ctx)
	if err != nil {
		return nil, err
	}
	r := &Run{PerSecond: rate, Replay: result, Busiest: busiest(before, after)}
	r.CPU, r.Own = to.sharesSince(from)
	r.Void = void(r.CPU, result.LateP99, &b.Config)
	return r, nil
}

// wait waits, unless ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// void says why a run's figures do not count: the host was busy, or the client sent late.
func void(cpu, lateSeconds float64, c *Config) string {
	switch {
	case cpu > c.MostCPU:
		return fmt.Sprintf("%.0f %% of the host's CPU", 100*cpu)
	case lateSeconds > c.MostLate.Seconds():
		return fmt.Sprintf("1 %% of the requests were sent more than %v late", c.MostLate)
	}
	return ""
}

// busiest returns the growth of the count that grew most, divided by the mean growth.
func busiest(before, after []float64) float64 {
	most, sum := 0.0, 0.0
	for i := range after {
		n := after[i] - before[i]
		most, sum = max(most, n), sum+n
	}
	return most * float64(len(after)) / cmp.Or(sum, 1)
}

// cpuTime is CPU time in seconds: of the host since it started, and of this program and those that
// it started.
type cpuTime struct{ busy, all, own float64 }

// readCPU reads the CPU times. Time that a hypervisor took counts as busy.
func readCPU() (cpuTime, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return cpuTime{}, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return cpuTime{}, err
	}
	own, err := process.Read(os.Getpid())
	if err != nil {
		return cpuTime{}, err
	}
	t := stat.CPUTotal
	busy := t.User + t.Nice + t.System + t.IRQ + t.SoftIRQ + t.Steal
	return cpuTime{busy, busy + t.Idle + t.Iowait, own.CPU.Seconds()}, nil
}

// sharesSince returns the shares of the host's CPU time since an earlier reading that were busy,
// and that this program and those that it started took.
func (t cpuTime) sharesSince(from cpuTime) (busy, own float64) {
	all := cmp.Or(t.all-from.all, 1)
	own = (t.own - from.own) / all
	return min(max((t.busy-from.busy)/all, own), 1), own
}

// folder makes the folder of the bench, with the model.
func (b *bench) folder() (err error) {
	if b.dir, err = os.MkdirTemp("", "cgn-peers-"); err != nil {
		return err
	}
	b.model = filepath.Join(b.dir, "model")
	if err := os.Mkdir(b.model, 0o755); err != nil {
		return err
	}
	return writeModel(b.model)
}
