package agent

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/events"
	"github.com/cognitora/dataplane/kv/hicache"
)

// HiCacheConfig is the [kv_events.hicache] section.
type HiCacheConfig struct {
	Bucket   string `toml:"bucket" help:"bucket in which an attached SGLang's hierarchical cache keeps pages by NIXL, if the bucket is of this host's cgn-kvcached. The agent then tells the cache daemon which blocks the pages stand for, so that they count in routing (docs/kvcached.md). Empty: the agent tells it for an SGLang that it starts with kv_offload hicache and offload.hicache_storage kvcached"`
	Model    string `toml:"model" help:"SGLang's --served-model-name, which is in the keys, or its --model-path if it has none; empty: that in engine.args, or else engine.model"`
	Workers  int    `toml:"workers" default:"0" help:"tensor-parallel ranks that store parts of a page; with --enable-dp-attention those of one attention group; 0: tp"`
	MLA      bool   `toml:"mla" default:"false" help:"the model has MLA (DeepSeek), so that SGLang stores the pages of its first rank only"`
	Layout   string `toml:"layout" default:"page_first" oneof:"page_first|page_first_direct|layer_first|page_head|page_first_kv_split" help:"--hicache-mem-layout of the SGLang. With the first two SGLang stores the keys and the values of a page apart"`
	Tenant   string `toml:"tenant" help:"tenant of the cache daemon's user with whose S3 keys SGLang stores; empty: none"`
	Revision string `toml:"revision" help:"revision of the model's weights; empty: offload.revision. Give each revision its own bucket, because the keys do not name it; pages that two revisions claim do not count"`
}

// halved are the memory layouts with which SGLang stores the keys and the values of a page apart.
var halved = []string{"page_first", "page_first_direct"}

// hicache returns the settings for the engine's HiCache; nil: the agent tells nothing. why says why
// not, if the engine keeps pages in a bucket.
func (u *unit) hicache() (c *events.Chunks, why string, err error) {
	h := &u.Events.HiCache
	own := u.Engine.Pages()
	bucket := cmp.Or(h.Bucket, own.Bucket)
	if bucket == "" {
		return nil, "", nil
	}
	if u.Events.Report == "" {
		return nil, "only a cgn-kvcached knows SGLang's pages: set " + u.name("kv_events.report"), nil
	}
	if own.Shared != "" {
		return nil, "SGLang's keys do not name the ranks of " + own.Shared + ", which overwrite each other's pages", nil
	}
	keys := block.Namespace{Tenant: h.Tenant, Space: "s3." + bucket}
	s := alias.Source{Scheme: alias.HiCache, Keys: keys.String(), Model: hicache.Model(cmp.Or(h.Model, own.Model)),
		World: uint32(cmp.Or(h.Workers, u.TP, 1)), Halves: slices.Contains(halved, h.Layout),
		Variant: cmp.Or(own.DType, u.DType), Served: "-", Revision: cmp.Or(h.Revision, u.Engine.Offload.Revision, "-")}
	if h.MLA {
		s.Scheme, s.World = alias.HiCacheMLA, 1
	}
	if err := hicache.Check(&s); err != nil {
		return nil, "", fmt.Errorf("%s: %w", u.name("kv_events.hicache"), err)
	}
	return &events.Chunks{Source: s}, "", nil
}

// validateHiCache checks the section, if it matters.
func (u *unit) validateHiCache(p *problems) {
	h := &u.Events.HiCache
	own := u.Engine.Pages()
	_, why, err := u.hicache()
	switch {
	case h.Workers < 0:
		p.add(u.name("kv_events.hicache.workers"), "%d ranks; the number cannot be negative", h.Workers)
	case err != nil:
		*p = append(*p, err)
	case h.Bucket != "" && u.Engine.Kind != engine.SGLang:
		p.add(u.name("kv_events.hicache.bucket"), "is for an SGLang, and %s is %s; correct one of the two",
			u.name("kind"), u.Engine.Kind)
	case why != "" && h.Bucket != "":
		p.add(u.name("kv_events.hicache.bucket"), "%s", why)
	case own.Bucket != "" && h.Bucket != "" && h.Bucket != own.Bucket:
		p.add(u.name("kv_events.hicache.bucket"), "%q, and the agent starts the engine with pages in %q; "+
			"remove this, or set %s to it", h.Bucket, own.Bucket, u.name("offload.s3_bucket"))
	case own.Layout != "" && (h.Bucket != "" || own.Bucket != "") && own.Layout != h.Layout:
		p.add(u.name("kv_events.hicache.layout"), "%s, and the engine starts with --hicache-mem-layout %s; "+
			"set this to %[2]s", h.Layout, own.Layout)
	}
}
