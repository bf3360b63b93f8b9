package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/agent/peerevents"
	"github.com/cognitora/dataplane/bpf"
)

func newBPFServe(a *app, root *string) *cobra.Command {
	var at string
	var group int
	c := &cobra.Command{
		Use: "serve", Short: "Load the programs and tell the routers of this host of events, as an agent with telemetry.events does", Args: cobra.NoArgs,
		Long: "For hosts that have routers and no agent: loads the programs, tells routers (router.kernel_events) at once of retransmission timeouts, resets and\n" +
			"failed connections to their nodes, and lets them read round trips and retransmissions. Runs until it is interrupted; the programs stay.",
		Example: "  cgn-ctl bpf serve --socket /run/cognitora/events.sock --group 990",
		RunE: func(c *cobra.Command, _ []string) error {
			if at == "" {
				return hinted{errors.New("--socket is missing"), "for example: " + c.Example[2:]}
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.bpfServe(ctx, *root, at, group)
		},
	}
	c.Flags().StringVar(&at, "socket", "", "path of the Unix socket (required)")
	c.Flags().IntVar(&group, "group", -1, "id of the group whose members may connect, besides root and the user of this command; -1: its own")
	return c
}

func (a *app) bpfServe(ctx context.Context, root, at string, group int) error {
	layout, err := bpf.PeersLayout()
	if err != nil {
		return err
	}
	programs, err := bpf.Load(bpf.Options{Root: root})
	if err != nil {
		return err
	}
	defer programs.Close()
	l, err := peerevents.Open(at, group)
	if err != nil {
		return fmt.Errorf("--socket, --group: %w", err)
	}
	s := peerevents.New(peerevents.Options{
		Layout: layout, Log: slog.Default(),
		Open: func() (peerevents.Source, error) { return bpf.OpenEvents(root) },
	})
	fmt.Fprintf(a.out, "routers of this host are told at %s (router.kernel_events)\n", at)
	s.Serve(ctx, l)
	return nil
}
