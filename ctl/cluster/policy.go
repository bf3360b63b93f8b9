package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

func newPolicy(s *state) *cobra.Command {
	return &cobra.Command{
		Use: "policy", Short: "Print the fleet's routing policy, as etcd has it", Args: cli.NoArguments,
		Long: "Prints the settings of the policy in etcd that have an effect; -o json prints all of them, a document to\n" +
			"edit. A router with router.policy_file or router.mode has another policy: cgn-ctl route policy asks a router.",
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

// showPolicy prints the settings that have an effect. The document has all of them.
func (s *state) showPolicy(p *policy.Policy, source string) error {
	return s.Show(p, func(t *cli.Table) {
		for _, setting := range p.Settings() {
			t.Row(setting.Name, cell.Setting(setting))
		}
		if idle := cell.Idle(p); idle != "" {
			t.Row("without effect", idle)
		}
		t.Row("source", source)
	})
}

func newSetPolicy(s *state) *cobra.Command {
	return &cobra.Command{
		Use:   "set-policy FILE|-|JSON",
		Short: "Check a routing policy and store it for all routers",
		Long: "Checks a policy, a JSON document, and stores it in etcd, from where every router takes it at once.\n" +
			"Its keys: mode (" + strings.Join(policy.ModeNames(), ", ") + "),\n" +
			"a section of settings for each mode that has some, ttft_slo_ms, prefill_load_model, busy and max_queue.\n" +
			"docs/policy.md has the meaning and the default of each key; the default holds where a key is left out. A\n" +
			"model with a policy of its own (cgn-ctl model set NAME --policy) has that one instead. `cgn-ctl cluster\n" +
			"policy -o json` prints a document to begin with.",
		Example: "  cgn-ctl cluster set-policy policy.json\n" +
			`  cgn-ctl cluster set-policy '{"mode":"score","score":{"weights":{"kv":0.6,"load":0.3,"power":0,"capacity":0.1}}}'`,
		Args: cli.OneArgument("a policy (FILE, - or JSON)"),
		RunE: func(c *cobra.Command, args []string) error {
			doc, err := cli.ReadObject(c, args[0], 1<<20, `cgn-ctl cluster set-policy '{"mode":"cost"}'`)
			if err != nil {
				return err
			}
			p, err := policy.Parse(doc)
			if err != nil {
				return fmt.Errorf("the policy is not valid and was not stored: %w", err)
			}
			for _, name := range policy.Ignored(doc) {
				fmt.Fprintf(s.Err, "cgn-ctl: %s has no effect; leave it out\n", name)
			}
			if idle := cell.Idle(p); idle != "" {
				fmt.Fprintln(s.Err, "cgn-ctl: "+idle)
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

func newRemovePolicy(s *state) *cobra.Command {
	return &cobra.Command{
		Use: "rm-policy", Short: "Remove the routing policy from etcd; routers then use the default",
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				was, err := client.RemovePolicy(ctx)
				if err != nil {
					return err
				}
				done := struct {
					Removed bool `json:"removed"`
				}{was}
				return s.Show(done, func(t *cli.Table) {
					if !was {
						t.Line("no policy was stored; routers that remember one have been told")
						return
					}
					t.Line("the policy is removed; routers use the default")
				})
			})
		},
	}
}
