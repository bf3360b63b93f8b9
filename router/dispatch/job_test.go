package dispatch

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/perf/engine"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// TestResetForgetsAll, also what an earlier attempt has left behind the ends of the scratch memory.
func TestResetForgetsAll(t *testing.T) {
	d := start(t, 1)
	j := d.Job()
	m := &member{}
	j.tried = append(j.tried, m, m)[:1]
	j.failed = append(j.failed, failure{m, 500}, failure{m, 500})[:0]
	j.resets = append(j.resets, reset{node: m}, reset{node: m})[:1]
	j.request.Body = append(j.request.Body, []byte("x"), []byte("y"))[:1]
	served := d.current().models["sim"]
	served.nodes[0].waits.Begin(&j.wait, time.Now(), j.work(0))
	j.wait.Done(time.Now(), 0, false)
	j.reset()
	for i := range j.tried[:2] {
		if j.tried[:2][i] != nil || j.failed[:2][i] != (failure{}) || j.resets[:2][i] != (reset{}) || j.request.Body[:2][i] != nil {
			t.Errorf("something of entry %d is left", i)
		}
	}
	if j.wait != (Job{}).wait {
		t.Error("the wait is left")
	}
}

// TestCacheSaltDoesNotAllocate, however long it is.
func TestCacheSaltDoesNotAllocate(t *testing.T) {
	d := start(t, 1)
	j := d.Job()
	defer j.recycle()
	body := []byte(strings.Replace(string(chat(200)), `{"model"`, `{"cache_salt":"`+strings.Repeat("s", 200)+`","model"`, 1))
	if err := pick(d, j, body); err != nil {
		t.Fatal(err)
	}
	least := math.Inf(1)
	for range 10 {
		least = min(least, testing.AllocsPerRun(20, func() {
			if err := pick(d, j, body); err != nil {
				t.Fatal(err)
			}
		}))
	}
	if least != 0 {
		t.Errorf("%v allocations, want 0", least)
	}
	var digest [2]prefix.Digest
	for i, salt := range []string{"one", "two"} {
		digest[i] = prefix.Seed("sim", "", []byte(salt))
		if digest[i] != prefix.Seed("sim", "", salt) {
			t.Error("bytes and text make different digests")
		}
	}
	if digest[0] == digest[1] {
		t.Error("two salts, one digest")
	}
}

// TestPlaceOfANodeWithManyModels is the same each time: what has no model of its own counts for the first.
func TestPlaceOfANodeWithManyModels(t *testing.T) {
	d := start(t, 1, func(c *engine.Config) { c.Models = []string{"e", "c", "a", "d", "b"} })
	table := d.current()
	for range 20 {
		var j Job
		if at := table.place(&j, table.snap.Nodes[0].ID); at != 0 || j.model.name != "a" {
			t.Fatalf("place %d of model %s", at, j.model.name)
		}
	}
	if at := table.place(new(Job), "nobody"); at != -1 {
		t.Errorf("an unknown node has place %d", at)
	}
}

// TestHash: what differs in path, length or either end is another request, and a long body costs no more than its ends.
func TestHash(t *testing.T) {
	long := strings.Repeat("x", 8*hashedBody)
	seen := map[uint64]string{}
	for name, j := range map[string]*Job{
		"ab c": {Path: "ab", Body: []byte("c")}, "a bc": {Path: "a", Body: []byte("bc")}, "long": {Body: []byte(long)},
		"longer": {Body: []byte(long + "x")}, "other end": {Body: []byte(long[1:] + "y")}, "other beginning": {Body: []byte("y" + long[1:])},
	} {
		if other, had := seen[j.hash()]; had {
			t.Errorf("%s is the same as %s", name, other)
		}
		seen[j.hash()] = name
	}
	middle := []byte(long)
	middle[len(middle)/2] = 'y'
	if (&Job{Body: middle}).hash() != (&Job{Body: []byte(long)}).hash() {
		t.Error("the middle of a long body is hashed")
	}
}

