// Package top has the command that shows the fleet from a router's view.
package top

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/screen"
)

// Command is cgn-ctl top.
func Command(a *cli.App) *cobra.Command {
	var every time.Duration
	var once bool
	var router admin.Port
	c := &cobra.Command{
		Use:   "top",
		Short: "Show the fleet as a router sees it, and keep showing it",
		Long: "Shows each node as a router sees it. \"-\" stands for what nobody has reported: KV % comes from the " +
			"engine, SM % from an agent\n" +
			"built with NVML, WATTS from an agent that finds a meter ([power] in its configuration).\n\n" +
			"  STATE       healthy; unproven: never answered yet; no model: answers, and names no model; half-open: " +
			"back, on trial;\n" +
			"              open: failing, so out of service; aside: takes requests and answers none; suspect: " +
			"acknowledges no packets\n" +
			"  NOTE        why a node gets no requests, or few: its state, what its last check failed with, a " +
			"cordon, an agent that is\n" +
			"              not ready or no longer heard of; slow: prefill 5.0x its like: took at least twice as " +
			"long as at nodes\n" +
			"              of its kind, and no answer has shown less than 1.5 times since; a node alone in its " +
			"kind is never slow;\n" +
			"              stalled: no token for 15s: mode predicted expects its streams to stand still for as " +
			"long again;\n" +
			"              role prefill, role decode: the node does this part of the work only\n" +
			"  IN FLIGHT   requests of this router on the node, of how many it may have at once (-: no limit)\n" +
			"  QUEUED      requests that wait inside the engine\n" +
			"  CPU WAIT %  threads of the engine that wait for a CPU, on average: 100 is one that always waits\n" +
			"  WAIT P99    wait for a CPU that 99 % of the host's wakeups did not exceed\n" +
			"  RTT         round trip between the node and its routers, as the node's kernel sees it, else this " +
			"router's\n" +
			"  RESENT %    of the TCP segments to or from the node, those sent again; of the two directions the one " +
			"with more\n" +
			"  CPU %       of the engine's processes; SM %: use of the GPU; WATTS: its power; KV %: share of the KV " +
			"cache in use\n" +
			"  SLOWDOWN    times of the node's prefill and of its decode beside nodes of its kind: 2.00/1.00 is twice " +
			"the prefill and\n" +
			"              the same decode; -: mode predicted is off, or has fewer than 8 answers, or none for 10 " +
			"minutes, or the node is\n" +
			"              alone in its kind\n" +
			"  BELIEVED    for how long a block is believed to stay in the node's cache, learned from its answers\n" +
			"  PREDICTION  mean of believed minus reported cached share of the prompts; 0 is perfect, +1 always " +
			"believed and never there\n\n" +
			"Nodes that get no requests, and suspect ones, come first, then those with something to say. A terminal " +
			"shows as much as fits, without the columns that matter\n" +
			"less, and says in its last line what it leaves out.",
		Example: "  cgn-ctl top\n  cgn-ctl top --once --admin 10.0.0.5:9091\n  cgn-ctl top -o json | jq .fleet.nodes",
		Args:    cli.NoArguments,
		PreRunE: cli.Ranges(map[string][2]float64{"interval": {0.1, cli.Most}}),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, release := screen.Ending(c.Context())
			defer release()
			return watch(ctx, a, &router, every, once || a.Output == "json" || !screen.IsTerminal(a.Out))
		},
	}
	router.Flags(c.Flags(), a.Getenv)
	c.Flags().DurationVar(&every, "interval", time.Second, "time between two looks")
	c.Flags().BoolVar(&once, "once", false, "show it once (so it is with --output json, and when not writing to a "+
		"terminal)")
	return c
}

// Look is the data of `top`: the fleet, and the router's counters at one moment.
type Look struct {
	Fleet  admin.Fleet `json:"fleet"`
	Router counters    `json:"router"`
	at     time.Time
}

