//go:build linux

package router_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/process"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestMeasureHandover prints the router's CPU for a request of 2 KB that is handed over, beside one
// that is not, and the time between P's answer and D's request, for perf/RESULTS.md.
// MEASURE_HANDOVER is the number of turns of 2,000 requests of each kind.
func TestMeasureHandover(t *testing.T) {
	turns, _ := strconv.Atoi(os.Getenv("MEASURE_HANDOVER"))
	if turns == 0 {
		t.Skip("MEASURE_HANDOVER is not set: it says how many turns to measure")
	}
	fast := func(c *engine.Config) {
		c.Connector, c.DecodeStep, c.PrefillTokensPerSecond, c.RecordRequests = "nixl", 100*time.Microsecond, 1e7, 0
	}
	engines := simulate(t, 2, fast)
	dir := t.TempDir()
	t.Setenv("TEST_MODE", "score")
	cmd, _ := program(t, "router", (*exec.Cmd).Start, &logged{t: t}, dir, "false",
		engines[0].URL()+",id=p,role=prefill", engines[1].URL()+",id=d,role=decode")
	dial := func(name string) *http.Client {
		return &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, name))
			},
			MaxIdleConnsPerHost: 16,
		}}
	}
	s := &site{t: t, client: dial("api"), url: "http://router"}
	admin := &site{t: t, client: dial("admin"), admin: "http://router"}
	eventually(t, "the router serves", func() bool {
		status, _ := admin.get("http://router/readyz")
		return status == 200 && admin.metrics().sum("cgn_router_nodes") >= 0
	})
	const requests, atOnce = 2000, 8
	run := func(turn int, kind string, split bool) float64 {
		before, err := process.Read(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		for first := 0; first < requests; first += 200 {
			mustAll(t, kind, together(atOnce, func(worker int) *reply {
				var r *reply
				for i := first + worker; i < first+200; i += atOnce {
					name := fmt.Sprint(turn, kind, i)
					n := ""
					if !split {
						n = `,"echo":true` // one node, whatever the prompt
					}
					r = s.chat(chatBody(name+strings.Repeat(" says two kilobytes.", 100), streaming+n))
					if p := r.header.Get("x-cgn-prefill-node"); (p != "") != split {
						t.Errorf("%s: prompt from %q", kind, p)
					}
				}
				return r
			}))
		}
		after, err := process.Read(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return float64(after.Sub(before).CPU.Nanoseconds()) / requests / 1000
	}
	var ratios []float64
	for turn := range turns {
		plain, split := run(turn, "plain", false), run(turn, "split", true)
		ratios = append(ratios, split/plain)
		t.Logf("turn %d: %.1f µs of one node, %.1f µs of two, %.2f", turn, plain, split, split/plain)
	}
	slices.Sort(ratios)
	t.Logf("median ratio %.2f of %v", ratios[len(ratios)/2], ratios)
	for _, line := range admin.metrics().lines("cgn_router_handover_seconds_bucket") {
		t.Log(line)
	}
}
