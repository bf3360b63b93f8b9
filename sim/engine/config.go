package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// HashForm is the form of block hashes in KV events.
type HashForm string

// EventForm is the form of events in a KV event batch.
type EventForm string

// These are the forms of KV events that real engines use.
const (
	HashInt   HashForm = "int"   // unsigned 64-bit integers
	HashBytes HashForm = "bytes" // 32 raw bytes

	EventMap   EventForm = "map"   // maps with "type", defaults left out
	EventArray EventForm = "array" // positional arrays, the older form
)

// Config describes one simulated engine. A zero value means the default of its field.
type Config struct {
	// ID names the engine in its answers to /sim/stats. Default "sim".
	ID string
	// Models are the served model names; the first labels the metrics. Default "sim".
	Models []string
	// Listen is host:port, or unix:PATH for a Unix socket. Default 127.0.0.1:0.
	Listen string
	// APIKey, if set, is required as a bearer token on /v1 paths.
	APIKey string

	// BlockTokens is the number of tokens in a KV block. Default 16.
	BlockTokens int
	// CacheBlocks is the number of the device's KV blocks. Default 8192.
	CacheBlocks int
	// DataParallel is the number of data-parallel ranks. Each rank has a batch, a cache and KV
	// events of its own, and the size of each follows from the other fields. Default 1.
	DataParallel int
	// NoPrefixCache makes every prompt a miss.
	NoPrefixCache bool
	// MaxModelTokens bounds prompt and answer together. Default 131072, but at most the size of the
	// cache.
	MaxModelTokens int

	// MaxSeqs bounds the sequences in a batch; others wait. Default 256.
	MaxSeqs int
	// MaxBatchTokens is the token budget of one step. Default 2048.
	MaxBatchTokens int
	// PrefillTokensPerSecond is the prefill rate of the whole batch. Default 20000.
	PrefillTokensPerSecond float64
	// PrefillDoublesAt is the number of tokens before a prompt token at which the token takes twice
	// as long as the first one, because its attention reads them all. Default 0: all prompt tokens
	// take equally long.
	PrefillDoublesAt int
	// DecodeStep is the time of one decode step. Default 15 ms.
	DecodeStep time.Duration
	// DecodePerSequence is the extra time of a step for each decoding sequence. Default 0.
	DecodePerSequence time.Duration
	// DecodePerBlock is the extra time of a step for each KV block that its decoding sequences
	// read. A block that several sequences share counts for each of them. Default 0.
	DecodePerBlock time.Duration
	// StepCPU is real CPU time of the host for each step, like the scheduler, sampler and
	// detokeniser of a real engine. One thread burns StepCPU before the step's simulated time. A
	// busy host therefore makes steps longer. Speed does not divide StepCPU. Default 0.
	StepCPU time.Duration
	// Speed divides every simulated duration. Default 1.
	Speed float64
	// Slowdowns are the times at which the engine is slower.
	Slowdowns []Slowdown

	// Seed selects one of many repeatable engines. Default 0.
	Seed uint64
	// OutputTokens is the length of an answer without max_tokens. Default 32.
	OutputTokens int
	// EndsItself ends an answer after OutputTokens also if max_tokens allows more, unless the
	// request has ignore_eos. Without EndsItself an answer has max_tokens.
	EndsItself bool
	// Quality is the share of questions that the engine answers rightly, 0..1. See Difficulty.
	// Default 0: answers have no meaning.
	Quality float64

	// OmitCachedTokens leaves prompt_tokens_details out, like vLLM without
	// --enable-prompt-tokens-details.
	OmitCachedTokens bool
	// OmitTokenIDs ignores return_token_ids, like engines that know no such field.
	OmitTokenIDs bool
	// RejectStreamOptions answers 400 to a body with stream_options, like older engines.
	RejectStreamOptions bool

	// Adapters are the LoRA adapters of the first model that are registered at the start, like
	// vLLM's --lora-modules.
	Adapters []Adapter
	// LazyAdapters are registered when the first request asks for them, as with a resolver of vLLM.
	LazyAdapters []Adapter
	// MaxLoRAs bounds the adapters in one batch, like vLLM's --max-loras. Default 1 with adapters
	// or RuntimeLoRA, else 0: the engine knows no adapters.
	MaxLoRAs int
	// MaxLoadedLoRAs bounds the adapters in memory, like vLLM's --max-cpu-loras. The one used
	// longest ago leaves. Data-parallel ranks share this memory. Default MaxLoRAs.
	MaxLoadedLoRAs int
	// AdapterLoad is the time to load an adapter that is not in memory. The batch waits meanwhile.
	AdapterLoad time.Duration
	// RuntimeLoRA serves /v1/load_lora_adapter and /v1/unload_lora_adapter, like vLLM with
	// VLLM_ALLOW_RUNTIME_LORA_UPDATING.
	RuntimeLoRA bool

	// Role is the engine's part in prefill and decode on different engines. Default RoleBoth.
	Role Role
	// Connector is the way in which KV blocks move between engines. Default: they do not, and the
	// engine ignores the fields of a request about that.
	Connector Connector
	// SideChannel is the host:port from which other engines read this engine's blocks. Requests are
	// told this address, so other engines must reach it. Default 127.0.0.1:0.
	SideChannel string
	// Shelf has the blocks of engines with ConnectorKVCached, which share it. Required for these.
	Shelf *Shelf
	// BlockLease is the wall time for which an engine keeps the blocks of a prompt that another
	// engine shall read. Speed does not divide it. Default 30 s.
	BlockLease time.Duration
	// TransferTokensPerSecond is the rate at which blocks come from another engine, in tokens.
	// Default 5,000,000.
	TransferTokensPerSecond float64
	// PeerTimeout is the wall time for which a leg waits for its other leg, with connectors that
	// send both together. Default 300 s.
	PeerTimeout time.Duration
	// LoadFailure says what becomes of a request whose blocks cannot be read. Default LoadFail.
	LoadFailure LoadFailure

	// MaxStored bounds the stored Responses; the oldest are dropped. Default 1024.
	MaxStored int
	// RecordRequests is the number of requests (headers and body) kept for Engine.Requests; the
	// oldest are dropped. Default 0: none.
	RecordRequests int

	// KVEvents turns KV events on. Nil turns KV events off.
	KVEvents *KVEvents
}

