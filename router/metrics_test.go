package router_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	nodeload "github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// elsewhere lists the metrics that other tests check. These are the metrics of etcd and of bugs,
// and of a fleet with nothing but server errors. Others are of cache daemons (TestCacheMetrics), of
// KV events (TestStaticBackendsEvents), of tokenizers (TestExactDigests), of learned tokens
// (TestLearnedTokens), of adapters (TestRequestsStayWithTheirAdapter and TestAdaptersOfAgents) and
// of too many sessions (package affinity). The metrics of agents are in TestKernelSignals,
// TestKernelEvents and packages signals and peerevents, those of mode predicted in
// TestExpectedTimesAreSeen, those of cascades in TestCascade and others, those of hand-overs in
// TestPromptIsHandedOver and TestMishapsOfHandovers, those of streams that go on in TestStreamsGoOn
// and TestBrokenStreamsTakeTurns, those of takeovers in cmd/cgn-router, those of traces in
// TestLostSpans, those of API keys in TestBadKeys, those of tokens in TestTokens, those of TLS in
// TestCertificatesChangeUnderLoad, those of the audit log in TestFloodOfRefusals and
// TestAuditLinesThatAreLost, those of the queue in TestQueueOrder, TestLeavingTheQueue and package
// queue, those of limits in TestLimitHeaders, TestFloodOfNames and TestSharedLimits, and those of
// usage in TestUsageErrors and package tally, and those of tenants in TestTenantsAreCounted.
var elsewhere = func() map[string]bool {
	all := map[string]bool{
		"cgn_router_fleet_malformed_total": true, "cgn_router_fleet_stale": true, "cgn_router_panics_total": true,
		"cgn_router_last_resort_total": true, "cgn_router_takeovers_total": true,
		"cgn_router_node_suspect": true, "cgn_router_node_suspected_total": true,
		"cgn_router_node_silent_cut_total": true, "cgn_router_node_power_watts": true,
		"cgn_router_node_signal_age_seconds":  true,
		"cgn_router_node_path_rtt_seconds":    true,
		"cgn_router_node_path_segments_total": true, "cgn_router_node_path_retransmits_total": true,
		"cgn_router_node_path_timeouts_total": true, "cgn_router_kernel_events_connected": true,
		"cgn_router_kernel_events_peers": true, "cgn_router_kernel_events_left_out": true,
		"cgn_router_kernel_events_total": true, "cgn_router_kernel_events_lost_total": true,
		"cgn_router_kernel_events_breaks_total": true, "cgn_router_kernel_events_malformed_total": true,
		"cgn_router_kernel_event_lag_seconds": true, "cgn_router_signal_lag_seconds": true,
		"cgn_router_signal_breaks_total": true, "cgn_router_signal_malformed_total": true,
		"cgn_router_signal_readings_total": true, "cgn_router_sessions_dropped_total": true,
		"cgn_router_adapter_loads_total": true, "cgn_router_node_adapters": true,
		"cgn_router_spans_dropped_total": true,
		"cgn_router_node_slowdown_ratio": true, "cgn_router_expected_ttft_error_seconds": true,
		"cgn_router_expected_ttft_error_ratio": true, "cgn_router_expected_length_error_tokens": true,
		"cgn_router_cascade_steps_total": true, "cgn_router_cascade_unjudged_total": true,
		"cgn_router_cascade_tokens_total": true,
		"cgn_router_handovers_total":      true, "cgn_router_handover_seconds": true,
		"cgn_router_prefill_seconds": true, "cgn_router_resumed_total": true,
		"cgn_router_body_bytes": true, "cgn_router_resume_bytes": true, "cgn_router_resuming_streams": true,
		"cgn_router_queue_requests": true, "cgn_router_queue_bytes": true, "cgn_router_queue_forgotten_total": true,
		"cgn_router_queue_seconds": true, "cgn_router_queue_refused_total": true,
		"cgn_router_api_keys": true, "cgn_router_api_keys_stale": true, "cgn_router_oidc_keys": true,
		"cgn_router_tls_certificate_end_seconds": true, "cgn_router_tls_reload_failures_total": true,
		"cgn_router_oidc_keys_age_seconds": true, "cgn_router_oidc_readings_total": true,
		"cgn_router_oidc_tokens_total": true,
		"cgn_router_audit_lost_total":  true, "cgn_router_audit_suppressed_total": true,
		"cgn_router_limited_total": true, "cgn_router_limit_accounts": true, "cgn_router_limit_used_ratio": true,
		"cgn_router_shared_limits_up": true, "cgn_router_shared_limits_routers": true,
		"cgn_router_shared_limits_round_trips_total": true, "cgn_router_shared_limits_failures_total": true,
		"cgn_router_shared_limits_waits_total": true, "cgn_router_shared_limits_late_total": true,
		"cgn_router_shared_limits_alone_total": true, "cgn_router_shared_limits_unsettled": true,
		"cgn_router_shared_limits_dropped_total": true,
		"cgn_router_usage_rows":                  true, "cgn_router_usage_folded_total": true,
		"cgn_router_usage_unwritten": true, "cgn_router_usage_lost_total": true,
		"cgn_router_tenant_requests_total": true, "cgn_router_tenant_tokens_total": true,
	}
	for _, sample := range nodeload.Samples() {
		for _, signal := range sample.Signals {
			if signal.Metric != "" {
				all["cgn_router_node_"+signal.Metric] = true
			}
		}
	}
	return all
}()

