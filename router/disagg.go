package router

import "github.com/cognitora/dataplane/router/leg"

// DisaggConfig sets when one node computes a prompt and another one answers.
type DisaggConfig struct {
	Enabled       string  `toml:"enabled" default:"auto" flag:"disagg" oneof:"auto|true|false" help:"whether one node may compute a request's prompt (prefill) and another one answer (decode); auto: for models with nodes that can do the one and nodes that can do the other (docs/disagg.md); true: the same, with a warning while a model lacks one of them; false: never, and a node of role prefill gets no requests"`
	ColocateBelow int     `toml:"colocate_below_tokens" default:"512" help:"prompts of fewer tokens are computed by the node that answers"`
	UncachedBelow int     `toml:"uncached_below_tokens" default:"2048" help:"the answering node computes the prompt if it has all but fewer tokens than this in its cache, and uncached_below_ratio holds too; mode predicted compares expected times in place of these two settings"`
	UncachedRatio float64 `toml:"uncached_below_ratio" default:"0.7" help:"the answering node computes the prompt if a smaller share of it than this is not in its cache, and uncached_below_tokens holds too"`
}

func (d *DisaggConfig) validate(bad problem) {
	if d.ColocateBelow < 0 {
		bad("router.disagg.colocate_below_tokens", "%d is too small; use 0 or more", d.ColocateBelow)
	}
	if d.UncachedBelow < 0 {
		bad("router.disagg.uncached_below_tokens", "%d is too small; use 0 or more", d.UncachedBelow)
	}
	if r := d.UncachedRatio; !(r >= 0 && r <= 1) {
		bad("router.disagg.uncached_below_ratio", "%v is not in 0..1; leave it out for 0.7", r)
	}
}

// settings returns the settings for the legs.
func (d *DisaggConfig) settings() leg.Disagg {
	return leg.Disagg{
		Off: d.Enabled == "false", ColocateBelow: int64(d.ColocateBelow), UncachedBelow: int64(d.UncachedBelow),
		UncachedRatio: d.UncachedRatio,
	}
}
