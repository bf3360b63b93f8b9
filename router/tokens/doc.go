// Package tokens computes the token ids of a prompt as the engine computes them, with the model's
// own tokenizer.json and chat template. The digests of the ids' blocks then equal those of the
// engine's KV events.
//
// The package supports byte-level BPE: the tokenizers of Llama 3, Qwen, GPT, DeepSeek, Mistral's
// newer models and similar ones. The package refuses, when a file is loaded, any feature that it
// cannot reproduce exactly. A single wrong id would change the digest of every later block.
package tokens