// TestEveryMetricMoves checks that each metric of the reference changes when its event happens.
func TestEveryMetricMoves(t *testing.T) {
	t.Parallel()
	policy := filepath.Join(t.TempDir(), "policy.json")
	write(t, policy, `{"mode":"score"}`)
	access, unclog := clogged(t)
	s := serve(t, simulate(t, 4), func(c *router.Config) {
		c.Router.PolicyFile, c.Retry.Floor, c.Retry.Percent = policy, 64, 1
		c.Log.Access, c.Log.AccessQueue, c.Router.Resume.Mode = access, 1, "off"
		c.Timeouts.PatienceFloor, c.Timeouts.StallFloor = config.Duration(time.Second), config.Duration(time.Second)
	})
	t.Cleanup(unclog) // before the router stops
	write(t, policy, `{"mode":"score","epsilon":0.02}`)
	s.NoteReload(errors.New("a mistake"))
	before := s.metrics()
	s.succeed()
	during := s.stall()
	s.fail()
	for range 8 { // a hanging node is set aside; again if no request went to that node
		s.engines[1].SetFault(&engine.Fault{Hang: true})
		mustAll(t, "one hangs", sixteen(s, "while one hangs", streaming))
		if s.metrics().sum("cgn_router_set_aside_total", `node="sim-1"`) > 0 {
			break
		}
	}
	if p := s.metrics(); p.sum("cgn_router_node_eligible", `node="sim-1"`) != 0 ||
		p.sum("cgn_router_node_state", `node="sim-1"`, `state="aside"`) != 1 {
		t.Error("a node that is set aside is said to be eligible, or another state than that")
	}
	noFault(s.engines[1])
	for range 8 { // more retries than 10 s allow
		together(64, func(i int) *reply { return s.chat(chatBody("nobody can", plain), "x-sim-fault", "status=429") })
		if s.metrics().sum("cgn_router_retries_refused_total") > 0 {
			break
		}
	}
	eventually(t, "the other policy is in force", func() bool {
		return s.metrics().sum("cgn_router_policy_reloads_total") > 0
	})
	eventually(t, "the access log is behind", func() bool {
		s.get(s.url + "/v1/models")
		return s.metrics().sum("cgn_router_access_log_dropped_total") > 0
	})
	after := s.metrics()
	allMoved(t, before, during, after)
	for id, n := range s.nodes() {
		if v := after.sum("cgn_router_block_lifetime_seconds", `node="`+id+`"`); v < 1 ||
			math.Abs(v-n.Lifetime) > n.Lifetime/2 {
			t.Errorf("blocks of %s are believed for %v s in the metrics, %v s in /debug/fleet", id, v, n.Lifetime)
		}
	}
}

// allMoved checks that each metric of the reference, except those elsewhere, has changed from
// before to after. A gauge must have had a value during the test.
func allMoved(t *testing.T, before, during, after page) {
	t.Helper()
	reference, err := os.ReadFile("../deploy/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `(cgn_router_[a-z0-9_]+)` \\| ([a-z]+) ")
	rows := row.FindAllStringSubmatch(string(reference), -1)
	if len(rows) < 35 {
		t.Fatalf("%d metrics in the reference", len(rows))
	}
	for _, row := range rows {
		name, kind := row[1], row[2]
		series := name
		if kind == "histogram" {
			series += "_sum"
		}
		if moved := after.sum(series) - before.sum(series); elsewhere[name] ||
			strings.HasPrefix(name, "cgn_router_caches") || strings.HasPrefix(name, "cgn_router_kv_events") ||
			strings.HasPrefix(name, "cgn_router_tokenise") ||
			strings.HasPrefix(name, "cgn_router_learned") || moved > 0 || moved < 0 && kind == "histogram" {
			continue
		}
		if kind != "gauge" || math.Max(during.sum(series), after.sum(series)) == 0 {
			t.Errorf("%s is %v, as it was, and %v while a stream ran", series, after.sum(series), during.sum(series))
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// clogged is a file for an access log that blocks writers until unclog.
func clogged(t *testing.T) (name string, unclog func()) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "access")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0) // so that writers find a reader
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	pipe, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	full := false
	if err := pipe.Write(func(fd uintptr) bool {
		for range 1 << 10 { // more than the pipe holds
			if _, err := syscall.Write(int(fd), make([]byte, 4<<10)); err == syscall.EAGAIN {
				full = true
				break
			}
		}
		return true
	}); err != nil || !full {
		t.Fatalf("the pipe is not full: %v", err)
	}
	return name, func() { go io.Copy(io.Discard, f) }
}

