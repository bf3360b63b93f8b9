// Command cgn-router is an OpenAI-compatible router in front of a fleet of inference engines.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/logging"
	"github.com/cognitora/dataplane/router"
)

const about = `Sends each OpenAI request to the engine that answers it soonest and cheapest: the one that
has most of its prompt cached, weighed against load, capacity and, once it is measured, power.

  cgn-router --backend http://127.0.0.1:8001 --backend http://127.0.0.1:8002`

const reloadLimit = 10 * time.Second

func main() {
	if err := run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cgn-router:", err)
		os.Exit(1)
	}
}

func run(args, env []string, out, errOut io.Writer) error {
	var ignored []string
	var renamed [][2]string // given name, correct name
	options := config.Options{
		Program: "cgn-router", About: about, Version: buildinfo.String(), Args: args, Env: env, Out: out,
		Ignored: func(name string) { ignored = append(ignored, name) },
		Renamed: func(given, name string) { renamed = append(renamed, [2]string{given, name}) },
	}
	var c router.Config
	if err := config.Load(&c, options); errors.Is(err, config.ErrAnswered) {
		return nil
	} else if err != nil {
		return err
	}
	log := logging.New(errOut, c.Log.Level, c.Log.Format)
	slog.SetDefault(log)
	c.Logger = log
	for _, name := range ignored {
		log.Warn("this program has no setting of the name of this environment variable; see --help", "variable", name)
	}
	for _, r := range renamed {
		log.Warn("a setting is given by an older name; write the new one", "given", r[0], "name", r[1])
	}
	options.Ignored, options.Renamed = nil, nil
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

// reload applies the static backends of the current configuration, on SIGHUP. A faulty
// configuration changes nothing. The access log is reopened in any case.
func reload(r *router.Router, options config.Options, log *slog.Logger) {
	if err := r.ReopenAccessLog(); err != nil {
		log.Error("access log not opened anew, the old file stays in use", "error", err)
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
		log.Warn("changed settings stay as they are until a restart; a reload takes over the backends only", "settings",
			strings.Join(kept, " "))
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
