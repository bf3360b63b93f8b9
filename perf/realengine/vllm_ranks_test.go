package realengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"
)

// TestVLLMRanks: vLLM with --data-parallel-size 2 is one node with two ranks. The router finds the
// ranks, and its knowledge of each rank's cache equals the rank's own count of cached tokens. A
// request without a pin goes to the rank that holds its prompt.
func TestVLLMRanks(t *testing.T) {
	s := prepared(t, "vllm")
	events, replay := row(t, 2), row(t, 2)
	config, err := json.Marshal(object{"enable_kv_cache_events": true, "publisher": "zmq",
		"endpoint": "tcp://*:" + strconv.Itoa(events), "replay_endpoint": "tcp://127.0.0.1:" + strconv.Itoa(replay)})
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{
		setup: s, id: "vllm-ranks", address: free(t), flags: vllmFlags(s.model, "--enable-prompt-tokens-details",
			"--data-parallel-size", "2", "--kv-events-config", string(config)),
		env:     []string{"VLLM_ENABLE_V1_MULTIPROCESSING=1"},
		options: fmt.Sprintf(",kv-events=tcp://127.0.0.1:%d,kv-replay=tcp://127.0.0.1:%d", events, replay),
	}
	e.start(t)
	e.awaitReady(t)
	w := &ranked{s.site(t, e)}
	within(t, soon, "the events of both ranks are followed", func() bool {
		return w.metric(t, "cgn_router_kv_events_following") == 1 && w.metric(t, "cgn_router_caches_engines") == 2
	})
	t.Run("Exact", w.exact)
	t.Run("Unpinned", w.unpinned)
	t.Run("OutOfRange", w.outOfRange)
}

// row returns the first of n free ports in a row.
func row(t *testing.T, n int) int {
	t.Helper()
next:
	for range 100 {
		_, text, _ := net.SplitHostPort(free(t))
		first, _ := strconv.Atoi(text)
		for port := first; port < first+n; port++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				continue next
			}
			l.Close()
		}
		return first
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

// ranked is a site whose only engine has two ranks.
type ranked struct{ *site }

// matched returns the rank to which a prompt would go, and how many of its leading tokens the
// router believes each rank to find. The router's knowledge is at rest when the engine has
// answered.
func (w *ranked) matched(t *testing.T, tokens []int) (rank int, found [2]int) {
	t.Helper()
	page, _ := json.Marshal(tokenBody(tokens, ""))
	resp, err := w.client.Post(w.admin+"/debug/route?api=completions", "application/json", bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var e struct {
		Winner     int `json:"winner_dp_rank"`
		Candidates []struct {
			Rank    int `json:"dp_rank"`
			Matched int
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil || len(e.Candidates) != 2 {
		t.Fatalf("%+v, %v", e, err)
	}
	for _, c := range e.Candidates {
		found[c.Rank] = vllmBlock * min(c.Matched*ourBlock/vllmBlock, (len(tokens)-1)/vllmBlock)
	}
	return e.Winner, found
}

// ask sends a prompt to a rank, or without a pin to -1. ask returns the tokens that the engine
// found.
func (w *ranked) ask(t *testing.T, tokens []int, rank int) (status, cached int) {
	t.Helper()
	page, _ := json.Marshal(tokenBody(tokens, ""))
	req, err := http.NewRequest(http.MethodPost, w.url+"/v1/completions", bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if rank >= 0 {
		req.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(rank))
	}
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	c, _ := (&answer{status: resp.StatusCode, header: resp.Header, body: body, err: err}).counts()
	return resp.StatusCode, max(c.cached, 0)
}

// exact: prompts with common beginnings go to both ranks, whose caches are too small for all.
func (w *ranked) exact(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	hits := 0
	for i := range 80 {
		tokens := randomTokens(uint64(100+r.IntN(4)), 32*r.IntN(24))
		tokens = append(tokens, randomTokens(uint64(r.IntN(12)), 1+r.IntN(300))...)
		rank := r.IntN(2)
		var known [2]int
		within(t, soon, "events have come to rest", func() bool {
			before := w.metric(t, "cgn_router_kv_events_batches_total")
			_, known = w.matched(t, tokens)
			time.Sleep(150 * time.Millisecond)
			return w.metric(t, "cgn_router_kv_events_batches_total") == before
		})
		status, cached := w.ask(t, tokens, rank)
		if status != http.StatusOK || cached != known[rank] {
			t.Errorf("prompt %d at rank %d: %d with %d tokens cached, %v were known", i, rank, status, cached, known)
		}
		if cached > 0 {
			hits++
		}
	}
	if hits < 10 {
		t.Errorf("%d hits: this shows little", hits)
	}
}

// unpinned: a prompt goes to the rank that has it.
func (w *ranked) unpinned(t *testing.T) {
	for rank := range 2 {
		tokens := randomTokens(uint64(500+rank), 600)
		if _, cached := w.ask(t, tokens, rank); cached != 0 {
			t.Errorf("%d tokens of a new prompt are cached", cached)
		}
		within(t, soon, "the rank has the prompt", func() bool {
			to, found := w.matched(t, tokens)
			return to == rank && found[rank] == 576 && found[1-rank] == 0
		})
		if _, cached := w.ask(t, tokens, -1); cached != 576 {
			t.Errorf("%d tokens are cached at the rank of the router's choice", cached)
		}
	}
}

// outOfRange: the router refuses a rank that the engine does not have, as the engine would.
func (w *ranked) outOfRange(t *testing.T) {
	if status, _ := w.ask(t, randomTokens(1, 40), 2); status != http.StatusBadRequest {
		t.Errorf("rank 2: %d", status)
	}
	req, _ := http.NewRequest(http.MethodPost, w.engines[0].url()+"/v1/completions",
		bytes.NewReader([]byte(`{"model":"tiny","prompt":[11,12],"max_tokens":1}`)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Data-Parallel-Rank", "2")
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("the engine answers %d", resp.StatusCode)
	}
}
