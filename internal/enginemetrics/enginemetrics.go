// Package enginemetrics parses an inference engine's Prometheus text for the few numbers that
// routing needs.
//
// vLLM, SGLang and llama.cpp have different names for the same numbers. Some versions write the
// engine prefix with a colon and some with an underscore. Everything else on the page is skipped
// without being decoded.
package enginemetrics

import (
	"bytes"
	"math"
	"math/bits"
	"slices"
	"strconv"

	"github.com/cognitora/dataplane/internal/load"
)

// Field is a set of Stats fields.
type Field uint32

// One bit for each field of Stats.
const (
	Running Field = 1 << iota
	Waiting
	KVUsage
	PromptTokens
	GenerationTokens
	MaxSlots
	TotalBlocks
	BlockTokens
	StartTime
)

// Stats holds the numbers of one scrape. A field whose bit is not in Has is unknown, which is not
// the same as zero.
//
// Series of several data-parallel ranks or models are added up. KVUsage is the mean over the ranks.
// ByRank has the numbers of each rank.
type Stats struct {
	Has Field
	// Ranks is the number of data-parallel ranks that the page names, at most load.MaxRanks; 0: the
	// page names no rank, or more. FirstRank is the lowest number of a rank.
	Ranks, FirstRank int

	Running          float64 // requests that are being computed
	Waiting          float64 // requests queued in the engine
	KVUsage          float64 // used fraction of the KV cache, 0 to 1
	PromptTokens     float64 // prompt tokens since start, including cached ones
	GenerationTokens float64 // tokens generated since start
	MaxSlots         float64 // requests that the engine computes at once, at most
	TotalBlocks      float64 // KV blocks of the engine's own size
	BlockTokens      float64 // tokens per KV block of the engine
	StartTime        float64 // start of the engine's process, Unix seconds
}

// Known reports whether the page had every field of f.
func (s *Stats) Known(f Field) bool { return s.Has&f == f }

// Rank holds the numbers of one data-parallel rank. Has is as in Stats.
type Rank struct {
	Has Field

	Running, Waiting, KVUsage float64
}

// Known reports whether the page had every field of f for the rank.
func (r *Rank) Known(f Field) bool { return r.Has&f == f }

// Loads returns the numbers of the page's ranks as figures of their load. Each rank has the same
// share of the KV blocks.
func (s *Stats) Loads(ranks []Rank) (all []load.Rank) {
	for _, r := range ranks {
		own := Stats{Has: r.Has | s.Has&TotalBlocks, KVUsage: r.KVUsage}
		own.TotalBlocks = s.TotalBlocks / float64(len(ranks))
		var l load.Rank
		if r.Known(Running) {
			l.InFlight = load.Known(r.Running + r.Waiting)
		}
		if r.Known(Waiting) {
			l.QueueDepth = load.Known(r.Waiting)
		}
		if r.Known(KVUsage) {
			l.KVUsage = load.Known(r.KVUsage)
		}
		if free, known := own.FreeBlocks(); known {
			l.FreeBlocks, l.TotalBlocks = load.Known(free), load.Known(own.TotalBlocks)
		}
		all = append(all, l)
	}
	return all
}

// ByRank parses the numbers of each data-parallel rank, in the order of their numbers. page is the
// page of s. ByRank returns nil if the page has fewer than two ranks, or no number of any.
func (s *Stats) ByRank(page []byte) []Rank {
	if s.Ranks < 2 {
		return nil
	}
	all := make([]Rank, s.Ranks)
	for line := range bytes.SplitSeq(page, newline) {
		name, rest := metricName(line)
		f, _ := seriesOf(name)
		number, ok := rankOf(rest)
		if at := number - s.FirstRank; ok && at >= 0 && at < len(all) {
			all[at].add(f, value(rest))
		}
	}
	if !slices.ContainsFunc(all, func(r Rank) bool { return r.Has != 0 }) {
		return nil
	}
	return all
}

