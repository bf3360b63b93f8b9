// Package up has the command that runs a whole fleet in one process.
package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/etcd"
	"github.com/cognitora/dataplane/ctl/screen"
	top "github.com/cognitora/dataplane/ctl/top"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/router/policy"
)

const (
	simEngines   = 3 // number of engines by default
	modelEngines = 2 // number with --model: real engines need memory, and two are enough to show the routing
	mostEngines  = 64
	mostRouters  = 16
)

// flags are the flags of `up`.
type flags struct {
	listen, admin, etcd, mode, model, data string
	engines, prefill, decode, routers      int
	backends                               []string
	cascade, insecure, verbose             bool

	listenGiven, adminGiven, etcdGiven, enginesGiven, prefillGiven, decodeGiven bool
}

// Command is cgn-ctl up.
func Command(a *cli.App) *cobra.Command {
	f := &flags{}
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a whole fleet in this terminal",
		Long: "Runs etcd, a KV cache, simulated engines each with its agent, and a router in one process, until " +
			"Ctrl-C or the terminal's end\n" +
			"(not that where nohup starts it). With --model it starts\n" +
			"real llama.cpp servers instead; with --backend it puts only a router before engines that are running.\n" +
			"With --prefill and --decode some of the simulated engines compute prompts, and others answer.\n" +
			"With --cascade a small and a large model answer for the model smart.",
		Example: "  cgn-ctl up\n  cgn-ctl up --engines 8 --routers 2\n  cgn-ctl up --prefill 2 --decode 2\n" +
			"  cgn-ctl up --cascade\n  cgn-ctl up --model qwen.gguf\n" +
			"  cgn-ctl up --backend http://127.0.0.1:8001 --backend http://127.0.0.1:8002",
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			f.listenGiven, f.adminGiven = c.Flags().Changed("listen"), c.Flags().Changed("admin")
			f.etcdGiven = c.Flags().Changed("etcd-listen")
			f.enginesGiven = c.Flags().Changed("engines")
			f.prefillGiven, f.decodeGiven = c.Flags().Changed("prefill"), c.Flags().Changed("decode")
			return run(c.Context(), a, f)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address of the OpenAI-compatible port; a free one is taken "+
		"if this default is busy")
	fl.StringVar(&f.admin, "admin", "127.0.0.1:9091", "address of the router's admin port; a free one is taken if "+
		"this default is busy")
	fl.StringVar(&f.etcd, "etcd-listen", etcd.Default, "address of etcd, where agents that are not started here find "+
		"the fleet; a free one is taken if this default is busy")
	fl.BoolVar(&f.insecure, "insecure-listen", false, "allow addresses that other hosts can reach")
	fl.IntVar(&f.engines, "engines", simEngines, "number of simulated engines, or of llama-servers with --model "+
		"(default then 2)")
	fl.IntVar(&f.prefill, "prefill", 0, "number of simulated engines that compute prompts for those of --decode, in "+
		"place of --engines")
	fl.IntVar(&f.decode, "decode", 0, "number of simulated engines that answer, with --prefill")
	fl.BoolVar(&f.cascade, "cascade", false, "start a simulated engine each of a small and a large model, in place of "+
		"--engines; requests for the model smart go to the large one if the small one is not confident")
	fl.IntVar(&f.routers, "routers", 1, "number of routers")
	fl.StringVar(&f.mode, "mode", "", "routing mode: "+strings.Join(policy.ModeNames(), ", ")+
		" (default: the policy's, and score with --prefill)")
	fl.StringArrayVar(&f.backends, "backend", nil,
		"running engine to put the router before: URL[,id=,model=,role=,max_concurrent=,api_key_file=,ca=,cert=,cert_key=,kv=]; "+
			"repeatable")
	fl.StringVar(&f.model, "model", "", "GGUF file to serve with the llama-server in PATH")
	fl.StringVar(&f.data, "data", "", "directory for state, kept at the end (default: a temporary one, removed at "+
		"the end)")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "log what the parts do, not only what goes wrong")
	return c
}

// run runs the fleet until a signal, and then ends it in order.
func run(ctx context.Context, a *cli.App, f *flags) error {
	if err := f.check(); err != nil {
		return err
	}
	signals := lifecycle.ListenForeground(ctx)
	defer signals.Close()
	scr := screen.NewBlock(a.Err)
	level := slog.LevelWarn
	if f.verbose {
		level = slog.LevelInfo
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(scr, &slog.HandlerOptions{Level: level})))

	l := &local{flags: f, parts: newParts(signals.Force())}
	started := make(chan error, 1)
	go func() { started <- l.start(signals.Drain()) }()
	var err error
	select {
	case err = <-started:
	case <-signals.Force().Done():
		return l.abandon(a, started)
	}
	if err == nil {
		err = l.awaitReady(signals.Drain(), a)
	}
	if err == nil {
		err = present(a, l)
	}
	if err == nil {
		err = attend(signals.Drain(), a, l, scr)
	}
	if signals.Drain().Err() != nil {
		fmt.Fprintln(a.Err, "\nstopping; Ctrl-C again stops at once")
		if errors.Is(err, context.Canceled) {
			err = nil
		}
	}
	return errors.Join(err, l.stop(a))
}

// abandonWithin is the time limit for an interrupted start to end and for its programs to stop.
// After this time, the process ends with whatever is left. The next `up` then removes a temporary
// directory.
const abandonWithin = 3 * time.Second

// abandon ends an unfinished start, and stops what it has started. The start's error comes from
// started.
func (l *local) abandon(a *cli.App, started <-chan error) error {
	over := make(chan error, 1)
	go func() {
		err := <-started
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		over <- errors.Join(err, l.stop(a))
	}()
	err := errors.New("stopped while it was starting")
	select {
	case more := <-over:
		return errors.Join(err, more)
	case <-time.After(abandonWithin):
		return err
	}
}

// attend waits for a signal or the failure of a part. Meanwhile attend shows the fleet, if there is
// a terminal.
func attend(drain context.Context, a *cli.App, l *local, scr *screen.Block) error {
	var ticks <-chan time.Time
	if a.Output == "table" && screen.IsTerminal(a.Out) && screen.IsTerminal(a.Err) {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		ticks = t.C
	}
	first := &admin.Port{At: reachable(l.routers[0].Admin)}
	var before *top.Look
	for {
		select {
		case <-drain.Done():
			scr.Paint("")
			return nil
		case err := <-l.parts.failed:
			scr.Paint("")
			return err
		case <-ticks:
			before = paintLook(drain, first, scr, before)
		}
	}
}

// modelName returns the served name of --model: the file's name without .gguf.
func (f *flags) modelName() string {
	return strings.TrimSuffix(filepath.Base(f.model), ".gguf")
}
