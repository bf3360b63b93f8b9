package agent

import (
	"cmp"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/events"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

// chunks returns what the agent tells the cache daemon about the chunks of a node's engine: those
// of vLLM's own object tier, while used says that the engine has it, SGLang's pages, or the chunks
// of LMCache. nil: the agent tells nothing. why says why not, if the engine has one of them.
func (u *unit) chunks(node string, used func() bool) (c *events.Chunks, why string, err error) {
	bucket := u.Engine.TierBucket()
	if bucket == "" {
		if c, why, err = u.hicache(); c != nil || why != "" || err != nil {
			return c, why, err
		}
		return u.lmcache()
	}
	s := alias.Source{Scheme: alias.VLLMTier,
		Keys: block.Namespace{Space: "s3." + bucket}.String(), Model: vllmtier.Client(node),
		World: 1, Served: "-", Revision: cmp.Or(u.Engine.Offload.Revision, "-")}
	return &events.Chunks{Source: s, Wanted: used}, "", vllmtier.Check(&s)
}
