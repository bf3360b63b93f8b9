package router_test

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// These constants bound the router's reading from one publisher. A message counts for some bytes
// more than its own.
const (
	eventRate  = 8 << 20 // bytes per second
	eventBurst = 16 << 20
	eventExtra = 512
	eventDebt  = 1 // seconds; the router pauses when the debt is a few hundredths and one message
)

// TestFloodOfEvents checks a publisher that sends as much as it can. The router reads no more than
// the rate allows, and no request fails. The test logs the CPU cost.
func TestFloodOfEvents(t *testing.T) {
	s, pid, in, out := flooded(t)
	count := func(what string) float64 { return s.metrics().sum("cgn_router_kv_events_" + what) }
	eventually(t, "it follows the engine", func() bool { return count("following") == 1 })
	turn := func() {
		if _, err := in.Write([]byte{0}); err != nil {
			t.Fatal(err)
		}
	}
	least := leastMessage()
	const rounds, requests = 3, 300
	perRequest := time.Duration(0) // CPU time of the router in the best round
	var calm, flooded []time.Duration
	shares := 0.0
	for range rounds {
		c := asked(t, s, pid, requests, &calm)
		if each := c.cpu / requests; perRequest == 0 || each < perRequest {
			perRequest = each
		}
		pauses, batches := count("paused_total"), count("batches_total")
		before, began := batches, time.Now()
		turn()
		// A publisher with little CPU time may never send as much as the router reads at once.
		eventually(t, "it is flooded", func() bool {
			return count("paused_total") > pauses || count("batches_total") > batches+1000
		})
		batches = count("batches_total")
		c = asked(t, s, pid, requests, &flooded)
		share := float64(c.cpu-requests*perRequest) / float64(c.over)
		t.Logf("%.0f blocks a second stored and as many removed, with %.2f of a CPU",
			64*(count("batches_total")-batches)/c.over.Seconds(), share)
		shares += share / rounds
		read := (count("batches_total") - before) * float64(least)
		if most := eventBurst + eventRate*(time.Since(began).Seconds()+eventDebt); read > most {
			t.Errorf("%.0f bytes are read, %.0f at most are allowed by then", read, most)
		}
		turn()
		var said float64
		if _, err := fmt.Fscanln(out, &said); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it has read the rest", func() bool { return count("batches_total") == said })
	}
	quantile := func(all []time.Duration, q float64) time.Duration {
		slices.Sort(all)
		return all[int(q*float64(len(all)))]
	}
	t.Logf("a request takes %v of the router's CPU, p50 %v, p99 %v; flooded p50 %v, p99 %v", perRequest,
		quantile(calm, .5), quantile(calm, .99), quantile(flooded, .5), quantile(flooded, .99))
	t.Logf("the flood takes %.2f of a CPU", shares)
	if count("following") != 1 || count("malformed_total")+count("connects_total") != 1 {
		t.Error("it does not follow the publisher as before")
	}
}

// flooded starts a router that follows a publisher. A byte written to in begins a flood, and the
// next byte ends it. out then gives the number of batches.
func flooded(t *testing.T) (s *site, pid int, in io.Writer, out *bufio.Reader) {
	t.Helper()
	said := func(out *bufio.Reader) string {
		t.Helper()
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
	_, out = program(t, "engine", (*exec.Cmd).Start, &logged{t: t})
	url := said(out)
	_, out = program(t, "flood", func(c *exec.Cmd) (err error) {
		if in, err = c.StdinPipe(); err == nil {
			err = c.Start()
		}
		return err
	}, &logged{t: t})
	backend := url + ",id=a,max_concurrent=1000,kv-events=tcp://" + said(out)
	dir, log := t.TempDir(), &logged{t: t}
	cmd, _ := program(t, "router", (*exec.Cmd).Start, log, dir, "false", backend)
	s = unixSite(t, dir, log)
	eventually(t, "the router serves", func() bool { return strings.Contains(log.text(), "router serves") })
	eventually(t, "the engine is eligible", func() bool { return s.eligible() == 1 })
	return s, cmd.Process.Pid, in, out
}

// leastMessage returns how many bytes the shortest message of the flood counts for.
func leastMessage() int {
	least := math.MaxInt
	for _, payload := range floods() {
		least = min(least, len(payload)+eventExtra)
	}
	return least
}

// asked returns the use of process pid while four clients send the given number of requests. asked
// appends the requests' times to took.
func asked(t *testing.T, s *site, pid, requests int, took *[]time.Duration) spent {
	t.Helper()
	before := costOf(t, pid)
	var mu sync.Mutex
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			for i := range requests / 4 {
				r := s.chat(chatBody(fmt.Sprint("client ", c, " request ", i), plain))
				mu.Lock()
				*took = append(*took, r.took)
				mu.Unlock()
				if r.status != 200 {
					t.Errorf("%v", r)
					return
				}
			}
		})
	}
	clients.Wait()
	return costOf(t, pid).since(&before)
}
