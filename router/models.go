package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/learned"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/tokens"
)

// settings returns the settings that etcd can have too.
func (m *ModelConfig) settings() *cluster.Model {
	s := &cluster.Model{
		Aliases: m.Aliases, Base: m.Base, Tokenizer: m.Tokenizer, ChatTemplate: m.ChatTemplate,
		Policy: json.RawMessage(m.Policy), AdapterLoadS: m.AdapterLoad.Std().Seconds(),
		Cascade: cluster.Cascade{Chain: m.Cascade, Thresholds: m.CascadeThresholds, Direct: m.CascadeDirect},
	}
	if len(m.Pools) > 0 {
		s.Pools = make(map[cluster.Role][]string, len(m.Pools))
		for role, ids := range m.Pools {
			s.Pools[cluster.Role(role)] = ids
		}
	}
	return s
}

// modelSettings returns the settings of each model, by name.
func (c *Config) modelSettings() map[string]*cluster.Model {
	all := make(map[string]*cluster.Model, len(c.Models))
	for i := range c.Models {
		all[c.Models[i].Name] = c.Models[i].settings()
	}
	return all
}

// modelLimits are the settings of a model that need a restart.
type modelLimits struct {
	firstByte, idle, total   config.Duration
	maxQueue, maxQueueDecode int
}

// limits returns the settings of each model that need a restart, if it has any.
func (c *Config) limits() map[string]modelLimits {
	all := map[string]modelLimits{}
	for _, m := range c.Models {
		l := modelLimits{m.FirstByte, m.Idle, m.Total, m.MaxQueue, m.MaxQueueDecode}
		if l != (modelLimits{}) {
			all[m.Name] = l
		}
	}
	return all
}

// applyModelPolicies applies the parts of the models' own policies that legs do not find on the
// models' views. The fleet calls it when the policies change.
func (r *Router) applyModelPolicies(own map[string]*policy.Policy) {
	models := make(map[string]busy.Thresholds, len(own))
	for name, p := range own {
		models[name] = p.Busy
	}
	r.busy.SetModels(models)
}

// tokenises says whether the model's text is tokenised, or need not be, by the settings in force.
func tokenises(snap *fleet.Snapshot, model string) bool {
	m := snap.Settings[model]
	return m != nil && m.Tokenizer != ""
}

// tokenFiles are the files of one model's tokenizer.
type tokenFiles struct{ directory, template string }

// filesOf returns the files that the models' settings name.
func filesOf(models map[string]*cluster.Model) map[string]tokenFiles {
	all := map[string]tokenFiles{}
	for name, m := range models {
		if m.Files() || m.Tokenizer == cluster.LearnedTokens {
			all[name] = tokenFiles{m.Tokenizer, m.ChatTemplate}
		}
	}
	return all
}

// tokenizers are the models' tokenizers, loaded as the settings change. One goroutine at a time
// calls load.
type tokenizers struct {
	set    *tokens.Set
	taught *learned.Map
	loaded map[string]*tokens.Model
	from   map[string]tokenFiles // of the last attempt to load each model
	log    *slog.Logger
	failed atomic.Pointer[map[string]string]

	unfollowed map[string]string // versions of the files of models whose tokens cannot be made here
}

// load loads the tokenizers that are new or have changed. If again is set, load also loads those
// that failed, and those that cannot be followed if their files have changed. A model whose new
// tokenizer cannot be used keeps the one before. load returns the errors of new attempts.
func (t *tokenizers) load(wanted map[string]tokenFiles, again bool) map[string]error {
	problems, models, fresh := map[string]string{}, map[string]*tokens.Model{}, map[string]error{}
	learns, unfollowed := map[string]struct{}{}, map[string]string{}
	before := t.problems()
	for name, files := range wanted {
		if files.directory == cluster.LearnedTokens {
			learns[name] = struct{}{}
			continue
		}
		models[name] = t.loaded[name]
		version, learned := t.unfollowed[name]
		if learned = learned && t.from[name] == files; learned {
			learns[name], unfollowed[name] = struct{}{}, version
		}
		now := tokens.Version(files.directory, files.template)
		due := again && (before[name] != "" || learned && version != now)
		if t.from[name] == files && !due {
			if before[name] != "" {
				problems[name] = before[name]
			}
			continue
		}
		m, err := tokens.Load(files.directory, files.template)
		if errors.Is(err, tokens.ErrNotFollowed) {
			models[name], learns[name], unfollowed[name] = nil, struct{}{}, now
			t.log.Warn("the tokens of a model cannot be made here, so they are learned from its engines, unless "+
				"prefix.learned_memo is 0", "model", name, "tokenizer", files.directory, "error", err)
			continue
		}
		if err != nil {
			problems[name], fresh[name] = err.Error(), err
			continue
		}
		delete(learns, name)
		delete(unfollowed, name)
		models[name] = m
	}
	maps.DeleteFunc(models, func(_ string, m *tokens.Model) bool { return m == nil })
	t.loaded, t.from, t.unfollowed = models, wanted, unfollowed
	t.failed.Store(&problems)
	t.set.Replace(models)
	t.taught.Learn(learns)
	return fresh
}

// problems returns why a model's tokenizer is not used, by model.
func (t *tokenizers) problems() map[string]string {
	if all := t.failed.Load(); all != nil {
		return *all
	}
	return nil
}

// loadTokens reads the tokenizers of the configuration. loadTokens names each unusable one with its
// field.
func (c *Config) loadTokens(log *slog.Logger) (*tokenizers, error) {
	t := &tokenizers{
		set:    tokens.NewSet(nil, int(c.Prefix.ExactMemo), int(c.Prefix.MaxExact)),
		taught: learned.NewMap(int(c.Prefix.LearnedMemo)), log: log,
	}
	failed := t.load(filesOf(c.modelSettings()), false)
	var errs []error
	for i, m := range c.Models {
		if err := failed[m.Name]; err != nil {
			errs = append(errs, fmt.Errorf("model[%d].tokenizer (%s): %w", i, m.Name, err))
		}
	}
	return t, errors.Join(errs...)
}

// modelsAgain is the time between two attempts to load a tokenizer that failed.
const modelsAgain = time.Minute

// followModels loads tokenizers as the models' settings change, until ctx ends. The fleet watches
// the settings in etcd, and wakes followModels after a change there or a reload.
func (k *knowledge) followModels(ctx context.Context) error {
	retry := time.NewTimer(modelsAgain)
	defer retry.Stop()
	for {
		again := false
		select {
		case <-k.settled:
		case <-retry.C:
			again = len(k.tokens.problems())+len(k.tokens.unfollowed) > 0
			retry.Reset(modelsAgain)
		case <-ctx.Done():
			return nil
		}
		wanted := filesOf(k.fleet.Load().Settings)
		if !again && maps.Equal(wanted, k.tokens.from) {
			continue
		}
		retry.Reset(modelsAgain)
		failed := k.tokens.load(wanted, again)
		for _, name := range slices.Sorted(maps.Keys(failed)) {
			k.log.Error("a model's tokenizer cannot be used, so its prompts are predicted from their text, or by the "+
				"tokenizer before", "model", name, "tokenizer", wanted[name].directory, "error", failed[name])
		}
	}
}
