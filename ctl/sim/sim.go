// Package sim has the command that runs one simulated engine.
package sim

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/sim/engine"
)

// simAt holds the addresses of a simulated engine.
type simAt struct {
	URL      string `json:"url"`
	KVEvents string `json:"kv_events,omitempty"`
	KVReplay string `json:"kv_replay,omitempty"`

	SideChannel string `json:"side_channel,omitempty"`
}

// Command is cgn-ctl sim.
func Command(a *cli.App) *cobra.Command {
	var cfg engine.Config
	var events engine.KVEvents
	var adapters map[string]string
	c := &cobra.Command{
		Use:   "sim",
		Short: "Run one simulated engine that speaks what vLLM speaks",
		Example: "  cgn-ctl sim --listen 127.0.0.1:8001 --model qwen\n" +
			"  cgn-ctl sim --listen 127.0.0.1:8001 --connector sglang --role prefill --side-channel 127.0.0.1:8998\n" +
			"  cgn-ctl sim --kv-events tcp://127.0.0.1:5557 --kv-events-form array --kv-replay tcp://127.0.0.1:5558",
		Args: cli.NoArguments,
		PreRunE: cli.Ranges(map[string][2]float64{"block-tokens": {1, cli.Most}, "cache-blocks": {1, cli.Most},
			"max-seqs": {1, cli.Most}, "data-parallel-size": {1, 64}, "output-tokens": {1, cli.Most},
			"max-loras": {0, cli.Most}, "max-cpu-loras": {0, cli.Most}, "adapter-load": {0, cli.Most},
			"kv-replay-batches": {1, cli.Most}, "decode-step": {0, cli.Most}, "step-cpu": {0, cli.Most},
			"decode-per-sequence": {0, cli.Most}, "decode-per-block": {0, cli.Most}, "prefill-doubles-at": {0, cli.Most},
			"prefill-rate": {1e-6, 1e9}, "speed": {1e-6, 1e9}, "block-lease": {1e-3, cli.Most},
			"peer-timeout": {1e-3, cli.Most}, "transfer-rate": {1e-6, 1e12}, "quality": {0, 1}}),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(checkSim(c.Flags(), &events), checkTransfer(c.Flags(), &cfg)); err != nil {
				return cli.Misused(err)
			}
			if events.Endpoint != "" {
				cfg.KVEvents = &events
			}
			for _, name := range slices.Sorted(maps.Keys(adapters)) {
				cfg.Adapters = append(cfg.Adapters, engine.Adapter{Name: name, Path: adapters[name]})
			}
			return runSim(a, c, cfg)
		},
	}
	simFlags(c.Flags(), &cfg)
	transferFlags(c.Flags(), &cfg)
	loraFlags(c.Flags(), &cfg, &adapters)
	kvEventFlags(c.Flags(), &events)
	return c
}

