package realengine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pair is a router before real vLLM servers that hand prompts over, and a client of it.
type pair struct {
	*site
	prefill *engine
	decodes []*engine
	plain   *engine // behind no router
}

// mishap is a failure in the course of hand-overs.
type mishap struct {
	name    string
	decodes int // servers that answer
	happens func(w *pair, t *testing.T)
	ways    map[string]float64 // results of hand-overs; nil: happens has looked at them
	// or is what ways may be as well if the connection to D was new. The prompt is handed over to
	// the next D then. A connection that was used before may have broken before D had the request.
	or map[string]float64
}

// mishaps come in an order in which few servers must be started anew. vLLM cannot be made to answer
// with 429, 500, 503 or garbage, or to stand still between the arrival of a request and the read of
// the blocks. Simulated engines do all but the last.
var mishaps = []mishap{
	{name: "Nothing", decodes: 1, happens: (*pair).nothing, ways: map[string]float64{"split": 2}},
	{name: "PrefillRefuses", decodes: 1, happens: (*pair).prefillRefuses, ways: map[string]float64{"refused": 2}},
	{name: "BothRefuse", decodes: 1, happens: (*pair).bothRefuse, ways: map[string]float64{"refused": 2}},
	{name: "PrefillIsSlow", decodes: 1, happens: (*pair).prefillIsSlow, ways: map[string]float64{"split": 2}},
	{name: "PrefillHangs", decodes: 1, happens: (*pair).prefillHangs, ways: map[string]float64{"broken": 1}},
	{name: "DecodeIsLaterThanTheLease", decodes: 1, happens: (*pair).late},
	{name: "ClientLeavesPrefill", decodes: 1, happens: (*pair).leavesPrefill, ways: map[string]float64{}},
	{name: "ClientLeavesBeforeTheRead", decodes: 1, happens: (*pair).leavesBetween, ways: map[string]float64{}},
	{name: "ClientLeavesDecode", decodes: 1, happens: (*pair).leavesDecode, ways: map[string]float64{"split": 1}},
	{name: "ClientsLeaveAnywhere", decodes: 2, happens: (*pair).leaveAnywhere},
	{name: "DecodeDiesBeforeItsAnswer", decodes: 2, happens: (*pair).decodeDies,
		ways: map[string]float64{"unread": 1}, or: map[string]float64{"split": 1}},
	{name: "OnlyDecodeDiesInStreams", decodes: 1, happens: (*pair).onlyDecodeDies,
		ways: map[string]float64{"split": 2}},
	{name: "DecodeDiesInStreams", decodes: 2, happens: (*pair).decodeDiesInStreams,
		ways: map[string]float64{"split": streams}},
	{name: "PrefillDiesBeforeTheRead", decodes: 1, happens: (*pair).prefillDies, ways: map[string]float64{"unread": 1}},
	{name: "BothDieBeforeTheAnswer", decodes: 2, happens: (*pair).bothDie,
		ways: map[string]float64{"unread": 1}, or: map[string]float64{"broken": 1}},
	{name: "BothDieInStreams", decodes: 2, happens: (*pair).bothDieInStreams,
		ways: map[string]float64{"split": streams}},
}

const (
	lease   = 6 // seconds for which these servers keep blocks that nobody reads
	streams = 4 // at once; two of them fill the cache of a server
)

// TestVLLMMishaps: whatever happens to servers and clients during a hand-over, a client that stays
// gets the whole answer that one server gives, and nothing is left of the request.
func TestVLLMMishaps(t *testing.T) {
	s, all := prepared(t, "vllm"), t
	prefill := s.nixlEngine(t, "mishap-p", lease, "--max-model-len", "1024")
	decodes := []*engine{s.nixlEngine(t, "mishap-d1", lease), s.nixlEngine(t, "mishap-d2", lease)}
	plain := s.engine(t, "plain", vllmFlags(s.model)...)
	t.Setenv("CGN_TIMEOUTS_FIRST_BYTE", "24s")
	t.Setenv("CGN_ROUTER_DISAGG_BLOCK_LEASE", fmt.Sprint(lease, "s"))
	for _, m := range mishaps {
		t.Run(m.name, func(t *testing.T) {
			slices.SortStableFunc(decodes, func(a, b *engine) int {
				if a.ended() == b.ended() || !a.ended() {
					return 0
				}
				return 1
			})
			used := append([]*engine{prefill}, decodes[:m.decodes]...)
			for _, e := range used {
				if e.ended() {
					e.start(all)
				}
			}
			for _, e := range append(used, plain) {
				e.awaitReady(t)
			}
			w := &pair{s.divide(t, 1, used...), prefill, used[1:], plain}
			w.acquainted(t)
			before := w.ways()
			began := time.Now()
			m.happens(w, t)
			t.Logf("took %.1f s", time.Since(began).Seconds())
			w.nothingLeft(t)
			w.counted(t, m, before)
		})
	}
}

