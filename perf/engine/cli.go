package engine

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// Main runs the command line: it starts --engines engines on successive ports
// from --listen on (all chosen by the system for port 0), prints one JSON line
// {"id","url","kv_events","kv_replay"} for each, and serves until ctx ends.
// KV event ports count up in the same way.
func Main(ctx context.Context, args []string, out io.Writer) error {
	cfg, n, err := parseArgs(args, out)
	if err != nil {
		return err
	}
	var engines []*Engine
	defer func() {
		for _, e := range engines {
			e.Close()
		}
	}()
	for i := range n {
		c, err := numbered(cfg, i)
		if err != nil {
			return err
		}
		e, err := New(c)
		if err != nil {
			return err
		}
		engines = append(engines, e)
		events, replay := e.KVEndpoints()
		line := map[string]string{"id": c.ID, "url": e.URL(), "kv_events": events, "kv_replay": replay}
		if err := json.NewEncoder(out).Encode(line); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

func parseArgs(args []string, out io.Writer) (cfg Config, engines int, err error) {
	fs := flag.NewFlagSet("sim", flag.ContinueOnError)
	fs.SetOutput(out)
	var models, kvEvents, kvReplay, eventForm, hashForm string
	d := Config{}.withDefaults()
	fs.IntVar(&engines, "engines", 1, "number of engines")
	fs.StringVar(&cfg.ID, "id", d.ID, "name; with several engines a prefix")
	fs.StringVar(&cfg.Addr, "listen", d.Addr, "host:port of the first engine, or unix:PATH")
	fs.StringVar(&models, "model", d.Models[0], "served model names, separated by commas")
	fs.StringVar(&cfg.APIKey, "api-key", "", "bearer token to demand")
	fs.IntVar(&cfg.BlockTokens, "block-tokens", d.BlockTokens, "tokens in a KV block")
	fs.IntVar(&cfg.CacheBlocks, "cache-blocks", d.CacheBlocks, "KV blocks in the device")
	fs.IntVar(&cfg.MaxModelTokens, "max-model-tokens", 0, "bound of prompt plus answer; 0 = 131072 or what the cache holds")
	fs.IntVar(&cfg.MaxSeqs, "max-seqs", d.MaxSeqs, "sequences in a batch")
	fs.IntVar(&cfg.MaxBatchTokens, "max-batch-tokens", d.MaxBatchTokens, "tokens in a step")
	fs.Float64Var(&cfg.PrefillTokensPerSecond, "prefill-rate", d.PrefillTokensPerSecond, "prefill tokens per second, shared by the batch")
	fs.DurationVar(&cfg.DecodeStep, "decode-step", d.DecodeStep, "time of a decode step")
	fs.DurationVar(&cfg.DecodePerSequence, "decode-per-sequence", 0, "added to a step for each sequence that decodes")
	fs.Float64Var(&cfg.Speed, "speed", d.Speed, "divides every simulated time")
	fs.Uint64Var(&cfg.Seed, "seed", 0, "another seed, another engine")
	fs.IntVar(&cfg.OutputTokens, "output-tokens", d.OutputTokens, "length of an answer without max_tokens")
	fs.BoolVar(&cfg.OmitCachedTokens, "omit-cached-tokens", false, "report no cached tokens, as vLLM without --enable-prompt-tokens-details")
	fs.BoolVar(&cfg.RejectStreamOptions, "reject-stream-options", false, "answer 400 to stream_options")
	fs.StringVar(&kvEvents, "kv-events", "", "ZMQ endpoint of KV events, e.g. tcp://*:5557")
	fs.StringVar(&kvReplay, "kv-replay", "", "ZMQ endpoint of their replay, e.g. tcp://*:5558")
	fs.StringVar(&eventForm, "kv-event-form", string(EventMap), "map or array")
	fs.StringVar(&hashForm, "kv-hash-form", string(HashInt), "int or bytes")
	if err := fs.Parse(args); err != nil {
		return cfg, 0, err
	}
	if fs.NArg() > 0 || engines < 1 {
		return cfg, 0, fmt.Errorf("sim: unexpected arguments %q or --engines %d below 1", fs.Args(), engines)
	}
	cfg.Models = strings.Split(models, ",")
	if kvEvents != "" {
		cfg.KVEvents = &KVEvents{Endpoint: kvEvents, ReplayEndpoint: kvReplay, Events: EventForm(eventForm), Hashes: HashForm(hashForm)}
	}
	return cfg, engines, nil
}

// numbered is the configuration of engine i: its own name, seed and ports.
func numbered(cfg Config, i int) (Config, error) {
	if i == 0 {
		return cfg, nil
	}
	cfg.ID += "-" + strconv.Itoa(i)
	cfg.Seed += uint64(i)
	var err error
	if cfg.Addr, err = shift(cfg.Addr, i); err != nil {
		return cfg, err
	}
	if cfg.KVEvents != nil {
		kv := *cfg.KVEvents
		if kv.Endpoint, err = shift(kv.Endpoint, i); err == nil && kv.ReplayEndpoint != "" {
			kv.ReplayEndpoint, err = shift(kv.ReplayEndpoint, i)
		}
		cfg.KVEvents = &kv
	}
	return cfg, err
}

// shift adds i to the port of an address or endpoint; a path gets a suffix, and
// port 0 stays.
func shift(addr string, i int) (string, error) {
	if strings.HasPrefix(addr, "unix:") || strings.HasPrefix(addr, "ipc://") {
		return addr + "-" + strconv.Itoa(i), nil
	}
	scheme, rest, found := strings.Cut(addr, "://")
	if !found {
		scheme, rest = "", addr
	} else {
		scheme += "://"
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("sim: %w", err)
	}
	p, err := strconv.Atoi(port)
	if err != nil {
		return "", fmt.Errorf("sim: port of %q: %w", addr, err)
	}
	if p > 0 {
		p += i
	}
	return scheme + net.JoinHostPort(host, strconv.Itoa(p)), nil
}
