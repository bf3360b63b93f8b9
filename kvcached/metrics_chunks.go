package kvcached

import "github.com/cognitora/dataplane/kvcached/chunks"

var chunkRows = []row[chunks.Stats]{
	{"chunks_parts", "Objects that have a part of a chunk: chunks of LMCache, objects of vLLM's object tier, and pages of SGLang's HiCache.", func(s *chunks.Stats) float64 { return float64(s.Parts) }},
	{"chunks_counted", "Chunks whose blocks routers can learn of.", func(s *chunks.Stats) float64 { return float64(s.Counted) }},
	{"chunks_untold", "Chunks that do not count because nobody has told which blocks they stand for.", func(s *chunks.Stats) float64 { return float64(s.Untold) }},
	{"chunks_incomplete", "Chunks that do not count because a worker's, a layer's or a half's part is missing, because there are more layers than was told, or because an SGLang's model keeps more than pages.", func(s *chunks.Stats) float64 { return float64(s.Incomplete) }},
	{"chunks_disputed", "Chunks that do not count because two tellers contradict each other, for example after the model's revision has changed.", func(s *chunks.Stats) float64 { return float64(s.Disputed) }},
	{"chunks_idle", "Chunks that were told and have no part here.", func(s *chunks.Stats) float64 { return float64(s.Idle) }},
	{"chunks_unknown_keys_total", "Stored keys that look like those of a chunk and are of an unknown form, so that their chunks do not count.", func(s *chunks.Stats) float64 { return float64(s.Forms) }},
	{"chunks_tagged_keys_total", "Stored keys of LMCache with tags of the request, whose chunks do not count.", func(s *chunks.Stats) float64 { return float64(s.Tags) }},
	{"chunks_beside_total", "Stored objects that an SGLang needs besides the pages of HiCache, such as states of Mamba layers; pages of their models do not count.", func(s *chunks.Stats) float64 { return float64(s.Beside) }},
	{"chunks_full_total", "Stored parts of chunks that do not count because the table of parts is full.", func(s *chunks.Stats) float64 { return float64(s.Full) }},
	{"chunks_refused_total", "Told chunks that were not taken because they contradict what is known, or cannot count.", func(s *chunks.Stats) float64 { return float64(s.Refused) }},
	{"chunks_bad_notes_total", "Notes on chunks, kept with their parts, that could not be read.", func(s *chunks.Stats) float64 { return float64(s.Notes) }},
	{"chunks_unkept_total", "Notes on chunks that could not be kept with a part, so that a restart forgets them.", func(s *chunks.Stats) float64 { return float64(s.Unkept) }},
}
