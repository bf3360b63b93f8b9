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
	speedRounds = 5    // of ours and theirs in turn, of which the median counts
	speedReads  = 1000 // of 64 B in a round
)

// TestSpeed prints what make perf-rdma is for.
func TestSpeed(t *testing.T) {
	d := opened(t)
	t.Log("| what | ours | perftest | ratio |")
	t.Log("|---|---|---|---|")
	for _, size := range []int{1 << 20, 8 << 20} {
		var ours, spinning, waiting []float64
		args := []string{"-s", strconv.Itoa(size), "-n", strconv.Itoa(128 << 20 / size)}
		for range speedRounds {
			ours = append(ours, bandwidth(t, d, size, 128<<20/size))
			spinning = append(spinning, perftest(t, d, "ib_read_bw", 3, args...))
			waiting = append(waiting, perftest(t, d, "ib_read_bw", 3, append(args, "-e")...))
		}
		o, p := median(ours), max(median(spinning), median(waiting))
		t.Logf("| READ of %d MiB, one pair, MiB/s (the better of perftest with and without -e) | %.0f | %.0f | %.2f |", size>>20, o, p, o/p)
	}
	var ours, theirs []float64
	for range speedRounds {
		ours = append(ours, latency(t, d))
		theirs = append(theirs, perftest(t, d, "ib_read_lat", 4, "-s", "64", "-n", strconv.Itoa(speedReads), "-e"))
	}
	o, p := median(ours), median(theirs)
	t.Logf("| READ of 64 B, µs, median (perftest with -e) | %.0f | %.0f | %.2f |", o, p, o/p)
	t.Log("| grant and revoke of 1 MiB each, µs each | windows | registrations | ratio |")
	for _, n := range []int{1, 16, 128} {
		d.limit.Windows = true
		windows := grants(t, d, n)
		d.limit.Windows = false
		registrations := grants(t, d, n)
		t.Logf("| %d at a time | %.0f | %.0f | %.2f |", n, windows, registrations, windows/registrations)
	}
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// bandwidth of reads of size, n in one Read, as perftest does it into and from the same memory, in MiB/s.
func bandwidth(t *testing.T, d *device, size, n int) float64 {
	from, into := registeredIn(t, d, size), registeredIn(t, d, size)
	r, w := connected(t, d, d, rdma.PairOptions{MaxReads: 128})
	key := granted(t, w, from)[0].Key()
	reads := slices.Repeat([]rdma.Read{{Into: into, From: key}}, n)
	if err := r.Read(context.Background(), reads[:1]); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := r.Read(context.Background(), reads); err != nil {
		t.Fatal(err)
	}
	return float64(size*n>>20) / time.Since(began).Seconds()
}

func latency(t *testing.T, d *device) float64 {
	from, into := registeredIn(t, d, 4096), registeredIn(t, d, 4096)
	r, w := connected(t, d, d, rdma.PairOptions{})
	read := []rdma.Read{{Into: into[:64], From: granted(t, w, from)[0].Key()}}
	var all []float64
	const group = 10 // an emulated machine's clock takes a while to read; perftest counts cycles
	for range speedReads / group {
		began := time.Now()
		for range group {
			if err := r.Read(context.Background(), read); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, float64(time.Since(began).Nanoseconds())/1e3/group)
	}
	return median(all)
}

// grants is what it costs to grant and revoke, in µs for each of n.
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

// perftest runs a program of perftest against itself, and returns a column of its table.
func perftest(t *testing.T, d *device, program string, column int, args ...string) float64 {
	t.Helper()
	args = append([]string{"-d", d.name, "-x", strconv.Itoa(d.gid.index), "-F"}, args...)
	ctx := within(t)
	server := exec.CommandContext(ctx, program, args...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Wait() }()
	for {
		out, err := exec.CommandContext(ctx, program, append(args, "127.0.0.1")...).CombinedOutput()
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
