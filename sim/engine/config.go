package engine

import (
	"errors"
	"fmt"
	"time"
)

// HashForm is how block hashes are written in KV events.
type HashForm string

// EventForm is how events are written in a KV event batch.
type EventForm string

// Forms of KV events that engines in the field use.
const (
	HashInt   HashForm = "int"   // unsigned 64-bit integers
	HashBytes HashForm = "bytes" // 32 raw bytes

	EventMap   EventForm = "map"   // maps with "type", defaults left out
	EventArray EventForm = "array" // positional arrays, the older form
)

// Config describes one simulated engine. The zero value of every field stands
// for the default given beside it.
type Config struct {
	// ID names the engine in its answers to /sim/stats. Default "sim".
	ID string
	// Models are the served model names; the first labels the metrics. Default "sim".
	Models []string
	// Listen is host:port, or unix:PATH for a Unix socket. Default 127.0.0.1:0.
	Listen string
	// APIKey, when set, is demanded as a bearer token on /v1 paths.
	APIKey string

	// BlockTokens is the number of tokens in a KV block. Default 16.
	BlockTokens int
	// CacheBlocks is the number of KV blocks in the device. Default 8192.
	CacheBlocks int
	// NoPrefixCache makes every prompt a miss.
	NoPrefixCache bool
	// MaxModelTokens bounds prompt plus answer. Default 131072, never more than
	// the cache holds.
	MaxModelTokens int

	// MaxSeqs is the number of sequences in a batch; others wait. Default 256.
	MaxSeqs int
	// MaxBatchTokens is the token budget of one step. Default 2048.
	MaxBatchTokens int
	// PrefillTokensPerSecond is shared by the whole batch. Default 20000.
	PrefillTokensPerSecond float64
	// DecodeStep is the time of one decode step. Default 15 ms.
	DecodeStep time.Duration
	// DecodePerSequence is added for each sequence that decodes. Default 0.
	DecodePerSequence time.Duration
	// StepCPU is CPU time of the host that each step really takes, as a real
	// engine's scheduler, sampler and detokeniser do: burned by one thread before
	// the step's simulated time, so that a host whose CPUs are wanted by others
	// makes steps longer. Speed does not divide it. Default 0.
	StepCPU time.Duration
	// Speed divides every simulated duration. Default 1.
	Speed float64

	// Seed makes another, equally repeatable engine. Default 0.
	Seed uint64
	// OutputTokens is the length of an answer without max_tokens. Default 32.
	OutputTokens int

	// OmitCachedTokens leaves prompt_tokens_details out, as vLLM does without
	// --enable-prompt-tokens-details.
	OmitCachedTokens bool
	// RejectStreamOptions answers 400 to a body with stream_options, as older
	// engines do.
	RejectStreamOptions bool

	// MaxBody bounds a request body; a longer one is 413. Default 256 MiB.
	MaxBody int64
	// MaxStored bounds the stored Responses; the oldest leave. Default 1024.
	MaxStored int
	// RecordRequests is how many requests (headers and body) are kept for
	// Engine.Requests; the oldest leave. Default 0: none.
	RecordRequests int

	// KVEvents turns on KV events; nil keeps them off.
	KVEvents *KVEvents
}

// KVEvents says where and in which of the field's forms KV events are sent.
type KVEvents struct {
	// Endpoint of the PUB socket, tcp://HOST:PORT or ipc://PATH. It binds if it
	// holds "*", "::" or ":0" or is ipc, and connects otherwise, as vLLM does;
	// Bind makes it bind.
	Endpoint string
	Bind     bool
	// ReplayEndpoint of the ROUTER socket, always bound; "" for none.
	ReplayEndpoint string
	// ReplayWithoutTopic leaves the topic frame out of replies, as older engines do.
	ReplayWithoutTopic bool
	// Topic is the first frame. Default "".
	Topic string
	// BufferSteps bounds the batches kept for replay. Default 10000.
	BufferSteps int
	// Events and Hashes choose the form. Defaults EventMap and HashInt.
	Events EventForm
	Hashes HashForm
	// DPRank is sent with each batch.
	DPRank int
}

func (c Config) withDefaults() Config {
	def(&c.ID, "sim")
	if len(c.Models) == 0 {
		c.Models = []string{"sim"}
	}
	def(&c.Listen, "127.0.0.1:0")
	def(&c.BlockTokens, 16)
	def(&c.CacheBlocks, 8192)
	def(&c.MaxModelTokens, min(131072, c.BlockTokens*c.CacheBlocks))
	def(&c.MaxSeqs, 256)
	def(&c.MaxBatchTokens, 2048)
	def(&c.PrefillTokensPerSecond, 20000)
	def(&c.DecodeStep, 15*time.Millisecond)
	def(&c.Speed, 1)
	def(&c.OutputTokens, 32)
	def(&c.MaxBody, 256<<20)
	def(&c.MaxStored, 1024)
	if c.KVEvents != nil {
		kv := *c.KVEvents
		def(&kv.BufferSteps, 10000)
		def(&kv.Events, EventMap)
		def(&kv.Hashes, HashInt)
		c.KVEvents = &kv
	}
	return c
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// validate reports the first field that no engine could run with.
func (c Config) validate() error {
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"BlockTokens", c.BlockTokens < 1},
		{"CacheBlocks", c.CacheBlocks < 1},
		{"MaxSeqs", c.MaxSeqs < 1},
		{"MaxBatchTokens", c.MaxBatchTokens < 1},
		{"PrefillTokensPerSecond", c.PrefillTokensPerSecond < 0},
		{"DecodeStep", c.DecodeStep < 0},
		{"DecodePerSequence", c.DecodePerSequence < 0},
		{"StepCPU", c.StepCPU < 0},
		{"Speed", c.Speed < 0},
		{"OutputTokens", c.OutputTokens < 1},
	} {
		if f.bad {
			return fmt.Errorf("engine: %s must be positive", f.name)
		}
	}
	if c.MaxModelTokens > c.BlockTokens*c.CacheBlocks {
		return fmt.Errorf("engine: MaxModelTokens %d exceeds the cache of %d tokens",
			c.MaxModelTokens, c.BlockTokens*c.CacheBlocks)
	}
	return c.KVEvents.validate()
}

func (k *KVEvents) validate() error {
	switch {
	case k == nil:
		return nil
	case k.Endpoint == "":
		return errors.New("engine: KVEvents.Endpoint is empty")
	case k.Events != EventMap && k.Events != EventArray:
		return fmt.Errorf("engine: KVEvents.Events %q is neither %q nor %q", k.Events, EventMap, EventArray)
	case k.Hashes != HashInt && k.Hashes != HashBytes:
		return fmt.Errorf("engine: KVEvents.Hashes %q is neither %q nor %q", k.Hashes, HashInt, HashBytes)
	}
	return nil
}
