package agent

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/events"
	"github.com/cognitora/dataplane/kv/lmcache"
)

// LMCacheConfig is the [kv_events.lmcache] section.
type LMCacheConfig struct {
	RemoteURL string `toml:"remote_url" help:"remote_url of an attached engine's LMCache if that is this host's cgn-kvcached: redis://HOST:PORT/DB, resp://HOST:PORT or s3://BUCKET.HOST:PORT. The agent then tells the cache daemon which blocks LMCache's chunks stand for, so that they count in routing (docs/kvcached.md). LMCache needs pre_caching_hash_algorithm: sha256_cbor. Empty: the agent tells it for an engine that it starts with kv_offload lmcache and without offload.lmcache_config"`
	Model     string `toml:"model" help:"the engine's --model, which begins LMCache's keys; empty: engine.model"`
	DType     string `toml:"dtype" help:"data type of the engine's KV cache as LMCache's keys name it: bfloat16, half, float, uint8 and others; empty: dtype"`
	Seed      string `toml:"seed" default:"0" help:"PYTHONHASHSEED of the engine"`
	ChunkSize int    `toml:"chunk_size" default:"256" help:"LMCache's chunk_size, in tokens: a multiple of 16, 512 at most, and a multiple of the engine's block size"`
	Workers   int    `toml:"workers" default:"0" help:"workers that store parts of a chunk: tensor- times pipeline-parallel ranks; 1 for models with MLA, of which LMCache stores the first rank only; 0: tp"`
	Layers    int    `toml:"layers" default:"0" help:"layers of the model if LMCache works layer by layer (use_layerwise); 0: it does not"`
	Tenant    string `toml:"tenant" help:"tenant of the cache daemon's user with whose password LMCache stores; empty: none"`
	Revision  string `toml:"revision" help:"revision of the model's weights; empty: offload.revision. Give each revision its own cache or database, because LMCache's keys do not name it; chunks that two revisions claim do not count"`
}

// dtypes are LMCache's names of the data types that engines are started with.
var dtypes = map[string]string{"bfloat16": "bfloat16", "float16": "half", "half": "half", "float32": "float",
	"float": "float"}

// storesIn returns the namespace of LMCache's keys at a remote URL, and whether each key has two
// halves.
func storesIn(remote, tenant string) (keys string, halves bool, err error) {
	u, err := url.Parse(remote)
	if err != nil {
		return "", false, err
	}
	n := block.Namespace{Tenant: tenant}
	switch u.Scheme {
	case "redis", "resp":
		n.Space = "resp." + cmp.Or(strings.Trim(u.Path, "/"), "0")
	case "s3":
		bucket, _, _ := strings.Cut(u.Host, ".")
		n.Space = "s3." + bucket
	default:
		return "", false, fmt.Errorf("%q is of no kind whose keys are known; use redis://, resp:// or s3://", remote)
	}
	return n.String(), u.Scheme == "redis", n.Check()
}

// lmcache returns the settings for the engine's LMCache; nil: the agent tells nothing. why says why
// not, if the engine has an LMCache.
func (u *unit) lmcache() (c *events.Chunks, why string, err error) {
	l := &u.Events.LMCache
	remote := l.RemoteURL
	if remote == "" {
		if remote = u.Engine.LMCacheURL(); remote == "" {
			return nil, "", nil
		}
	}
	if u.Events.Report == "" {
		return nil, "only a cgn-kvcached knows LMCache's chunks: set " + u.name("kv_events.report"), nil
	}
	dtype := cmp.Or(l.DType, dtypes[u.DType])
	if dtype == "" {
		return nil, "the data type in LMCache's keys is not known: set " + u.name("kv_events.lmcache.dtype"), nil
	}
	keys, halves, err := storesIn(remote, l.Tenant)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", u.name("kv_events.lmcache.remote_url"), err)
	}
	s := alias.Source{Scheme: alias.LMCache, Keys: keys, Model: cmp.Or(l.Model, u.Engine.Model), DType: dtype,
		World: uint32(cmp.Or(l.Workers, u.TP, 1)), Layers: uint32(l.Layers), Halves: halves,
		First: lmcache.First(l.Seed), Served: "-", Revision: cmp.Or(l.Revision, u.Engine.Offload.Revision, "-")}
	if err := lmcache.Check(&s); err != nil {
		return nil, "", fmt.Errorf("%s: %w", u.name("kv_events.lmcache"), err)
	}
	return &events.Chunks{Source: s, Tokens: l.ChunkSize}, "", nil
}

// validateLMCache checks the section, if it matters.
func (u *unit) validateLMCache(p *problems) {
	l := &u.Events.LMCache
	if l.RemoteURL == "" && u.Engine.LMCacheURL() == "" {
		return
	}
	c, why, err := u.lmcache()
	switch {
	case l.Workers < 0 || l.Layers < 0:
		p.add(u.name("kv_events.lmcache.workers"), "%d workers and %d layers; neither can be negative", l.Workers,
			l.Layers)
	case err != nil:
		*p = append(*p, err)
	case why != "" && l.RemoteURL != "":
		p.add(u.name("kv_events.lmcache.remote_url"), "%s", why)
	case c != nil && (c.Tokens < block.Tokens || c.Tokens > alias.MaxTokens || c.Tokens%block.Tokens != 0):
		p.add(u.name("kv_events.lmcache.chunk_size"), "%d is no multiple of %d in %d..%d; chunks of other sizes cannot count",
			c.Tokens, block.Tokens, block.Tokens, alias.MaxTokens)
	}
}
