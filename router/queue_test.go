package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/sim/engine"
)

// queued is a tweak for a router with a queue in front of nodes with so many slots.
func queued(slots int) func(*router.Config) {
	return func(c *router.Config) {
		c.Router.Queue.Enabled, c.Router.Queue.MaxWait = true, config.Duration(soon)
		for i := range c.Router.Backends {
			c.Router.Backends[i] += fmt.Sprint(",max_concurrent=", slots)
		}
	}
}

// occupy takes a slot until the returned function is called.
func (s *site) occupy(header ...string) (release func()) {
	s.t.Helper()
	ctx, leave := context.WithCancel(s.t.Context())
	resp, err := s.send(ctx, http.MethodPost, "/v1/chat/completions",
		chatBody("occupy", `,"stream":true,"max_tokens":100000`), header...)
	if err != nil || resp.StatusCode != 200 {
		s.t.Fatalf("%v %v", resp, err)
	}
	return func() { leave(); resp.Body.Close() }
}

func (s *site) waiting() float64 { return s.metrics().sum("cgn_router_queue_requests") }

// waits waits until so many requests wait.
func (s *site) waits(n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprint(n, " requests wait"), func() bool { return s.waiting() == float64(n) })
}

// waiters are requests of a test that run beside it.
type waiters struct {
	site *site
	wg   sync.WaitGroup
	all  []*reply
	mu   sync.Mutex
}

// add sends a chat with a prompt and waits until it waits.
func (a *waiters) add(prompt string, header ...string) {
	a.site.t.Helper()
	before := int(a.site.waiting())
	a.beside(prompt, header...)
	a.site.waits(before + 1)
}

// beside sends a chat with a prompt.
func (a *waiters) beside(prompt string, header ...string) {
	a.wg.Go(func() {
		r := a.site.chat(chatBody(prompt, `,"max_tokens":4`), header...)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = append(a.all, r)
	})
}

// done waits for all answers.
func (a *waiters) done() []*reply {
	a.wg.Wait()
	return a.all
}

// promptsOf returns the prompts that an engine got, in their order, without that of occupy.
func promptsOf(e *engine.Engine) (prompts []string) {
	for _, r := range e.Requests() {
		var body struct{ Messages []struct{ Content string } }
		if r.Path != "/v1/chat/completions" || json.Unmarshal(r.Body, &body) != nil || len(body.Messages) == 0 ||
			body.Messages[0].Content == "occupy" {
			continue
		}
		prompts = append(prompts, body.Messages[0].Content)
	}
	return prompts
}

// TestQueueOrder checks that requests wait for a slot, and the order in which they get it: by the
// priority that their keys allow, then by tenant, then by deadline.
func TestQueueOrder(t *testing.T) {
	t.Parallel()
	k, log := newKeyring(t), filepath.Join(t.TempDir(), "access.log")
	of := func(tenant string, priority int) []string {
		text, _ := k.add(func(r *keys.Record) { r.Tenant, r.Priority = tenant, priority })
		return bearer(text)
	}
	a, b, c := of("a", 0), of("b", 0), of("c", 5)
	s := serve(t, simulate(t, 1), k.locked, queued(1), func(c *router.Config) { c.Log.Access = log })
	release := s.occupy(a...)
	all := &waiters{site: s}
	all.add("a1", a...)
	all.add("a2", a...)
	all.add("a late", append(a, "x-cgn-deadline-ms", "500000")...)
	all.add("a soon", append(a, "x-cgn-deadline-ms", "300000")...)
	all.add("a pretends", append(a, "x-cgn-priority", "9")...) // its key does not let it
	all.add("c", c...)
	all.add("c urgent", append(c, "x-dynamo-request-strict-priority", "7")...)
	all.add("c last", append(c, "x-dynamo-request-priority", "-1")...)
	all.add("b", b...)
	if page := s.metrics(); page.sum("cgn_router_queue_requests", `priority="5"`) != 1 ||
		page.sum("cgn_router_queue_requests", `priority="0"`) != 7 ||
		page.sum("cgn_router_queue_requests", `priority="-1"`) != 1 || page.sum("cgn_router_queue_bytes") <= 0 {
		t.Error("the metrics do not show who waits")
	}
	release()
	mustAll(t, "queued", all.done())
	got := promptsOf(s.engines[0])
	// c and b have got nothing yet, and come before a.
	first := slices.Sorted(slices.Values(got[1:3]))
	if got[0] != "c urgent" || !slices.Equal(first, []string{"b", "c"}) ||
		!slices.Equal(got[3:], []string{"a soon", "a late", "a1", "a2", "a pretends", "c last"}) {
		t.Errorf("order %q", got)
	}
	s.idle()
	page := s.metrics()
	if n := page.sum("cgn_router_queue_seconds_count"); n != 9 || page.sum("cgn_router_queue_seconds_sum") <= 0 {
		t.Errorf("%v waits in the metrics", n)
	}
	s.drain()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(log)
	if n := bytes.Count(lines, []byte(`"queued_seconds":`)); err != nil || n != 9 {
		t.Errorf("%d of 10 lines of the access log have a wait, %v", n, err)
	}
}