// Slowdown multiplies the time of the steps that begin in its span. Overlapping slowdowns multiply.
type Slowdown struct {
	From, To time.Duration // since the engine's start, before Speed divides durations
	Factor   float64
}

// ParseSlowdown reads FROM-TO=FACTOR, for example 30s-90s=5.
func ParseSlowdown(text string) (d Slowdown, err error) {
	span, factor, _ := strings.Cut(text, "=")
	from, to, _ := strings.Cut(span, "-")
	var errs [3]error
	d.From, errs[0] = time.ParseDuration(from)
	d.To, errs[1] = time.ParseDuration(to)
	d.Factor, errs[2] = strconv.ParseFloat(factor, 64)
	if errors.Join(errs[:]...) != nil || !d.valid() {
		return Slowdown{}, fmt.Errorf("%q: must be FROM-TO=FACTOR with FROM before TO and a factor above 0, such as "+
			"30s-90s=5", text)
	}
	return d, nil
}

func (d *Slowdown) valid() bool {
	return d.From >= 0 && d.To > d.From && d.Factor > 0 && !math.IsInf(d.Factor, 0)
}

// slow returns the time that a step of duration d takes if it begins at the time at.
func (c *Config) slow(d, at time.Duration) time.Duration {
	for i := range c.Slowdowns {
		if s := &c.Slowdowns[i]; d > 0 && at >= s.From && at < s.To {
			d = time.Duration(float64(d) * s.Factor)
		}
	}
	return d
}

// KVEvents sets the addresses and the form of KV events.
type KVEvents struct {
	// Endpoint of the PUB socket, tcp://HOST:PORT or ipc://PATH, always bound. A data-parallel rank
	// adds its number to the port of both endpoints.
	Endpoint string
	// ReplayEndpoint of the ROUTER socket, always bound. "" means none.
	ReplayEndpoint string
	// ReplayWithoutTopic leaves the topic frame out of replies, like older engines.
	ReplayWithoutTopic bool
	// Topic is the first frame. Default "".
	Topic string
	// BufferSteps bounds the batches kept for replay. Default 10000.
	BufferSteps int
	// Events and Hashes select the form. Defaults EventMap and HashInt.
	Events EventForm
	Hashes HashForm
	// DPRank is sent with each batch of the first rank.
	DPRank int
}

