package realengine

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// predictions is the state of cgn_router_prediction_error_ratio over all nodes.
type predictions struct{ sum, count float64 }

// predictions waits until no request is in flight, because answered requests have then been
// counted.
func (w *site) predictions(t *testing.T) (p predictions) {
	t.Helper()
	const name = "cgn_router_prediction_error_ratio"
	within(t, soon, "nothing is in flight", func() bool {
		page := w.read("/metrics")
		p = predictions{sum(t, page, name+"_sum"), sum(t, page, name+"_count")}
		return page != nil && sum(t, page, "cgn_router_in_flight") == 0
	})
	return p
}

// observed checks that n answers have been compared with their predictions since before, and
// returns the mean error: believed minus found.
func (w *site) observed(t *testing.T, before predictions, n int) float64 {
	t.Helper()
	now := w.predictions(t)
	if got := now.count - before.count; got != float64(n) {
		t.Errorf("%v of %d answers were compared with their predictions", got, n)
	}
	return (now.sum - before.sum) / max(now.count-before.count, 1)
}

// tally is one row of a table of results.
type tally struct {
	name                   string
	requests, home, wrong  int // home: requests on the node of the conversation's first turn
	prompt, cached         int
	believed, error, worst float64
}

const wrongBy = 0.15 // share of a prompt; an engine's blocks of 32 tokens are up to 0.1 of these prompts

func (r *tally) add(t *testing.T, a *answer, home string) {
	t.Helper()
	c, ok := a.counts()
	if !ok || c.cached < 0 {
		t.Fatalf("no cached-token count: %v", a)
	}
	r.requests++
	r.prompt += c.prompt
	r.cached += c.cached
	r.believed += a.believed()
	off := math.Abs(a.believed() - c.share())
	r.worst = max(r.worst, off)
	if off > wrongBy {
		r.wrong++
	}
	if a.node() == home {
		r.home++
	}
}

func show(t *testing.T, what string, rows []*tally) {
	t.Helper()
	var b strings.Builder
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "\trequests\tsame node\tprompt tokens\tfound cached\t\tbelieved\twrong by >15 %\tmean error "+
		"(/metrics)\t")
	for _, r := range rows {
		fmt.Fprintf(tab, "%s\t%d\t%d\t%d\t%d\t%.0f %%\t%.0f %%\t%d\t%+.3f\t\n", r.name, r.requests, r.home, r.prompt,
			r.cached,
			100*float64(r.cached)/float64(r.prompt), 100*r.believed/float64(r.requests), r.wrong, r.error)
	}
	_ = tab.Flush()
	t.Logf("%s\n%s", what, b.String())
}

// conversation is a chat that grows by one turn at a time.
type conversation struct {
	name     string
	home     string // node of its first turn
	said     []object
	prompted int // tokens of its last prompt, by the engine's count
}

// turn adds the user's message and the model's answer. Every other answer is streamed.
func (c *conversation) turn(t *testing.T, w *site, k, bytes int) *answer {
	t.Helper()
	c.said = append(c.said, object{"role": "user", "content": prose(fmt.Sprint(c.name, " turn ", k), bytes)})
	more := object{}
	if k%2 == 1 {
		more = object{"stream": true, "stream_options": object{"include_usage": true}}
	}
	a := w.must(t, "/v1/chat/completions", chatBody(c.said, more))
	c.said = append(c.said, object{"role": "assistant", "content": a.text()})
	return a
}

// conversations: each conversation of several turns stays on the node with its cache. Every turn
// finds the blocks of the previous turn in the engine's cache.
func (w *site) conversations(t *testing.T) {
	const count, turns = 4, 5
	all := make([]conversation, count)
	var rows []*tally
	for k := range turns {
		row := &tally{name: fmt.Sprint("turn ", k+1)}
		before := w.predictions(t)
		for i := range all {
			c := &all[i]
			bytes := 150
			if k == 0 {
				c.name, bytes = fmt.Sprint("conversation ", i), 2000
			}
			a := c.turn(t, w, k, bytes)
			if k == 0 {
				c.home = a.node()
			}
			row.add(t, a, c.home)
			got, _ := a.counts()
			if k > 0 && float64(got.cached) < 0.9*float64(c.prompted) {
				t.Errorf("%s, turn %d: the engine found %d tokens, the turn before had %d", c.name, k+1, got.cached,
					c.prompted)
			}
			c.prompted = got.prompt
		}
		row.error = w.observed(t, before, count)
		rows = append(rows, row)
		if k > 0 && (row.home != count || row.wrong > 0) {
			t.Errorf("turn %d: %+v", k+1, *row)
		}
	}
	show(t, "4 conversations that fit into the engines' caches", rows)
}

