package key

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/trust"
)

func newCreate(m *commands) *cobra.Command {
	var r keys.Record
	var expires cli.Days
	var limit []string
	c := &cobra.Command{
		Use: "create", Short: "Make an API key", Args: cli.NoArguments,
		Long: "Makes an API key and prints it once. Of the key only its hash is stored. A router with the keys of a file " +
			"takes it\nwithin 2 s, one with the keys of etcd at once.",
		Example: "  cgn-ctl key create --keys-file keys.json --tenant acme --name 'CI of acme'\n" +
			"  cgn-ctl key create --tenant acme --model 'llama-*' --expires 90d\n" +
			"  cgn-ctl key create --tenant acme --limit requests_per_minute=60,tokens_per_minute=30000\n" +
			"  cgn-ctl key create --tenant ops --scope inference,models,route.pin -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			rates, err := limits.Parse(limit)
			if err != nil {
				return fmt.Errorf("--limit %w", err)
			}
			if strings.ContainsFunc(r.Name, func(c rune) bool { return !unicode.IsPrint(c) }) {
				return errors.New("--name: has characters that do not show")
			}
			r.Limits = rates
			text, id := keys.Generate()
			now := time.Now().UTC().Truncate(time.Second)
			r.ID, r.Created = id, now
			r.SHA256, _ = keys.Hash(text)
			if c.Flags().Changed("expires") {
				end := now.Add(time.Duration(expires))
				r.Expires = &end
			}
			if err := m.add(c.Context(), &r); err != nil {
				return err
			}
			return m.showMade(&r, text)
		},
	}
	f := c.Flags()
	f.StringVar(&r.Tenant, "tenant", trust.DefaultTenant, "whom the key belongs to; limits and fairness go by tenant")
	f.StringVar(&r.Name, "name", "", "what the key is for, for people")
	f.StringSliceVar(&r.Scopes, "scope", []string{"inference", "models"}, "rights of the key: "+
		strings.Join(trust.ScopeNames(), ", "))
	f.StringSliceVar(&r.Models, "model", nil, "models that the key may use, by the names that clients ask for; a name may "+
		"end with *; none: all models")
	f.IntVar(&r.Priority, "priority", 0, "highest priority that requests with the key may ask for, in the queue of a "+
		"router: 0 to "+strconv.Itoa(trust.MaxPriority))
	f.StringSliceVar(&limit, "limit", nil, "limits of the key, such as requests_per_minute=60,tokens_per_minute=30000: "+
		strings.Join(limits.Names(), ", "))
	f.Var(&expires, "expires", "how long the key counts: days like 90d, or 12h; not given: until it is revoked")
	return c
}

func newRevoke(m *commands) *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "End an API key for good", Args: cli.OneArgument("ID"),
		Long: "Ends an API key. Routers refuse it at once with the keys of etcd, and within 2 s with those of a file.\n" +
			"Its running requests end too, unless auth.revoked of the router is finish.",
		Example: "  cgn-ctl key revoke 8GZr5pQx --keys-file keys.json",
		RunE: func(c *cobra.Command, args []string) error {
			already := false
			r, err := m.edit(c.Context(), args[0], func(r *keys.Record) error {
				if already = r.Revoked != nil; !already {
					now := time.Now().UTC().Truncate(time.Second)
					r.Revoked = &now
				}
				return nil
			})
			if err != nil {
				return err
			}
			return m.Show(rowOf(r, time.Now()), func(t *cli.Table) {
				if already {
					t.Line("the key " + r.ID + " was revoked " + r.Revoked.Format(time.RFC3339))
					return
				}
				t.Line("the key " + r.ID + " of " + r.Tenant + " is revoked")
			})
		},
	}
}

