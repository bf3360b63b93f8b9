package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/lora"
	"github.com/cognitora/dataplane/router/fleet"
)

// adapterFlags are the flags of `cgn-ctl model adapter load` and `unload`.
type adapterFlags struct {
	path    string
	nodes   []string
	timeout time.Duration
}

const adapterHelp = "through the router at --admin, which must be on this host. The\nrouter asks the engines of its " +
	"backends itself, and the agents of the others. Engines must allow it: vLLM with --enable-lora and\n" +
	"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, SGLang with --enable-lora. "

func newAdapter(m *commands) *cobra.Command {
	var load, unload adapterFlags
	l := &cobra.Command{
		Use: "load MODEL ADAPTER --path PATH", Short: "Load a LoRA adapter into the engines that serve a model",
		Long: "Loads a LoRA adapter into the engines that serve its base model, " + adapterHelp +
			"An engine that has the adapter from the\nsame path already stays as it is. The exit status is 1 if an " +
			"engine failed.\n\nA restarted engine has the adapters that its own command line names; load others again.",
		Example: "  cgn-ctl model adapter load llama-3-8b sql-lora --path /srv/adapters/sql\n" +
			"  cgn-ctl model adapter load llama-3-8b sql-lora --path /srv/adapters/sql --node gpu1-9081 --node gpu2-9081",
		Args: cli.Arguments("MODEL", "ADAPTER"),
		RunE: func(c *cobra.Command, args []string) error {
			if load.path == "" {
				return cli.Misused(cli.WithHint(errors.New("--path is missing"),
					"for example: cgn-ctl model adapter load llama-3-8b sql-lora --path /srv/adapters/sql"))
			}
			return m.changeAdapter(c, "/adapters/load", args, &load)
		},
	}
	l.Flags().StringVar(&load.path, "path", "", "directory of the adapter on the engines' hosts, or a name that the "+
		"engines can find")
	u := &cobra.Command{
		Use: "unload MODEL ADAPTER", Short: "Unload a LoRA adapter from the engines that serve a model",
		Long: "Unloads a LoRA adapter from the engines that serve its base model, " + adapterHelp +
			"An engine without the adapter\nstays as it is. The exit status is 1 if an engine failed.",
		Example: "  cgn-ctl model adapter unload llama-3-8b sql-lora",
		Args:    cli.Arguments("MODEL", "ADAPTER"),
		RunE: func(c *cobra.Command, args []string) error {
			return m.changeAdapter(c, "/adapters/unload", args, &unload)
		},
	}
	for c, f := range map[*cobra.Command]*adapterFlags{l: &load, u: &unload} {
		m.router.Flags(c.Flags(), m.Getenv)
		c.Flags().StringSliceVar(&f.nodes, "node", nil, "only this node; repeat it for several (default: all nodes of "+
			"the model)")
		c.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "time for all engines together")
		c.PreRunE = cli.Ranges(map[string][2]float64{"timeout": {1, lora.ChangeTime.Seconds()}})
	}
	return cli.Group("adapter", "Load and unload LoRA adapters of engines", l, u)
}

// adapterSlack is the time that the router needs beyond the engines'.
const adapterSlack = 15 * time.Second

// changeAdapter asks the router for a change, and shows what each node did.
func (m *commands) changeAdapter(c *cobra.Command, path string, args []string, f *adapterFlags) error {
	body, err := json.Marshal(fleet.AdapterAsk{
		Model: args[0], Adapter: args[1], Path: f.path, Nodes: f.nodes, Seconds: f.timeout.Seconds(),
	})
	if err != nil {
		return err
	}
	page, err := m.router.AskFor(c.Context(), f.timeout+adapterSlack, "POST", path, string(body))
	if err != nil {
		return err
	}
	var a fleet.AdapterAnswer
	if err := json.Unmarshal(page, &a); err != nil {
		return fmt.Errorf("the router's answer is not the JSON that was expected: %w", err)
	}
	failed := 0
	for _, n := range a.Nodes {
		if n.State == fleet.ChangeFailed {
			failed++
		}
	}
	err = m.Show(a, func(t *cli.Table) {
		t.Row("NODE", "STATE", "DETAIL")
		for _, n := range a.Nodes {
			t.Row(n.Node, n.State, n.Detail)
		}
	})
	switch {
	case err != nil:
		return err
	case len(a.Nodes) == 0:
		return fmt.Errorf("no node serves %s", a.Model)
	case failed > 0:
		return fmt.Errorf("%d of %d nodes failed", failed, len(a.Nodes))
	}
	return nil
}
