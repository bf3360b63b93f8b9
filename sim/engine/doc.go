// Package engine simulates an inference engine without a GPU.
//
// The engine has vLLM's wire formats: OpenAI, Responses and Anthropic APIs, SSE, Prometheus
// metrics, and KV events over ZMQ. The engine models vLLM's inside: a block-level prefix cache with
// LRU eviction, continuous batching with chunked prefill, and a step time made of a prefill rate
// and a decode step. Every answer is a function of the seed and the request, and each token of it a
// function of the seed and all tokens before it.
//
// # Tokens
//
// A token is four bytes of text, read as a little-endian integer. The last token of a piece is
// padded with zero bytes. A chat prompt is a sequence of pieces, each tokenised by itself. The tool
// definitions come first, if there are any. Every message has a marker of its role, its text, its
// tool calls and an end marker. The marker of the assistant comes last. Generated tokens are four
// bytes as well. An answer sent back in the next turn therefore has the same tokens and hits the
// blocks filled during its generation.
//
// A request with return_token_ids gets the ids of its prompt and its answer. Another engine with
// the same seed goes on exactly where an answer ended if its prompt is the first prompt and the
// tokens of the answer so far: as token ids of /v1/completions, as prompt_token_ids in the
// kv_transfer_params of a chat, as SGLang's input_ids of a chat, or as an open last message of the
// assistant (continue_final_message). Without max_tokens, or with Config.EndsItself, the answer
// then also ends where the first one would have ended. As in vLLM, a stream with stop strings sends
// text that may begin one later than its token.
//
// # Quality
//
// With Config.Quality answers can be right or wrong, for tests of cascades. Each question has a
// Difficulty, a hash of the last text of the user, or of the whole prompt of a completion. An
// answer of two or more tokens to a question no harder than Quality ends with its RightAnswer.
// Another one ends with another word. Log probabilities are a noisy sign of that: -logprob is
// exponential, with a mean that belongs to the answer. The means are log-normal, with medians 0.25
// for right and 0.65 for wrong answers and sigma 0.8, so a right answer looks surer than a wrong
// one in 80% of the pairs. All of this follows from question, model and Config.Seed.
//
// # Time
//
// One goroutine, the scheduler, steps the model as vLLM's does. Each step decodes one token for
// every running sequence. A step also prefills chunks of other sequences within a token budget. A
// step lasts DecodeStep + DecodePerSequence for each decoded sequence + DecodePerBlock for each KV
// block that these read + chunk tokens / PrefillTokensPerSecond. With PrefillDoublesAt a prompt
// token takes longer the more tokens are before it, so the time of a prompt grows with the square
// of its length. Config.Slowdowns make the engine slower for some time. Config.Speed divides all
// times, so a trace can be replayed faster than it happened. Config.StepCPU adds real CPU time of
// this host to each step.
//
// # Adapters
//
// Config.Adapters are LoRA adapters of the first model, which requests name as their model. The
// engine keeps the adapters in memory that were used last. A step that begins a sequence of another
// adapter loads it first, which takes Config.AdapterLoad. Blocks of an adapter belong to its
// prompts only.
//
// # Prefill and decode on different engines
//
// Config.Connector says by which wire an engine gets the blocks of a prompt from another one. The
// blocks come from the side channel of that engine before the first token, and can be read once.
// The reader then computes no prompt tokens, and answers from the tokens that it read. If these are
// not its own prompt's, the answer is that of the other prompt, and Stats.WrongBlocks rises. If the
// blocks are gone, Config.LoadFailure decides, and Stats.LostBlocks rises. The request waits for
// the transfer of all its tokens, though blocks that the engine has are not counted as received.
//
// ConnectorNIXL is vLLM's. A request with kv_transfer_params {"do_remote_decode":true} is answered
// with kv_transfer_params that name its prompt's blocks. The engine keeps these until another
// engine has read them, or until Config.BlockLease ends. The other engine gets these params, which
// have "do_remote_prefill":true, with its own request. A client that leaves that engine frees
// nothing here.
//
// ConnectorMooncake is vLLM's as well. Both requests have a transfer_id, and may come in any order.
// The second engine waits for the first one, for Config.PeerTimeout at most. The first engine's
// side channel answers GET /query with its engine ids.
//
// ConnectorKVCached is that of deploy/vllm for vLLM. A request with {"cgn_store":true} puts the
// prompt's blocks on Config.Shelf, and its answer has their number of tokens. The other engine gets
// that number with "cgn_wait_ms", waits so long for the blocks, and otherwise computes the prompt.
// Any number of engines may take the blocks.
//
// ConnectorSGLang needs a Role. Both engines get the same request with bootstrap_host,
// bootstrap_port and bootstrap_room, single or as lists. The first engine computes nothing before
// the second one waits, and answers with one token. Each fails after Config.PeerTimeout alone.
//
// ConnectorTRTLLM is TensorRT-LLM's. The answer to disaggregated_params with "context_only" has
// disaggregated_params in choice 0 for a request with "generation_only". With schedule_style 1 the
// second request comes first, and the first engine waits for it. /server_info has the address for
// that.
//
// testdata/README.md says which of these wires are recorded.
//
// # Faults
//
// A request asks for a fault with the header x-sim-fault, for example "die_after=10", "hang" or
// "status=429,retry_after=1". Engine.SetFault and POST /sim/fault set a Fault for requests of the
// whole engine. The POST has the fields of a Fault as JSON, with count, probability, path and leg;
// DELETE ends the fault. With leg a fault strikes only one of a request's legs, so a header that a
// router passes to both engines can name one. Engine.Refuse, Kill and Accept simulate a host that
// goes and returns; {"refuse":"2s"} refuses connections over HTTP, and "crash=2s" kills the engine
// after its answer. GET /sim/stats returns the engine's counts.
package engine