// long returns a request with a long prompt of its own and a short answer, streamed if i is odd.
func (w *pair) long(t *testing.T, i int) object {
	more := object{"max_tokens": 24, "ignore_eos": true}
	if i%2 == 1 {
		more["stream"] = true
	}
	return chatBody(user(prose(fmt.Sprint(t.Name(), i), 900)), more)
}

// stream returns a request for a long stream after a long prompt.
func (w *pair) stream(t *testing.T, i int) object {
	return chatBody(user(prose(fmt.Sprint(t.Name(), i), 900)), object{"max_tokens": 1500, "ignore_eos": true,
		"stream": true, "stream_options": object{"include_usage": true}})
}

// running is a request that has been sent.
type running struct {
	body  object
	leave context.CancelFunc
	first chan struct{} // closed once some of the answer has come, or the request has ended
	ended chan *answer

	computed float64 // prompts that had been computed for others before
}

// begin sends a request.
func (w *pair) begin(t *testing.T, body object) *running {
	t.Helper()
	ctx, leave := context.WithCancel(w.owner.Context())
	r := &running{body, leave, make(chan struct{}), make(chan *answer, 1),
		w.metric(t, "cgn_router_prefill_seconds_count")}
	go func() {
		a, began, said := &answer{header: http.Header{}}, time.Now(), false
		defer func() {
			a.took = time.Since(began)
			if !said {
				close(r.first)
			}
			r.ended <- a
		}()
		resp, err := w.open(ctx, http.MethodPost, "/v1/chat/completions", body)
		if err != nil {
			a.err = err
			return
		}
		defer resp.Body.Close()
		a.status, a.header = resp.StatusCode, resp.Header
		for piece := make([]byte, 4096); a.err == nil; {
			n, err := resp.Body.Read(piece)
			a.body = append(a.body, piece[:n]...)
			if a.err = err; !said && bytes.Count(a.body, []byte("data: ")) > 12 {
				said = true
				close(r.first)
			}
		}
		if a.err == io.EOF {
			a.err = nil
		}
	}()
	return r
}

// right checks that the answer is whole and what one server says.
func (w *pair) right(t *testing.T, r *running) *answer {
	t.Helper()
	a, want := <-r.ended, w.plain.direct(r.body)
	if !a.good() || r.body["stream"] == true && !a.done() || !want.good() || a.text() != want.text() {
		t.Errorf("%q of one server, %q of two: %v", want.text(), a.text(), a)
	}
	t.Logf("prompt %q, answer %q after %s attempts in %.2f s", a.header.Get("x-cgn-prefill-node"), a.node(),
		a.attempts(), a.took.Seconds())
	return a
}

func (e *engine) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-e.cmd.Process.Pid, s); err != nil {
		t.Fatal(err)
	}
}

// holding stops the servers, which then hold up what they are asked, until the test ends or calls
// the returned function.
func (w *pair) holding(t *testing.T, engines ...*engine) (goOn func()) {
	t.Helper()
	for _, e := range engines {
		e.signal(t, syscall.SIGSTOP)
	}
	goOn = func() {
		for _, e := range engines {
			_ = syscall.Kill(-e.cmd.Process.Pid, syscall.SIGCONT) // it may have been killed
		}
	}
	t.Cleanup(goOn)
	return goOn
}

// asked waits until the router has a request at the server that computes prompts.
func (w *pair) asked(t *testing.T) {
	t.Helper()
	within(t, soon, w.prefill.id+" is asked", func() bool { return w.nodes()[w.prefill.id].InFlight > 0 })
	time.Sleep(100 * time.Millisecond) // the server's kernel has the request
}

// handed waits until one of the servers is asked for the answer to r, and returns this server. The
// prompt has been computed then.
func (w *pair) handed(t *testing.T, r *running, engines ...*engine) (at *engine) {
	t.Helper()
	within(t, soon, "the prompt is handed over", func() bool {
		if w.metric(t, "cgn_router_prefill_seconds_count") <= r.computed {
			return false
		}
		nodes := w.nodes()
		i := slices.IndexFunc(engines, func(e *engine) bool { return nodes[e.id].InFlight > 0 })
		if i >= 0 {
			at = engines[i]
		}
		return at != nil
	})
	time.Sleep(100 * time.Millisecond) // the server's kernel has the request
	return at
}

// acquainted makes every server for answers read from the one for prompts.
func (w *pair) acquainted(t *testing.T) {
	t.Helper()
	for _, d := range w.decodes {
		body := w.long(t, 0)
		body["messages"] = user(prose("acquainted"+t.Name()+d.id, 300))
		body["nvext"] = object{"prefill_worker_id": w.prefill.id, "decode_worker_id": d.id}
		if a := w.must(t, "/v1/chat/completions", body); a.header.Get("x-cgn-prefill-node") == "" {
			t.Fatalf("not handed over: %v", a)
		}
	}
}

