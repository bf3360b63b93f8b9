package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/perf/instant"
)

func newEngine(a *cli.App) *cobra.Command {
	cfg := instant.Config{}
	c := &cobra.Command{
		Use:   "engine",
		Short: "Run an engine that answers at once and costs next to nothing",
		Long: "Serves the model " + instant.Model + " to routers and `bench load`: every answer comes at once, and " +
			"streams carry the time each token\n" +
			"was sent at.",
		Example: "  cgn-ctl bench engine --listen 127.0.0.1:8001\n  cgn-router --backend http://127.0.0.1:8001\n  " +
			"cgn-ctl bench load closed",
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return runEngine(ctx, a, cfg)
		},
	}
	c.Flags().StringVar(&cfg.Listen, "listen", "127.0.0.1:8001", "address, HOST:PORT; port 0 takes a free one")
	return c
}

func runEngine(ctx context.Context, a *cli.App, cfg instant.Config) error {
	e, err := instant.Start(cfg)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("--listen %s: the port is in use%s; stop that program, or give another address with --listen",
			cfg.Listen, listen.ByHolder(cfg.Listen))
	case err != nil:
		return fmt.Errorf("--listen %s: %w; give an address of this host, HOST:PORT, with --listen", cfg.Listen, err)
	}
	defer e.Close()
	at := struct {
		URL   string `json:"url"`
		Model string `json:"model"`
	}{e.URL(), instant.Model}
	if err := a.Show(at, func(t *cli.Table) {
		t.Line("instant engine at " + at.URL + ", model " + at.Model)
	}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
