package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/policy"
)

// maxPolicy bounds a policy document in bytes.
const maxPolicy = 1 << 20

// settings are the flags of `cgn-ctl model set`.
type settings struct {
	aliases, pools, unset         []string
	base, tokenizer, chatTemplate string
	policy                        string
	adapterLoad                   time.Duration
}

func newSet(m *commands) *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use: "set NAME", Short: "Change settings of a model, for all routers",
		Long: "Changes the given settings of a model in etcd, from where every router takes them at once, and keeps the " +
			"others. The\n[[model]] table of a router's own configuration has the same settings, and counts before " +
			"etcd's on that router.\ndocs/models.md has the meaning of each.",
		Example: "  cgn-ctl model set llama-3-8b --alias gpt-4o-mini --tokenizer /srv/llama-3-8b\n" +
			"  cgn-ctl model set llama-3-8b --pool prefill=gpu1-9081 --pool decode=gpu2-9081,gpu3-9081\n" +
			`  cgn-ctl model set llama-3-8b --policy '{"mode":"least_loaded"}'` + "\n" +
			"  cgn-ctl model set sql-lora --base llama-3-8b --adapter-load 20s\n" +
			"  cgn-ctl model set llama-3-8b --unset policy,pool",
		Args: cli.OneArgument("NAME"),
		RunE: func(c *cobra.Command, args []string) error { return m.set(c, args[0], &s) },
	}
	f := c.Flags()
	f.StringArrayVar(&s.aliases, "alias", nil, "further name of the model; repeat it for several; they replace the "+
		"stored ones")
	f.StringVar(&s.base, "base", "", "model whose LoRA adapter this model is, if engines load the adapter at its "+
		"first request")
	f.StringVar(&s.tokenizer, "tokenizer", "", "directory with the model's tokenizer.json on the routers' hosts, or none")
	f.StringVar(&s.chatTemplate, "chat-template", "", "file with the engines' chat template on the routers' hosts, if it "+
		"is not the model's own")
	f.StringArrayVar(&s.pools, "pool", nil, "nodes of a role as ROLE=NODE,NODE (prefill, decode or both); repeat it for "+
		"several roles; ROLE= removes the list")
	f.StringVar(&s.policy, "policy", "", "policy of the model in place of the fleet's: FILE, - or JSON")
	f.DurationVar(&s.adapterLoad, "adapter-load", 0, "time that an engine takes to load this LoRA adapter, or any of "+
		"this model; 0: unknown")
	f.StringSliceVar(&s.unset, "unset", nil, "settings to remove: "+strings.Join(settingFlags, ", "))
	return c
}

func (m *commands) set(c *cobra.Command, name string, s *settings) error {
	edits, err := s.edits(c, m.Err)
	if err != nil {
		return err
	}
	return m.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
		stored, err := client.EditModel(ctx, name, func(was *cluster.Model) error {
			for _, edit := range edits {
				edit(was)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("nothing was stored: %w", err)
		}
		m.warnOfNodes(ctx, client, stored)
		return m.Show(row{Name: name, Stored: stored}, func(t *cli.Table) {
			t.Line("stored for model " + name)
			writeSettings(t, stored)
		})
	})
}

// warnOfNodes warns of nodes in pools that no agent has registered. warnOfNodes also only warns if
// it cannot tell, because the settings are stored already.
func (m *commands) warnOfNodes(ctx context.Context, client *cluster.Client, stored *cluster.Model) {
	if len(stored.Pools) == 0 {
		return
	}
	in := m.registered(ctx, client)
	if in == nil {
		return
	}
	for _, role := range roles {
		for _, id := range stored.Pools[role] {
			if _, there := in.nodes[id]; !there {
				fmt.Fprintf(m.Err, "cgn-ctl: no agent has registered node %s of pool %s; it counts once a router knows it\n",
					id, role)
			}
		}
	}
}

// roles are the roles in the order of output.
var roles = []cluster.Role{cluster.RolePrefill, cluster.RoleDecode, cluster.RoleBoth}