var handover = regexp.MustCompile(`(?m)^cgn_router_handovers_total\{result="([a-z_]+)"\} (\S+)$`)

// ways returns the counts of hand-overs by result.
func (w *pair) ways() map[string]float64 {
	all := map[string]float64{}
	for _, m := range handover.FindAllSubmatch(w.read("/metrics"), -1) {
		var n float64
		if _, err := fmt.Sscan(string(m[2]), &n); err == nil && n > 0 {
			all[string(m[1])] = n
		}
	}
	return all
}

// counted compares the router's counts with what has happened.
func (w *pair) counted(t *testing.T, m mishap, before map[string]float64) {
	t.Helper()
	ways := w.ways()
	for way, n := range before {
		if ways[way] -= n; ways[way] == 0 {
			delete(ways, way)
		}
	}
	resumed := regexp.MustCompile(`(?m)^cgn_router_resumed_total.*$`)
	t.Logf("%v, resumed: %s", ways, resumed.FindAll(w.read("/metrics"), -1))
	if m.ways != nil && !maps.Equal(ways, m.ways) && (m.or == nil || !maps.Equal(ways, m.or)) {
		t.Errorf("hand-overs: %v, want %v or %v", ways, m.ways, m.or)
	}
}

// nothingLeft checks that the router has no request in its books, that the servers have none, and
// that they free all blocks within the lease.
func (w *pair) nothingLeft(t *testing.T) {
	t.Helper()
	within(t, soon, "the router's books are empty", func() bool {
		for _, n := range w.nodes() {
			if n.InFlight != 0 {
				return false
			}
		}
		return w.metric(t, "cgn_router_node_prefill_tokens") == 0
	})
	for _, e := range append([]*engine{w.prefill}, w.decodes...) {
		if e.ended() {
			continue
		}
		within(t, soon, e.id+" is idle", func() bool {
			page := w.page(e.url() + "/metrics")
			return sum(t, page, "vllm:num_requests_running")+sum(t, page, "vllm:num_requests_waiting") == 0
		})
		took := within(t, (2*lease)*time.Second, e.id+" frees its blocks", func() bool {
			page := w.page(e.url() + "/metrics")
			return page != nil && sum(t, page, "vllm:kv_cache_usage_perc") == 0
		})
		page := w.page(e.url() + "/metrics")
		t.Logf("%s has freed its blocks after %.1f s; expired: %v, failed: %v, late: %v", e.id, took.Seconds(),
			sum(t, page, "vllm:nixl_num_kv_expired_reqs_total"), sum(t, page, "vllm:nixl_num_failed_transfers_total"),
			sum(t, page, "vllm:nixl_num_notifications_after_expiry_total"))
	}
}

func (w *pair) nothing(t *testing.T) {
	for i := range 2 {
		if a := w.right(t, w.begin(t, w.long(t, i))); a.header.Get("x-cgn-prefill-node") != w.prefill.id {
			t.Errorf("not handed over: %v", a)
		}
	}
}

// alone checks that the answer is right and that its server has computed the prompt.
func (w *pair) alone(t *testing.T, r *running) {
	t.Helper()
	if a := w.right(t, r); a.header.Get("x-cgn-prefill-node") != "" {
		t.Errorf("%s has computed the prompt", a.header.Get("x-cgn-prefill-node"))
	}
}

func (w *pair) prefillRefuses(t *testing.T) {
	for i := range 2 {
		body := w.long(t, i)
		body["messages"] = user(prose(t.Name()+fmt.Sprint(i), 2400))
		w.alone(t, w.begin(t, body))
	}
}

func (w *pair) bothRefuse(t *testing.T) {
	for i := range 2 {
		body := w.long(t, i)
		body["messages"] = user(prose(t.Name()+fmt.Sprint(i), 12000))
		if a := <-w.begin(t, body).ended; a.status != http.StatusBadRequest || a.err != nil ||
			!json.Valid(a.body) || !strings.Contains(string(a.body), "2048") {
			t.Errorf("%v", a)
		}
	}
}

func (w *pair) prefillIsSlow(t *testing.T) {
	for i := range 2 {
		goOn := w.holding(t, w.prefill)
		r := w.begin(t, w.long(t, i))
		w.asked(t)
		time.Sleep(time.Second)
		goOn()
		w.right(t, r)
	}
}

func (w *pair) prefillHangs(t *testing.T) {
	goOn := w.holding(t, w.prefill)
	w.alone(t, w.begin(t, w.long(t, 1)))
	goOn()
}

