package shared

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// targetExact is how much longer than a bare EVALSHA a request in exact mode may take, at the 99th
// percentile.
const targetExact = 1.5

// figures are of one round: of a request's time, and processor time of one request.
type figures struct{ p50, p99, server, client float64 } // us

// commands runs the commands of a reservation, and nothing else.
const commands = `redis.call('TIME')
redis.call('HMGET', KEYS[2], '#', '#a', 'rpm', 'rpm#a', 'tpm', 'tpm#a', 'at a time', 'at a time#a')
redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1])
redis.call('HSET', KEYS[2], 'rpm', ARGV[5], 'tpm', ARGV[5], 'tpm#a', ARGV[5], 'at a time', ARGV[5], 'at a time#a', ARGV[5])
return {1}`

// TestExactAgainstBare compares exact mode, and parts of it, with a script that does nothing with
// the same arguments. The measurements are interleaved, with the same clients, connections and
// server. The test prints medians over rounds, and fails only if the p99's ratio of most rounds is
// beyond the target.
func TestExactAgainstBare(t *testing.T) {
	if os.Getenv("CGN_BENCH") == "" {
		t.Skip("set CGN_BENCH=1: wants a quiet machine")
	}
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}, Exact: true})
	bare, floor := newScript("return {1}"), newScript(commands)
	for _, is := range []*script{bare, floor} {
		if err := l.db.ScriptLoad(t.Context(), is.source).Err(); err != nil {
			t.Fatal(err)
		}
	}
	k, other := subject(l, "acme", "key"), subject(l, "acme", "other")
	limits := []Limit{k.of(rpm, 1e9, 1), k.of(tpm, 1e12, 500), k.of(flight, 1e6, 1)}
	ask := func(as *script) func() {
		c := l.scripts.newRequests([]*request{{id: l.next(), limits: limits}})
		if as == floor {
			c.keys[1] = other.hash
		}
		c.script = as
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if _, err := l.scripts.run(ctx, l.db, c); err != nil {
			t.Error(err)
		}
		return func() {}
	}
	whole := func() func() {
		r := new(Reservation)
		if no, v := l.Reserve(r, limits); v != Admitted || r.by != byRedis {
			t.Errorf("verdict %d, %+v", v, no)
		}
		return func() { r.Settle([]int64{1, 200, 1}) }
	}
	ways := []struct {
		what string
		of   func() func()
	}{
		{"bare", func() func() { return ask(bare) }},
		{"its commands alone", func() func() { return ask(floor) }},
		{"one at a time, without settlements", func() func() { return ask(l.scripts.reserve) }},
		{"all", whole},
	}
	const rounds = 15
	for _, clients := range []int{1, 4, 16} {
		requests := 250 + 250*clients
		all := make([][]figures, len(ways))
		for range rounds {
			for i := range ways {
				all[i] = append(all[i], s.measure(l, clients, requests, ways[i].of))
			}
		}
		for i := 1; i < len(ways); i++ {
			ratio := compare(t, fmt.Sprintf("%d clients, %s", clients, ways[i].what), all[i], all[0])
			if i == len(ways)-1 && ratio[rounds/4] > targetExact {
				t.Errorf("a ratio of %.2f, at most %.2f", ratio[rounds/2], targetExact)
			}
		}
	}
}

// compare prints medians, and returns the sorted ratios of the 99th percentiles.
func compare(t *testing.T, what string, ours, bare []figures) (ratios []float64) {
	t.Helper()
	n := len(ours)
	for _, figure := range []struct {
		name string
		of   func(figures) float64
	}{
		{"processor of the server", func(f figures) float64 { return f.server }},
		{"processor of both", func(f figures) float64 { return f.server + f.client }},
		{"p50", func(f figures) float64 { return f.p50 }},
		{"p99", func(f figures) float64 { return f.p99 }},
	} {
		a, b := make([]float64, n), make([]float64, n)
		ratios = make([]float64, n)
		for i := range n {
			a[i], b[i] = figure.of(ours[i]), figure.of(bare[i])
			ratios[i] = a[i] / b[i]
		}
		for _, all := range [][]float64{a, b, ratios} {
			slices.Sort(all)
		}
		t.Logf("%s, %s: %.0f us, bare %.0f, ratio %.2f (%.2f to %.2f)", what, figure.name, a[n/2], b[n/2],
			ratios[n/2], ratios[n/4], ratios[n*3/4])
	}
	return ratios
}

// measure makes n requests. What f returns is not in a request's time.
func (s *server) measure(l *Limiter, clients, n int, f func() func()) figures {
	var all sync.WaitGroup
	n /= clients
	took := make([]float64, clients*n)
	server, client := s.processor(), processor(s.t)
	for c := range clients {
		all.Go(func() {
			for i := range n {
				began := time.Now()
				after := f()
				took[c*n+i] = float64(time.Since(began).Nanoseconds()) / 1e3
				after()
				time.Sleep(time.Millisecond) // of a router that is not at its end
			}
		})
	}
	all.Wait()
	settled(s.t, l)
	each := float64(len(took))
	slices.Sort(took)
	return figures{took[len(took)/2], took[len(took)*99/100], (s.processor() - server) / each,
		(processor(s.t) - client) / each}
}

// processor returns the processor time of the server so far, in us.
func (s *server) processor() (us float64) {
	text, err := s.db.Info(s.t.Context(), "cpu").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			var seconds float64
			_, _ = fmt.Sscan(value, &seconds)
			us += seconds * 1e6
		}
	}
	return us
}

// processor returns the processor time of this process so far, in us.
func processor(t testing.TB) float64 {
	var is syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &is); err != nil {
		t.Fatal(err)
	}
	return float64(is.Utime.Nano()+is.Stime.Nano()) / 1e3
}
