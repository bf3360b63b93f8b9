package realengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

// vllmBlock is the size of the engine's blocks in tokens, and ourBlock that of ours.
const vllmBlock, ourBlock = 32, 16

// TestVLLMEvents: the router's knowledge of an engine by KV events equals the engine's cache. The
// engine finds min(matched, floor((prompt-1)/block)) blocks of each prompt. The equality holds
// through evictions, cache salts, a cache reset and a restart.
func TestVLLMEvents(t *testing.T) {
	s := prepared(t, "vllm")
	events, replay := "ipc://"+filepath.Join(s.run, "events"), "ipc://"+filepath.Join(s.run, "replay")
	config, err := json.Marshal(object{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": events,
		"replay_endpoint": replay, "topic": "kv", "buffer_steps": 10000})
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{
		setup: s, id: "vllm-events", address: free(t), flags: vllmFlags(s.model, "--enable-prompt-tokens-details",
			"--kv-events-config", string(config)),
		env: []string{"VLLM_SERVER_DEV_MODE=1"}, options: ",kv-events=" + events + ",kv-replay=" + replay,
	}
	e.start(t)
	e.awaitReady(t)
	before := randomTokens(1, 500)
	asked(t, e, before, "") // before the router follows the events
	w := s.site(t, e)
	x := &exact{site: w, engine: e, r: rand.New(rand.NewPCG(7, 7))}
	within(t, soon, "the events are followed", x.following)

	if got := x.holds(t, "from before", before, ""); got != 480 {
		t.Errorf("the engine had %d tokens cached of what came before the router", got)
	}
	t.Run("Shared", func(t *testing.T) {
		a := randomTokens(2, 1000)
		for _, n := range []int{1000, 1000, 999, 993, 992, 33, 32, 31, 640} {
			x.holds(t, fmt.Sprint(n, " tokens"), a[:n], "")
		}
		x.holds(t, "a prompt that goes on otherwise", append(a[:520:520], randomTokens(3, 300)...), "")
	})
	t.Run("Salts", func(t *testing.T) {
		a := randomTokens(4, 400)
		for _, salt := range []string{"", "tenant-a", "tenant-b", "tenant-a", ""} {
			x.holds(t, "salt "+salt, a, salt)
		}
	})
	t.Run("Evictions", func(t *testing.T) { x.evictions(t, 80) })
	t.Run("Reset", x.reset)
	t.Run("Restart", x.restarts)
	if x.compared < 90 || x.found == 0 {
		t.Errorf("%d prompts were compared, %d tokens of them were cached", x.compared, x.found)
	}
	t.Logf("%d prompts: each as known; %d of their %d tokens were cached", x.compared, x.found, x.asked)
}

func randomTokens(seed uint64, n int) []int {
	r := rand.New(rand.NewPCG(seed, 99))
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = 10 + r.IntN(500)
	}
	return tokens
}

func tokenBody(tokens []int, salt string) object {
	body := object{"model": model, "prompt": tokens, "max_tokens": 2, "temperature": 0}
	if salt != "" {
		body["cache_salt"] = salt
	}
	return body
}

// asked sends a prompt directly to the engine.
func asked(t *testing.T, e *engine, tokens []int, salt string) {
	t.Helper()
	page, _ := json.Marshal(tokenBody(tokens, salt))
	resp, err := http.Post(e.url()+"/v1/completions", "application/json", bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatal(resp.StatusCode, string(body))
	}
}

// exact compares the router's knowledge with the engine's cache.
type exact struct {
	*site
	engine                 *engine
	r                      *rand.Rand
	compared, asked, found int
}

func (x *exact) following() bool {
	page := x.read("/metrics")
	return page != nil && sum(x.owner, page, "cgn_router_kv_events_following") == 1 &&
		sum(x.owner, page, "cgn_router_caches_engines") == 1
}

// matched waits until no event has come for a while. Then it returns how many leading blocks, in
// our size, the engine has by the router's knowledge.
func (x *exact) matched(t *testing.T, tokens []int, salt string) (blocks int) {
	t.Helper()
	return x.knows(t, "completions", tokenBody(tokens, salt))
}

