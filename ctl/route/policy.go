package route

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/router/busy"
)

func newPolicy(a *cli.App) *cobra.Command {
	var router admin.Port
	c := &cobra.Command{
		Use:   "policy",
		Short: "Print the policy that a router uses, and where it comes from",
		Long: "Asks a router for its routing policy: the settings that have an effect, the document's source (a file, a\n" +
			"key in etcd, or the default), and why the newest document is not in force. -o json has all settings.\n" +
			"A model with a policy of its own has a row with its mode; cgn-ctl model list -o json has that policy. Another\n" +
			"row has the thresholds that POST /busy_threshold has set for a model.",
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			view, err := router.Fleet(c.Context())
			if err != nil {
				return err
			}
			if view.Policy == nil || view.Policy.Settings == nil {
				return errors.New("the router does not tell its policy; it is older than this cgn-ctl")
			}
			return a.Show(view.Policy, func(t *cli.Table) { writePolicy(t, view) })
		},
	}
	router.Flags(c.Flags(), a.Getenv)
	return c
}

func writePolicy(t *cli.Table, view *admin.Fleet) {
	in := view.Policy
	for _, setting := range in.Settings.Settings() {
		t.Row(setting.Name, cell.Setting(setting))
	}
	for _, row := range [][2]string{
		{"source", in.Source}, {"note", in.Overridden()}, {"without effect", cell.Idle(in.Settings)},
	} {
		if row[1] != "" {
			t.Row(row[0], row[1])
		}
	}
	for _, m := range view.Models {
		if m.Mode != "" {
			t.Row("model "+m.Name, "a policy of its own, mode "+m.Mode)
		}
		if set := m.BusyThreshold; set != nil {
			t.Row("model "+m.Name, "busy thresholds that were set here win: "+limits(set))
		}
	}
	if r := in.Refused; r != nil {
		title := "not in force"
		if r.Unread {
			title = "not read"
		}
		t.Row(title, r.Source+" at "+r.At.Format(time.RFC3339)+": "+r.String())
	}
}

// limits lists the thresholds of a document.
func limits(d *busy.Document) string {
	var all []string
	if v := d.DecodeBlocks; v != nil {
		all = append(all, fmt.Sprintf("%s %g", busy.DecodeBlocksName, *v))
	}
	if v := d.PrefillTokens; v != nil {
		all = append(all, fmt.Sprintf("%s %d", busy.PrefillTokensName, *v))
	}
	if v := d.PrefillFraction; v != nil {
		all = append(all, fmt.Sprintf("%s %g", busy.PrefillFractionName, *v))
	}
	return strings.Join(all, ", ")
}
