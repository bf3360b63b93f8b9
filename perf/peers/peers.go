package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cognitora/dataplane/perf/compare"
)

// bench is a running comparison.
type bench struct {
	Config
	dir     string // files of runs
	model   string // folder of the model
	windows []*Workload
	field   []contestant // those that are installed
	start   func(ctx context.Context, dir string, native bool) (*Fleet, error)
	play    func(ctx context.Context, c *contestant, w *Workload, rate float64) (*Run, error) // default: playFresh
	settle  time.Duration
	report  *Report
	begun   time.Time
	done    int
}

// Compare compares until it has finished or ctx ends, and returns the runs so far.
func Compare(ctx context.Context, cfg Config) (*Report, error) {
	b := &bench{Config: cfg, settle: settle}
	root, err := filepath.Abs(cfg.Root)
	if err != nil {
		return nil, err
	}
	program := python(filepath.Join(root, ".cache", "peers"))
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("the workers are Dynamo's: %w; install them with perf/compare/install.sh dynamo", err)
	}
	b.start = func(ctx context.Context, dir string, native bool) (*Fleet, error) {
		m := &mocker{Engines: cfg.Engines, python: program, model: b.model, dir: dir}
		return m.start(ctx, native)
	}
	return b.compare(ctx)
}

func (b *bench) compare(ctx context.Context) (report *Report, err error) {
	b.begun, b.report = time.Now(), &Report{Config: b.Config}
	defer func() { b.report.Took, b.report.Interrupted = time.Since(b.begun), ctx.Err() != nil }()
	if err := b.Check(); err != nil {
		return nil, err
	}
	if b.play == nil {
		b.play = b.playFresh
	}
	if b.Windows > 0 {
		if b.windows, err = windows(b.Trace, b.Windows, b.Requests, b.Scale); err != nil {
			return nil, err
		}
	}
	if err := b.folder(); err != nil {
		return nil, err
	}
	defer os.RemoveAll(b.dir)
	if err := b.enter(); err != nil {
		return nil, err
	}
	if err := b.rates(ctx); err != nil || b.RateOnly {
		return b.report, err
	}
	places := b.places()
	for i, p := range places {
		b.turn(ctx, p, i, len(places)*len(b.field))
		if ctx.Err() != nil {
			return b.report, fmt.Errorf("interrupted, nothing is written: %w", ctx.Err())
		}
	}
	return b.report, nil
}

// enter fills in the field, and notes contestants that are not installed.
func (b *bench) enter() error {
	site, err := compare.NewSiteBefore(b.Root, modelName, nil)
	if err != nil {
		return err
	}
	defer site.Close()
	for _, c := range contestants(b.Modes, b.Events) {
		if len(b.Contestants) > 0 && !c.extra && !slices.Contains(b.Contestants, c.name) {
			continue
		}
		row := c.row(b, &Fleet{})
		e := Entrant{Name: c.name, Note: c.note, Missing: site.Missing(&row)}
		if e.Missing == "" {
			e.Version, _ = site.Version(&row) // Missing has tried the command already
			b.field = append(b.field, c)
		} else {
			fmt.Fprintf(b.Progress, "MISSING: %s (%s)\n", c.name, e.Missing)
		}
		b.report.Entrants = append(b.report.Entrants, e)
	}
	if len(b.field) == 0 {
		return errors.New("no contestant is installed")
	}
	return nil
}

// rates takes the given rates, or searches for them.
func (b *bench) rates(ctx context.Context) (err error) {
	switch {
	case len(b.windows) == 0:
	case len(b.Rates) == 0:
		b.report.Rates, err = b.findRates(ctx)
	case len(b.Rates) == 1:
		b.report.Rates = slices.Repeat(b.Rates, len(b.windows))
	default:
		b.report.Rates = b.Rates
	}
	return err
}

// places returns what each contestant measures, in order. A comparison that is interrupted has all
// windows and loads of the earlier repeats.
func (b *bench) places() (all []Place) {
	for repeat := range max(b.Repeats, b.Bursts) {
		for _, load := range b.Loads {
			for window := range b.windows {
				if repeat < b.Repeats {
					all = append(all, Place{Window: window + 1, Load: load, Repeat: repeat + 1})
				}
			}
		}
		if repeat < b.Bursts {
			all = append(all, Place{Repeat: repeat + 1})
		}
	}
	return all
}

// workload returns what is sent at a place, and its rate.
func (b *bench) workload(p Place) (*Workload, float64) {
	if p.Window == 0 {
		w := burst(p.Repeat)
		return w, w.perSecond
	}
	return b.windows[p.Window-1], b.report.Rates[p.Window-1] * float64(p.Load) / 100
}

// turn measures all contestants at one place. The first of them changes from turn to turn.
func (b *bench) turn(ctx context.Context, p Place, turn, total int) {
	w, rate := b.workload(p)
	for i := range b.field {
		c := &b.field[(turn+i)%len(b.field)]
		b.done++
		for range 2 { // a run that is void is repeated once
			begun := time.Now()
			r, err := b.play(ctx, c, w, rate)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				r = &Run{PerSecond: rate, Void: "failed: " + err.Error()}
			}
			r.Place, r.Contestant = p, c.name
			b.report.Runs = append(b.report.Runs, *r)
			left := time.Since(b.begun) / time.Duration(b.done) * time.Duration(total-b.done)
			fmt.Fprintf(b.Progress, "[%d/%d] %s (%.0f s; about %.0f min left)\n", b.done, total, r.line(),
				time.Since(begun).Seconds(), left.Minutes())
			if r.Void == "" {
				break
			}
		}
	}
}
