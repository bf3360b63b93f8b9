//go:build linux

package router_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/netpath"
	"github.com/cognitora/dataplane/router"
)

// rate sends n requests a second for the time d, for 100 tokens in 0.2 s each. rate returns the
// outcomes once all have ended.
func (s *site) rate(n int, d time.Duration, more string) []outcome {
	var mu sync.Mutex
	var all []outcome
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(n))
	defer tick.Stop()
	for i, end := 0, time.Now().Add(d); time.Now().Before(end); i++ {
		<-tick.C
		wg.Go(func() {
			began := time.Now()
			r := s.chat(chatBody(fmt.Sprint("request ", i), more+`,"max_tokens":100`))
			mu.Lock()
			defer mu.Unlock()
			all = append(all, outcome{r, began})
		})
	}
	wg.Wait()
	return all
}

// TestMeasureDeadNode prints how long a dead node is picked, for perf/RESULTS.md. MEASURE_DEAD_NODE
// is the number of runs.
func TestMeasureDeadNode(t *testing.T) {
	times, _ := strconv.Atoi(os.Getenv("MEASURE_DEAD_NODE"))
	if times == 0 {
		t.Skip("MEASURE_DEAD_NODE is not set: it says how often to measure")
	}
	for kind, more := range map[string]string{"streams": `,"stream":true`, "calls": ""} {
		for _, watch := range []bool{true, false} {
			t.Run(fmt.Sprintf("cut off, %s, watch_nodes=%v", kind, watch), func(t *testing.T) {
				measure(t, times, more, func(t *testing.T) (*site, func()) {
					i := maroon(t, 2, watch)
					return i.site, func() { i.path.Set(netpath.Conditions{Loss: 1}) }
				})
			})
		}
		t.Run("killed, "+kind, func(t *testing.T) { measureKilled(t, times, more) })
	}
}

func measureKilled(t *testing.T, times int, more string) {
	measure(t, times, more, func(t *testing.T) (*site, func()) {
		cmd, out := program(t, "engine", (*exec.Cmd).Start, &logged{t: t})
		killed, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		engines := simulate(t, 2)
		s := serve(t, nil, inTurn, func(c *router.Config) {
			c.Router.Backends = []string{engines[0].URL(), engines[1].URL(), strings.TrimSpace(killed) + ",id=killed"}
		})
		return s, func() { cmd.Process.Kill(); cmd.Wait() }
	})
}

// measure kills the node in the middle of 10 s of 100 requests a second.
func measure(t *testing.T, times int, more string, prepare func(t *testing.T) (s *site, die func())) {
	var picked, slowest []time.Duration
	failed, cut, asked := 0, 0, 0
	for range times {
		t.Run("", func(t *testing.T) {
			s, die := prepare(t)
			eventually(t, "every node is eligible", func() bool { return s.eligible() == 3 })
			s.rate(100, time.Second, more)
			died := make(chan time.Time, 1)
			time.AfterFunc(2*time.Second, func() { die(); died <- time.Now() })
			all := s.rate(100, 10*time.Second, more)
			at, longest := <-died, time.Duration(0)
			for _, a := range all {
				longest = max(longest, a.took)
				if a.status != 200 {
					failed++
				} else if a.err != nil || strings.Contains(string(a.body), `"error"`) {
					cut++
				}
			}
			asked += len(all)
			picked, slowest = append(picked, lastPick(all, at)), append(slowest, longest)
		})
	}
	slices.Sort(picked)
	slices.Sort(slowest)
	show := func(d []time.Duration) string {
		return fmt.Sprintf("median %v, %v to %v", d[len(d)/2].Round(100*time.Microsecond),
			d[0].Round(100*time.Microsecond), d[len(d)-1].Round(100*time.Microsecond))
	}
	t.Logf("last pick after the fault: %s; slowest request: %s; of %d requests %d got an error and %d streams under "+
		"way ended with one",
		show(picked), show(slowest), asked, failed, cut)
}
