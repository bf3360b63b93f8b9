package realengine

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// vllmFlags returns flags for a cache of 128 blocks of 32 tokens. A block of 32 tokens is the
// smallest block that vLLM's CPU attention supports.
func vllmFlags(model string, more ...string) []string {
	return append([]string{
		model, "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--distributed-executor-backend",
		"uni",
		"--max-model-len", "2048", "--max-num-batched-tokens", "2048", "--max-num-seqs", "8",
		"--block-size", "32", "--num-gpu-blocks-override", "128", "--kv-cache-memory-bytes", "16M",
	}, more...)
}

func TestVLLM(t *testing.T) {
	s := prepared(t, "vllm")
	var engines []*engine
	for i := range 2 {
		engines = append(engines, s.engine(t, fmt.Sprint("vllm-", i+1),
			vllmFlags(s.model, "--enable-prompt-tokens-details")...))
	}
	for _, e := range engines {
		e.awaitReady(t)
	}
	w := s.site(t, engines...)
	t.Run("Models", w.models)
	t.Run("Chats", w.chats)
	t.Run("Completions", w.completions)
	t.Run("NoEmbeddings", w.noEmbeddings)
	t.Run("Responses", w.responses)
	t.Run("Messages", w.messages)
	t.Run("Refusals", w.refusals)
	t.Run("Spreads", w.spreads)
	t.Run("Conversations", w.conversations)
	t.Run("Learns", func(t *testing.T) { w.learns(t, 24) })
	t.Run("Relearns", w.relearns)
	t.Run("ClientLeaves", func(t *testing.T) { w.leaves(t, "vllm:num_requests_running") })
	t.Run("Killed", w.killed)
	t.Run("Bursts", w.bursts)
	t.Run("Idles", w.idles)
}

// noEmbeddings: the engine itself refuses a request that it does not support.
func (w *site) noEmbeddings(t *testing.T) {
	a := w.post("/v1/embeddings", object{"model": model, "input": "one"})
	if a.status != http.StatusNotFound || a.node() == "" {
		t.Errorf("embeddings of a generating model: %v", a)
	}
}

// TestVLLMUnreported: without --enable-prompt-tokens-details vLLM's count is null, which is not
// zero. The router keeps its predictions, and logs one line that names the flag.
func TestVLLMUnreported(t *testing.T) {
	s := prepared(t, "vllm")
	e := s.engine(t, "vllm-unreported", vllmFlags(s.model)...)
	e.awaitReady(t)
	w := s.site(t, e)
	const repeats = 6
	for i := range repeats {
		more := object{}
		if i%2 == 1 {
			more = object{"stream": true}
		}
		a := w.must(t, "/v1/chat/completions", chatBody(user(prose("unreported", 1500)), more))
		if c, ok := a.counts(); ok && c.cached >= 0 {
			t.Fatalf("this vLLM reports cached tokens: %v", a)
		}
		if i > 0 && a.believed() < 0.9 {
			t.Errorf("repeat %d: only %.2f of the prompt is believed to be cached", i, a.believed())
		}
	}
	within(t, soon, "all answers are counted as unreported", func() bool {
		return w.metric(t, "cgn_router_cached_unreported_total") == repeats
	})
	if n := w.predictions(t).count; n != 0 {
		t.Errorf("%v answers were held against a prediction", n)
	}
	w.stop(t)
	log, err := os.ReadFile(filepath.Join(s.run, w.name+".log"))
	if n := bytes.Count(log, []byte("--enable-prompt-tokens-details")); err != nil || n != 1 {
		t.Errorf("%d log lines name the flag (%v):\n%s", n, err, log)
	}
}
