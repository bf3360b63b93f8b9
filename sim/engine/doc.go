// Package engine simulates an inference engine for GPUs that are not there.
//
// It speaks what vLLM speaks on the wire (OpenAI, Responses and Anthropic APIs,
// SSE, Prometheus metrics, KV events over ZMQ) over a model of what vLLM does
// inside: a block-level prefix cache with LRU eviction, continuous batching
// with chunked prefill, and a step time made of a prefill rate and a decode
// step. Everything it says is a function of the seed and the request.
//
// # Tokens
//
// A token is four bytes of text, read as a little-endian integer; the last one
// of a piece is padded with zero bytes. A chat prompt is a row of pieces, each
// tokenised by itself: the tool definitions if there are any, then for every
// message the marker of its role, its text, its tool calls and an end marker,
// then the marker of the assistant. Generated tokens are four bytes as well,
// so that an answer sent back in the next turn gives the same tokens and finds
// the blocks that were filled while it was generated.
//
// # Time
//
// One goroutine, the scheduler, steps the model as vLLM's does: each step
// decodes one token for every running sequence and prefills chunks of others
// within a token budget, and lasts DecodeStep + DecodePerSequence for each
// decoded sequence + chunk tokens / PrefillTokensPerSecond. Config.Speed
// divides all of it, so that a trace can be replayed faster than it happened.
// Config.StepCPU is added to each step: time of this host's CPU, which is burned
// and not simulated.
//
// # Faults
//
// A request asks for a fault with the header x-sim-fault, for example
// "die_after=10", "hang" or "status=429,retry_after=1"; a Fault set through
// Engine.SetFault or POST /sim/fault (the same fields as JSON, with count,
// probability and path; DELETE ends it) strikes requests of the whole engine.
// Engine.Refuse, Kill and Accept are a host that is gone and one that returns;
// {"refuse":"2s"} does it over HTTP. GET /sim/stats says what the engine has
// seen, GET /sim/requests what the last requests looked like.
package engine
