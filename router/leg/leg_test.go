package leg

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/where"
	"github.com/cognitora/dataplane/sim/engine"
)

// start returns a dispatcher over n simulated engines, all of them in service.
func start(t testing.TB, n int, tweak ...func(*engine.Config)) *Dispatcher {
	t.Helper()
	return startWith(t, n, new([]*engine.Engine), tweak...)
}

// startWith is start that also returns the engines.
func startWith(t testing.TB, n int, engines *[]*engine.Engine, tweak ...func(*engine.Config)) *Dispatcher {
	t.Helper()
	index := prefix.NewIndex(prefix.Options{})
	t.Cleanup(index.Close)
	o := fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler)}
	for range n {
		var c engine.Config
		for _, f := range tweak {
			f(&c)
		}
		e, err := engine.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		*engines = append(*engines, e)
		o.Backends = append(o.Backends, fleet.Backend{URL: e.URL()})
	}
	f, err := fleet.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })

	counts := metrics.New()
	d := New(Parts{
		Fleet: f, Policy: &atomic.Pointer[policy.Policy]{}, Gate: admission.New(admission.Options{}),
		Where:  &where.Finder{Index: index, Memo: where.NewMemo(16 << 20), Metrics: counts},
		Budget: admission.NewBudget(20, 64, nil), Metrics: counts, Stored: affinity.New(16), Logger: o.Logger,
	}, Options{
		Limits:   Limits{FirstByte: time.Minute, Idle: time.Minute, Total: time.Minute},
		MaxNodes: 2, Feedback: true,
	})
	d.policy.Store(policy.Default())
	waitFor(t, func() bool {
		able := map[*fleet.Node]bool{}
		for _, m := range f.Load().Models() {
			for _, node := range m.Nodes {
				if ok, _ := node.Eligible(time.Now()); ok {
					able[node] = true
				}
			}
		}
		return len(able) == n
	})
	return d
}

func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("not there in a minute")
		}
		tick := time.NewTimer(2 * time.Millisecond)
		<-tick.C
	}
}

func chat(bytes int) []byte {
	text := strings.Repeat("the quick brown fox jumps over the lazy dog. ", bytes/45+1)[:bytes]
	return fmt.Appendf(nil, `{"model":"sim","messages":[{"role":"system","content":"be brief"},`+
		`{"role":"user","content":"%s"}]}`, text)
}

// asked returns a client's request for a chat.
func asked(t testing.TB, d *Dispatcher, body []byte) *request.Request {
	t.Helper()
	r := request.New()
	t.Cleanup(r.Reset)
	if err := ask(d, r, body); err != nil {
		t.Fatal(err)
	}
	return r
}

func ask(d *Dispatcher, r *request.Request, body []byte) error {
	r.API, r.Method, r.Path, r.Received = scan.Chat, "POST", "/v1/chat/completions", time.Now()
	r.Header = append(r.Header[:0], "Content-Type: application/json\r\n"...)
	r.Own(body, nil)
	return r.Read(nil, d.where.Memo.Scans())
}

// place is a Place that calls f.
type place func(ex *relay.Exchange) error

func (f place) Take(ex *relay.Exchange, _ answer.Source) error { return f(ex) }

// pick runs the steps of a request before it is sent, with the memory of r and l.
func pick(d *Dispatcher, r *request.Request, l *Leg, body []byte) error {
	defer r.Scan.Reset()
	defer l.reset()
	if err := ask(d, r, body); err != nil {
		return err
	}
	l.d, l.Request = d, r
	defer func() { l.permit.Release() }()
	if _, err := l.first(); err != nil {
		return err
	}
	l.drop(l.spare())
	return nil
}

func TestPickDoesNotAllocate(t *testing.T) {
	d := start(t, 4)
	r, l := request.New(), newLeg() // not from the pool, which forgets at random under the race detector
	for _, size := range []int{200, 2 << 10, 220 << 10} {
		body := chat(size)
		if err := pick(d, r, l, body); err != nil {
			t.Fatal(err)
		}
		if least := allocations(t, d, r, l, body); least != 0 {
			t.Errorf("%d bytes: %v allocations from body to picked node, want 0", size, least)
		}
	}
}

