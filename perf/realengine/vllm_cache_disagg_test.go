package realengine

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"
)

// chunked makes a server compute long prompts in several steps, and store their blocks in as many.
var chunked = []string{"--max-num-batched-tokens", "512"}

// TestVLLMCacheDisagg: one server computes prompts, and another one on another host answers from
// the blocks that come through both hosts' caches. It is timed beside NIXL, with the same prompts.
// When a cache ends, the answers stay the same.
func TestVLLMCacheDisagg(t *testing.T) {
	s := prepared(t, "vllm")
	x := &handed{caches: s.caches(t, "a", "b")}
	for i, c := range x.caches {
		id := fmt.Sprint("cached-", i+1)
		flags := append(connected(object{"socket": c.lease, "node": id}), chunked...)
		x.through = append(x.through, s.engine(t, id, vllmFlags(s.model, flags...)...))
		x.nixl = append(x.nixl, s.nixlEngine(t, fmt.Sprint("nixl-", i+1), 30, chunked...))
	}
	for i, e := range slices.Concat(x.through, x.nixl) {
		if e.awaitReady(t); i < len(x.caches) {
			e.tokenizer = s.model
		}
	}
	x.beside = s.divide(t, 1, x.nixl...)
	x.site = s.divideWith(t, func(i int) string {
		return ",connector=kvcached,kv=unix://" + x.caches[i].grpc
	}, x.through...)
	t.Run("Loads", x.loads)
	t.Run("Timed", x.timed)
	t.Run("Absent", x.absent)
	t.Run("CacheOfDEnds", func(t *testing.T) { x.ends(t, 1, "split") })
	t.Run("CacheOfPEnds", func(t *testing.T) { x.ends(t, 0, "garbled") })
}

// divideWith is divide for one server that computes prompts, and with these options of each.
func (s setup) divideWith(t *testing.T, more func(i int) string, engines ...*engine) *site {
	t.Helper()
	for i, e := range engines {
		if e.options = ",role=decode"; i == 0 {
			e.options = ",role=prefill"
		}
		e.options += more(i)
	}
	return s.site(t, engines...)
}

// handed is two pairs of servers, one that hands blocks over through caches and one by NIXL, each
// with a router.
type handed struct {
	caches        []*cache
	through, nixl []*engine
	site, beside  *site
}

// stream sends a chat and returns its text, and the time from the end of the prompt's computation
// until the first token.
func (w *site) stream(t *testing.T, text string) (said string, after time.Duration) {
	t.Helper()
	before := w.metric(t, "cgn_router_prefill_seconds_sum")
	began := time.Now()
	resp, err := w.open(t.Context(), http.MethodPost, "/v1/chat/completions", chatBody(user(text),
		object{"stream": true, "max_tokens": 8}))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		body.WriteString(lines.Text() + "\n")
		if after == 0 && (&answer{body: body.Bytes(), header: resp.Header}).text() != "" {
			after = time.Since(began)
		}
	}
	a := &answer{resp.StatusCode, resp.Header, body.Bytes(), nil, 0}
	if !a.good() || !a.done() {
		t.Fatalf("%v", a)
	}
	spent := w.metric(t, "cgn_router_prefill_seconds_sum") - before
	return a.text(), after - time.Duration(spent*float64(time.Second))
}

// loads: the server that answers loads all whole blocks of a prompt but the last token's, and its
// host has brought them before.
func (x *handed) loads(t *testing.T) {
	d, host := x.through[1], x.caches[1]
	x.site.stream(t, prose("first", 1200)) // the router learns of the namespace
	x.caches[0].settled(t)
	for i := range 4 {
		text := prose(fmt.Sprint("handed over ", i), 3000)
		computed, external, awaited := d.source(t, "local_compute"), d.source(t, "external_kv_transfer"),
			host.metric(t, "fleet_awaited_total")
		said, _ := x.site.stream(t, text)
		computed, external = d.source(t, "local_compute")-computed, d.source(t, "external_kv_transfer")-external
		want, n := x.through[0].asksAs(t, text, object{"max_tokens": 8})
		t.Logf("%d prompt tokens: D loaded %d and computed %d", n.prompt, external, computed)
		if blocks := (n.prompt - 1) / blockTokens; external != blocks*blockTokens || computed != n.prompt-external {
			t.Errorf("not %d blocks", blocks)
		}
		within(t, soon, "D's host has brought the blocks because it was asked to", func() bool {
			return host.metric(t, "fleet_awaited_total")-awaited == float64(n.prompt/blockTokens)
		})
		if said != want {
			t.Errorf("%q, the other server alone %q", said, want)
		}
	}
}

// timed compares the time from the end of a prompt's computation to the first token with NIXL's.
func (x *handed) timed(t *testing.T) {
	const pairs = 60
	var ours, theirs []time.Duration
	differ := 0
	for i := range pairs {
		text := prose(fmt.Sprint("timed ", i), 3000)
		var said [2]string
		var took [2]time.Duration
		for k := range said {
			at := (i + k) % 2 // each is first in half of the pairs
			said[at], took[at] = []*site{x.site, x.beside}[at].stream(t, text)
		}
		if said[0] != said[1] {
			differ++
		}
		ours, theirs = append(ours, took[0]), append(theirs, took[1])
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	t.Logf("from the end of the prompt's computation to the first token, %d pairs: through the caches median %v "+
		"(p90 %v), by NIXL %v (%v)", pairs, ours[pairs/2], ours[pairs*9/10], theirs[pairs/2], theirs[pairs*9/10])
	if differ > 0 {
		t.Errorf("%d of %d answers differ", differ, pairs)
	}
}

// absent: blocks that the server that answers is told to wait for do not come.
func (x *handed) absent(t *testing.T) {
	d := x.through[1]
	text := prose("absent", 3000)
	computed := d.source(t, "local_compute")
	said, n := d.asksAs(t, text, object{"max_tokens": 8, "kv_transfer_params": object{"cgn_tokens": 1024,
		"cgn_wait_ms": 300}})
	if computed = d.source(t, "local_compute") - computed; computed != n.prompt {
		t.Errorf("D computed %d of %d tokens", computed, n.prompt)
	}
	if want, _ := x.through[0].asksAs(t, text, object{"max_tokens": 8}); said != want {
		t.Errorf("%q, the other server alone %q", said, want)
	}
}

// ends: the cache of one of the servers ends. result is that of the hand-overs after it.
func (x *handed) ends(t *testing.T, of int, result string) {
	before := x.results(t)
	x.caches[of].stop(t)
	for i := range 3 {
		text := prose(fmt.Sprint("without cache ", of, i), 3000)
		said, after := x.site.stream(t, text)
		if want, _ := x.through[1-of].asksAs(t, text, object{"max_tokens": 8}); said != want {
			t.Errorf("%q, one server alone %q", said, want)
		}
		t.Logf("the first token came %v after the prompt's computation", after)
	}
	if n := x.results(t)[result] - before[result]; n != 3 {
		t.Errorf("%v hand-overs are %s", n, result)
	}
}

// results returns how many hand-overs through the caches have had each result.
func (x *handed) results(t *testing.T) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, m := range handover.FindAllSubmatch(x.site.read("/metrics"), -1) {
		n, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			t.Fatal(err)
		}
		all[string(m[1])] = n
	}
	return all
}