// add adds a value of the rank, if the field is one of a rank and the value is usable.
func (r *Rank) add(f Field, text []byte) {
	v, ok := number(text)
	if !ok {
		return
	}
	switch f {
	case Running:
		r.Running += v
	case Waiting:
		r.Waiting += v
	case KVUsage:
		r.KVUsage = max(r.KVUsage, v)
	default:
		return
	}
	r.Has |= f
}

// rankOf returns the number of the data-parallel rank in a sample's labels. vLLM labels a rank
// engine, and SGLang dp_rank.
func rankOf(rest []byte) (number int, ok bool) {
	text := label(rest, "engine")
	if text == nil {
		text = label(rest, "dp_rank")
	}
	if len(text) == 0 || len(text) > 4 {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		number = 10*number + int(c-'0')
	}
	return number, true
}

// FreeBlocks returns the number of unused KV blocks, if the page has it.
func (s *Stats) FreeBlocks() (float64, bool) {
	if !s.Known(TotalBlocks | KVUsage) {
		return 0, false
	}
	return math.Floor(s.TotalBlocks * (1 - min(1, s.KVUsage))), true
}

// Parse parses one metrics page. Parse never fails: it skips a line that it cannot parse, and a
// value is unknown unless it is finite and at least zero. Parse allocates nothing and keeps no
// reference to page.
func Parse(page []byte) Stats {
	var p parser
	for line := range bytes.SplitSeq(page, newline) {
		p.line(line)
	}
	return p.finish()
}

var newline = []byte("\n")

// parser adds up the series of one page.
type parser struct {
	has      Field
	sums     [32]float64 // by the bit of the Field
	kvSeries float64     // number of series in the mean

	ranked              bool // a rank was named
	firstRank, lastRank int
}

func (p *parser) of(f Field) *float64 { return &p.sums[bits.TrailingZeros32(uint32(f))] }

func (p *parser) finish() Stats {
	s := Stats{
		Has: p.has, Running: *p.of(Running), Waiting: *p.of(Waiting), KVUsage: *p.of(KVUsage) / max(p.kvSeries, 1),
		PromptTokens: *p.of(PromptTokens), GenerationTokens: *p.of(GenerationTokens), MaxSlots: *p.of(MaxSlots),
		TotalBlocks: *p.of(TotalBlocks), BlockTokens: *p.of(BlockTokens), StartTime: *p.of(StartTime),
	}
	if n := p.lastRank - p.firstRank + 1; p.ranked && n <= load.MaxRanks {
		s.Ranks, s.FirstRank = n, p.firstRank
	}
	return s
}

// rank notes the data-parallel rank of a sample.
func (p *parser) rank(rest []byte) {
	n, ok := rankOf(rest)
	switch {
	case !ok:
	case !p.ranked:
		p.ranked, p.firstRank, p.lastRank = true, n, n
	default:
		p.firstRank, p.lastRank = min(p.firstRank, n), max(p.lastRank, n)
	}
}

// engines has the names of each engine's series, without the engine's name in front.
var engines = map[string]map[string]Field{
	"vllm": {
		"num_requests_running": Running, "num_requests_waiting": Waiting,
		"kv_cache_usage_perc": KVUsage, "gpu_cache_usage_perc": KVUsage,
		"prompt_tokens_total": PromptTokens, "generation_tokens_total": GenerationTokens,
	},
	"sglang": {
		"num_running_reqs": Running, "num_queue_reqs": Waiting, "token_usage": KVUsage,
		"prompt_tokens_total": PromptTokens, "generation_tokens_total": GenerationTokens,
		"max_running_requests": MaxSlots,
	},
	"llamacpp": {
		"requests_processing": Running, "requests_deferred": Waiting, "kv_cache_usage_ratio": KVUsage,
		// computed and cached prompt tokens are counted separately
		"prompt_tokens_total": PromptTokens, "prompt_tokens_cached_total": PromptTokens,
		"tokens_predicted_total": GenerationTokens,
	},
}

