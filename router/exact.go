package router

import (
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/router/tokens"
)

// loadTokens reads the tokenizers that models name; every one that cannot be used is named with its field. It returns nil
// where no model has one.
func (c *Config) loadTokens() (*tokens.Set, error) {
	models, errs := map[string]*tokens.Model{}, []error{}
	for i, m := range c.Models {
		if m.Tokenizer == "" {
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
