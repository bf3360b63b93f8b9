package realengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"
)

// nixlEngine starts a vLLM server whose KV blocks other servers read by NIXL. All roles have the
// same server; the router's backend says what it does.
func (s setup) nixlEngine(t *testing.T, id string, lease int, more ...string) *engine {
	t.Helper()
	_, side, _ := net.SplitHostPort(free(t))
	e := &engine{
		setup: s, id: id, address: free(t),
		flags: append(vllmFlags(s.model, "--enable-prompt-tokens-details", "--kv-transfer-config", fmt.Sprintf(
			`{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu",`+
				`"kv_connector_extra_config":{"kv_lease_duration":%d}}`, lease)), more...),
		env: []string{"VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT=" + side,
			"UCX_TLS=tcp,sm,self", "UCX_NET_DEVICES=lo"},
	}
	e.start(t)
	return e
}

// divide starts a router for which the first engines compute prompts and the others answer.
func (s setup) divide(t *testing.T, prefills int, engines ...*engine) *site {
	t.Helper()
	for i, e := range engines {
		if e.options = ",role=decode"; i < prefills {
			e.options = ",role=prefill"
		}
	}
	t.Setenv("CGN_ROUTER_DISAGG_COLOCATE_BELOW_TOKENS", "64")
	t.Setenv("CGN_ROUTER_MODE", "score")
	return s.site(t, engines...)
}

var bySource = regexp.MustCompile(`(?m)^vllm:prompt_tokens_by_source_total\{.*source="([a-z_]+)"\} (\S+)$`)

// promptTokens returns the engine's prompt tokens by their source.
func (e *engine) promptTokens(t *testing.T) map[string]float64 {
	t.Helper()
	resp, err := http.Get(e.url() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, m := range bySource.FindAllSubmatch(page, -1) {
		v, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			t.Fatal(err)
		}
		all[string(m[1])] += v
	}
	return all
}

// direct asks the engine itself.
func (e *engine) direct(body object) *answer {
	page, _ := json.Marshal(body)
	resp, err := http.Post(e.url()+"/v1/chat/completions", "application/json", bytes.NewReader(page))
	if err != nil {
		return &answer{err: err, header: http.Header{}}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return &answer{resp.StatusCode, resp.Header, text, err, 0}
}

// mixed returns the i-th of many different requests, streamed and not.
func mixed(name string, i int) object {
	more := object{"max_tokens": 8 + i%17, "seed": 1}
	if i%2 == 1 {
		more["stream"] = true
	}
	return chatBody(user(prose(fmt.Sprint(name, i), 500+i%5*300)), more)
}

// TestVLLMDisagg: one server computes prompts and two answer, then two and one. The answers are
// those of one server, and the servers that answer compute no prompt.
func TestVLLMDisagg(t *testing.T) {
	s := prepared(t, "vllm")
	var engines []*engine
	for i := range 3 {
		engines = append(engines, s.nixlEngine(t, fmt.Sprint("nixl-", i+1), 30))
	}
	plain := s.engine(t, "plain", vllmFlags(s.model)...)
	for _, e := range append(engines, plain) {
		e.awaitReady(t)
	}
	for _, prefills := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d for prefill", prefills), func(t *testing.T) {
			w := s.divide(t, prefills, engines...)
			t.Run("Singly", func(t *testing.T) { w.singly(t, plain, engines[prefills:]) })
			t.Run("UnderLoad", func(t *testing.T) { w.underLoad(t, plain) })
		})
	}
	t.Run("KilledPrefill", func(t *testing.T) {
		w := s.divide(t, 2, engines...)
		w.killedPrefill(t, plain, engines[:2])
	})
}

func (w *site) singly(t *testing.T, plain *engine, decodes []*engine) {
	before := w.computed(t, decodes)
	split := w.metric(t, "cgn_router_prefill_seconds_count")
	const requests = 24
	for i := range requests {
		body := mixed(t.Name(), i)
		a, want := w.post("/v1/chat/completions", body), plain.direct(body)
		if !a.good() || !want.good() || a.text() != want.text() {
			t.Errorf("request %d: %q of one server, %q of two: %v", i, want.text(), a.text(), a)
		}
		if a.header.Get("x-cgn-prefill-node") == "" {
			t.Errorf("request %d: one node alone: %v", i, a)
		}
	}
	if n := w.metric(t, "cgn_router_prefill_seconds_count") - split; n != requests {
		t.Errorf("%v prompts were computed by another server", n)
	}
	if n := w.computed(t, decodes) - before; n != 0 {
		t.Errorf("the servers that answered computed %v prompt tokens", n)
	}
}

// computed sums up the prompt tokens that the engines have computed.
func (w *site) computed(t *testing.T, engines []*engine) (sum float64) {
	t.Helper()
	for _, e := range engines {
		sources := e.promptTokens(t)
		t.Log(e.id, sources)
		sum += sources["local_compute"]
	}
	return sum
}

func (w *site) underLoad(t *testing.T, plain *engine) {
	const requests, atOnce = 200, 12
	run := func(send func(body object) *answer) []string {
		texts, slots := make([]string, requests), make(chan struct{}, atOnce)
		var wg sync.WaitGroup
		for i := range requests {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				a := send(mixed(t.Name(), i))
				if !a.good() {
					t.Errorf("request %d: %v", i, a)
				}
				texts[i] = a.text()
			})
		}
		wg.Wait()
		return texts
	}
	first, second := run(plain.direct), run(plain.direct)
	routed := run(func(body object) *answer { return w.post("/v1/chat/completions", body) })
	differ := func(a, b []string) (n int) {
		for i := range a {
			if a[i] != b[i] {
				n++
			}
		}
		return n
	}
	own, two := differ(first, second), differ(first, routed)
	t.Logf("of %d answers %d differ between two runs of one server, %d between one server and two", requests, own, two)
	if two > own+requests/50 {
		t.Errorf("%d answers of two servers differ from one server's, %d of its own second run", two, own)
	}
	t.Logf("%s", regexp.MustCompile(`(?m)^cgn_router_handovers_total.*$`).FindAll(w.read("/metrics"), -1))
}

// killedPrefill kills servers that compute prompts at random moments.
func (w *site) killedPrefill(t *testing.T, plain *engine, prefills []*engine) {
	const requests, atOnce = 200, 8
	rng := rand.New(rand.NewPCG(1, 1))
	var wg sync.WaitGroup
	slots, wrong := make(chan struct{}, atOnce), make(chan string, requests)
	kills := map[int]*engine{20 + rng.IntN(20): prefills[0], 100 + rng.IntN(30): prefills[1]}
	for i := range requests {
		slots <- struct{}{}
		if e := kills[i]; e != nil {
			time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
			e.kill()
		}
		wg.Go(func() {
			defer func() { <-slots }()
			body := mixed(t.Name(), i)
			if a := w.post("/v1/chat/completions", body); !a.good() {
				t.Errorf("request %d: %v", i, a)
			} else if want := plain.direct(body); a.text() != want.text() {
				wrong <- fmt.Sprintf("request %d: %q of one server, %q of two", i, want.text(), a.text())
			}
		})
	}
	wg.Wait()
	close(wrong)
	n := 0
	for text := range wrong {
		t.Log(text)
		n++
	}
	if n > 0 {
		t.Errorf("%d answers differ from one server's", n)
	}
	t.Logf("%s", regexp.MustCompile(`(?m)^cgn_router_handovers_total.*$`).FindAll(w.read("/metrics"), -1))
}
