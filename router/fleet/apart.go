package fleet

// Apart says how an engine keeps the cached prompts of clients apart.
type Apart uint8

// These are the ways.
const (
	Unproven      Apart = iota // the engine is of an unknown kind, and gets a cache_salt that it may ignore
	BySalt                     // by the cache_salt of a request
	BySaltOfChats              // by the cache_salt of chats and completions only
	WithoutCache               // the engine knows no salt, so its cache is not used
)

// KeepsApart returns how the node's engine keeps the cached prompts of clients apart.
func (n *Node) KeepsApart() Apart {
	switch n.Info().Engine {
	case vLLM, "sglang":
		return BySalt
	case "trtllm":
		return BySaltOfChats
	case llamaCPP:
		return WithoutCache
	}
	return Unproven
}