func (c Config) withDefaults() Config {
	c.ID, c.Listen = cmp.Or(c.ID, "sim"), cmp.Or(c.Listen, "127.0.0.1:0")
	if len(c.Models) == 0 {
		c.Models = []string{"sim"}
	}
	c.BlockTokens, c.CacheBlocks = cmp.Or(c.BlockTokens, 16), cmp.Or(c.CacheBlocks, 8192)
	c.DataParallel = cmp.Or(c.DataParallel, 1)
	c.MaxModelTokens = cmp.Or(c.MaxModelTokens, min(131072, c.BlockTokens*c.CacheBlocks))
	c.MaxSeqs, c.MaxBatchTokens = cmp.Or(c.MaxSeqs, 256), cmp.Or(c.MaxBatchTokens, 2048)
	c.PrefillTokensPerSecond = cmp.Or(c.PrefillTokensPerSecond, 20000)
	c.DecodeStep, c.Speed = cmp.Or(c.DecodeStep, 15*time.Millisecond), cmp.Or(c.Speed, 1)
	c.SideChannel, c.BlockLease = cmp.Or(c.SideChannel, "127.0.0.1:0"), cmp.Or(c.BlockLease, 30*time.Second)
	c.TransferTokensPerSecond = cmp.Or(c.TransferTokensPerSecond, 5e6)
	c.PeerTimeout = cmp.Or(c.PeerTimeout, 300*time.Second)
	c.LoadFailure = cmp.Or(c.LoadFailure, LoadFail)
	c.OutputTokens, c.MaxStored = cmp.Or(c.OutputTokens, 32), cmp.Or(c.MaxStored, 1024)
	if c.MaxLoRAs == 0 && (len(c.Adapters)+len(c.LazyAdapters) > 0 || c.RuntimeLoRA) {
		c.MaxLoRAs = 1
	}
	c.MaxLoadedLoRAs = max(c.MaxLoadedLoRAs, c.MaxLoRAs)
	if c.KVEvents != nil {
		kv := *c.KVEvents
		kv.BufferSteps = cmp.Or(kv.BufferSteps, 10000)
		kv.Events, kv.Hashes = cmp.Or(kv.Events, EventMap), cmp.Or(kv.Hashes, HashInt)
		c.KVEvents = &kv
	}
	return c
}

// validate returns an error that names the first unusable field.
func (c Config) validate() error {
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"BlockTokens", c.BlockTokens < 1},
		{"CacheBlocks", c.CacheBlocks < 1},
		{"DataParallel", c.DataParallel < 1},
		{"MaxSeqs", c.MaxSeqs < 1},
		{"MaxBatchTokens", c.MaxBatchTokens < 1},
		{"PrefillTokensPerSecond", c.PrefillTokensPerSecond < 0},
		{"PrefillDoublesAt", c.PrefillDoublesAt < 0},
		{"DecodeStep", c.DecodeStep < 0},
		{"DecodePerSequence", c.DecodePerSequence < 0},
		{"DecodePerBlock", c.DecodePerBlock < 0},
		{"StepCPU", c.StepCPU < 0},
		{"Speed", c.Speed < 0},
		{"OutputTokens", c.OutputTokens < 1},
		{"MaxLoRAs", c.MaxLoRAs < 0},
		{"AdapterLoad", c.AdapterLoad < 0},
		{"BlockLease", c.BlockLease < 0},
		{"PeerTimeout", c.PeerTimeout < 0},
		{"TransferTokensPerSecond", c.TransferTokensPerSecond < 0},
	} {
		if f.bad {
			return fmt.Errorf("engine: %s must be positive", f.name)
		}
	}
	if !(c.Quality >= 0 && c.Quality <= 1) {
		return fmt.Errorf("engine: Quality %g must be 0 to 1", c.Quality)
	}
	for i := range c.Slowdowns {
		if d := &c.Slowdowns[i]; !d.valid() {
			return fmt.Errorf("engine: Slowdowns[%d] from %v to %v by %g must have a positive span and factor", i, d.From,
				d.To, d.Factor)
		}
	}
	if err := c.validateTransfer(); err != nil {
		return err
	}
	if c.MaxModelTokens > c.BlockTokens*c.CacheBlocks {
		return fmt.Errorf("engine: MaxModelTokens %d exceeds the cache of %d tokens",
			c.MaxModelTokens, c.BlockTokens*c.CacheBlocks)
	}
	return nil
}
