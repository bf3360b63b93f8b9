package router

import "github.com/cognitora/dataplane/internal/metric"

// These are the indices of learnedDefs.
const (
	learnedEntries = iota
	learnedBytes
	learnedPrompts
	learnedTaught
	learnedWrong
	learnedEvicted
	learnedDistrusted
)

var learnedDefs = []metric.Def{
	learnedEntries: {
		Name: "cgn_router_learned_entries",
		Help: "Beginnings of chats whose tokens engines have taught the router.",
	},
	learnedBytes: {
		Name: "cgn_router_learned_bytes",
		Help: "Memory of these beginnings; at most prefix.learned_memo.",
	},
	learnedPrompts: {
		Name: "cgn_router_learned_prompts_total", Kind: metric.Counter, Labels: []string{"result"},
		Help: "Chats for models whose tokens are learned, whose engines or caches report blocks: with a known " +
			"beginning (known), or predicted from their text (unknown).",
	},
	learnedTaught: {
		Name: "cgn_router_learned_taught_total", Kind: metric.Counter,
		Help: "Beginnings of chats that engines have taught the router.",
	},
	learnedWrong: {
		Name: "cgn_router_learned_wrong_total", Kind: metric.Counter,
		Help: "Taught beginnings that were forgotten because an engine's cached tokens, or what an engine taught " +
			"later, contradicted them.",
	},
	learnedEvicted: {
		Name: "cgn_router_learned_evicted_total", Kind: metric.Counter,
		Help: "Taught beginnings that were forgotten for want of memory (prefix.learned_memo).",
	},
	learnedDistrusted: {
		Name: "cgn_router_learned_distrusted",
		Help: "Forms of chats, by model, tools and other members that change tokens, whose known beginnings are not " +
			"used now: engines' cached tokens contradicted more of them than they confirmed. The counts halve every " +
			"10 minutes.",
	},
}

func (k *knowledge) readLearned(emit func(def int, value float64, labels ...string)) {
	s := k.tokens.taught.Stats()
	emit(learnedEntries, float64(s.Entries))
	emit(learnedBytes, float64(s.Bytes))
	emit(learnedPrompts, float64(s.Hits), "known")
	emit(learnedPrompts, float64(s.Misses), "unknown")
	emit(learnedTaught, float64(s.Taught))
	emit(learnedWrong, float64(s.Wrong))
	emit(learnedEvicted, float64(s.Evicted))
	emit(learnedDistrusted, float64(s.Distrusted))
}