// LookAt gets a Look from the router.
func LookAt(ctx context.Context, router *admin.Port) (*Look, error) {
	view, err := router.Fleet(ctx)
	if err != nil {
		return nil, err
	}
	l := &Look{Fleet: *view, at: time.Now()}
	page, err := router.Ask(ctx, "GET", "/metrics", "")
	if err != nil {
		return nil, err
	}
	l.Router, err = readCounters(page)
	return l, err
}

// watch shows the fleet once, or repeatedly until ctx ends.
func watch(ctx context.Context, a *cli.App, router *admin.Port, every time.Duration, once bool) error {
	before, err := LookAt(ctx, router)
	if err != nil {
		return err
	}
	first := before.Picture(nil)
	if once {
		return a.Show(before, first.Write)
	}
	last := first
	next := func(ctx context.Context) (*screen.Picture, error) {
		now, err := LookAt(ctx, router)
		if err != nil {
			return outdated(last, err, time.Since(before.at)), nil
		}
		last, before = now.Picture(before), now
		return last, nil
	}
	l := screen.Live{Terminal: a.Out.(*os.File), Every: every, Next: next}
	return l.Run(ctx, first)
}

// outdated returns the last picture with a headline that says that it is old.
func outdated(p *screen.Picture, err error, age time.Duration) *screen.Picture {
	old := *p
	old.Head = []string{err.Error(), fmt.Sprintf("this is of %v ago", age.Round(time.Second))}
	return &old
}

// Picture shows the fleet, with rates since before if there is an earlier look. Nodes with problems
// come first.
func (l *Look) Picture(before *Look) *screen.Picture {
	p := &screen.Picture{Head: l.headline(before), All: "--once"}
	var problems []string
	for _, problem := range l.Fleet.Problems {
		problems = append(problems, "! "+problem.Subject+": "+problem.Reason)
	}
	nodes := screen.Piece{Of: "nodes", Apart: true, Columns: nodeColumns}
	sick := slices.Clone(l.Fleet.Nodes)
	slices.SortStableFunc(sick, func(a, b admin.Node) int { return cmp.Compare(health(&a), health(&b)) })
	for i := range sick {
		nodes.Rows = append(nodes.Rows, cells(&sick[i], l.Router.Prediction))
	}
	p.Pieces = []screen.Piece{screen.TextOf("problems", problems...), nodes}
	return p
}

func (l *Look) headline(before *Look) []string {
	inFlight, out, suspect := 0, 0, 0
	for _, n := range l.Fleet.Nodes {
		inFlight += int(n.InFlight)
		switch {
		case !n.Eligible:
			out++
		case n.Suspect: // it gets requests if most nodes are suspect
			suspect++
		}
	}
	parts := []string{fmt.Sprintf("%s, %s in flight, %s indexed", cli.Count(len(l.Fleet.Nodes), "node"),
		cli.Count(inFlight, "request"), cli.Count(l.Fleet.IndexBlocks, "block"))}
	if n := l.Router.Waiting; n > 0 {
		parts = append(parts, fmt.Sprintf("%.0f requests wait", n))
	}
	if l.Fleet.Stale {
		parts = append(parts, "STALE: etcd does not answer")
	}
	if out > 0 {
		parts = append(parts, fmt.Sprintf("%d of the nodes get none", out))
	}
	if suspect > 0 {
		parts = append(parts, fmt.Sprintf("%d suspect", suspect))
	}
	c, since := l.Router, ", in all"
	if before != nil {
		seconds := l.at.Sub(before.at).Seconds()
		c, since = c.minus(before.Router), ""
		parts = append(parts, fmt.Sprintf("%.1f requests/s, %.0f tokens/s out", c.Requests/seconds,
			c.Completion/seconds))
	} else {
		parts = append(parts, fmt.Sprintf("%.0f requests, %.0f tokens out", c.Requests, c.Completion))
	}
	if c.Prompt > 0 {
		parts = append(parts, fmt.Sprintf("%.0f %% of prompt tokens cached%s", 100*c.Cached/c.Prompt, since))
	}
	return append(parts, fmt.Sprintf("%.0f retries%s", c.Retries, since))
}
