// Package bpf has the commands for the counts of a host's kernel.
package bpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/screen"
)

// Command is cgn-ctl bpf.
func Command(a *cli.App) *cobra.Command {
	root := new(string)
	c := cli.Group("bpf", "Look at what this host's kernel tells, and at the programs that have it told (as root)",
		newShow(a, root), newTop(a, root), newCheck(a, root), newServe(a, root), newClean(a, root))
	c.PersistentFlags().StringVar(root, "root", bpf.DefaultRoot, "where the programs are pinned, in a BPF file system")
	return c
}

func newShow(a *cli.App, root *string) *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Show what the kernel has counted since the programs were loaded", Args: cli.NoArguments,
		Long: "Shows CPUs, waits for a CPU, watched processes, watched ports with the times of their tokens, and " +
			"peers, all since the programs were\n" +
			"loaded. `bpftool map dump pinned " + bpf.DefaultRoot + "/maps/NAME` has the same numbers, without " +
			"units.\n\n" +
			"  RESET        connections that the other side reset; LOST: that ended because nothing was " +
			"acknowledged\n" +
			"  REFUSED      attempts to connect, as are UNANSWERED ones, which the kernel gave up, and those GIVEN " +
			"UP by the program\n" +
			"  SEGMENTS     sent with payload, those RESENT included; TIMEOUTS: of retransmission\n" +
			"  STALLS OUT   the other side takes no more; STALLS IN: our own program does not read\n" +
			"  RTT          of the connection that was looked at last, MIN: its least; MEAN: of all looks; RATE: of " +
			"delivery, as last measured\n" +
			"  STREAMS      answers of at least three pieces, whose times are in TTFT and ITL; SINGLES: other " +
			"answers, whose first piece takes SINGLE MEAN\n" +
			"  UNCLEAR      streams whose first token cannot be told from their head; JOINED: segments of the piece " +
			"before; COALESCED: pieces of several tokens\n" +
			"  TLS, HTTP/2, OTHER   connections that are not measured",
		RunE: func(*cobra.Command, []string) error {
			k, err := readKernel(*root)
			if err != nil {
				return err
			}
			return a.Show(k, k.picture(nil).Write)
		},
	}
}

func newTop(a *cli.App, root *string) *cobra.Command {
	var every time.Duration
	c := &cobra.Command{
		Use: "top", Short: "Show what the kernel counts from look to look, and keep showing it", Args: cli.NoArguments,
		Long: "Shows what `bpf show` shows, of the time since the look before, as much as fits the terminal: its " +
			"last line says what is left out. The CPUs\n" +
			"that have most to do and the peers with the most bytes come first.",
		PreRunE: cli.Ranges(map[string][2]float64{"interval": {0.1, cli.Most}}),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, release := screen.Ending(c.Context())
			defer release()
			return watch(ctx, a, *root, every)
		},
	}
	c.Flags().DurationVar(&every, "interval", time.Second, "time between two looks")
	return c
}

// watch shows the difference of two looks. watch shows only one difference if the output is not
// watched.
func watch(ctx context.Context, a *cli.App, root string, every time.Duration) error {
	before, err := readKernel(root)
	if err != nil {
		return err
	}
	next := func(context.Context) (*screen.Picture, error) {
		now, err := readKernel(root)
		if err != nil {
			return nil, err
		}
		p := now.picture(before)
		before = now
		return p, nil
	}
	if a.Output == "table" && screen.IsTerminal(a.Out) {
		l := screen.Live{Terminal: a.Out.(*os.File), Every: every, Next: next}
		return l.Run(ctx, before.picture(nil))
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(every):
	}
	now, err := readKernel(root)
	if err != nil {
		return err
	}
	return a.Show(now.since(before), now.picture(before).Write)
}

func newCheck(a *cli.App, root *string) *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Check that all programs are there and lose nothing", Args: cli.NoArguments,
		Long: "Lists the programs, what they cost, what is missing and what was lost, and fails if a program is not " +
			"attached.\n" +
			"Costs are measured while `sysctl kernel.bpf_stats_enabled=1`; that itself costs some 50 ns a run, which " +
			"are in them.",
		RunE: func(*cobra.Command, []string) error { return checkPrograms(a, *root) },
	}
}