// late: the server that answers reads the blocks when the lease has run out and other prompts are
// in their place. It then answers wrongly, and the router must notice. A server that goes on closes
// its idle connections before it reads from them, so there must be none.
func (w *pair) late(t *testing.T) {
	for i := range 2 {
		time.Sleep(keepAlive + time.Second)
		goOn := w.holding(t, w.decodes[0])
		r := w.begin(t, w.long(t, i))
		w.handed(t, r, w.decodes[0])
		time.Sleep((lease + 1) * time.Second)
		for k := range 12 {
			body := chatBody(user(prose(fmt.Sprint(t.Name(), "other", i, k), 1500)), nil)
			if a := w.prefill.direct(body); !a.good() {
				t.Error(a)
			}
		}
		goOn()
		w.right(t, r)
	}
	if n := w.ways()["unread"]; n != 2 {
		t.Errorf("%v hand-overs were unread", n)
	}
	for i := range 2 { // the server has cached the wrong blocks
		w.right(t, w.begin(t, w.long(t, i)))
	}
}

func (w *pair) leavesPrefill(t *testing.T) {
	for i := range 2 {
		goOn := w.holding(t, w.prefill)
		r := w.begin(t, w.long(t, i))
		w.asked(t)
		r.leave()
		<-r.ended
		goOn()
	}
}

func (w *pair) leavesBetween(t *testing.T) {
	for i := range 2 {
		goOn := w.holding(t, w.decodes[0])
		r := w.begin(t, w.long(t, i))
		w.handed(t, r, w.decodes[0])
		r.leave()
		<-r.ended
		goOn()
	}
}

func (w *pair) leavesDecode(t *testing.T) {
	r := w.begin(t, w.stream(t, 0))
	<-r.first
	r.leave()
	<-r.ended
}

func (w *pair) leaveAnywhere(t *testing.T) {
	for i := range 40 {
		r := w.begin(t, w.stream(t, i))
		time.Sleep(time.Duration(i) * 5 * time.Millisecond)
		r.leave()
		if a := <-r.ended; a.err == nil {
			t.Logf("request %d has ended before: %v", i, a)
		}
	}
}

func (w *pair) decodeDies(t *testing.T) {
	goOn := w.holding(t, w.decodes...)
	r := w.begin(t, w.long(t, 1))
	w.handed(t, r, w.decodes...).kill()
	goOn()
	w.right(t, r)
}

// begun sends requests for long streams and waits until each stream has begun.
func (w *pair) begun(t *testing.T, n int) (all []*running) {
	for i := range n {
		all = append(all, w.begin(t, w.stream(t, i)))
	}
	for _, r := range all {
		<-r.first
	}
	return all
}

func (w *pair) onlyDecodeDies(t *testing.T) {
	all := w.begun(t, streams/2)
	w.decodes[0].kill()
	killed, broken := time.Now(), 0
	for _, r := range all {
		a := <-r.ended
		if a.done() {
			continue // it has ended before
		}
		broken++
		last := a.events()[len(a.events())-1]
		if a.err != nil || !strings.Contains(last.data, `"error":{`) {
			t.Errorf("%v", a)
		}
		t.Logf("%s", last.data)
	}
	if broken == 0 {
		t.Error("no stream was broken")
	}
	t.Logf("%d streams ended %.2f s after the kill", broken, time.Since(killed).Seconds())
}

// goOn checks that the streams are whole, and returns the number of those that began at victim.
func (w *pair) goOn(t *testing.T, all []*running, victim *engine) {
	t.Helper()
	began := 0
	for _, r := range all {
		if a := w.right(t, r); a.node() == victim.id {
			began++
		}
	}
	if n := w.metric(t, "cgn_router_resumed_total"); began == 0 || int(n) != began {
		t.Errorf("%d streams went on, %v are counted", began, n)
	}
}

func (w *pair) decodeDiesInStreams(t *testing.T) {
	all := w.begun(t, streams)
	w.decodes[0].kill()
	w.goOn(t, all, w.decodes[0])
}

func (w *pair) prefillDies(t *testing.T) {
	goOn := w.holding(t, w.decodes[0])
	r := w.begin(t, w.long(t, 1))
	w.handed(t, r, w.decodes[0])
	w.prefill.kill()
	goOn()
	w.right(t, r)
}

func (w *pair) bothDie(t *testing.T) {
	goOn := w.holding(t, w.decodes...)
	r := w.begin(t, w.long(t, 1))
	d := w.handed(t, r, w.decodes...)
	w.prefill.kill()
	d.kill()
	goOn()
	w.right(t, r)
}

func (w *pair) bothDieInStreams(t *testing.T) {
	all := w.begun(t, streams)
	w.prefill.kill()
	w.decodes[0].kill()
	w.goOn(t, all, w.decodes[0])
}
