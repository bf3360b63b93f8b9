package bpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/agent/peerevents"
	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/logging"
)

func newServe(a *cli.App, root *string) *cobra.Command {
	var at string
	var group int
	c := &cobra.Command{
		Use: "serve", Short: "Load the programs and tell the routers of this host of events, as an agent with " +
			"telemetry.events does", Args: cli.NoArguments,
		Long: "For hosts that have routers and no agent: loads the programs, tells routers (router.kernel_events) at " +
			"once of retransmission timeouts, resets and\n" +
			"failed connections to their nodes, and lets them read round trips and retransmissions. Runs until it is " +
			"interrupted; the programs stay.",
		Example: "  cgn-ctl bpf serve --socket /run/cognitora/events.sock --group 990",
		RunE: func(c *cobra.Command, _ []string) error {
			if at == "" {
				return cli.Misused(cli.WithHint(errors.New("--socket is missing"), "for example: "+c.Example[2:]))
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return serve(ctx, a, *root, at, group)
		},
	}
	c.Flags().StringVar(&at, "socket", "", "path of the Unix socket (required)")
	c.Flags().IntVar(&group, "group", -1, "id of the group whose members may connect, besides root and the user of "+
		"this command; -1: its own")
	return c
}

func serve(ctx context.Context, a *cli.App, root, at string, group int) error {
	layout, err := bpf.PeersLayout()
	if err != nil {
		return err
	}
	log := logging.New(a.Err, "info", "text")
	p := &served{root: root, socket: at, log: log}
	if p.loaded, err = bpf.Load(bpf.Options{Root: root}); err != nil {
		return err
	}
	defer func() { _ = p.loaded.Close() }()
	l, err := peerevents.Open(at, group)
	if err != nil {
		return fmt.Errorf("--socket, --group: %w", err)
	}
	var followed sync.WaitGroup
	defer followed.Wait()
	followed.Go(func() { p.follow(ctx) })
	peerevents.New(peerevents.Options{Layout: layout, Logger: log, Open: p.open}).Serve(ctx, l)
	return nil
}

// served serves the programs' events to routers.
type served struct {
	root, socket string
	log          *slog.Logger

	mu     sync.Mutex
	loaded *bpf.Set
	events *bpf.Events // nil: events are not read, or belong to removed programs
}

// open opens the events. open loads the programs again if they were removed.
func (p *served) open() (peerevents.Source, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded.Removed() != nil {
		loaded, err := bpf.Load(bpf.Options{Root: p.root, Keep: true})
		if err != nil {
			return nil, bpf.WithHint(err)
		}
		_ = p.loaded.Close()
		p.loaded = loaded
	}
	events, err := bpf.OpenEvents(p.root)
	if err != nil {
		return nil, bpf.WithHint(err)
	}
	p.events = events
	p.log.Info("routers of this host that have it as router.kernel_events are told", "socket", p.socket)
	return events, nil
}

// follow makes the events be opened again whenever the programs were removed, until ctx ends.
func (p *served) follow(ctx context.Context) {
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		p.mu.Lock()
		if why := p.loaded.Removed(); why != nil && p.events != nil {
			p.log.Warn("programs in the kernel were taken away; loading them anew", "why", why)
			p.events.Interrupt()
			p.events = nil
		}
		p.mu.Unlock()
	}
}
