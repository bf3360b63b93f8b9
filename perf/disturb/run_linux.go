package disturb

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// settle is the time from the start of the disturbances to the first request, in every mode.
const settle = 3 * time.Second

// Run makes all runs. When ctx ends, Run returns the complete runs and ctx's error.
func Run(ctx context.Context, c Config) (report *Report, err error) {
	c = c.withDefaults()
	groups, err := findControlGroups()
	if err != nil {
		return nil, err
	}
	if c.Bin, err = filepath.Abs(c.Bin); err != nil {
		return nil, err
	}
	if c.Trace != "" {
		if c.Trace, err = filepath.Abs(c.Trace); err != nil {
			return nil, err
		}
	}
	if err := sweep(&c, groups); err != nil {
		return nil, err
	}
	began := time.Now()
	report = &Report{Config: c, Results: map[string][]Result{}}
	defer func() { err = errors.Join(err, clean(&c, pins())) }()
	for round := range c.Rounds {
		for i := range c.Modes {
			m := c.mode(c.Modes[(i+round)%len(c.Modes)]) // rotated, so that no mode is always first
			r, err := one(ctx, &c, m, groups)
			if err != nil {
				return report, err
			}
			report.Results[r.Mode] = append(report.Results[r.Mode], *r)
			fmt.Fprintf(c.Progress, "round %d of %d, %s\n", round+1, c.Rounds, r.line())
			report.Took = time.Since(began)
		}
	}
	return report, nil
}

// clean removes the programs that agents have pinned in a folder.
func clean(c *Config, pins string) error {
	if _, err := os.Stat(pins); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if out, err := exec.Command(filepath.Join(c.Bin, "cgn-ctl"), "bpf", "clean", "--root",
		pins).CombinedOutput(); err != nil {
		return fmt.Errorf("disturb: remove the programs in %s: %w: %s", pins, err, out)
	}
	return nil
}

// sweep removes what killed processes have left.
func sweep(c *Config, groups controlGroups) error {
	var errs []error
	for _, at := range []string{pinRoot, groups.unified, groups.cpu} {
		left, _ := filepath.Glob(filepath.Join(at, namePrefix+"*"))
		for _, folder := range left {
			pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), namePrefix), "-")
			if _, err := os.Stat(filepath.Join("/proc", pid)); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if at == pinRoot {
				errs = append(errs, clean(c, folder))
			} else {
				errs = append(errs, (&group{folders: []string{folder}}).remove())
			}
		}
	}
	return errors.Join(errs...)
}

// one starts a fleet and makes one run with it.
func one(ctx context.Context, c *Config, m Mode, groups controlGroups) (r *Result, err error) {
	dir, err := os.MkdirTemp("", namePrefix)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	f, err := startFleet(ctx, c, m, dir, groups)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	if m.disturbed {
		if err := f.disturb(); err != nil {
			return nil, err
		}
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(settle):
	}
	return f.measure(ctx)
}

// measure replays the trace and collects the figures.
func (f *fleet) measure(ctx context.Context) (*Result, error) {
	text, err := f.replay(ctx)
	if err != nil {
		return nil, err
	}
	r := &Result{Mode: f.mode.Name}
	if err := json.Unmarshal(text, &r.Replay); err != nil {
		return nil, fmt.Errorf("disturb: what bench replay printed: %w", err)
	}
	metrics, err := f.page("/metrics")
	if err != nil {
		return nil, f.router.Explain(err)
	}
	r.Retries = metric(metrics, "cgn_router_retries_total")
	r.Suspected = metric(metrics, "cgn_router_node_suspected_total")
	r.Opens = metric(metrics, "cgn_router_node_breaker_opens_total")
	return r, nil
}

// replay returns the JSON output of bench replay.
func (f *fleet) replay(ctx context.Context) ([]byte, error) {
	requests, err := source(f.c.Trace, f.c.Requests, mostInput)
	if err == nil {
		err = writeTrace(f.path("trace.jsonl"), requests)
	}
	if err != nil {
		return nil, err
	}
	args := []string{"bench", "replay", "--output", "json", "--url", "http://" + routerAt, "--trace",
		f.path("trace.jsonl"), "--turns", "0", "--timeout", "2m",
		"--speed", fmt.Sprint(f.c.Speed), "--max-output-tokens", strconv.Itoa(mostOutput),
		"--spread=" + strconv.FormatBool(f.c.Trace != "")}
	cmd := exec.CommandContext(ctx, f.bin("cgn-ctl"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := f.star.Hub.Start(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, f.router.Explain(fmt.Errorf("bench replay: %w: %s", err, log.String()))
	}
	return out.Bytes(), nil
}
