// Command cgn-agent runs beside one inference engine: it starts or attaches to
// the engine, is its authenticated front for the routers, and announces the
// node in etcd.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
)

const about = `Runs beside one inference engine: attaches to it (--engine URL) or starts and
supervises it (--kind, --model), serves routers on --listen, announces the node in etcd.`

func main() {
	if err := run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cgn-agent:", err)
		os.Exit(1)
	}
}

func run(args, env []string, out, errOut io.Writer) error {
	var c agent.Config
	err := config.Load(&c, config.Options{
		Program: "cgn-agent", About: about, Version: buildinfo.String(), Args: args, Env: env, Out: out,
	})
	switch {
	case errors.Is(err, config.ErrAnswered):
		return nil
	case err != nil:
		return err
	}
	log := logger(c.Log, errOut)
	slog.SetDefault(log)
	c.Logger = log
	a, err := agent.New(c)
	if err != nil {
		return err
	}
	// SIGHUP is heard and ignored: certificates are followed without it, and
	// nothing else of an agent can change while it runs.
	signals := lifecycle.Listen(context.Background(), nil)
	defer signals.Close()
	return a.Run(signals.Drain(), signals.Force())
}

func logger(c agent.LogConfig, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked by the configuration
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
