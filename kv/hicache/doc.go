// Package hicache reads the keys under which SGLang's hierarchical cache (HiCache) keeps pages in
// an object store by NIXL, and computes the pages' names from token ids.
//
//	HASH_MODEL_RANK_RANKS         a rank's page, memory layout layer_first
//	HASH_MODEL_RANK_RANKS_k, _v   its keys and its values, layouts page_first and page_first_direct
//	HASH_MODEL, HASH_MODEL_k      a page of a model with MLA, which the first rank stores for all
//
// MODEL is SGLang's --served-model-name, or else its --model-path, with - for each slash. RANKS is
// the number of tensor-parallel ranks. HASH is a SHA-256 in hexadecimal of the page before and the
// page's token ids (Next). Its first 8 bytes are the page's Name, and its hash in SGLang's KV
// events.
//
// HASH of a prompt with a cache salt, an adapter or another extra key begins with a hash of these
// in place of a page before (SGLang 0.5.23). Only pages of token ids alone have names here. With
// EAGLE and its kin HASH is over pairs of tokens, of which the last pair has the first token of the
// page that follows, so a page stands for no whole blocks and has no name. A key names neither the
// data type of the cache nor the revision of the weights, nor pipeline-parallel ranks.
//
// A model with sliding windows, Mamba layers, an index of sparse attention or draft layers keeps
// more than pages: objects with _POOL after RANKS, or after MODEL with MLA. Its pages alone are of
// no use (ErrBeside). HASH_m_draft is an object of model m, or a page of a model m_draft (Beside).
//
// The forms are those of SGLang 0.5.23. Keys of its scheme "unified" are refused.
package hicache
