// Package tokens makes of a prompt the token ids that the engine will make of it, by the model's
// own tokenizer.json and chat template: digests of their blocks are those of the engine's KV
// events.
//
// It reads byte-level BPE, the tokenizers of Llama 3, Qwen, GPT, DeepSeek, Mistral's newer models
// and their like. Whatever it cannot do exactly is refused when the file is loaded: a wrong id
// would make every block behind it another one.
package tokens
