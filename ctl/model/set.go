package model

import (
	"cmp"
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
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/ctl/admin"
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
	cascade                       cluster.Cascade
}

func newSet(m *commands) *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use: "set NAME", Short: "Change settings of a model, for all routers",
		Long: "Changes the given settings of a model in etcd, from where every router takes them at once, and keeps the " +
			"others. The\n[[model]] table of a router's own configuration has the same settings, and counts before " +
			"etcd's on that router.\nWarnings name what has no effect as far as etcd knows the nodes, and the router at --admin, if " +
			"one answers there.\ndocs/models.md has the meaning of each setting.",
		Example: "  cgn-ctl model set llama-3-8b --alias gpt-4o-mini --tokenizer /srv/llama-3-8b\n" +
			"  cgn-ctl model set llama-3-8b --pool prefill=gpu1-9081 --pool decode=gpu2-9081,gpu3-9081\n" +
			`  cgn-ctl model set llama-3-8b --policy '{"mode":"least_loaded"}'` + "\n" +
			"  cgn-ctl model set sql-lora --base llama-3-8b --adapter-load 20s\n" +
			"  cgn-ctl model set smart --cascade llama-3-8b,llama-3-70b --cascade-threshold -0.4\n" +
			"  cgn-ctl model set llama-3-8b --unset policy,pool",
		Args: cli.OneArgument("NAME"),
		RunE: func(c *cobra.Command, args []string) error { return m.set(c, args[0], &s) },
	}
	f := c.Flags()
	f.StringArrayVar(&s.aliases, "alias", nil, "further name of the model; repeat it for several; they replace the "+
		"stored ones")
	f.StringVar(&s.base, "base", "", "model whose LoRA adapter this model is, if engines load the adapter at its "+
		"first request")
	f.StringVar(&s.tokenizer, "tokenizer", "", "directory with the model's tokenizer.json on the routers' hosts, none, or learn")
	f.StringVar(&s.chatTemplate, "chat-template", "", "file with the engines' chat template on the routers' hosts, if it "+
		"is not the model's own")
	f.StringArrayVar(&s.pools, "pool", nil, "nodes of a role as ROLE=NODE,NODE (prefill, decode or both); repeat it for "+
		"several roles; ROLE= removes the list")
	f.StringVar(&s.policy, "policy", "", "policy of the model in place of the fleet's: FILE, - or JSON")
	f.DurationVar(&s.adapterLoad, "adapter-load", 0, "time that an engine takes to load this LoRA adapter, or any of "+
		"this model; 0: unknown")
	f.StringSliceVar(&s.cascade.Chain, "cascade", nil, "models that answer requests for NAME in turn, the cheapest first "+
		"(docs/cascade.md)")
	f.Float64SliceVar(&s.cascade.Thresholds, "cascade-threshold", nil, "log-probability below which an answer is "+
		"dropped, for all models of the cascade, or for each but the last")
	f.StringVar(&s.cascade.Direct, "cascade-direct", "", "model of the cascade for requests whose answers cannot be judged")
	m.router.Flags(f, m.Getenv)
	f.StringSliceVar(&s.unset, "unset", nil, "settings to remove: "+strings.Join(settingFlags, ", "))
	return c
}

func (m *commands) set(c *cobra.Command, name string, s *settings) error {
	edits, err := s.edits(c, name, m.Err)
	if err != nil {
		return err
	}
	return m.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
		others, err := client.Models(ctx)
		if err == nil {
			err = cmp.Or(checkBase(name, s.base, others), checkChain(name, s.cascade.Chain, others))
		}
		if err != nil {
			return fmt.Errorf("nothing was stored: %w", err)
		}
		stored, err := client.EditModel(ctx, name, func(was *cluster.Model) error {
			for _, edit := range edits {
				edit(was)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("nothing was stored: %w", err)
		}
		r := row{Name: name, Stored: stored, Notes: m.notesOf(ctx, client, name, stored, settingsOf(name, others))}
		err = m.Show(r, func(t *cli.Table) {
			t.Line("stored for model " + name)
			writeSettings(t, stored)
		})
		for _, note := range r.Notes {
			fmt.Fprintf(m.Err, "cgn-ctl: model %s: %s\n", name, note)
		}
		return err
	})
}

