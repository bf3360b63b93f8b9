package model

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/policy"
)

// routerLimit is how long `model list` waits for a router, which it does not need.
const routerLimit = 2 * time.Second

// row is one model in the output of `model list` and `model set`.
type row struct {
	Name   string         `json:"name"`
	Stored *cluster.Model `json:"stored,omitempty"` // settings in etcd
	Error  string         `json:"error,omitempty"`  // why routers ignore the stored settings
	// Router is the model in the view of the router at --admin; nil: no router answers there, or it
	// does not know the model.
	Router *admin.Model `json:"router,omitempty"`
	// Loaded are the nodes whose engines have loaded the model, a LoRA adapter, in the router's
	// view.
	Loaded []string `json:"loaded,omitempty"`
	// Notes are the settings that have no effect, with the reasons, and the likely mistakes.
	Notes []string `json:"notes,omitempty"`
}

func newList(m *commands) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List the models and their settings", Args: cli.NoArguments,
		Long: "Lists the models with settings in etcd, and the models that the router at --admin knows, if one answers " +
			"there.\nThe settings are those in force on that router, from its own [[model]] and from etcd; without a " +
			"router, those in etcd.\n\nBASE is the model whose LoRA adapter the model is. POOLS are nodes by role. POLICY " +
			"is the mode of the model's own\npolicy. CASCADE are the models that answer for it in turn. NODES answer requests for the model; prefill nodes answer none. " +
			"LOADED are those whose engines\nhave loaded it, if it is a LoRA adapter.\nNOTE says which settings have no effect, and why: of tokenizer, policy, base, " +
			"aliases and pools, or all, if no node serves the\nmodel or the router does not use them. It also names nodes of a " +
			"pool whose own role is another one.",
		RunE: func(c *cobra.Command, _ []string) error {
			rows, err := m.list(c.Context())
			if err != nil {
				return err
			}
			return m.Show(rows, func(t *cli.Table) { writeRows(t, rows) })
		},
	}
	m.router.Flags(c.Flags(), m.Getenv)
	return c
}

// list combines etcd's models with the router's. One of the two must answer.
func (m *commands) list(ctx context.Context) ([]row, error) {
	asked, cancel := context.WithTimeout(ctx, routerLimit)
	defer cancel()
	view, unknown := m.router.Fleet(asked)
	if unknown != nil {
		view = nil
	}
	var stored []cluster.StoredModel
	var registered *registry
	err := m.store.With(ctx, func(ctx context.Context, client *cluster.Client) (err error) {
		if stored, err = client.Models(ctx); err == nil && len(stored) > 0 {
			registered = m.registered(ctx, client)
		}
		return err
	})
	if err != nil && unknown != nil {
		return nil, err
	}
	if err != nil {
		fmt.Fprintf(m.Err, "cgn-ctl: %v; these are the settings on the router at %s\n", err, m.router.At)
	}
	return m.rows(view, stored, registered), nil
}

// rows returns a row for each model, sorted by name. view is nil without a router, and in without a
// registry.
func (m *commands) rows(view *admin.Fleet, stored []cluster.StoredModel, in *registry) []row {
	all := map[string]*row{}
	named := func(name string) *row {
		if all[name] == nil {
			all[name] = &row{Name: name}
		}
		return all[name]
	}
	for _, s := range stored {
		r := named(s.Name)
		if r.Stored = s.Model; s.Err != nil {
			r.Error = s.Err.Error()
		}
	}
	if view != nil {
		for i := range view.Models {
			r := named(view.Models[i].Name)
			r.Router, r.Loaded = &view.Models[i], loadedOn(view, r.Name)
		}
	}
	rows := make([]row, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := all[name]
		switch {
		case r.Router != nil:
			r.noteRouter(view)
		case r.Stored != nil:
			r.noteStored(in, all)
		}
		if view != nil {
			r.noteUnused(m.router.At)
		}
		rows = append(rows, *r)
	}
	return rows
}

// loadedOn returns the nodes whose engines have loaded an adapter.
func loadedOn(view *admin.Fleet, adapter string) (nodes []string) {
	for i := range view.Nodes {
		for _, a := range view.Nodes[i].Adapters {
			if a.Name == adapter && a.Loaded != nil && *a.Loaded {
				nodes = append(nodes, view.Nodes[i].ID)
			}
		}
	}
	return nodes
}

