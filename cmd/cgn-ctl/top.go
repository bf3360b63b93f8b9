package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cognitora/dataplane/router/fleet"
)

func newTop(a *app, getenv func(string) string) *cobra.Command {
	var every time.Duration
	var once bool
	c := &cobra.Command{
		Use:   "top",
		Short: "Show the fleet as a router sees it, and keep showing it",
		Long: "Shows each node as a router sees it. \"-\" stands for what nobody has reported: KV % comes from the engine, SM % from an agent\n" +
			"built with NVML, WATTS from an agent that finds a meter ([power] in its configuration).\n\n" +
			"  STATE       healthy; unproven: never answered yet; no model: answers, and names no model; half-open: back, on trial;\n" +
			"              open: failing, so out of service; aside: takes requests and answers none; suspect: acknowledges no packets\n" +
			"  NOTE        why a node gets no requests, or few: its state, what its last check failed with, a cordon, an agent that is\n" +
			"              not ready or no longer heard of\n" +
			"  IN FLIGHT   requests of this router on the node, of how many it is given at once\n" +
			"  QUEUED      requests that wait inside the engine\n" +
			"  SM %        use of the GPU; WATTS: its power; KV %: share of the KV cache in use\n" +
			"  BELIEVED    for how long a block is believed to stay in the node's cache, learned from its answers\n" +
			"  PREDICTION  mean of believed minus reported cached share of the prompts; 0 is perfect, +1 always believed and never there",
		Example: "  cgn-ctl top\n  cgn-ctl top --once --admin 10.0.0.5:9091\n  cgn-ctl top -o json | jq .fleet.nodes",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return fmt.Errorf("--interval %s: must be 100ms or more", every)
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.top(ctx, every, once || a.output == "json" || !isTerminal(a.out))
		},
	}
	a.adminFlag(c.Flags(), getenv)
	c.Flags().DurationVar(&every, "interval", time.Second, "time between two looks")
	c.Flags().BoolVar(&once, "once", false, "show it once (so it is with --output json, and when not writing to a terminal)")
	return c
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// look is everything `top` shows: the fleet, and the router's counters at one moment.
type look struct {
	Fleet  fleetView `json:"fleet"`
	Router counters  `json:"router"`
	at     time.Time
}

// fleetView is what ADMIN/debug/fleet answers.
type fleetView struct {
	fleet.View
	Nodes       []fleetNode `json:"nodes"`
	IndexBlocks int         `json:"index_blocks"`
}

type fleetNode struct {
	fleet.NodeView
	Lifetime float64 `json:"learned_lifetime_s"`
}

func (v *fleetView) firstModel() string {
	if len(v.Models) == 0 {
		return ""
	}
	return v.Models[0].Name
}

func (a *app) fleet(ctx context.Context) (*fleetView, error) {
	v := &fleetView{}
	return v, a.adminJSON(ctx, "/debug/fleet", "", v)
}

func (a *app) look(ctx context.Context) (*look, error) {
	view, err := a.fleet(ctx)
	if err != nil {
		return nil, err
	}
	l := &look{Fleet: *view, at: time.Now()}
	page, err := a.askAdmin(ctx, "GET", "/metrics", "")
	if err != nil {
		return nil, err
	}
	l.Router, err = readCounters(page)
	return l, err
}

func (a *app) top(ctx context.Context, every time.Duration, once bool) error {
	var before *look
	for {
		now, err := a.look(ctx)
		if err != nil && (once || before == nil) {
			return err
		}
		if once {
			return a.show(now, func(t *table) { now.write(t, before) })
		}
		a.redraw(now, before, err)
		if err == nil {
			before = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// redraw paints over what was on the terminal before.
func (a *app) redraw(now, before *look, err error) {
	var b bytes.Buffer
	if err != nil && !errors.Is(err, context.Canceled) {
		b.WriteString(err.Error() + "\n")
	} else if err == nil {
		t := newTable(&b)
		now.write(t, before)
		_ = t.w.Flush()
	}
	text := strings.ReplaceAll(b.String(), "\n", "\x1b[K\n")
	fmt.Fprint(a.out, "\x1b[H"+text+"\x1b[J")
}

// write shows the fleet, with rates since before where there was one.
func (l *look) write(t *table, before *look) {
	t.line(l.headline(before))
	for _, p := range l.Fleet.Problems {
		t.line("! " + p.Subject + ": " + p.Reason)
	}
	t.line("")
	t.row("NODE", "STATE", "IN FLIGHT", "QUEUED", "SM %", "WATTS", "KV %", "BELIEVED", "PREDICTION", "MODELS", "ADDRESS", "NOTE")
	for _, n := range l.Fleet.Nodes {
		prediction := "-"
		if e, ok := l.Router.Prediction[n.ID]; ok {
			prediction = fmt.Sprintf("%+.3f", e)
		}
		state := n.State
		if n.Suspect {
			state, n.Reason = "suspect", n.SuspectWhy
		}
		t.row(n.ID, state, fmt.Sprintf("%d/%d", n.InFlight, n.MaxConcurrent), number(n.EngineQueue, 0), percent(n.SM), number(n.Watts, 0),
			percent(n.KVUsage), fmt.Sprintf("%.0fs", n.Lifetime), prediction, dash(strings.Join(n.Models, ",")), n.Address, dash(n.note()))
	}
}

// note says why a node gets no requests, or few, with what its last check failed with.
func (n *fleetNode) note() string {
	if n.LastError == "" {
		return n.Reason
	}
	return strings.TrimSpace(n.Reason + " (" + n.LastError + ")")
}

func percent(share *float64) string {
	if share == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f", *share*100)
}

func (l *look) headline(before *look) string {
	inFlight := 0
	for _, n := range l.Fleet.Nodes {
		inFlight += int(n.InFlight)
	}
	parts := []string{fmt.Sprintf("%d nodes, %d requests in flight, %d blocks indexed", len(l.Fleet.Nodes), inFlight, l.Fleet.IndexBlocks)}
	if l.Fleet.Stale {
		parts = append(parts, "STALE: etcd does not answer")
	}
	c, since := l.Router, ", in all"
	if before != nil {
		seconds := l.at.Sub(before.at).Seconds()
		c, since = c.minus(before.Router), ""
		parts = append(parts, fmt.Sprintf("%.1f requests/s, %.0f tokens/s out", c.Requests/seconds, c.Completion/seconds))
	} else {
		parts = append(parts, fmt.Sprintf("%.0f requests, %.0f tokens out", c.Requests, c.Completion))
	}
	if c.Prompt > 0 {
		parts = append(parts, fmt.Sprintf("%.0f %% of prompt tokens cached%s", 100*c.Cached/c.Prompt, since))
	}
	return strings.Join(append(parts, fmt.Sprintf("%.0f retries%s", c.Retries, since)), "; ")
}
