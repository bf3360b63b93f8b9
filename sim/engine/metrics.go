package engine

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
)

// exposition writes Prometheus text in the format of vLLM's client library. Every family has the
// samples of all ranks.
type exposition struct {
	b     strings.Builder
	model string
	ranks []*rank
}

func (x *exposition) head(name, kind, help string) {
	fmt.Fprintf(&x.b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes one line of a rank, with additional labels after the common ones.
func (x *exposition) sample(r *rank, name, more string, v float64) {
	fmt.Fprintf(&x.b, "%s{engine=\"%d\",model_name=%q%s} %s\n", name, r.number, x.model, more, number(v))
}

func (x *exposition) gauge(name, help string, v func(r *rank) float64) {
	x.head(name, "gauge", help)
	for _, r := range x.ranks {
		x.sample(r, name, "", v(r))
	}
}

// family writes a counter with at most one additional label, and the time of its creation.
func (x *exposition) family(name, help, label string, values []string, at func(m *meters, i int) int64) {
	x.head(name+"_total", "counter", help)
	extra := func(v string) string {
		if label == "" {
			return ""
		}
		return fmt.Sprintf(",%s=%q", label, v)
	}
	for _, r := range x.ranks {
		for i, v := range values {
			x.sample(r, name+"_total", extra(v), float64(at(r.meters, i)))
		}
	}
	x.head(name+"_created", "gauge", help)
	for _, r := range x.ranks {
		for _, v := range values {
			x.sample(r, name+"_created", extra(v), r.created())
		}
	}
}

// created returns when the rank's counters began, in Unix seconds.
func (r *rank) created() float64 { return float64(r.meters.started.UnixMicro()) / 1e6 }

func (x *exposition) histogram(name, help string, of func(m *meters) *histogram) {
	x.head(name, "histogram", help)
	for _, r := range x.ranks {
		h, n := of(r.meters), int64(0)
		for i := range h.counts {
			le := "+Inf"
			if i < len(h.bounds) {
				le = number(h.bounds[i])
			}
			n += h.counts[i].Load()
			x.sample(r, name+"_bucket", fmt.Sprintf(",le=%q", le), float64(n))
		}
		x.sample(r, name+"_count", "", float64(n))
		x.sample(r, name+"_sum", "", math.Float64frombits(h.sum.Load()))
	}
	x.head(name+"_created", "gauge", help)
	for _, r := range x.ranks {
		x.sample(r, name+"_created", "", r.created())
	}
}

// number formats floats as Python does, with a point in whole numbers.
func number(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".eIN") {
		s += ".0"
	}
	return s
}

func metricsPage(c *call) error {
	x := &exposition{model: c.cfg.Models[0], ranks: c.core.ranks}
	x.load(c.cfg.CacheBlocks)
	x.counters()
	x.histograms()
	x.cacheConfig(c.cfg)
	if c.cfg.MaxLoRAs > 0 {
		c.core.loras.metrics(x, c.cfg.MaxLoRAs)
	}
	c.w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, err := c.w.Write([]byte(x.b.String()))
	return err
}

func (x *exposition) load(blocks int) {
	x.gauge("vllm:num_requests_running", "Number of requests in model execution batches.",
		func(r *rank) float64 { return float64(r.meters.running.Load()) })
	x.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.",
		func(r *rank) float64 { return float64(r.meters.waiting.Load()) })
	x.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
		func(r *rank) float64 { return float64(r.meters.usedBlocks.Load()) / float64(blocks) })
}

func (x *exposition) counters() {
	for _, c := range []struct {
		name, help string
		of         func(m *meters) *atomic.Int64
	}{
		{"vllm:num_preemptions", "Cumulative number of preemption from the engine.",
			func(m *meters) *atomic.Int64 { return &m.preemptions }},
		{"vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.",
			func(m *meters) *atomic.Int64 { return &m.queries }},
		{"vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.",
			func(m *meters) *atomic.Int64 { return &m.hits }},
		{"vllm:prompt_tokens", "Number of prefill tokens processed.",
			func(m *meters) *atomic.Int64 { return &m.prompt }},
		{"vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).",
			func(m *meters) *atomic.Int64 { return &m.hits }},
		{"vllm:generation_tokens", "Number of generation tokens processed.",
			func(m *meters) *atomic.Int64 { return &m.generated }},
	} {
		x.family(c.name, c.help, "", []string{""}, func(m *meters, _ int) int64 { return c.of(m).Load() })
	}
	x.family("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", "source",
		[]string{"local_compute", "local_cache_hit", "external_kv_transfer"}, func(m *meters, i int) int64 {
			return [3]int64{m.queries.Load() - m.hits.Load(), m.hits.Load(), 0}[i]
		})
	x.family("vllm:request_success", "Count of successfully processed requests.", "finished_reason",
		finishReasons, func(m *meters, i int) int64 { return m.success[i].Load() })
}

func (x *exposition) histograms() {
	for _, h := range []struct {
		name, help string
		of         func(m *meters) *histogram
	}{
		{"vllm:request_prompt_tokens", "Number of prefill tokens processed.",
			func(m *meters) *histogram { return m.promptLen }},
		{"vllm:request_generation_tokens", "Number of generation tokens processed.",
			func(m *meters) *histogram { return m.outputLen }},
		{"vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.",
			func(m *meters) *histogram { return m.steps }},
		{"vllm:request_prefill_kv_computed_tokens",
			"Histogram of new KV tokens computed during prefill (excluding cached tokens).",
			func(m *meters) *histogram { return m.computed }},
		{"vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.",
			func(m *meters) *histogram { return m.ttft }},
		{"vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.",
			func(m *meters) *histogram { return m.itl }},
		{"vllm:request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.",
			func(m *meters) *histogram { return m.tpot }},
		{"vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.",
			func(m *meters) *histogram { return m.e2e }},
		{"vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.",
			func(m *meters) *histogram { return m.queue }},
		{"vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.",
			func(m *meters) *histogram { return m.inference }},
		{"vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.",
			func(m *meters) *histogram { return m.prefill }},
		{"vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.",
			func(m *meters) *histogram { return m.decode }},
	} {
		x.histogram(h.name, h.help, h.of)
	}
}

// cacheConfig writes the simulated part of vllm:cache_config_info. As in vLLM, the series of each
// rank has the blocks of all ranks together.
func (x *exposition) cacheConfig(c Config) {
	const name = "vllm:cache_config_info"
	x.head(name, "gauge", "Information of the LLMEngine CacheConfig")
	prefix := "True"
	if c.NoPrefixCache {
		prefix = "False"
	}
	for _, r := range x.ranks {
		fmt.Fprintf(&x.b, "%s{block_size=\"%d\",enable_prefix_caching=%q,engine=\"%d\",kv_cache_size_tokens=\"%d\",num_gpu_blocks=\"%d\"} 1.0\n",
			name, c.BlockTokens, prefix, r.number, c.BlockTokens*c.CacheBlocks, c.CacheBlocks*len(x.ranks))
	}
}
