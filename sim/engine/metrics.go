package engine

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
)

// exposition writes Prometheus text in the format of vLLM's client library.
type exposition struct {
	b       strings.Builder
	labels  string // of every sample, without braces
	created float64
}

func (x *exposition) head(name, kind, help string) {
	fmt.Fprintf(&x.b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes one line, with additional labels after the common ones.
func (x *exposition) sample(name, more string, v float64) {
	fmt.Fprintf(&x.b, "%s{%s%s} %s\n", name, x.labels, more, number(v))
}

func (x *exposition) gauge(name, help string, v float64) {
	x.head(name, "gauge", help)
	x.sample(name, "", v)
}

// family writes a counter with at most one additional label, and the time of its creation.
func (x *exposition) family(name, help, label string, values []string, at func(i int) int64) {
	x.head(name+"_total", "counter", help)
	extra := func(v string) string {
		if label == "" {
			return ""
		}
		return fmt.Sprintf(",%s=%q", label, v)
	}
	for i, v := range values {
		x.sample(name+"_total", extra(v), float64(at(i)))
	}
	x.head(name+"_created", "gauge", help)
	for _, v := range values {
		x.sample(name+"_created", extra(v), x.created)
	}
}

func (x *exposition) histogram(name, help string, h *histogram) {
	x.head(name, "histogram", help)
	n := int64(0)
	for i := range h.counts {
		le := "+Inf"
		if i < len(h.bounds) {
			le = number(h.bounds[i])
		}
		n += h.counts[i].Load()
		x.sample(name+"_bucket", fmt.Sprintf(",le=%q", le), float64(n))
	}
	x.sample(name+"_count", "", float64(n))
	x.sample(name+"_sum", "", math.Float64frombits(h.sum.Load()))
	x.head(name+"_created", "gauge", help)
	x.sample(name+"_created", "", x.created)
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
	m := c.core.meters
	x := &exposition{
		labels:  fmt.Sprintf("engine=\"0\",model_name=%q", c.cfg.Models[0]),
		created: float64(m.started.UnixMicro()) / 1e6,
	}
	x.load(m, c.cfg.CacheBlocks)
	x.counters(m)
	x.histograms(m)
	x.cacheConfig(c.cfg)
	if c.cfg.MaxLoRAs > 0 {
		c.core.loras.metrics(x, c.cfg.MaxLoRAs)
	}
	c.w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, err := c.w.Write([]byte(x.b.String()))
	return err
}

func (x *exposition) load(m *meters, blocks int) {
	x.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", float64(m.running.Load()))
	x.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", float64(m.waiting.Load()))
	x.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
		float64(m.usedBlocks.Load())/float64(blocks))
}

func (x *exposition) counters(m *meters) {
	for _, c := range []struct {
		name, help string
		v          *atomic.Int64
	}{
		{"vllm:num_preemptions", "Cumulative number of preemption from the engine.", &m.preemptions},
		{"vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", &m.queries},
		{"vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", &m.hits},
		{"vllm:prompt_tokens", "Number of prefill tokens processed.", &m.prompt},
		{"vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", &m.hits},
		{"vllm:generation_tokens", "Number of generation tokens processed.", &m.generated},
	} {
		x.family(c.name, c.help, "", []string{""}, func(int) int64 { return c.v.Load() })
	}
	x.family("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", "source",
		[]string{"local_compute", "local_cache_hit", "external_kv_transfer"}, func(i int) int64 {
			return [3]int64{m.queries.Load() - m.hits.Load(), m.hits.Load(), 0}[i]
		})
	x.family("vllm:request_success", "Count of successfully processed requests.", "finished_reason",
		finishReasons, func(i int) int64 { return m.success[i].Load() })
}

func (x *exposition) histograms(m *meters) {
	for _, h := range []struct {
		name, help string
		h          *histogram
	}{
		{"vllm:request_prompt_tokens", "Number of prefill tokens processed.", m.promptLen},
		{"vllm:request_generation_tokens", "Number of generation tokens processed.", m.outputLen},
		{"vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", m.steps},
		{"vllm:request_prefill_kv_computed_tokens",
			"Histogram of new KV tokens computed during prefill (excluding cached tokens).", m.computed},
		{"vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", m.ttft},
		{"vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", m.itl},
		{"vllm:request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", m.tpot},
		{"vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", m.e2e},
		{"vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", m.queue},
		{"vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", m.inference},
		{"vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", m.prefill},
		{"vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", m.decode},
	} {
		x.histogram(h.name, h.help, h.h)
	}
}

// cacheConfig writes the simulated part of vllm:cache_config_info.
func (x *exposition) cacheConfig(c Config) {
	const name = "vllm:cache_config_info"
	x.head(name, "gauge", "Information of the LLMEngine CacheConfig")
	prefix := "True"
	if c.NoPrefixCache {
		prefix = "False"
	}
	fmt.Fprintf(&x.b, "%s{block_size=\"%d\",enable_prefix_caching=%q,engine=\"0\",kv_cache_size_tokens=\"%d\",num_gpu_blocks=\"%d\"} 1.0\n",
		name, c.BlockTokens, prefix, c.BlockTokens*c.CacheBlocks, c.CacheBlocks)
}