// knows is matched for any body.
func (x *exact) knows(t *testing.T, api string, body object) (blocks int) {
	t.Helper()
	const still = 150 * time.Millisecond
	last, since := -1.0, time.Now()
	within(t, soon, "events have come to rest", func() bool {
		page, _ := json.Marshal(body)
		resp, err := x.client.Post(x.admin+"/debug/route?api="+api, "application/json", bytes.NewReader(page))
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var e struct {
			Candidates []struct{ Matched int }
		}
		if json.NewDecoder(resp.Body).Decode(&e) != nil || len(e.Candidates) != 1 {
			return false
		}
		batches := x.metric(t, "cgn_router_kv_events_batches_total")
		if batches != last || e.Candidates[0].Matched != blocks || !x.following() {
			last, blocks, since = batches, e.Candidates[0].Matched, time.Now()
		}
		return time.Since(since) > still
	})
	return blocks
}

// holds sends a prompt, checks that its cached tokens equal the router's knowledge, and returns
// their number.
func (x *exact) holds(t *testing.T, what string, tokens []int, salt string) (cached int) {
	t.Helper()
	known := x.matched(t, tokens, salt)
	want := vllmBlock * min(known*ourBlock/vllmBlock, (len(tokens)-1)/vllmBlock)
	a := x.must(t, "/v1/completions", tokenBody(tokens, salt))
	c, ok := a.counts()
	if cached = max(c.cached, 0); !ok || cached != want {
		t.Errorf("%s: the engine had %d of %d tokens cached, %d blocks of 16 were known: %d tokens", what, cached,
			len(tokens), known, want)
	}
	x.compared, x.asked, x.found = x.compared+1, x.asked+len(tokens), x.found+cached
	return cached
}

// evictions: prompts with common beginnings are repeated while the cache of 128 blocks is much too
// small for all.
func (x *exact) evictions(t *testing.T, prompts int) {
	hits, misses := 0, 0
	for i := range prompts {
		family := x.r.IntN(6)
		shared, own := 32*x.r.IntN(24), x.r.IntN(400)
		tokens := append(randomTokens(uint64(100+family), shared), randomTokens(uint64(1000+x.r.IntN(12)), 1+own)...)
		if x.holds(t, fmt.Sprint("prompt ", i), tokens, []string{"", "", "tenant-a"}[x.r.IntN(3)]) > 0 {
			hits++
		} else {
			misses++
		}
	}
	if hits < prompts/10 || misses < prompts/10 {
		t.Errorf("%d hits, %d misses: this shows little", hits, misses)
	}
}

// reset: the engine reports only with its next request that its cache was cleared.
func (x *exact) reset(t *testing.T) {
	a := randomTokens(5, 600)
	x.holds(t, "new", a, "")
	if got := x.holds(t, "again", a, ""); got == 0 {
		t.Error("nothing was cached: this shows nothing")
	}
	resp, err := http.Post(x.engine.url()+"/reset_prefix_cache", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal("the cache is not reset: ", resp.StatusCode)
	}
	asked(t, x.engine, randomTokens(6, 40), "")
	if got := x.holds(t, "after a reset", a, ""); got != 0 {
		t.Errorf("%d tokens are cached after a reset", got)
	}
	x.holds(t, "back", a, "")
}

// restarts: the engine is killed, and begins with an empty cache.
func (x *exact) restarts(t *testing.T) {
	a := randomTokens(5, 600)
	if got := x.holds(t, "before", a, ""); got == 0 {
		t.Error("nothing was cached: this shows nothing")
	}
	epochs := x.metric(t, "cgn_router_kv_events_epochs_total")
	x.engine.kill()
	within(t, soon, "the router follows nobody", func() bool {
		return x.metric(t, "cgn_router_kv_events_following") == 0
	})
	x.engine.start(t)
	x.engine.awaitReady(t)
	within(t, soon, "the engine is back", func() bool { return x.eligible() == 1 && x.following() })
	if got := x.holds(t, "after a restart", a, ""); got != 0 {
		t.Errorf("%d tokens are cached after a restart", got)
	}
	x.holds(t, "back", a, "")
	if now := x.metric(t, "cgn_router_kv_events_epochs_total"); now != epochs+1 {
		t.Errorf("%v epochs, %v before the restart", now, epochs)
	}
}