// edits checks the flags and returns the changes that they ask for.
func (s *settings) edits(c *cobra.Command, warnings io.Writer) (edits []func(*cluster.Model), err error) {
	flags := c.Flags()
	add := func(flag string, edit func(*cluster.Model)) {
		if flags.Changed(flag) {
			edits = append(edits, edit)
		}
	}
	if err := s.check(flags); err != nil {
		return nil, cli.Misused(err)
	}
	for _, flag := range s.unset {
		edits = append(edits, removals[flag])
	}
	add("alias", func(m *cluster.Model) { m.Aliases = s.aliases })
	add("base", func(m *cluster.Model) { m.Base = s.base })
	add("tokenizer", func(m *cluster.Model) {
		m.Tokenizer = s.tokenizer
		if !flags.Changed("chat-template") && s.tokenizer == cluster.NoTokenizer {
			m.ChatTemplate = ""
		}
	})
	add("chat-template", func(m *cluster.Model) { m.ChatTemplate = s.chatTemplate })
	add("adapter-load", func(m *cluster.Model) { m.AdapterLoadS = s.adapterLoad.Seconds() })
	if flags.Changed("policy") {
		doc, err := readPolicy(c, s.policy, warnings)
		if err != nil {
			return nil, err
		}
		edits = append(edits, func(m *cluster.Model) { m.Policy = doc })
	}
	for _, pool := range s.pools {
		edit, err := poolEdit(pool)
		if err != nil {
			return nil, cli.Misused(err)
		}
		edits = append(edits, edit)
	}
	if len(edits) == 0 {
		return nil, cli.Misused(cli.WithHint(errors.New("no setting is given"), "for example: "+
			"cgn-ctl model set llama-3-8b --alias gpt-4o-mini; cgn-ctl model list shows the stored ones"))
	}
	return edits, nil
}

// settingFlags are the flags that set something.
var settingFlags = slices.Sorted(maps.Keys(removals))

// removals remove a setting, by its flag.
var removals = map[string]func(*cluster.Model){
	"alias": func(m *cluster.Model) { m.Aliases = nil }, "base": func(m *cluster.Model) { m.Base = "" },
	"tokenizer":     func(m *cluster.Model) { m.Tokenizer, m.ChatTemplate = "", "" },
	"chat-template": func(m *cluster.Model) { m.ChatTemplate = "" },
	"pool":          func(m *cluster.Model) { m.Pools = nil }, "policy": func(m *cluster.Model) { m.Policy = nil },
	"adapter-load": func(m *cluster.Model) { m.AdapterLoadS = 0 },
}

// check returns an error for the first flag with an impossible value.
func (s *settings) check(flags *pflag.FlagSet) error {
	if err := cli.NotEmpty(flags, "base", "tokenizer", "chat-template", "policy"); err != nil {
		return cli.WithHint(err, "--unset removes a setting")
	}
	if slices.Contains(s.aliases, "") {
		return cli.WithHint(errors.New("--alias is empty; leave it out or name one"),
			"--unset alias removes all aliases")
	}
	for _, flag := range s.unset {
		switch {
		case removals[flag] != nil && !flags.Changed(flag):
		case removals[flag] != nil:
			return fmt.Errorf("--%s and --unset %s are both given; leave one out", flag, flag)
		default:
			err := fmt.Errorf("--unset %q: must be one of %s", flag, strings.Join(settingFlags, ", "))
			if near := config.Nearest(flag, settingFlags); near != "" {
				return cli.WithHint(err, "Did you mean "+near+"?")
			}
			return err
		}
	}
	for _, given := range [...][2]string{{"tokenizer", s.tokenizer}, {"chat-template", s.chatTemplate}} {
		flag, path := given[0], given[1]
		if path != "" && path != cluster.NoTokenizer && !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %q: must be an absolute path, since every router reads it on its own host", flag, path)
		}
	}
	return cli.InRanges(flags, map[string][2]float64{"adapter-load": {0, cluster.MaxAdapterLoad.Seconds()}})
}

// readPolicy reads a policy from an argument, a file or standard input, and checks it.
func readPolicy(c *cobra.Command, from string, warnings io.Writer) (json.RawMessage, error) {
	doc := []byte(from)
	if !strings.HasPrefix(strings.TrimSpace(from), "{") {
		var err error
		if doc, err = cli.ReadInput(c, from, maxPolicy); err != nil {
			return nil, err
		}
	}
	if _, err := policy.Parse(doc); err != nil {
		return nil, fmt.Errorf("--policy is not valid, and nothing was stored: %w", err)
	}
	for _, name := range policy.Ignored(doc) {
		fmt.Fprintf(warnings, "cgn-ctl: %s of the policy has no effect; leave it out\n", name)
	}
	return json.RawMessage(doc), nil
}

// poolEdit reads ROLE=NODE,NODE.
func poolEdit(text string) (func(*cluster.Model), error) {
	role, list, ok := strings.Cut(text, "=")
	if !ok || !slices.Contains(roles, cluster.Role(role)) {
		return nil, fmt.Errorf("--pool %q: must be ROLE=NODE,NODE with a role of prefill, decode or both", text)
	}
	var nodes []string
	for id := range strings.SplitSeq(list, ",") {
		if id = strings.TrimSpace(id); id != "" {
			nodes = append(nodes, id)
		}
	}
	return func(m *cluster.Model) {
		if m.Pools == nil {
			m.Pools = map[cluster.Role][]string{}
		}
		if m.Pools[cluster.Role(role)] = nodes; len(nodes) == 0 {
			delete(m.Pools, cluster.Role(role))
		}
	}, nil
}