// spreads: prompts without common text use both nodes, one after another and concurrently.
func (w *site) spreads(t *testing.T) {
	const count = 24
	var single []*answer
	for i := range count {
		single = append(single, w.must(t, "/v1/chat/completions", chatBody(user(prose(fmt.Sprint("single ", i), 300)),
			nil)))
	}
	parallel := together(count, func(i int) *answer {
		return w.chat(user(prose(fmt.Sprint("parallel ", i), 300)), nil)
	})
	for name, all := range map[string][]*answer{"one by one": single, "at once": parallel} {
		by := spread(all)
		t.Logf("%d different prompts %s: %v", count, name, by)
		for _, e := range w.engines {
			if by[e.id] < count/4 {
				t.Errorf("%s: %s answered %d of %d", name, e.id, by[e.id], count)
			}
		}
	}
}

// learns: prompts are repeated in turn, more of them than the caches hold, so that each is evicted
// before it returns. At first the router expects the prompts to be cached, and the engines' counts
// correct this expectation. Then the router must expect a set that fits to be cached again.
func (w *site) learns(t *testing.T, prompts int) {
	const rounds, gap = 6, 75 * time.Millisecond
	home := map[int]string{}
	var rows []*tally
	for k := range rounds {
		rows = append(rows, w.round(t, fmt.Sprint("round ", k+1), prompts, gap, home))
	}
	// each node learns from its first mistakes, in one round, or in several if rounds take longer
	// each time
	var taught tally
	for _, r := range rows[1 : rounds-2] {
		taught.wrong += r.wrong
		taught.error = max(taught.error, r.error)
	}
	last := rows[rounds-1]
	for k := range 3 {
		rows = append(rows, w.round(t, fmt.Sprint("few, round ", k+1), 3, gap, home))
	}
	show(t, fmt.Sprintf("%d prompts in turn, too many for the caches; then 3 of them", prompts), rows)
	if taught.wrong < len(w.engines) {
		t.Errorf("%d repeats were believed that were gone: this shows nothing", taught.wrong)
	}
	if last.wrong > prompts/20 || math.Abs(last.error) > max(0.05, taught.error/4) {
		t.Errorf("the error went from %+v to %+v", taught, *last)
	}
	if few := rows[len(rows)-1]; few.wrong > 0 || few.cached*10 < few.prompt*8 {
		t.Errorf("a set that fits: %+v", *few)
	}
	for id, n := range w.nodes() {
		t.Logf("%s: blocks are believed to stay %.1f s", id, n.Lifetime)
	}
}

func (w *site) round(t *testing.T, name string, prompts int, gap time.Duration, home map[int]string) *tally {
	t.Helper()
	row := &tally{name: name}
	before := w.predictions(t)
	pace := time.NewTicker(gap)
	defer pace.Stop()
	for i := range prompts {
		<-pace.C
		a := w.must(t, "/v1/chat/completions", chatBody(user(prose(fmt.Sprint("cyclic ", i), 2000)),
			object{"max_tokens": 2}))
		if home[i] == "" {
			home[i] = a.node()
		}
		row.add(t, a, home[i])
	}
	row.error = w.observed(t, before, prompts)
	return row
}

// relearns: a router that has just started knows nothing of warm engines, and predicts correctly
// from the second round on.
func (w *site) relearns(t *testing.T) {
	const prompts = 4
	home := map[int]string{}
	warm := func(name string) *tally { return w.round(t, name, prompts, time.Millisecond, home) }
	rows := []*tally{warm("old router"), warm("old router")}
	w.stop(t)
	w.startRouter(t)
	rows = append(rows, warm("new, round 1"), warm("new, round 2"), warm("new, round 3"))
	show(t, fmt.Sprintf("%d prompts, and a router that starts anew", prompts), rows)
	if first, last := rows[2], rows[4]; last.wrong > 0 || last.home != prompts ||
		math.Abs(last.error)*4 > math.Abs(first.error) {
		t.Errorf("the error went from %+v to %+v", *first, *last)
	}
}
