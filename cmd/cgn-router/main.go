// Command cgn-router is an OpenAI-compatible router in front of a fleet of inference engines.
package main

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/program"
	"github.com/cognitora/dataplane/router"
)

const about = `Sends each OpenAI request to the engine that is expected to answer it soonest at the least
cost to others, from what is cached there, what waits there and how fast it has been.

  cgn-router --backend http://127.0.0.1:8001 --backend http://127.0.0.1:8002`

const reloadLimit = 10 * time.Second

func main() { program.Main("cgn-router", run) }

func run(args, env []string, out, errOut io.Writer) (err error) {
	var c router.Config
	options := config.Options{Program: "cgn-router", About: about, Version: buildinfo.String(), Args: args, Env: env,
		Out: out}
	log, err := program.Load(&c, options, errOut, &c.Log.Level, &c.Log.Format)
	if log == nil {
		return err
	}
	c.Logger = log
	c.SocketByDefault()
	r, err := router.New(c)
	if err != nil {
		return err
	}
	signals := lifecycle.Listen(context.Background(), func() { reload(r, options, log) })
	defer signals.Close()
	defer listenForUpgrades(args, log)()
	return r.Run(signals.Drain(), signals.Force())
}

// reload applies the static backends and the models of the current configuration, on SIGHUP. A
// faulty configuration changes nothing. The access log and the audit log are reopened in any case.
func reload(r *router.Router, options config.Options, log *slog.Logger) {
	if err := r.ReopenLogs(); err != nil {
		log.Error("a log not opened anew, the old file stays in use", "error", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), reloadLimit)
	defer cancel()
	backends, kept, err := reloadConfig(ctx, r, options)
	r.NoteReload(err)
	if err != nil {
		log.Error("not reloaded, backends and settings stay as they are", "error", err)
		return
	}
	log.Info("reloaded", "backends", backends)
	if len(kept) > 0 {
		log.Warn("changed settings stay as they are until a restart; a reload takes over backends, models and limits only",
			"settings", strings.Join(kept, " "))
	}
}

// reloadConfig reads the configuration again. The router applies the reloadable settings.
func reloadConfig(ctx context.Context, r *router.Router,
	options config.Options) (backends int, kept []string, err error) {
	var next router.Config
	if err := config.Load(&next, options); err != nil {
		return 0, nil, err
	}
	next.SocketByDefault()
	return r.ReloadConfig(ctx, &next)
}