// runSim runs the engine until a signal or the end of the command's context.
func runSim(a *cli.App, c *cobra.Command, cfg engine.Config) error {
	ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	e, err := engine.New(cfg)
	if errors.Is(err, syscall.EADDRINUSE) {
		if who := listen.ByHolder(strings.Replace(cfg.Listen, "unix:", "unix://", 1)); who != "" {
			return fmt.Errorf("--listen %s: it is in use%s; stop that program, or give another address with --listen",
				cfg.Listen, who)
		}
	}
	if err != nil {
		return cli.WithHint(err, "where it listens is said by --listen and --side-channel HOST:PORT, --kv-events and "+
			"--kv-replay tcp://HOST:PORT; each must be free")
	}
	defer e.Close()
	at := simAt{URL: e.URL(), SideChannel: e.SideChannel()}
	at.KVEvents, at.KVReplay = e.KVEndpoints()
	err = a.Show(at, func(t *cli.Table) {
		t.Line("simulated engine at " + at.URL)
		if at.KVEvents != "" {
			t.Line("KV events at " + at.KVEvents)
		}
		if at.KVReplay != "" {
			t.Line("replay of them at " + at.KVReplay)
		}
		if at.SideChannel != "" {
			t.Line("blocks for other engines at " + at.SideChannel)
		}
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func simFlags(f *pflag.FlagSet, cfg *engine.Config) {
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:8001", "address, or unix:PATH")
	f.StringSliceVar(&cfg.Models, "model", []string{"sim"}, "served model names")
	f.StringVar(&cfg.APIKey, "api-key", "", "bearer token that /v1 asks for")
	f.IntVar(&cfg.BlockTokens, "block-tokens", 16, "tokens in a KV block")
	f.IntVar(&cfg.CacheBlocks, "cache-blocks", 8192, "KV blocks of the device")
	f.IntVar(&cfg.DataParallel, "data-parallel-size", 1, "data-parallel ranks, each with a batch and a cache of its "+
		"own; KV events of a rank are at the ports given plus its number")
	f.IntVar(&cfg.MaxSeqs, "max-seqs", 256, "sequences in a batch; others wait")
	f.Float64Var(&cfg.PrefillTokensPerSecond, "prefill-rate", 20000, "prompt tokens per second, shared by the batch")
	f.IntVar(&cfg.PrefillDoublesAt, "prefill-doubles-at", 0, "tokens before a prompt token at which it takes twice as "+
		"long as the first one, because of attention; 0: never")
	f.DurationVar(&cfg.DecodeStep, "decode-step", 0, "time of one decode step (default 15ms)")
	f.DurationVar(&cfg.DecodePerSequence, "decode-per-sequence", 0, "more of it for each sequence in the batch")
	f.DurationVar(&cfg.DecodePerBlock, "decode-per-block", 0, "more of it for each KV block that these sequences read")
	f.DurationVar(&cfg.StepCPU, "step-cpu", 0, "CPU time of this host that each step takes, burned by one thread "+
		"before the step's simulated time; a real engine's takes 1 to 5 ms")
	f.Float64Var(&cfg.Speed, "speed", 1, "divides every simulated duration")
	f.Func("slow", "be slower for a time, as FROM-TO=FACTOR since the start, such as 30s-90s=5; may be given several "+
		"times", func(text string) error {
		d, err := engine.ParseSlowdown(text)
		cfg.Slowdowns = append(cfg.Slowdowns, d)
		return err
	})
	f.StringVar(&cfg.ID, "id", "sim", "name of the engine in /sim/stats; gives its answers and block store ids of "+
		"their own")
	f.Uint64Var(&cfg.Seed, "seed", 0, "another, equally repeatable engine; engines with one seed go on with each "+
		"other's answers")
	f.IntVar(&cfg.OutputTokens, "output-tokens", 32, "length of an answer without max_tokens")
	f.BoolVar(&cfg.EndsItself, "ends-itself", false, "end an answer after --output-tokens also if max_tokens allows more")
	f.Float64Var(&cfg.Quality, "quality", 0, "share of questions that the engine answers rightly, for cascades; 0: "+
		"answers have no meaning")
	f.BoolVar(&cfg.OmitCachedTokens, "omit-cached-tokens", false,
		"leave the cached-token count out, as vLLM does without --enable-prompt-tokens-details")
	f.BoolVar(&cfg.RejectStreamOptions, "reject-stream-options", false,
		"answer 400 to stream_options, as older engines do")
}

func transferFlags(f *pflag.FlagSet, cfg *engine.Config) {
	f.StringVar((*string)(&cfg.Connector), "connector", "", "how KV blocks go from engine to engine: nixl, mooncake "+
		"(vLLM), sglang or trtllm; empty: they do not")
	f.StringVar((*string)(&cfg.Role), "role", "both", "part in that: prefill, decode or both")
	f.StringVar(&cfg.SideChannel, "side-channel", "127.0.0.1:0", "HOST:PORT from which other engines read blocks, the "+
		"bootstrap server of sglang and mooncake; port 0 takes a free one")
	f.DurationVar(&cfg.BlockLease, "block-lease", 30*time.Second, "time for which blocks are kept for another engine; "+
		"--speed does not divide it")
	f.DurationVar(&cfg.PeerTimeout, "peer-timeout", 300*time.Second, "time for which a leg waits for its other leg; "+
		"--speed does not divide it")
	f.Float64Var(&cfg.TransferTokensPerSecond, "transfer-rate", 5e6, "tokens per second at which blocks come")
	f.StringVar((*string)(&cfg.LoadFailure), "load-failure", string(engine.LoadFail), "if blocks are gone: fail, "+
		"fail-in-stream (after the head of a stream, as real engines do), recompute or stale (a wrong answer)")
}

// checkTransfer refuses flags about blocks of other engines with which no engine can run.
func checkTransfer(f *pflag.FlagSet, cfg *engine.Config) error {
	for _, c := range []struct {
		flag, value string
		known       []string
	}{
		{"connector", string(cfg.Connector), []string{"nixl", "mooncake", "sglang", "trtllm"}},
		{"role", string(cfg.Role), []string{"prefill", "decode", "both"}},
		{"load-failure", string(cfg.LoadFailure), []string{"fail", "fail-in-stream", "recompute", "stale"}},
	} {
		if c.value != "" && !slices.Contains(c.known, c.value) {
			return fmt.Errorf("--%s %q: must be one of %s", c.flag, c.value, strings.Join(c.known, ", "))
		}
	}
	if cfg.Role == "both" {
		cfg.Role = engine.RoleBoth
	}
	for _, name := range []string{
		"role", "side-channel", "block-lease", "peer-timeout", "transfer-rate", "load-failure",
	} {
		if f.Changed(name) && cfg.Connector == engine.ConnectorNone {
			return fmt.Errorf("--%s needs --connector, the way blocks go from engine to engine", name)
		}
	}
	return nil
}

func loraFlags(f *pflag.FlagSet, cfg *engine.Config, adapters *map[string]string) {
	f.StringToStringVar(adapters, "lora-modules", nil, "LoRA adapters as NAME=PATH, separated by commas")
	f.IntVar(&cfg.MaxLoRAs, "max-loras", 0, "adapters in one batch (default 1 with adapters)")
	f.IntVar(&cfg.MaxLoadedLoRAs, "max-cpu-loras", 0, "adapters in memory; the one used longest ago leaves (default "+
		"--max-loras)")
	f.DurationVar(&cfg.AdapterLoad, "adapter-load", 0, "time to load an adapter that is not in memory")
	f.BoolVar(&cfg.RuntimeLoRA, "runtime-lora", false, "load and unload adapters on request (cgn-ctl model adapter)")
}

func kvEventFlags(f *pflag.FlagSet, k *engine.KVEvents) {
	f.StringVar(&k.Endpoint, "kv-events", "", "ZMQ address to publish KV events on, tcp://HOST:PORT or ipc://PATH; "+
		"port 0 takes a free one")
	f.StringVar((*string)(&k.Events), "kv-events-form", string(engine.EventMap),
		"map: events are maps with \"type\"; array: positional arrays, vLLM's older form")
	f.StringVar((*string)(&k.Hashes), "kv-events-hashes", string(engine.HashInt),
		"int: block hashes are unsigned 64-bit integers; bytes: 32 bytes")
	f.StringVar(&k.Topic, "kv-events-topic", "", "first frame of each batch")
	f.StringVar(&k.ReplayEndpoint, "kv-replay", "", "ZMQ address that answers requests for past batches; empty: "+
		"no replay")
	f.IntVar(&k.BufferSteps, "kv-replay-batches", 10000, "past batches kept for --kv-replay; the oldest leave")
}

// checkSim refuses flags with which no engine can run.
func checkSim(f *pflag.FlagSet, k *engine.KVEvents) error {
	if k.Events != engine.EventMap && k.Events != engine.EventArray {
		return fmt.Errorf("--kv-events-form %q: must be map or array", k.Events)
	}
	if k.Hashes != engine.HashInt && k.Hashes != engine.HashBytes {
		return fmt.Errorf("--kv-events-hashes %q: must be int or bytes", k.Hashes)
	}
	for _, name := range []string{"kv-events-form", "kv-events-hashes", "kv-events-topic", "kv-replay",
		"kv-replay-batches"} {
		if f.Changed(name) && k.Endpoint == "" {
			return fmt.Errorf("--%s needs --kv-events, the address that events are published on", name)
		}
	}
	if f.Changed("kv-replay-batches") && k.ReplayEndpoint == "" {
		return errors.New("--kv-replay-batches needs --kv-replay, the address that answers for past batches")
	}
	return nil
}
