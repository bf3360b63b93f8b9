package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

func newPolicy(s *state) *cobra.Command {
	return &cobra.Command{
		Use: "policy", Short: "Print the routing policy in force", Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				doc, err := client.Policy(ctx)
				if err != nil {
					return err
				}
				p, source := policy.Default(), "default: none is stored"
				if doc != nil {
					source = "etcd"
					if p, err = policy.Parse(doc); err != nil {
						return cli.WithHint(fmt.Errorf("the stored policy is not valid, so routers ignore it: %w", err),
							"store a good one with `cgn-ctl cluster set-policy`")
					}
				}
				return s.showPolicy(p, source)
			})
		},
	}
}

func (s *state) showPolicy(p *policy.Policy, source string) error {
	c, w := &p.Score, &p.Score.Weights
	return s.Show(p, func(t *cli.Table) {
		for _, row := range [][2]any{
			{"mode", p.Mode}, {"kv", w.KV}, {"load", w.Load}, {"power", w.Power}, {"capacity", w.Capacity},
			{"pending", fmt.Sprintf("%v%s", w.Pending, unused(w.Pending, "prefill that waits does not count"))},
			{"tiers", fmt.Sprintf("device %g, host %g, disk %g", c.Tiers.Device, c.Tiers.Host, c.Tiers.Disk)},
			{"epsilon", c.Epsilon},
			{"max_share", fmt.Sprintf("%v%s", c.MaxShare, unused(c.MaxShare, "no node is left out for its share"))},
			{"max_queue", p.MaxQueue}, {"ttft_slo_ms", fmt.Sprintf("%v (not used yet)", p.TTFTSLOms)},
			{"run_delay_ms", fmt.Sprintf("%v%s", c.RunDelayMs, unused(c.RunDelayMs, "waits for a CPU do not count"))},
			{"retransmit_pct", fmt.Sprintf("%v%s",
				c.RetransmitPct, unused(c.RetransmitPct, "segments sent again do not count"))},
			{"source", source},
		} {
			t.Row(row[0], row[1])
		}
	})
}

// unused explains a setting of 0.
func unused(v float64, why string) string {
	if v != 0 {
		return ""
	}
	return " (" + why + ")"
}

func newSetPolicy(s *state) *cobra.Command {
	return &cobra.Command{
		Use:   "set-policy FILE|-|JSON",
		Short: "Check a routing policy and store it for all routers",
		Long: "Checks a policy, a JSON document, and stores it in etcd, from where every router takes it at once. " +
			"Its keys: mode\n" +
			"(" + strings.Join(policy.ModeNames(), ", ") + "), the weights kv, load, power, capacity and\n" +
			"pending, tiers, epsilon, max_share, max_queue, run_delay_ms and retransmit_pct; " +
			"docs/policy.md has the meaning and\n" +
			"the default of each, which holds where a key is left out. " +
			"`cgn-ctl cluster policy -o json` prints a document to\n" +
			"begin with.",
		Example: "  cgn-ctl cluster set-policy policy.json\n" +
			`  cgn-ctl cluster set-policy '{"mode":"score","kv":0.6,"load":0.3,"power":0,"capacity":0.1}'`,
		Args: cli.OneArgument("a policy (FILE, - or JSON)"),
		RunE: func(c *cobra.Command, args []string) error {
			doc := []byte(args[0])
			if !strings.HasPrefix(strings.TrimSpace(args[0]), "{") {
				var err error
				if doc, err = cli.ReadInput(c, args[0], 1<<20); err != nil {
					return err
				}
			}
			p, err := policy.Parse(doc)
			if err != nil {
				return fmt.Errorf("the policy is not valid and was not stored: %w", err)
			}
			if p.TTFTSLOms != 0 {
				fmt.Fprintln(s.Err, "cgn-ctl: ttft_slo_ms is stored, and nothing uses it yet")
			}
			return s.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				if err := client.PutPolicy(ctx, doc); err != nil {
					return err
				}
				return s.showPolicy(p, "etcd, stored now")
			})
		},
	}
}
