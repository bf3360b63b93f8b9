package kvcached

import "github.com/cognitora/dataplane/kvcached/chunks"

var chunkRows = []row[chunks.Stats]{
	{"lmcache_parts", "Objects that have a part of a chunk of LMCache, of vLLM's object tier, or of SGLang's HiCache; objects and pages of the latter two count with the chunks in all of these numbers.", func(s *chunks.Stats) float64 { return float64(s.Parts) }},
	{"lmcache_counted", "LMCache chunks whose blocks routers can learn of.", func(s *chunks.Stats) float64 { return float64(s.Counted) }},
	{"lmcache_untold", "LMCache chunks that do not count because nobody has told which blocks they stand for.", func(s *chunks.Stats) float64 { return float64(s.Untold) }},
	{"lmcache_incomplete", "LMCache chunks that do not count because a worker's, a layer's or a half's part is missing, because there are more layers than was told, or because an SGLang's model keeps more than pages.", func(s *chunks.Stats) float64 { return float64(s.Incomplete) }},
	{"lmcache_disputed", "LMCache chunks that do not count because two tellers contradict each other, for example after the model's revision has changed.", func(s *chunks.Stats) float64 { return float64(s.Disputed) }},
	{"lmcache_idle", "LMCache chunks that were told and have no part here.", func(s *chunks.Stats) float64 { return float64(s.Idle) }},
	{"lmcache_unknown_keys_total", "Stored keys that look like LMCache's and are of an unknown form, so that their chunks do not count.", func(s *chunks.Stats) float64 { return float64(s.Forms) }},
	{"lmcache_tagged_keys_total", "Stored keys of LMCache with tags of the request, whose chunks do not count.", func(s *chunks.Stats) float64 { return float64(s.Tags) }},
	{"lmcache_beside_total", "Stored objects that an SGLang needs besides the pages of HiCache, such as states of Mamba layers; pages of their models do not count.", func(s *chunks.Stats) float64 { return float64(s.Beside) }},
	{"lmcache_full_total", "Stored parts of LMCache chunks that do not count because the table of parts is full.", func(s *chunks.Stats) float64 { return float64(s.Full) }},
	{"lmcache_refused_total", "Told LMCache chunks that were not taken because they contradict what is known, or cannot count.", func(s *chunks.Stats) float64 { return float64(s.Refused) }},
	{"lmcache_bad_notes_total", "Notes on LMCache chunks, kept with their parts, that could not be read.", func(s *chunks.Stats) float64 { return float64(s.Notes) }},
	{"lmcache_unkept_total", "Notes on LMCache chunks that could not be kept with a part, so that a restart forgets them.", func(s *chunks.Stats) float64 { return float64(s.Unkept) }},
}