// TestLostResponses: what a node stored is not waited for without end.
func TestLostResponses(t *testing.T) {
	d := start(t, 2)
	node := d.current().snap.Nodes[1].ID
	d.stored.Set([]byte("resp_1"), node)
	holder := func(id string) (string, *apierror.Error) {
		j := d.Job()
		defer j.recycle()
		return d.Holder(j, []byte(id))
	}
	if got, err := holder("resp_1"); got != node || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	d.lostAfter = 0
	if _, err := holder("resp_1"); err != errNodeLost {
		t.Errorf("of a node that has not answered for too long: %v", err)
	}
	if _, err := holder("resp_2"); err != errNoNode {
		t.Errorf("such a node is asked: %v", err)
	}
}

// TestBugInASearch is a node that says nothing, not the end of the router.
func TestBugInASearch(t *testing.T) {
	d := start(t, 1)
	j := d.Job()
	defer j.recycle()
	broken := &nodeState{Node: &fleet.Node{ID: "broken"}} // it has no pool
	nodes := append(d.current().serving(), broken)
	_, err := d.lookUp(j, []byte("resp_1"), nodes, false)
	if err == nil || err.Code != "response_unknown" || !strings.Contains(err.Message, "broken did not answer") {
		t.Errorf("%v", err)
	}
}

func TestWhatNodesSayOfAStoredResponse(t *testing.T) {
	for status, want := range map[int][2]said{ // with a key of the router's, and without
		200: {yes, yes}, 404: {no, no}, 400: {no, no}, 501: {no, no}, 401: {nothing, denied401}, 403: {nothing, denied403},
		408: {nothing, nothing}, 429: {nothing, nothing}, 500: {nothing, nothing}, 503: {nothing, nothing},
	} {
		if got := [2]said{saidBy(status, false), saidBy(status, true)}; got != want {
			t.Errorf("%d: %v, want %v", status, got, want)
		}
	}
}

// TestFirstSignThatCameToNothing leaves no time to the first byte.
func TestFirstSignThatCameToNothing(t *testing.T) {
	d := start(t, 1)
	j := d.Job()
	j.API, j.Method, j.Path, j.Body, j.Received = scan.Chat, "POST", "/v1/chat/completions", chat(100), time.Now()
	j.Header = append(j.Header, "Content-Type: application/json\r\n"...)
	j.Reply = func(*relay.Exchange) error { return relay.ErrClientTooOld }
	if err := scan.Scan(j.API, j.Body, &j.Scan); err != nil {
		t.Fatal(err)
	}
	if err := d.Do(j); err != errTooOld || j.TTFT != 0 {
		t.Errorf("%v, first sign after %v", err, j.TTFT)
	}
	d.Finish(j, relay.UpstreamFailed)
}

// TestAStallInALongStream shows in the longest gap, whatever the mean is, and events are looked at without an allocation.
func TestAStallInALongStream(t *testing.T) {
	const events, gap, stall = 2000, 10 * time.Millisecond, 3 * time.Second
	d := start(t, 1)
	j := d.Job()
	j.API, j.model, j.Received = scan.Chat, d.current().models["sim"], time.Now()
	a := j.slot()
	a.node, a.streams = j.model.nodes[0], true
	j.cur = a
	at := j.Received
	event := sse.Event{Data: []byte(`{"choices":[{"delta":{"content":"x"}}]}`)}
	for i := range events {
		if at = at.Add(gap); i == events/2 {
			at = at.Add(stall - gap)
		}
		j.Event(event, at)
	}
	least := math.Inf(1)
	for range 10 { // the engine and its probes allocate in the same process
		least = min(least, testing.AllocsPerRun(100, func() { j.Event(event, at) }))
	}
	if least != 0 {
		t.Errorf("%v allocations for an event", least)
	}
	d.count(j, a, at)
	families, err := d.metrics.Set.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if h := m.GetHistogram(); h.GetSampleCount() > 0 {
				seen[f.GetName()] = h.GetSampleSum()
			}
		}
	}
	if got := seen["cgn_router_itl_max_seconds"]; got != stall.Seconds() {
		t.Errorf("the longest gap is %v s, want %v", got, stall)
	}
	if got := seen["cgn_router_itl_seconds"]; got > 2*gap.Seconds() {
		t.Errorf("the mean gap is %v s", got)
	}
}