func newLimit(m *commands) *cobra.Command {
	var limit []string
	c := &cobra.Command{
		Use: "limit ID", Short: "Change the limits of an API key", Args: cli.OneArgument("ID"),
		Long: "Replaces the limits of an API key by those of --limit; without --limit the key has none. What the key has\n" +
			"used stays used. Running requests go on.",
		Example: "  cgn-ctl key limit 8GZr5pQx --limit tokens_per_minute=60000,concurrent=8",
		RunE: func(c *cobra.Command, args []string) error {
			rates, err := limits.Parse(limit)
			if err != nil {
				return fmt.Errorf("--limit %w", err)
			}
			r, err := m.edit(c.Context(), args[0], func(r *keys.Record) error {
				r.Limits = rates
				return active(r)
			})
			if err != nil {
				return err
			}
			return m.Show(rowOf(r, time.Now()), func(t *cli.Table) {
				t.Line("the limits of the key " + r.ID + " of " + r.Tenant + ": " +
					cmp.Or(strings.Join(r.Limits.Texts(), ", "), "none"))
			})
		},
	}
	c.Flags().StringSliceVar(&limit, "limit", nil, "limits of the key, as for create; none: no limits")
	return c
}

func newRotate(m *commands) *cobra.Command {
	var grace time.Duration
	c := &cobra.Command{
		Use: "rotate ID", Short: "Give an API key a new text", Args: cli.OneArgument("ID"),
		Long: "Gives an API key a new text and prints it once. The id, the rights and the limits stay.\nThe former " +
			"text counts for --grace more, so that clients can change without a failed request. A router with the keys " +
			"of a\nfile takes the new text within 2 s, so wait that long before you use it.",
		Example: "  cgn-ctl key rotate 8GZr5pQx --grace 24h",
		RunE: func(c *cobra.Command, args []string) error {
			if grace < 0 {
				return fmt.Errorf("--grace %v: must not be negative", grace)
			}
			text := ""
			r, err := m.edit(c.Context(), args[0], func(r *keys.Record) error {
				if err := active(r); err != nil {
					return err
				}
				text = r.Rotate(time.Now().UTC().Add(time.Second-1).Truncate(time.Second), grace)
				return nil
			})
			if err != nil {
				return err
			}
			return m.showMade(r, text)
		},
	}
	c.Flags().DurationVar(&grace, "grace", time.Hour, "how long the former text counts; 0: not any more")
	return c
}

// active returns an error for a key that does not count any more.
func active(r *keys.Record) error {
	state := r.State(time.Now())
	if state == "active" {
		return nil
	}
	return cli.WithHint(fmt.Errorf("the key %s is %s", r.ID, state), "cgn-ctl key create makes a new one")
}

// row is a key as list shows it.
type row struct {
	*keys.Record
	State string `json:"state"`
	Error string `json:"error,omitempty"` // why the record cannot be read; the key does not count
}

func rowOf(r *keys.Record, now time.Time) row { return row{Record: r, State: r.State(now)} }

func newList(m *commands) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the API keys", Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			all, broken, err := m.records(c.Context())
			if err != nil {
				return err
			}
			now, rows := time.Now(), []row{}
			for _, r := range all {
				rows = append(rows, rowOf(r, now))
			}
			for id, err := range broken {
				rows = append(rows, row{&keys.Record{ID: id}, "unreadable", err.Error()})
			}
			return m.Show(rows, func(t *cli.Table) {
				if len(rows) == 0 {
					t.Line("there is no key")
					return
				}
				t.Row("ID", "TENANT", "STATE", "SCOPES", "MODELS", "LIMITS", "PRIORITY", "CREATED", "EXPIRES", "NAME")
				for _, r := range rows {
					expires := "never"
					if r.Expires != nil {
						expires = r.Expires.Format(time.DateTime)
					}
					t.Row(r.ID, r.Tenant, r.State, strings.Join(r.Scopes, ","),
						cmp.Or(strings.Join(r.Models, ","), "all"), cmp.Or(strings.Join(r.Limits.Texts(), ","), "none"),
						strconv.Itoa(r.Priority), r.Created.Format(time.DateTime), expires, cmp.Or(r.Error, r.Name))
				}
			})
		},
	}
}