// TestQueueOff checks that nothing waits without the queue.
func TestQueueOff(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), queued(1), func(c *router.Config) { c.Router.Queue.Enabled = false })
	release := s.occupy()
	defer release()
	if r := s.chat(chatBody("hello", plain)); r.status != 503 || !bytes.Contains(r.body, []byte("all_nodes_busy")) ||
		r.header.Get("Retry-After") != "1" {
		t.Error(r)
	}
}

// TestLeavingTheQueue checks who loses a place: a client that leaves, a request whose deadline
// passes, one that waits for too long, and one that must make room for another tenant.
func TestLeavingTheQueue(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	of := func(tenant string) []string {
		text, _ := k.add(func(r *keys.Record) { r.Tenant = tenant })
		return bearer(text)
	}
	a, b := of("a"), of("b")
	s := serve(t, simulate(t, 1), k.locked, queued(1), func(c *router.Config) {
		c.Router.Queue.MaxRequests = 2
	})
	release := s.occupy(a...)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := s.send(ctx, http.MethodPost, "/v1/chat/completions", chatBody("leaves", plain), a...)
		left <- err
	}()
	s.waits(1)
	leave()
	if err := <-left; err == nil {
		t.Error("the client that left has got an answer")
	}
	s.waits(0)
	refused := func(r *reply, status int, code string) {
		t.Helper()
		if r.status != status || !bytes.Contains(r.body, []byte(`"`+code+`"`)) {
			t.Errorf("want %s: %v", code, r)
		}
		if status == 503 && r.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", code)
		}
	}
	refused(s.chat(chatBody("too late", plain), append(a, "x-cgn-deadline-ms", "20")...), 504, "deadline_exceeded")
	all := &waiters{site: s}
	all.add("a1", a...)
	all.add("a2", a...)
	refused(s.chat(chatBody("one too many", plain), a...), 503, "waiting_full")
	other := &waiters{site: s}
	other.beside("b1", b...)
	eventually(t, "a request of a makes room", func() bool {
		return s.metrics().sum("cgn_router_queue_refused_total", `reason="waiting_full"`) == 2
	})
	s.waits(2)
	release()
	mustAll(t, "b's", other.done())
	slices.SortFunc(all.done(), func(x, y *reply) int { return x.status - y.status })
	mustAll(t, "a's", all.all[:1])
	refused(all.all[1], 503, "waiting_full")
	if got := promptsOf(s.engines[0]); !slices.Equal(got, []string{"b1", "a1"}) {
		t.Errorf("the engine got %q", got)
	}
	if page := s.metrics(); page.sum("cgn_router_queue_refused_total", `reason="deadline_exceeded"`) != 1 ||
		page.sum("cgn_router_client_cut_total", `reason="left"`) != 2 {
		t.Error("the metrics do not show who left")
	}
}

func TestLongestWait(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), queued(1), func(c *router.Config) {
		c.Router.Queue.MaxWait, c.Router.Queue.MaxBytes = config.Duration(10*time.Millisecond), 1<<20
	})
	release := s.occupy()
	defer release()
	r := s.chat(chatBody("waits", plain))
	if r.status != 503 || !bytes.Contains(r.body, []byte("waited_too_long")) || r.header.Get("Retry-After") != "1" {
		t.Error(r)
	}
	if r = s.chat(chatBody(document(1, 1<<20), plain)); !bytes.Contains(r.body, []byte(`"waiting_memory"`)) {
		t.Error(r)
	}
	s.waits(0)
}

// TestQueueAtShutdown checks that a drain serves the waiting requests, and that the end of the
// drain refuses those that are left.
func TestQueueAtShutdown(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), queued(1), func(c *router.Config) { c.Router.DrainTimeout = config.Duration(soon) })
	release := s.occupy()
	all := &waiters{site: s}
	all.add("served")
	s.drain()
	time.AfterFunc(20*time.Millisecond, release)
	mustAll(t, "in the drain", all.done())
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	s = serve(t, simulate(t, 1), queued(1), func(c *router.Config) { c.Router.DrainTimeout = 0 })
	defer s.occupy()()
	all = &waiters{site: s}
	all.add("refused")
	s.drain()
	r := all.done()[0]
	if r.status != 503 || !bytes.Contains(r.body, []byte("shutting_down")) || r.header.Get("Retry-After") == "" {
		t.Error(r)
	}
	s.stop()
}

