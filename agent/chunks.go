package agent

import (
	"cmp"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/events"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

// keyed is a cache whose keys count in routing, and the setting that gives it to an engine.
type keyed struct {
	scheme       alias.Scheme
	field, value string
}

// caches returns the engine's caches whose keys count in routing, once for each setting that names
// one.
func (u *unit) caches() (all []keyed) {
	add := func(has bool, s alias.Scheme, field, value string) {
		if has {
			all = append(all, keyed{s, u.name(field), value})
		}
	}
	e := &u.Engine
	add(e.TierBucket() != "", alias.VLLMTier, "kv_offload", e.KVOffload)
	add(e.LMCacheURL() != "", alias.LMCache, "kv_offload", e.KVOffload)
	add(e.Pages().Bucket != "", alias.HiCache, "kv_offload", e.KVOffload)
	remote, bucket := u.Events.LMCache.RemoteURL, u.Events.HiCache.Bucket
	add(remote != "", alias.LMCache, "kv_events.lmcache.remote_url", remote)
	add(bucket != "", alias.HiCache, "kv_events.hicache.bucket", bucket)
	return all
}

// chunks returns what the agent tells the cache daemon about the chunks of a node's engine. Those
// of vLLM's own object tier count while used says that the engine has it. nil: the agent tells
// nothing. why says why not, if the engine has a cache.
func (u *unit) chunks(node string, used func() bool) (c *events.Chunks, why string, err error) {
	all := u.caches()
	if len(all) == 0 {
		return nil, "", nil
	}
	switch all[0].scheme {
	case alias.LMCache:
		return u.lmcache()
	case alias.HiCache:
		return u.hicache()
	}
	s := alias.Source{Scheme: alias.VLLMTier, Keys: block.Namespace{Space: "s3." + u.Engine.TierBucket()}.String(),
		Engine: vllmtier.Client(node), World: 1, Served: "-", Revision: cmp.Or(u.Engine.Offload.Revision, "-")}
	return &events.Chunks{Source: s, Wanted: used}, "", vllmtier.Check(&s)
}

// validateChunks checks that the engine has one cache whose keys count, and that cache's settings.
func (u *unit) validateChunks(p *problems) {
	all := u.caches()
	for i := range all {
		if c := &all[i]; c.scheme != all[0].scheme {
			p.add(c.field, "an engine has one cache whose keys count, and %s = %q gives it another one; remove one of the two",
				all[0].field, all[0].value)
			break
		}
	}
	u.validateLMCache(p)
	u.validateHiCache(p)
}
