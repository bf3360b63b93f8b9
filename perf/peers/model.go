package peers

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// modelName is the name of the model that the workers serve.
const modelName = "mock"

// The model's words are two syllables each. A space and a word together are one token.
const (
	consonants = "bdfghjklmnprstvz"
	vowels     = "aeiou"
	syllables  = len(consonants) * len(vowels)
)

// contextTokens is the longest prompt with its answer.
const contextTokens = 1 << 18

// special tokens, by id.
var special = []string{"<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"}

const chatTemplate = "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}<|system|>" +
	"{% elif m['role'] == 'user' %}<|user|>{% else %}<|assistant|>{% endif %}{{ m['content'] }}<|end|>{% endfor %}" +
	"{% if add_generation_prompt %}<|assistant|>{% endif %}"

// syllable returns a syllable, for i below syllables.
func syllable(i int) string {
	return string([]byte{consonants[i/len(vowels)], vowels[i%len(vowels)]})
}

// appendWords appends n words of one token each, with a space before each. The words follow from
// the seeds.
func appendWords(dst []byte, n int, seed1, seed2 uint64) []byte {
	r := rand.NewPCG(seed1, seed2)
	var bits uint64
	for i := range 2 * n {
		if i%4 == 0 {
			bits = r.Uint64()
		}
		if i%2 == 0 {
			dst = append(dst, ' ')
		}
		dst = append(dst, syllable(int(bits&0xffff)*syllables>>16)...)
		bits >>= 16
	}
	return dst
}

// writeModel writes the files of a model without weights: a byte-level BPE tokenizer, a chat
// template, and what a server reads of a model's shape.
func writeModel(dir string) error {
	eos := 1
	for name, doc := range map[string]any{
		"tokenizer.json": tokenizer(),
		"tokenizer_config.json": map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0],
			"eos_token": special[eos], "pad_token": special[eos], "model_max_length": contextTokens,
			"clean_up_tokenization_spaces": false, "chat_template": chatTemplate},
		"generation_config.json": map[string]any{"bos_token_id": 0, "eos_token_id": eos},
		"config.json": map[string]any{"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama",
			"vocab_size": vocabulary, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
			"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
			"max_position_embeddings": contextTokens, "bos_token_id": 0, "eos_token_id": eos, "torch_dtype": "bfloat16",
			"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false},
	} {
		text, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// byteCount is the number of tokens of one byte.
const byteCount = 256

// vocabulary is the number of tokens: the special ones, bytes, syllables, syllables after a space,
// and words.
var vocabulary = len(special) + byteCount + 2*syllables + syllables*syllables

// tokenizer returns the document tokenizer.json of Hugging Face's library. Its merges make
// syllables first, then join a space with the first syllable, and then with the second.
func tokenizer() map[string]any {
	vocab := map[string]int{}
	add := func(token string) { vocab[token] = len(vocab) }
	for _, token := range special {
		add(token)
	}
	alphabet := byteAlphabet()
	for _, r := range alphabet {
		add(string(r))
	}
	space := string(alphabet[' '])
	var merges []string
	merge := func(left, right string) {
		add(left + right)
		merges = append(merges, left+" "+right)
	}
	for i := range syllables {
		merge(syllable(i)[:1], syllable(i)[1:])
	}
	for i := range syllables {
		merge(space, syllable(i))
	}
	for i := range syllables {
		for k := range syllables {
			merge(space+syllable(i), syllable(k))
		}
	}
	var added []map[string]any
	for id, token := range special {
		added = append(added, map[string]any{"id": id, "content": token, "single_word": false, "lstrip": false,
			"rstrip": false, "normalized": false, "special": true})
	}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	return map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil,
		"pre_tokenizer": byteLevel, "post_processor": nil, "decoder": byteLevel,
		"model": map[string]any{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil,
			"end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
			"vocab": vocab, "merges": merges},
	}
}

// byteAlphabet returns the character that stands for each byte in byte-level BPE. Printable bytes
// stand for themselves, the others for the characters from 256 on.
func byteAlphabet() (alphabet [byteCount]rune) {
	next := rune(byteCount)
	for b := range alphabet {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			alphabet[b] = rune(b)
			continue
		}
		alphabet[b] = next
		next++
	}
	return alphabet
}
