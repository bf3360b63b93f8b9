// Package key has the commands for the API keys of clients, in a file or in etcd.
package key

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/etcd"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/keys"
)

// commands are the commands for keys.
type commands struct {
	*cli.App
	store etcd.Store
	file  string // empty: etcd
}

// Command is cgn-ctl key.
func Command(a *cli.App) *cobra.Command {
	m := &commands{App: a}
	m.store.Without = "Keys of a file need no etcd: name it with --keys-file FILE."
	all := []*cobra.Command{newCreate(m), newList(m), newLimit(m), newRevoke(m), newRotate(m)}
	for _, c := range all {
		m.store.Flags(c.Flags(), a.Getenv)
		c.Flags().StringVar(&m.file, "keys-file", "", "file with the keys' hashes (auth.keys_file of the router); "+
			"none: etcd (auth.keys_etcd)")
		c.PreRunE = m.check
	}
	return cli.Group("key", "Make, list, limit, revoke and rotate the API keys of clients", all...)
}

// check refuses keys in two places.
func (m *commands) check(c *cobra.Command, _ []string) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if m.file != "" && strings.HasPrefix(f.Name, "etcd") {
			err = cli.Misused(fmt.Errorf("--keys-file and --%s: the keys are in a file or in etcd; give one", f.Name))
		}
	})
	return err
}

// records returns all keys, sorted by id. broken are the ids of those that cannot be read.
func (m *commands) records(ctx context.Context) (all []*keys.Record, broken map[string]error, err error) {
	if m.file != "" {
		all, err = m.inFile()
		return all, nil, err
	}
	broken = map[string]error{}
	err = m.store.With(ctx, func(ctx context.Context, c *cluster.Client) error {
		entries, err := c.APIKeys(ctx)
		for _, e := range entries {
			r, err := keys.ParseRecord(e.Value)
			if err != nil {
				broken[strings.TrimPrefix(e.Key, cluster.KeysPrefix)] = err
				continue
			}
			all = append(all, r)
		}
		return err
	})
	return all, broken, err
}

func (m *commands) inFile() ([]*keys.Record, error) {
	doc, err := keys.ReadFile(m.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cli.WithHint(err, "cgn-ctl key create --keys-file "+m.file+" makes it")
	}
	if err != nil {
		return nil, err
	}
	all, err := keys.ParseFile(doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.file, err)
	}
	slices.SortFunc(all, func(a, b *keys.Record) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// edit changes the key with an id. edit's argument is called with a copy, perhaps several times.
func (m *commands) edit(ctx context.Context, id string, change func(*keys.Record) error) (*keys.Record, error) {
	if !keys.CheckID(id) {
		return nil, cli.WithHint(fmt.Errorf("%q is not the id of a key", idOf(id)), "ids have 8 letters and digits; "+
			"cgn-ctl key list shows them")
	}
	unknown := cli.WithHint(fmt.Errorf("no key has the id %s", id), "cgn-ctl key list shows the keys")
	var changed *keys.Record
	if m.file != "" {
		err := keys.Edit(m.file, func(all []*keys.Record) ([]*keys.Record, error) {
			at := slices.IndexFunc(all, func(r *keys.Record) bool { return r.ID == id })
			if at < 0 {
				return nil, unknown
			}
			changed = all[at]
			return all, change(changed)
		})
		return changed, err
	}
	err := m.store.With(ctx, func(ctx context.Context, c *cluster.Client) error {
		return c.EditAPIKey(ctx, id, func(was []byte) ([]byte, error) {
			if was == nil {
				return nil, unknown
			}
			r, err := keys.ParseRecord(was)
			if err != nil {
				return nil, fmt.Errorf("key %s: %w", id, err)
			}
			if err := change(r); err != nil {
				return nil, err
			}
			changed = r
			return json.Marshal(r)
		})
	})
	return changed, err
}

// add stores a new key.
func (m *commands) add(ctx context.Context, r *keys.Record) error {
	if err := r.Check(); err != nil {
		return err
	}
	if m.file != "" {
		return keys.Edit(m.file, func(all []*keys.Record) ([]*keys.Record, error) { return append(all, r), nil })
	}
	return m.store.With(ctx, func(ctx context.Context, c *cluster.Client) error {
		return c.EditAPIKey(ctx, r.ID, func(was []byte) ([]byte, error) {
			if was != nil {
				return nil, fmt.Errorf("there is a key with the id %s; try again", r.ID)
			}
			return json.Marshal(r)
		})
	})
}

// idOf cuts a text that is no id: somebody may have given a key, which does not belong into a
// terminal's log.
func idOf(text string) string {
	if keys.Looks(text) && len(text) > 12 {
		return text[:12] + "…"
	}
	return text[:min(len(text), 40)]
}

// made is a key as create and rotate show it, once.
type made struct {
	ID     string     `json:"id"`
	Key    string     `json:"key"`
	Tenant string     `json:"tenant"`
	Scopes []string   `json:"scopes"`
	Until  *time.Time `json:"previous_until,omitempty"` // how long the former text counts
}

func (m *commands) showMade(r *keys.Record, text string) error {
	v := made{ID: r.ID, Key: text, Tenant: r.Tenant, Scopes: r.Scopes}
	if r.Previous != nil {
		v.Until = &r.Previous.Until
	}
	return m.Show(v, func(t *cli.Table) {
		t.Row("id", r.ID)
		t.Row("key", text)
		t.Row("tenant", r.Tenant)
		t.Row("scopes", strings.Join(r.Scopes, ", "))
		if v.Until != nil {
			t.Row("the former key counts until", v.Until.Format(time.RFC3339))
		}
		t.Line("The key is shown only now: only its hash is stored.")
	})
}