// succeed makes requests that change the counts of good answers. succeed checks the counts that are
// known exactly.
func (s *site) succeed() {
	s.t.Helper()
	const requests, output = 5, 8
	var prompt, held float64
	began := time.Now()
	for range requests {
		r := s.chat(chatBody(document(1, 20000), withUsage))
		mustAll(s.t, "the same again", []*reply{r})
		var p, c float64
		usage := regexp.MustCompile(`"prompt_tokens":(\d+).*"cached_tokens":(\d+)`).FindStringSubmatch(string(r.body))
		if usage == nil {
			s.t.Fatalf("no usage in %s", r.body)
		}
		fmt.Sscan(usage[1]+" "+usage[2], &p, &c)
		prompt, held = prompt+p, held+c
		s.idle()
	}
	p, bound := s.metrics(), time.Since(began).Seconds()
	for name, want := range map[string]float64{
		"prompt_tokens_total": prompt, "cached_tokens_total": held, "completion_tokens_total": requests * output,
		"ttft_seconds_count": requests, "itl_seconds_count": requests, "itl_max_seconds_count": requests,
		"request_seconds_count": requests, "overlap_ratio_count": requests,
		"prediction_error_ratio_count": requests,
	} {
		if got := p.sum("cgn_router_" + name); got != want {
			s.t.Errorf("%s: %v after the first requests, want %v", name, got, want)
		}
	}
	first, all, gap := p.sum("cgn_router_ttft_seconds_sum"), p.sum("cgn_router_request_seconds_sum"),
		p.sum("cgn_router_itl_seconds_sum")
	if first <= 0 || first > all || all > bound || gap <= 0 || gap > all || p.sum("cgn_router_pick_seconds_sum") > all {
		s.t.Errorf("first events after %v s, ends after %v s, gaps of %v s, in %v", first, all, gap, bound)
	}
	if o := p.sum("cgn_router_overlap_ratio_sum"); o < .98*(requests-1) || o > requests-1 {
		s.t.Errorf("the overlaps of %d requests are %v in all", requests, o)
	}
}

// stall returns the metrics while a stream runs.
func (s *site) stall() page {
	s.t.Helper()
	ctx, leave := context.WithCancel(s.t.Context())
	defer leave()
	resp, err := s.send(ctx, http.MethodPost, "/v1/chat/completions", chatBody(document(3, 2000), streaming),
		"x-sim-fault", "stall_after=2")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	readTokens(s.t, resp, `"content":"`, 2)
	p := s.metrics()
	for _, name := range []string{"in_flight", "streams", "node_in_flight", "model_in_flight"} {
		if got := p.sum("cgn_router_" + name); got != 1 {
			s.t.Errorf("%s is %v while one stream runs", name, got)
		}
	}
	hangs := make(chan struct{})
	go func() {
		defer close(hangs)
		if resp, err := s.send(ctx, http.MethodPost, "/v1/chat/completions", chatBody(document(4, 2000), streaming),
			"x-sim-fault", "hang"); err == nil {
			resp.Body.Close()
		}
	}()
	eventually(s.t, "a prompt waits for its computation", func() bool {
		p = s.metrics()
		return p.sum("cgn_router_node_prefill_tokens") > 0
	})
	leave()
	<-hangs
	eventually(s.t, "that the clients have left is counted", func() bool {
		return s.metrics().sum("cgn_router_client_cut_total", `reason="left"`) == 2
	})
	return p
}

// fail makes requests that change the counts of failures.
func (s *site) fail() {
	s.t.Helper()
	s.chat(chatBody("cut", streaming), "x-sim-fault", "die_after=3")
	s.chat(chatBody("no options", streaming), "x-sim-fault", "no_stream_options")
	s.chat(chatBody(document(2, 2000), plain), "x-sim-fault", "no_cached_tokens")
	s.chat(strings.Replace(chatBody("whose?", plain), `"sim"`, `"nobody's"`, 1))
	s.get(s.url + "/v1/responses/resp_0123456789")
	s.chat(chatBody("of a session", plain), "x-cgn-session-id", "s")
	for _, e := range s.engines {
		resp, err := s.client.Post(e.URL()+"/reset_prefix_cache", "", nil)
		if err != nil {
			s.t.Fatal(err)
		}
		resp.Body.Close()
	}
	s.chat(chatBody(document(1, 20000), plain)) // the prompt is believed to be at a node that has lost it
	s.idle()
	p := s.metrics()
	for _, series := range [][]string{
		{"stream_errors_total", `reason="backend_failed"`}, {"stream_options_rejected_total"}, {"cached_unreported_total"},
		{"rejected_total", `reason="model_not_found"`}, {"response_lookups_total", `result="missing"`}, {"upstream_errors_total", `kind="cut"`},
	} {
		if got := p.sum("cgn_router_"+series[0], series[1:]...); got != 1 {
			s.t.Errorf("%v is %v, want 1", series, got)
		}
	}
}