// TestPickOfALargeFleetDoesNotAllocate picks among 512 nodes.
func TestPickOfALargeFleetDoesNotAllocate(t *testing.T) {
	d := dispatcherOf(t, 512)
	r, l := request.New(), newLeg()
	for _, mode := range []policy.Mode{policy.Score, policy.Cost, policy.Predicted} {
		p := policy.Default()
		p.Mode = mode
		d.policy.Store(p)
		if err := pick(d, r, l, chat(2<<10)); err != nil {
			t.Fatal(err)
		}
		if least := allocations(t, d, r, l, chat(2<<10)); least != 0 {
			t.Errorf("%v: %v allocations, want 0", mode, least)
		}
	}
}

// allocations returns the number of allocations of a pick. The engines and their probes allocate
// now and then in the same process. The pick's own allocations show in every run.
func allocations(t *testing.T, d *Dispatcher, r *request.Request, l *Leg, body []byte) float64 {
	t.Helper()
	least := math.Inf(1)
	for range 10 {
		least = min(least, testing.AllocsPerRun(20, func() {
			if err := pick(d, r, l, body); err != nil {
				t.Fatal(err)
			}
		}))
	}
	return least
}

func TestFurther(t *testing.T) {
	for v, want := range map[verdict]int{
		unreached: 2, overloaded: 2, overdue: 2, broken: 2, failed500: 1, stalled: 1,
		late: 0, abandoned: 0, answered: 0, tooLong: 0,
	} {
		if got := v.further(2); got != want {
			t.Errorf("after %v %d further nodes may be asked, want %d", v, got, want)
		}
	}
}

