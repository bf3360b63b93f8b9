// Command cgn-agent runs beside the inference engines of a host. cgn-agent starts or attaches to
// each engine. cgn-agent is the engine's authenticated front for the routers. cgn-agent announces
// each engine as a node in etcd.
package main

import (
	"context"
	"io"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/program"
)

const about = `Runs beside the inference engines of a host: attaches to one (--engine URL) or starts and
supervises it (--kind, --model), serves routers on --listen, announces the node in etcd.
A host with several engines has a table [[engine]] for each in the file.`

func main() { program.Main("cgn-agent", run) }

func run(args, env []string, out, errOut io.Writer) (err error) {
	var c agent.Config
	options := config.Options{Program: "cgn-agent", About: about, Version: buildinfo.String(), Args: args, Env: env,
		Out: out}
	if c.Logger, err = program.Load(&c, options, errOut, &c.Log.Level, &c.Log.Format); c.Logger == nil {
		return err
	}
	a, err := agent.New(c)
	if err != nil {
		return err
	}
	// SIGHUP only reopens the audit log. Certificates are reloaded without a signal, and nothing
	// else of an agent can change while it runs.
	signals := lifecycle.Listen(context.Background(), func() {
		if err := a.ReopenLogs(); err != nil {
			c.Logger.Error("a log not opened anew, the old file stays in use", "error", err)
		}
	})
	defer signals.Close()
	return a.Run(signals.Drain(), signals.Force())
}
