package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/perf/engine"
)

func newSim(a *app) *cobra.Command {
	var cfg engine.Config
	var events string
	c := &cobra.Command{
		Use:   "sim",
		Short: "Run one simulated engine that speaks what vLLM speaks",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if events != "" {
				cfg.KVEvents = &engine.KVEvents{Endpoint: events, Bind: true}
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			e, err := engine.New(cfg)
			if err != nil {
				return err
			}
			defer e.Close()
			at := map[string]string{"url": e.URL()}
			if err := a.show(at, func(t *table) { t.line(fmt.Sprintf("simulated engine at %s", e.URL())) }); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Addr, "listen", "127.0.0.1:8001", "address, or unix:PATH")
	f.StringSliceVar(&cfg.Models, "model", []string{"sim"}, "served model names")
	f.StringVar(&cfg.APIKey, "api-key", "", "bearer token that /v1 asks for")
	f.IntVar(&cfg.BlockTokens, "block-tokens", 16, "tokens in a KV block")
	f.IntVar(&cfg.CacheBlocks, "cache-blocks", 8192, "KV blocks of the device")
	f.IntVar(&cfg.MaxSeqs, "max-seqs", 256, "sequences in a batch; others wait")
	f.Float64Var(&cfg.PrefillTokensPerSecond, "prefill-rate", 20000, "prompt tokens per second, shared by the batch")
	f.DurationVar(&cfg.DecodeStep, "decode-step", 0, "time of one decode step (default 15ms)")
	f.Float64Var(&cfg.Speed, "speed", 1, "divides every simulated duration")
	f.Uint64Var(&cfg.Seed, "seed", 0, "another, equally repeatable engine")
	f.IntVar(&cfg.OutputTokens, "output-tokens", 32, "length of an answer without max_tokens")
	f.BoolVar(&cfg.OmitCachedTokens, "omit-cached-tokens", false, "leave the cached-token count out, as vLLM does without --enable-prompt-tokens-details")
	f.BoolVar(&cfg.RejectStreamOptions, "reject-stream-options", false, "answer 400 to stream_options, as older engines do")
	f.StringVar(&events, "kv-events", "", "ZMQ address to publish KV events on, like tcp://127.0.0.1:5557")
	return c
}