// TestQueueIsNotHeldUp checks that requests for a full node do not hold up those for others, and
// that the queue notices changes of thresholds.
func TestQueueIsNotHeldUp(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2), queued(1))
	releases := []func(){s.occupy("x-cgn-node", "sim-0"), s.occupy("x-cgn-node", "sim-1")}
	all := &waiters{site: s}
	all.add("pinned", "x-cgn-node", "sim-0")
	all.add("pinned too", "x-cgn-node", "sim-0")
	all.add("free")
	releases[1]()
	eventually(t, "sim-1 gets the one that is free", func() bool {
		return slices.Equal(promptsOf(s.engines[1]), []string{"free"})
	})
	s.waits(2)
	releases[0]()
	mustAll(t, "all", all.done())

	limit := func(tokens int) {
		t.Helper()
		resp, err := s.client.Post(s.admin+"/busy_threshold", "application/json", strings.NewReader(
			fmt.Sprintf(`{"model":"sim","active_prefill_tokens_threshold":%d}`, tokens)))
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %v", resp, err)
		}
		resp.Body.Close()
	}
	s.idle()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	limit(100)
	for i := range 2 { // an engine that hangs does not compute its prompt
		go func() {
			if resp, err := s.send(ctx, http.MethodPost, "/v1/chat/completions", chatBody(document(i, 4000), plain),
				"x-sim-fault", "hang", "x-cgn-node", fmt.Sprint("sim-", i)); err == nil {
				resp.Body.Close()
			}
		}()
	}
	eventually(t, "both are busy", func() bool { return s.metrics().sum("cgn_router_in_flight") == 2 })
	all = &waiters{site: s}
	all.add("busy")
	leave()
	mustAll(t, "after the hang", all.done())
}

// TestActiveTokens checks that a node with many waiting prompt tokens counts as full.
func TestActiveTokens(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), func(c *router.Config) {
		c.Router.Queue.Enabled, c.Router.Queue.ActiveTokens, c.Router.Queue.MaxWait = true, 500, config.Duration(soon)
	})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	go func() {
		if resp, err := s.send(ctx, http.MethodPost, "/v1/chat/completions", chatBody(document(1, 8000), plain),
			"x-sim-fault", "hang"); err == nil {
			resp.Body.Close()
		}
	}()
	eventually(t, "a prompt is computed", func() bool {
		return s.metrics().sum("cgn_router_node_prefill_tokens") > 500
	})
	all := &waiters{site: s}
	all.add("waits")
	if page := s.metrics(); page.sum("cgn_router_filtered_total", `reason="active_tokens"`) == 0 {
		t.Error("no node was left out for active_tokens")
	}
	leave()
	mustAll(t, "then", all.done())
}

// TestQueueShares checks that two tenants get tokens by their weights, while one has 50 times the
// other's load.
func TestQueueShares(t *testing.T) {
	t.Parallel()
	for _, weight := range []float64{1, 3} {
		k := newKeyring(t)
		of := func(tenant string) []string {
			text, _ := k.add(func(r *keys.Record) { r.Tenant = tenant })
			return bearer(text)
		}
		tenants := [2][]string{of("small"), of("big")}
		s := serve(t, simulate(t, 2), k.locked, queued(2), func(c *router.Config) {
			c.Router.Queue.Tenants = []router.QueueTenantConfig{{Name: "small", Weight: weight}}
		})
		ctx, stop := context.WithCancel(t.Context())
		var tokens [2]atomic.Int64
		var clients sync.WaitGroup
		for tenant, n := range [2]int{8, 400} {
			for client := range n {
				clients.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						prompt := fmt.Sprint(tenant, client, i, strings.Repeat(" word", (client*7+i)%40))
						resp, err := s.send(ctx, http.MethodPost, "/v1/chat/completions",
							chatBody(prompt, fmt.Sprintf(`,"max_tokens":%d`, 2+(client*13+i*5)%14)), tenants[tenant]...)
						if err != nil {
							continue
						}
						if n := tokensOf(read(resp)); ctx.Err() == nil {
							tokens[tenant].Add(n)
						}
					}
				})
			}
		}
		s.waits(8 + 400 - 4)
		tokens[0].Store(0)
		tokens[1].Store(0)
		eventually(t, "enough answers", func() bool { return tokens[0].Load()+tokens[1].Load() > 40000 })
		small, big := float64(tokens[0].Load()), float64(tokens[1].Load())
		stop()
		clients.Wait()
		got, want := small/(small+big), weight/(weight+1)
		t.Logf("weight %v: small got %.4f of %v tokens, by weight %.4f", weight, got, small+big, want)
		if math.Abs(got/want-1) > 0.05 {
			t.Error("more than 5 % away")
		}
	}
}