// TestCacheSaltDoesNotAllocate uses salts of various lengths.
func TestCacheSaltDoesNotAllocate(t *testing.T) {
	d := start(t, 1)
	r, l := request.New(), newLeg()
	salted := `{"cache_salt":"` + strings.Repeat("s", 200) + `","model"`
	body := []byte(strings.Replace(string(chat(200)), `{"model"`, salted, 1))
	if err := pick(d, r, l, body); err != nil {
		t.Fatal(err)
	}
	if least := allocations(t, d, r, l, body); least != 0 {
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

// TestPlaceOfANodeWithManyModels checks that a leg without a model counts for the node's first
// model each time.
func TestPlaceOfANodeWithManyModels(t *testing.T) {
	d := start(t, 1, func(c *engine.Config) { c.Models = []string{"e", "c", "a", "d", "b"} })
	node := d.current().snap.Nodes[0]
	for range 20 {
		l := d.Leg(request.New(), Question{Node: node.ID, Bond: Stored}, nil)
		if at, err := l.first(); err != nil || at != 0 || l.Served() != "a" {
			t.Fatalf("place %d of model %s, %v", at, l.Served(), err)
		}
		node.Release()
		l.permit.Release()
	}
	l := d.Leg(request.New(), Question{Node: "nobody", Bond: Stored}, nil)
	if _, err := l.first(); err == nil || err.Code != "response_node_unavailable" {
		t.Errorf("an unknown node: %v", err)
	}
}

// TestHash checks that requests with another path, length or end hash differently. Only the ends of
// a long body may be hashed.
func TestHash(t *testing.T) {
	long := strings.Repeat("x", 8*hashedBody)
	seen := map[uint64]string{}
	of := func(path, body string) uint64 { return hash(path, []byte(body)) }
	for name, h := range map[string]uint64{
		"ab c": of("ab", "c"), "a bc": of("a", "bc"), "long": of("", long), "longer": of("", long+"x"),
		"other end": of("", long[1:]+"y"), "other beginning": of("", "y"+long[1:]),
	} {
		if other, had := seen[h]; had {
			t.Errorf("%s is the same as %s", name, other)
		}
		seen[h] = name
	}
	middle := []byte(long)
	middle[len(middle)/2] = 'y'
	if of("", string(middle)) != of("", long) {
		t.Error("the middle of a long body is hashed")
	}
}

// TestFirstSignThatCameToNothing checks that a failed answer leaves no time to first byte.
func TestFirstSignThatCameToNothing(t *testing.T) {
	d := start(t, 1)
	l := d.Leg(asked(t, d, chat(100)), Question{}, place(func(*relay.Exchange) error { return relay.ErrClientTooOld }))
	if err := l.Do(); err != errTooOld || l.TTFT != 0 {
		t.Errorf("%v, first sign after %v", err, l.TTFT)
	}
	l.Finish(relay.UpstreamFailed)
}

// TestAStallInALongStream checks that a stall shows in the longest gap, whatever the mean is.
// Looking at events must not allocate.
func TestAStallInALongStream(t *testing.T) {
	const events, gap, stall = 2000, 10 * time.Millisecond, 3 * time.Second
	d := start(t, 1)
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	if err := l.resolve(); err != nil {
		t.Fatal(err)
	}
	a := l.spare()
	a.member, a.streams = l.pool.members[0], true
	l.now = a
	at := l.Request.Received
	data := []byte(`{"choices":[{"delta":{"content":"x"}}]}`)
	event := sse.Event{Data: data, Raw: data}
	for i := range events {
		if at = at.Add(gap); i == events/2 {
			at = at.Add(stall - gap)
		}
		l.Event(event, at)
	}
	least := math.Inf(1)
	for range 10 { // the engine and its probes allocate in the same process
		least = min(least, testing.AllocsPerRun(100, func() { l.Event(event, at) }))
	}
	if least != 0 {
		t.Errorf("%v allocations for an event", least)
	}
	l.count(a, at)
	if got := sumOf(t, d, "cgn_router_itl_max_seconds"); got != stall.Seconds() {
		t.Errorf("the longest gap is %v s, want %v", got, stall)
	}
	if got := sumOf(t, d, "cgn_router_itl_seconds"); got > 2*gap.Seconds() {
		t.Errorf("the mean gap is %v s", got)
	}
}

// sumOf returns the sum of all values that a histogram has counted.
func sumOf(t *testing.T, d *Dispatcher, histogram string) (sum float64) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^` + histogram + `_sum(?:\{.*\})? (\S+)$`)
	for _, m := range line.FindAllStringSubmatch(metricsPage(d), -1) {
		value, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += value
	}
	return sum
}

// TestPatienceIsToldWhatIsCached checks that the patience for a node depends on the tokens that it
// must compute.
func TestPatienceIsToldWhatIsCached(t *testing.T) {
	d := start(t, 1)
	for round, cached := range []bool{false, true} {
		told := map[string]int64{}
		var l *Leg
		l = d.Leg(asked(t, d, chat(4000)), Question{}, place(func(ex *relay.Exchange) error {
			work := reflect.ValueOf(&l.wait).Elem().FieldByName("work")
			for _, name := range []string{"UncachedTokens", "CachedTokens"} {
				told[name] = work.FieldByName(name).Int()
			}
			ex.Close()
			return nil
		}))
		if err := l.Do(); err != nil {
			t.Fatal(err)
		}
		believed, all := int64(l.Matched())*prefix.BlockTokens, int64(l.Blocks())*prefix.BlockTokens
		if cached != (believed > 0) || all == 0 {
			t.Fatalf("round %d: %d of %d tokens believed", round, believed, all)
		}
		if told["CachedTokens"] != believed || told["UncachedTokens"] != all-believed {
			t.Errorf("%d of %d tokens believed, patience was told %v", believed, all, told)
		}
		l.Finish(relay.Complete)
	}
}

// TestMemoDoesNotAllocate picks for a long body that begins like an earlier one, and counts
// allocations.
func TestMemoDoesNotAllocate(t *testing.T) {
	d := start(t, 2)
	r, l := request.New(), newLeg()
	body := chat(220 << 10)
	seen := d.Leg(asked(t, d, body), Question{}, nil)
	at, err := seen.first()
	if err != nil {
		t.Fatal(err)
	}
	seen.prompt.Sent(seen.pool.ranks[at].Ref(), time.Now())
	seen.drop(seen.spare())
	seen.permit.Release()
	copy(body[len(body)-2000:], "another question")
	if n := testing.AllocsPerRun(20, func() {
		if err := pick(d, r, l, body); err != nil {
			t.Fatal(err)
		}
	}); n > 0.5 {
		t.Errorf("%v allocations", n)
	}
}

// TestPrefillFeedsNothingOfDecode checks that a prefill leg goes only to prefill nodes. The leg
// must not change decode's patience or statistics.
func TestPrefillFeedsNothingOfDecode(t *testing.T) {
	d := start(t, 2)
	backends := make([]fleet.Backend, 0, 2)
	for i, n := range d.fleet.Load().Nodes {
		backends = append(backends, fleet.Backend{URL: n.Info().Address, Role: []string{"prefill", "decode"}[i]})
	}
	if err := d.fleet.Reload(t.Context(), backends); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		m := d.fleet.Load().Model([]byte("sim"))
		return m != nil && len(m.Prefill) == 1 && len(m.Nodes) == 1
	})
	m := d.current().models["sim"]
	prefill, decode := m.pools[Prefill].members[0], m.pools[Answer].members[0]
	learned := func(work Work) string {
		return fmt.Sprintf("%+v", reflect.ValueOf(m.patience[work]).Elem().FieldByName("first"))
	}
	before := learned(Answer)
	captured := answer.Memory{Limit: 1 << 20}
	prompt := func(e *scan.Edits) { e.Set("max_tokens", []byte("1")) }
	for range 4 {
		body := bytes.Replace(chat(4000), []byte("{"),
			[]byte(`{"stream":true,"stream_options":{"include_usage":true},`), 1)
		l := d.Leg(asked(t, d, body), Question{Work: Prefill, Edit: prompt}, &captured)
		if err := l.Do(); err != nil || captured.Status != 200 || l.NodeID() != prefill.node.ID {
			t.Fatalf("%v, status %d from %q", err, captured.Status, l.NodeID())
		}
		if l.Reading.Usage.Completion != 1 || decode.rank.InFlight() != 0 {
			t.Errorf("%+v, %d in flight on the decode node", l.Reading.Usage, decode.rank.InFlight())
		}
		l.Finish(relay.Complete)
	}
	if learned(Answer) != before || learned(Prefill) == before {
		t.Errorf("from prefills decode's patience has learned %s, prefill's %s", learned(Answer), learned(Prefill))
	}
	if !exports(d, `cgn_router_ttft_seconds_count{model="sim"} 0`) {
		t.Error("prefills count as answers")
	}
	l := d.Leg(asked(t, d, chat(100)), Question{}, &captured)
	if err := l.Do(); err != nil || l.NodeID() != decode.node.ID {
		t.Errorf("an answer: %v from %q", err, l.NodeID())
	}
	l.Finish(relay.Complete)
	if prefill.rank.InFlight() != 0 || decode.rank.InFlight() != 0 || d.gate.InFlight() != 0 {
		t.Error("something was not given back")
	}
}

// TestBodyThatCannotBeEdited checks that the client gets the error and no node is blamed.
func TestBodyThatCannotBeEdited(t *testing.T) {
	d := start(t, 1)
	r := request.New()
	r.API, r.Method, r.Path, r.Received = scan.Audio, "POST", "/v1/audio/transcriptions", time.Now()
	form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nsim\r\n--b--\r\n"
	r.Own([]byte(form), nil)
	if err := r.Read([]byte("multipart/form-data; boundary=b"), nil); err != nil {
		t.Fatal(err)
	}
	l := d.Leg(r, Question{Edit: func(e *scan.Edits) { e.Set("n", []byte("1")) }}, nil)
	if err := l.Do(); err != errBody {
		t.Errorf("%v", err)
	}
	node := l.pool.members[0]
	l.Finish(relay.UpstreamFailed)
	if node.rank.InFlight() != 0 || node.node.Health.State() != health.Healthy {
		t.Errorf("%d in flight on a node that is %v", node.rank.InFlight(), node.node.Health.State())
	}
}

// pinnedTo returns the question of a client that has named its node.
func pinnedTo(node string) Question { return Question{Node: node, Bond: Named} }
