//go:build linux && cgo && rdma

package verbs

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/rdma"
)

const (
	speedRounds = 5    // rounds of ours and perftest's in turn; the median counts
	speedReads  = 1000 // reads of 64 B in a round
)

// TestSpeed prints the results for make perf-rdma.
func TestSpeed(t *testing.T) {
	d := opened(t)
	heading(t, "between two ends of one card")
	for _, size := range []int{1 << 20, 8 << 20} {
		n := 128 << 20 / size
		args := []string{"-s", strconv.Itoa(size), "-n", strconv.Itoa(n)}
		row(t, fmt.Sprintf("READ of %d MiB, one pair, MiB/s", size>>20), func() float64 {
			return bandwidthOfOne(t, d, size, n)
		},
			func() float64 { return perftest(t, d, "ib_read_bw", 3, append(args, "-e")...) },
			func() float64 { return perftest(t, d, "ib_read_bw", 3, args...) })
	}
	args := []string{"-s", "64", "-n", strconv.Itoa(speedReads)}
	row(t, "READ of 64 B, µs, median", func() float64 { return latencyOfOne(t, d) },
		func() float64 { return perftest(t, d, "ib_read_lat", 4, append(args, "-e")...) },
		func() float64 { return perftest(t, d, "ib_read_lat", 4, args...) })
	t.Log("|")
	t.Log("| grant and revoke of 1 MiB each, µs each | memory windows | registrations | ratio |")
	t.Log("|---|---|---|---|")
	for _, n := range []int{1, 16, 128} {
		d.limit.Windows = true
		windows := grants(t, d, n)
		d.limit.Windows = false
		registrations := grants(t, d, n)
		t.Logf("| %d at a time | %.0f | %.0f | %.2f |", n, windows, registrations, windows/registrations)
	}
}

func heading(t *testing.T, what string) {
	t.Logf("| %s | ours | perftest with -e | perftest | ours to perftest with -e | ours to perftest |", what)
	t.Log("|---|---|---|---|---|---|")
}

// row prints the medians of rounds in turn: ours, perftest's with -e, where it waits for events as
// we do, and perftest's without -e, where it spins.
func row(t *testing.T, what string, ours, waiting, spinning func() float64) {
	t.Helper()
	var o, w, s []float64
	for range speedRounds {
		o, w, s = append(o, ours()), append(w, waiting()), append(s, spinning())
	}
	t.Logf("| %s | %.0f | %.0f | %.0f | %.2f | %.2f |", what, median(o), median(w), median(s), median(o)/median(w),
		median(o)/median(s))
	t.Logf("%s: %.0f; %.0f; %.0f", what, o, w, s)
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

func bandwidthOfOne(t *testing.T, d *device, size, n int) float64 {
	from, into := registeredIn(t, d, size), registeredIn(t, d, size)
	r, w := connected(t, d, d, rdma.PairOptions{MaxReads: 128})
	return bandwidth(t, r, rdma.Read{Into: into, From: granted(t, w, from)[0].Key()}, n)
}

// bandwidth returns the speed of a read in MiB/s. One Read does the read n times, into and from the
// same memory, as perftest does.
func bandwidth(t *testing.T, p *pair, read rdma.Read, n int) float64 {
	reads := slices.Repeat([]rdma.Read{read}, n)
	if err := p.Read(context.Background(), reads[:1]); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := p.Read(context.Background(), reads); err != nil {
		t.Fatal(err)
	}
	return float64(len(read.Into)*n>>20) / time.Since(began).Seconds()
}

func latencyOfOne(t *testing.T, d *device) float64 {
	from, into := registeredIn(t, d, 4096), registeredIn(t, d, 4096)
	r, w := connected(t, d, d, rdma.PairOptions{})
	return latency(t, r, rdma.Read{Into: into[:64], From: granted(t, w, from)[0].Key()})
}

// latency returns the latency of a read, in µs.
func latency(t *testing.T, p *pair, r rdma.Read) float64 {
	read := []rdma.Read{r}
	var all []float64
	const group = 10 // reading an emulated machine's clock takes a while; perftest counts cycles
	for range speedReads / group {
		began := time.Now()
		for range group {
			if err := p.Read(context.Background(), read); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, float64(time.Since(began).Nanoseconds())/1e3/group)
	}
	return median(all)
}

// grants returns the cost of granting and revoking n windows, in µs for each.
func grants(t *testing.T, d *device, n int) float64 {
	mem := registeredIn(t, d, n<<20)
	_, w := connected(t, d, d, rdma.PairOptions{})
	mems := slices.Collect(slices.Chunk(mem, 1<<20))
	var all []float64
	for range 20 {
		began := time.Now()
		if err := w.Revoke(context.Background(), granted(t, w, mems...)); err != nil {
			t.Fatal(err)
		}
		all = append(all, float64(time.Since(began).Nanoseconds())/1e3/float64(n))
	}
	return median(all)
}

// perftest runs a program of perftest as server and client, and returns a column of its table.
func perftest(t *testing.T, d *device, program string, column int, args ...string) float64 {
	t.Helper()
	args = append([]string{"-d", d.name, "-x", strconv.Itoa(d.gid.index), "-F"}, args...)
	server := exec.CommandContext(within(t), program, args...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Wait() }()
	return client(t, "127.0.0.1", column, program, args...)
}

// client runs a program of perftest against a server that is about to listen.
func client(t *testing.T, server string, column int, program string, args ...string) float64 {
	t.Helper()
	for ctx := within(t); ; {
		out, err := exec.CommandContext(ctx, program, append(args, server)...).CombinedOutput()
		if err == nil {
			return lastRow(t, string(out), column)
		}
		if ctx.Err() != nil || !strings.Contains(string(out), "connect") { // the server does not listen yet
			t.Fatalf("%s: %v: %s", program, err, out)
		}
	}
}

func lastRow(t *testing.T, out string, column int) float64 {
	t.Helper()
	var value float64
	err := fmt.Errorf("no table")
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > column {
			if _, e := strconv.Atoi(fields[0]); e == nil {
				value, err = strconv.ParseFloat(fields[column], 64)
			}
		}
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return value
}
