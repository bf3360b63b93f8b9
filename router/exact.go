package router

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/tokens"
)

// noTokenizer, as the tokenizer in [[model]], says that prompts are given as token ids.
const noTokenizer = "none"

// tokenises says whether the model's text is tokenised, or need not be.
func (c *Config) tokenises(model string) bool {
	return slices.ContainsFunc(c.Models, func(m ModelConfig) bool { return m.Tokenizer != "" && m.Name == model })
}

// validateEvents refuses KV events that count only for token ids. The configuration may allow them
// by saying that prompts are given as token ids.
func (c *Config) validateEvents(backends []fleet.Backend, bad problem) {
	const fix = `; add [[model]] with its name and tokenizer = DIRECTORY of the model's tokenizer.json, or tokenizer = "none" if its prompts are given as token ids`
	some := slices.ContainsFunc(c.Models, func(m ModelConfig) bool { return m.Tokenizer != "" })
	for _, b := range backends {
		switch {
		case b.KVEvents == "" || !c.Prefix.KVEvents:
		case b.Model != "" && !c.tokenises(b.Model):
			bad("backend.kv_events", "%s: KV events are of the engine's tokens, and no [[model]] makes such of "+
				"text for %s"+fix, b.URL, b.Model)
		case !some:
			bad("backend.kv_events", "%s: KV events are of the engine's tokens, and no [[model]] makes such of text"+
				fix, b.URL)
		}
	}
}

// loadTokens reads the models' tokenizers. loadTokens names each unusable one with its field.
// loadTokens returns nil if no model has one.
func (c *Config) loadTokens() (*tokens.Set, error) {
	models, errs := map[string]*tokens.Model{}, []error{}
	for i, m := range c.Models {
		if m.Tokenizer == "" || m.Tokenizer == noTokenizer {
			continue
		}
		model, err := tokens.Load(m.Tokenizer, m.ChatTemplate)
		if err != nil {
			errs = append(errs, fmt.Errorf("model[%d].tokenizer (%s): %w", i, m.Name, err))
			continue
		}
		models[m.Name] = model
	}
	if len(models) == 0 || len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return tokens.NewSet(models, int(c.Prefix.ExactMemo), int(c.Prefix.MaxExact)), nil
}