// checkBase refuses a base that is an adapter by the stored settings, and one for a model that is
// the base of another.
func checkBase(name, base string, stored []cluster.StoredModel) error {
	if base == "" {
		return nil
	}
	var baseIs, own *cluster.StoredModel
	for i := range stored {
		s := &stored[i]
		if s.Name == name {
			own = s
		}
		aliased := baseIs == nil && s.Model != nil && slices.Contains(s.Model.Aliases, base)
		if s.Name == base || aliased {
			baseIs = s
		}
	}
	if baseIs != nil && baseIs != own && baseIs.Model != nil && baseIs.Model.Base != "" {
		return cli.WithHint(fmt.Errorf("--base %s is an adapter itself, of %s; name the model that the engines serve", base,
			baseIs.Model.Base), "cgn-ctl model set "+baseIs.Name+" --unset base makes it a model of its own")
	}
	for _, s := range stored {
		if s.Model == nil || s.Model.Base == "" || s.Name == name {
			continue
		}
		if s.Model.Base == name || own != nil && own.Model != nil && slices.Contains(own.Model.Aliases, s.Model.Base) {
			return cli.WithHint(fmt.Errorf("--base %s: model %s is the base of %s, so it cannot be an adapter itself", base, name,
				s.Name), "cgn-ctl model set "+s.Name+" --unset base removes the other one's base")
		}
	}
	return nil
}

// checkChain refuses a cascade that names a model with a cascade of its own by the stored settings.
func checkChain(name string, chain []string, stored []cluster.StoredModel) error {
	for _, s := range stored {
		if s.Name == name || s.Model == nil || len(s.Model.Chain) == 0 {
			continue
		}
		for _, step := range chain {
			if step == s.Name || slices.Contains(s.Model.Aliases, step) {
				return cli.WithHint(fmt.Errorf("--cascade names %s, which has a cascade itself; name models that have none", step),
					"cgn-ctl model set "+s.Name+" --unset cascade removes that cascade")
			}
		}
	}
	return nil
}

// settingsOf returns the stored settings of a model; nil: none are stored, or they cannot be read.
func settingsOf(name string, stored []cluster.StoredModel) *cluster.Model {
	for _, s := range stored {
		if s.Name == name {
			return s.Model
		}
	}
	return nil
}

// notesOf returns the notes of a model whose settings have just been stored, and the aliases that
// the model takes from others. before are the settings that were stored before; nil: none. notesOf
// waits for the router, if one answers, to use the settings.
func (m *commands) notesOf(
	ctx context.Context, client *cluster.Client, name string, s, before *cluster.Model,
) []string {
	stored, err := client.Models(ctx)
	if err != nil {
		return []string{fmt.Sprintf("the settings are not compared with the fleet, which cannot be read: %v", err)}
	}
	var notes []string
	lost := " is taken by model " + name
	view, in := m.viewWith(ctx, name, s), m.registered(ctx, client)
	had := before != nil || listed(name, in, view) // its own name
	for _, r := range m.rows(view, stored, in) {
		for _, note := range r.Notes {
			if r.Name == name {
				notes = append(notes, note)
				continue
			}
			alias, taken := strings.CutPrefix(strings.TrimSuffix(note, lost), "alias ")
			if !taken || !strings.HasSuffix(note, lost) || alias == name && had ||
				before != nil && slices.Contains(before.Aliases, alias) {
				continue
			}
			notes = append(notes, "it takes the alias "+alias+" from model "+r.Name)
		}
	}
	return notes
}

// listed says whether a node lists the model under its own name. in and view may be nil.
func listed(name string, in *registry, view *admin.Fleet) bool {
	if in != nil && len(in.models[name]) > 0 {
		return true
	}
	return view != nil && slices.ContainsFunc(view.Nodes, func(n admin.Node) bool {
		return slices.Contains(n.Models, name)
	})
}

// lookEvery is the time between two looks at the router.
const lookEvery = 50 * time.Millisecond