// tokensOf returns the tokens in the usage of an answer.
func tokensOf(r *reply) int64 {
	var doc struct {
		Usage struct {
			Total int64 `json:"total_tokens"`
		}
	}
	_ = json.Unmarshal(r.body, &doc) // a request that was ended has no answer
	return doc.Usage.Total
}

// TestSingleAmongMany checks that a tenant's single request is the next to get a slot, however many
// another tenant has.
func TestSingleAmongMany(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	of := func(tenant string) []string {
		text, _ := k.add(func(r *keys.Record) { r.Tenant = tenant })
		return bearer(text)
	}
	many, one := of("many"), of("one")
	s := serve(t, simulate(t, 1, func(c *engine.Config) { c.RecordRequests = 4096 }), k.locked, queued(1))
	release := s.occupy(many...)
	all := &waiters{site: s}
	for i := range 500 {
		all.beside(fmt.Sprint("many ", i), many...)
	}
	s.waits(500)
	all.beside("one", one...)
	s.waits(501)
	release()
	mustAll(t, "all", all.done())
	if at := slices.Index(promptsOf(s.engines[0]), "one"); at != 0 {
		t.Errorf("the single request was asked after %d others", at)
	}
}

// tooLate sends a request whose first token takes 10 s, with a deadline of 1 s, and checks that it
// is refused with the expected time.
func (s *site) tooLate(how, code string) {
	s.t.Helper()
	r := s.chat(chatBody(document(99, 80000), how), "x-cgn-deadline-ms", "1000")
	after, _ := strconv.Atoi(r.header.Get("Retry-After"))
	if r.status != 503 || !bytes.Contains(r.body, []byte(code)) || after < 3 || after > 400 {
		s.t.Errorf("%q: %v, Retry-After %d, want %s", how, r, after, code)
	}
}

// TestTooLateForAFullNode checks that a request that cannot make its deadline does not wait for it
// in a queue that has not moved yet.
func TestTooLateForAFullNode(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1, func(c *engine.Config) { c.PrefillTokensPerSecond = 2000 }), queued(1))
	for i := range 16 {
		mustAll(t, "learning", []*reply{s.chat(chatBody(document(i, 400+40*i), streaming))})
	}
	defer s.occupy()()
	for _, how := range []string{"", streaming} {
		s.tooLate(how, "deadline_too_near")
	}
}

// TestTooLate checks that a request that cannot make its deadline is refused at once, with the
// expected time, with a queue and without one. ttft_slo_ms refuses only if the router shall.
func TestTooLate(t *testing.T) {
	t.Parallel()
	slow := func(c *engine.Config) { c.PrefillTokensPerSecond = 2000 }
	for _, queue := range []bool{false, true} {
		for _, refuses := range []bool{false, true} {
			policy := filepath.Join(t.TempDir(), "policy.json")
			write(t, policy, `{"mode":"predicted","ttft_slo_ms":300}`)
			s := serve(t, simulate(t, 1, slow), func(c *router.Config) {
				c.Router.PolicyFile = policy
				c.Router.Queue.Enabled, c.Router.Queue.RefuseOverSLO = queue, refuses
			})
			for i := range 16 { // some of the first answers teach the speed
				mustAll(t, "learning", []*reply{s.chat(chatBody(document(i, 400+40*i), streaming))})
			}
			code := "deadline_too_near"
			s.tooLate("", code)
			if refuses { // the target is earlier
				code = "ttft_over_slo"
			}
			s.tooLate(streaming, code)
			short := chatBody(document(50, 400), streaming)
			mustAll(t, "in time", []*reply{s.chat(short, "x-cgn-deadline-ms", "60000")})
			r := s.chat(chatBody(document(60, 8000), streaming)) // 1 s
			if over := bytes.Contains(r.body, []byte("ttft_over_slo")); over != refuses || over != (r.status == 503) {
				t.Errorf("queue %v, refuse_over_slo %v: %v", queue, refuses, r)
			}
			s.idle()
		}
	}
}
