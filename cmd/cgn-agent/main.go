// Command cgn-agent runs beside the inference engines of a host. cgn-agent starts or attaches to
// each engine. cgn-agent is the engine's authenticated front for the routers. cgn-agent announces
// each engine as a node in etcd.
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
	"github.com/cognitora/dataplane/internal/logging"
)

const about = `Runs beside the inference engines of a host: attaches to one (--engine URL) or starts and
supervises it (--kind, --model), serves routers on --listen, announces the node in etcd.
A host with several engines has a table [[engine]] for each in the file.`

func main() {
	if err := run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cgn-agent:", err)
		os.Exit(1)
	}
}

func run(args, env []string, out, errOut io.Writer) error {
	var c agent.Config
	var ignored []string
	var renamed [][2]string // given name, correct name
	err := config.Load(&c, config.Options{
		Program: "cgn-agent", About: about, Version: buildinfo.String(), Args: args, Env: env, Out: out,
		Ignored: func(name string) { ignored = append(ignored, name) },
		Renamed: func(given, name string) { renamed = append(renamed, [2]string{given, name}) },
	})
	switch {
	case errors.Is(err, config.ErrAnswered):
		return nil
	case err != nil:
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
	a, err := agent.New(c)
	if err != nil {
		return err
	}
	// SIGHUP is caught and ignored. Certificates are reloaded without SIGHUP, and nothing else of
	// an agent can change while it runs.
	signals := lifecycle.Listen(context.Background(), nil)
	defer signals.Close()
	return a.Run(signals.Drain(), signals.Force())
}