type checked struct {
	Programs []bpf.Program `json:"programs"`
	Drops    bpf.Drops     `json:"drops"`
}

func checkPrograms(a *cli.App, root string) error {
	var v checked
	var err error
	if v.Programs, err = bpf.Programs(root); err != nil {
		return err
	}
	s, err := bpf.Open(root)
	if err != nil {
		return err
	}
	defer s.Close()
	v.Drops, err = s.Drops()
	if err != nil {
		return err
	}
	if err := a.Show(v, v.write); err != nil {
		return err
	}
	for _, p := range v.Programs {
		if !p.Attached {
			return cli.WithHint(fmt.Errorf("%s is not attached: %s are not counted", p.Name, p.Tells),
				"the agent's log says why; restart it to try again")
		}
	}
	return nil
}

func (v checked) write(t *cli.Table) {
	t.Row("PROGRAM", "HOOK", "ATTACHED", "TAG", "RUNS", "NS/RUN", "TELLS")
	for _, p := range v.Programs {
		runs, cost := "-", "-"
		if p.Runs > 0 {
			runs, cost = fmt.Sprint(p.Runs), fmt.Sprint(p.Cost().Nanoseconds())
		}
		t.Row(p.Name, p.Hook, yesNo(p.Attached), cell.Dash(p.Tag), runs, cost, p.Tells)
	}
	t.Line("")
	t.Line(fmt.Sprintf("lost: %d events, %d peers, %d sockets, %d processes, %d threads, %d packets not understood",
		v.Drops.Events, v.Drops.Peers, v.Drops.Sockets, v.Drops.Processes, v.Drops.Threads, v.Drops.OddPackets))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

// cleanedUnder explains what happens to programs' users after a clean.
const cleanedUnder = "Agents and `cgn-ctl bpf serve` that run load them anew within seconds; an agent that may not " +
	"goes on with /proc until it is restarted."

func newClean(a *cli.App, root *string) *cobra.Command {
	return &cobra.Command{
		Use: "clean", Short: "Remove all programs and maps, and what they have counted", Args: cli.NoArguments,
		Long: "Removes all programs and maps, and what they have counted. " + cleanedUnder + "\nTo be rid of them, " +
			"stop these first, or set telemetry.kernel = \"proc\" in agents.",
		RunE: func(*cobra.Command, []string) error {
			n, err := bpf.Clean(*root)
			if err != nil {
				return err
			}
			v := struct {
				Removed int `json:"removed"`
			}{n}
			return a.Show(v, func(t *cli.Table) {
				t.Line(fmt.Sprintf("%d pins removed from %s", n, *root))
				if n > 0 {
					t.Line(cleanedUnder)
				}
			})
		},
	}
}

// kernel holds all counts of the programs.
type kernel struct {
	CPUs     []bpf.CPU     `json:"cpus"`
	RunDelay bpf.Histogram `json:"run_delay"`
	Groups   []bpf.Group   `json:"groups"`
	Ports    []kernelPort  `json:"ports"`
	Peers    []bpf.Peer    `json:"peers"`
	at       time.Time
}

type kernelPort struct {
	bpf.Port
	Tokens bpf.Tokens `json:"tokens"`
}

func readKernel(root string) (*kernel, error) {
	s, err := bpf.Open(root)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	k := &kernel{at: time.Now()}
	var errs [5]error
	k.CPUs, errs[0] = s.CPUs()
	errs[1] = s.RunDelay(&k.RunDelay)
	k.Groups, errs[2] = s.Groups()
	k.Peers, errs[3] = s.Peers()
	ports, err := s.Ports()
	errs[4] = err
	for _, p := range ports {
		tokens, err := s.Tokens(p.Port)
		if err != nil {
			return nil, err
		}
		k.Ports = append(k.Ports, kernelPort{p, tokens})
	}
	return k, errors.Join(errs[:]...)
}