// seriesOf returns the field of the series with this name, if it is one of an engine's series.
func seriesOf(name []byte) (f Field, known bool) {
	at := bytes.IndexAny(name, ":_")
	if at < 0 {
		return 0, false
	}
	f, known = engines[string(name[:at])][string(name[at+1:])]
	return f, known
}

func (p *parser) line(line []byte) {
	name, rest := metricName(line)
	switch string(name) {
	case "process_start_time_seconds":
		if v, ok := number(value(rest)); ok {
			p.set(StartTime, v)
		}
	case "vllm:cache_config_info", "vllm_cache_config_info":
		p.vllmCacheConfig(rest)
	default:
		if f, known := seriesOf(name); known {
			p.add(f, value(rest))
			if f == Running {
				p.rank(rest)
			}
		}
	}
}

// vllmCacheConfig parses the labels of vLLM's info metric, which describe the cache. The series of
// each data-parallel rank has the blocks of all ranks together. With several API servers the other
// series of a rank are missing until its first request.
func (p *parser) vllmCacheConfig(rest []byte) {
	p.rank(rest)
	if v, ok := number(label(rest, "num_gpu_blocks")); ok {
		p.set(TotalBlocks, max(*p.of(TotalBlocks), v))
	}
	if v, ok := number(label(rest, "block_size")); ok && v > 0 {
		p.set(BlockTokens, v)
	}
}

// add adds a value, if it is usable.
func (p *parser) add(f Field, text []byte) {
	v, ok := number(text)
	if !ok {
		return
	}
	p.set(f, *p.of(f)+v)
	if f == KVUsage {
		p.kvSeries++
	}
}

func (p *parser) set(f Field, v float64) {
	*p.of(f) = v
	p.has |= f
}

// metricName splits a sample line into the metric's name and the rest: labels, or a space and the
// value.
func metricName(line []byte) (name, rest []byte) {
	line = bytes.TrimLeft(line, " \t")
	if len(line) == 0 || line[0] == '#' {
		return nil, nil
	}
	i := bytes.IndexAny(line, "{ \t")
	if i < 0 {
		return nil, nil
	}
	return line[:i], line[i:]
}

// value returns the sample's value text: the first word after the labels.
func value(rest []byte) []byte {
	if len(rest) > 0 && rest[0] == '{' {
		end := labelsEnd(rest)
		if end < 0 {
			return nil
		}
		rest = rest[end+1:]
	}
	rest = bytes.TrimLeft(rest, " \t")
	if i := bytes.IndexAny(rest, " \t\r"); i >= 0 {
		rest = rest[:i]
	}
	return rest
}

// labelsEnd returns the offset of the brace that closes the label set at rest[0], or -1.
func labelsEnd(rest []byte) int {
	quoted := false
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '}' && !quoted:
			return i
		}
	}
	return -1
}

// label returns the raw value of one label, nil if absent.
func label(rest []byte, name string) []byte {
	for at := 1; at < len(rest) && rest[0] == '{'; {
		eq := bytes.IndexByte(rest[at:], '=')
		if eq < 0 || at+eq+1 >= len(rest) || rest[at+eq+1] != '"' {
			return nil
		}
		key := bytes.TrimLeft(rest[at:at+eq], ", ")
		start := at + eq + 2
		end := stringEnd(rest, start)
		if end < 0 {
			return nil
		}
		if string(key) == name {
			return rest[start:end]
		}
		at = end + 1
	}
	return nil
}

// stringEnd returns the offset of the quote that ends the label value starting at start, or -1.
func stringEnd(b []byte, start int) int {
	for i := start; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// number parses a number between 0 and 1e18. No counter above 1e18 is plausible.
func number(b []byte) (float64, bool) {
	if len(b) == 0 || len(b) > 64 {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 || v > 1e18 {
		return 0, false
	}
	return v, true
}