// viewWith returns the router's view once it uses the settings, or when it has had routerLimit to
// do so. viewWith returns nil if no router answers.
func (m *commands) viewWith(ctx context.Context, name string, stored *cluster.Model) *admin.Fleet {
	ctx, cancel := context.WithTimeout(ctx, routerLimit)
	defer cancel()
	var last *admin.Fleet
	for {
		view, err := m.router.Fleet(ctx)
		if err != nil {
			return last
		}
		last = view
		for _, r := range m.rows(view, []cluster.StoredModel{{Name: name, Model: stored}}, nil) {
			if r.Name == name && len(r.unused()) == 0 {
				return view
			}
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(lookEvery):
		}
	}
}

// roles are the roles in the order of output.
var roles = []cluster.Role{cluster.RolePrefill, cluster.RoleDecode, cluster.RoleBoth}

// edits checks the flags and returns the changes that they ask for.
func (s *settings) edits(c *cobra.Command, name string, warnings io.Writer) (edits []func(*cluster.Model), err error) {
	flags := c.Flags()
	add := func(flag string, edit func(*cluster.Model)) {
		if flags.Changed(flag) {
			edits = append(edits, edit)
		}
	}
	if err := s.check(name, flags); err != nil {
		return nil, cli.Misused(err)
	}
	for _, flag := range s.unset {
		edits = append(edits, removals[flag])
	}
	add("alias", func(m *cluster.Model) { m.Aliases = s.aliases })
	add("base", func(m *cluster.Model) { m.Base = s.base })
	add("tokenizer", func(m *cluster.Model) {
		m.Tokenizer = s.tokenizer
		if !flags.Changed("chat-template") && !m.Files() {
			m.ChatTemplate = ""
		}
	})
	add("chat-template", func(m *cluster.Model) { m.ChatTemplate = s.chatTemplate })
	add("adapter-load", func(m *cluster.Model) { m.AdapterLoadS = s.adapterLoad.Seconds() })
	add("cascade", func(m *cluster.Model) { m.Chain = s.cascade.Chain })
	add("cascade-threshold", func(m *cluster.Model) { m.Thresholds = s.cascade.Thresholds })
	add("cascade-direct", func(m *cluster.Model) { m.Direct = s.cascade.Direct })
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
	"adapter-load":      func(m *cluster.Model) { m.AdapterLoadS = 0 },
	"cascade":           func(m *cluster.Model) { m.Cascade = cluster.Cascade{} },
	"cascade-threshold": func(m *cluster.Model) { m.Thresholds = nil },
	"cascade-direct":    func(m *cluster.Model) { m.Direct = "" },
}

// checkNames returns an error for a name or an alias that no request should have, and for aliases
// that say nothing.
func (s *settings) checkNames(name string) error {
	if name == "" {
		return errors.New("NAME is empty; name the model as the engines do")
	}
	if !plain(name) {
		return fmt.Errorf("NAME %q has white space or control characters; name the model as the engines do", name)
	}
	for i, alias := range s.aliases {
		switch {
		case !plain(alias):
			return fmt.Errorf("--alias %q has white space or control characters; leave them out", alias)
		case alias == name:
			return fmt.Errorf("--alias %s is the model's own name; leave it out", alias)
		case slices.Contains(s.aliases[:i], alias):
			return fmt.Errorf("--alias %s is given twice; leave one out", alias)
		}
	}
	return nil
}

// plain says whether a name has neither white space nor control characters.
func plain(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, func(c rune) bool {
		return unicode.IsSpace(c) || unicode.IsControl(c)
	})
}

// check returns an error for the first flag with an impossible value.
func (s *settings) check(name string, flags *pflag.FlagSet) error {
	if err := s.checkNames(name); err != nil {
		return err
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
		if path != "" && path != cluster.NoTokenizer && path != cluster.LearnedTokens && !filepath.IsAbs(path) {
			return fmt.Errorf("--%s %q: must be an absolute path, since every router reads it on its own host", flag, path)
		}
	}
	return cli.InRanges(flags, map[string][2]float64{"adapter-load": {0, cluster.MaxAdapterLoad.Seconds()}})
}

// readPolicy reads a policy from an argument, a file or standard input, and checks it.
func readPolicy(c *cobra.Command, from string, warnings io.Writer) (json.RawMessage, error) {
	doc, err := cli.ReadObject(c, from, maxPolicy, `cgn-ctl model set NAME --policy '{"mode":"cost"}'`)
	if err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
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