func writeRows(t *cli.Table, rows []row) {
	if len(rows) == 0 {
		t.Line("no model has settings, and no router knows one")
		return
	}
	t.Row("MODEL", "ALIASES", "BASE", "TOKENIZER", "POOLS", "POLICY", "CASCADE", "LOADING", "NODES", "LOADED", "NOTE")
	for i := range rows {
		r := &rows[i]
		s, base, nodes := r.Stored, "", "-"
		if v := r.Router; v != nil {
			s, base, nodes = v.Settings, v.Base, cmp.Or(strings.Join(v.Nodes, ","), "none")
		}
		if s == nil {
			s = &cluster.Model{}
		}
		t.Row(r.Name, cell.Dash(strings.Join(s.Aliases, ",")), cell.Dash(cmp.Or(s.Base, base)), cell.Dash(s.Tokenizer),
			cell.Dash(poolsCell(s)), cell.Dash(modeOf(s.Policy)), cell.Dash(strings.Join(s.Chain, ">")),
			loadingCell(s), nodes, cell.Dash(strings.Join(r.Loaded, ",")), r.note())
	}
}

func poolsCell(m *cluster.Model) string {
	var all []string
	for _, role := range roles {
		if ids := m.Pools[role]; len(ids) > 0 {
			all = append(all, string(role)+"="+strings.Join(ids, ","))
		}
	}
	return strings.Join(all, " ")
}

// modeOf returns the mode of a policy document; "own" if the document is not valid.
func modeOf(doc json.RawMessage) string {
	if len(doc) == 0 {
		return ""
	}
	p, err := policy.Parse(doc)
	if err != nil {
		return "own"
	}
	return p.Mode.String()
}

func loadingCell(m *cluster.Model) string {
	if m.AdapterLoadS == 0 {
		return "-"
	}
	return m.AdapterLoad().String()
}

func thresholdsCell(m *cluster.Model) string {
	var all []string
	for _, v := range m.Thresholds {
		all = append(all, strconv.FormatFloat(v, 'g', -1, 64))
	}
	return strings.Join(all, ",")
}

// writeSettings writes one setting per row.
func writeSettings(t *cli.Table, m *cluster.Model) {
	for _, line := range [][2]string{
		{"aliases", strings.Join(m.Aliases, ",")}, {"base", m.Base}, {"tokenizer", m.Tokenizer},
		{"chat_template", m.ChatTemplate}, {"pools", poolsCell(m)}, {"policy", string(m.Policy)},
		{"adapter_load", strings.TrimPrefix(loadingCell(m), "-")}, {"cascade", strings.Join(m.Chain, ",")},
		{"cascade_thresholds", thresholdsCell(m)}, {"cascade_direct", m.Direct},
	} {
		if line[1] != "" {
			t.Row(line[0], line[1])
		}
	}
}

func newRm(m *commands) *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Short: "Remove all settings of a model from etcd", Args: cli.OneArgument("NAME"),
		Long: "Removes all settings of a model from etcd. The model itself stays as long as engines serve it.\n" +
			"cgn-ctl model set NAME --unset removes single settings.",
		Example: "  cgn-ctl model rm llama-3-8b",
		RunE: func(c *cobra.Command, args []string) error {
			return m.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				existed, err := client.RemoveModel(ctx, args[0])
				if err != nil {
					return err
				}
				if !existed {
					return noSettings(ctx, client, args[0])
				}
				return m.Show(map[string]string{"name": args[0], "state": "removed"}, func(t *cli.Table) {
					t.Line("the settings of model " + args[0] + " are removed")
				})
			})
		},
	}
}

// noSettings returns the error for a model without settings, with the name that was probably meant.
func noSettings(ctx context.Context, client *cluster.Client, name string) error {
	err := fmt.Errorf("model %q has no settings in etcd, nothing was changed", name)
	stored, listErr := client.Models(ctx)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	var names []string
	for _, s := range stored {
		names = append(names, s.Name)
	}
	if near := config.Nearest(name, names); near != "" {
		return cli.WithHint(err, "Did you mean "+near+"?")
	}
	return cli.WithHint(err, "cgn-ctl model list shows the models")
}
