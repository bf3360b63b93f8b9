package router

import (
	"slices"

	"github.com/cognitora/dataplane/router/fleet"
)

// tokenises says whether the model's text is tokenised, or need not be.
func (c *Config) tokenises(model string) bool {
	return slices.ContainsFunc(c.Models, func(m ModelConfig) bool { return m.Tokenizer != "" && m.Name == model })
}

// validateEvents refuses KV events that count only for token ids. The configuration may allow them
// by saying that prompts are given as token ids. With etcd the tokenizers may be there, and the
// running router complains.
func (c *Config) validateEvents(backends []fleet.Backend, bad problem) {
	const fix = `; add [[model]] with its name and tokenizer = DIRECTORY of the model's tokenizer.json, "learn" if it has another tokenizer than byte-level BPE, or "none" if its prompts are given as token ids`
	if len(c.Etcd.Endpoints) > 0 {
		return
	}
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
