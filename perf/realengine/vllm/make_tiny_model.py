"""Writes a tiny llama with random weights from a seed as a Hugging Face model directory. It needs
no network."""
import argparse
import json
import os
import random

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

WIDTH, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 64, 128, 2, 2, 1, 1024, 4096
END, TURN, TURN_END = SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SYLLABLES = "ca che ro ut er mo del to ken pre fix the an is ing st on re li us".split()


def sentences(seed):
    r = random.Random(seed)
    for _ in range(4000):
        yield " ".join("".join(r.choices(SYLLABLES, k=r.randint(1, 3))) for _ in range(12))


def train(seed):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(sentences(seed), trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[AddedToken(s, special=True) for s in SPECIAL], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return tok


# As TinyLlama's: the marks of the roles are plain text.
PLAIN_CHAT = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def train_unigram(seed):
    """SentencePiece's unigram model, as T5 has it."""
    tok = Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    tok.train_from_iterator(sentences(seed), trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=[AddedToken(s, special=True) for s in SPECIAL + ["<unk>"]],
        unk_token="<unk>", show_progress=False, initial_alphabet=[chr(c) for c in range(33, 127)] + ["\n"]))
    return tok


def train_byte_fallback(seed):
    """SentencePiece's BPE with bytes for unknown characters, as Llama 2 and Mistral have it. There
    are no words: tokens may merge anywhere."""
    tok = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.train_from_iterator(sentences(seed), trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[AddedToken(s, special=True) for s in SPECIAL + ["<unk>"]] + [
            "<0x%02X>" % b for b in range(256)],
        show_progress=False, initial_alphabet=[chr(c) for c in range(33, 127)]))
    tok.pre_tokenizer = None
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tok.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tok


TRAIN = {"byte-level": train, "unigram": train_unigram, "byte-fallback": train_byte_fallback}


def tokenizer_config(tok, kind):
    added = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, 
        "chat_template": CHAT if kind == "byte-level" else PLAIN_CHAT,
        "bos_token": None, "eos_token": TURN_END, "pad_token": END, "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(tok.token_to_id(s)): {"content": s, **added} for s in SPECIAL},
    }


def model_config(tok):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "hidden_size": WIDTH, "intermediate_size": FEED_FORWARD, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": WIDTH // HEADS,
        "vocab_size": tok.get_vocab_size(), "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "initializer_range": 0.02,
        "attention_bias": False, "mlp_bias": False,
        "bos_token_id": tok.token_to_id(END), "eos_token_id": tok.token_to_id(TURN_END), "pad_token_id": tok.token_to_id(END),
    }


def tensors(vocabulary, seed):
    rng = np.random.default_rng(seed)

    def weights(rows, columns):
        return (rng.standard_normal((rows, columns)) * 2 * columns ** -0.5).astype(np.float32)

    kv = WIDTH // HEADS * KV_HEADS
    t = {
        "model.embed_tokens.weight": weights(vocabulary, WIDTH), "lm_head.weight": weights(vocabulary, WIDTH),
        "model.norm.weight": np.ones(WIDTH, np.float32),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        t[at + "self_attn.q_proj.weight"] = weights(WIDTH, WIDTH)
        t[at + "self_attn.k_proj.weight"] = weights(kv, WIDTH)
        t[at + "self_attn.v_proj.weight"] = weights(kv, WIDTH)
        t[at + "self_attn.o_proj.weight"] = weights(WIDTH, WIDTH)
        t[at + "mlp.gate_proj.weight"] = weights(FEED_FORWARD, WIDTH)
        t[at + "mlp.up_proj.weight"] = weights(FEED_FORWARD, WIDTH)
        t[at + "mlp.down_proj.weight"] = weights(WIDTH, FEED_FORWARD)
        t[at + "input_layernorm.weight"] = np.ones(WIDTH, np.float32)
        t[at + "post_attention_layernorm.weight"] = np.ones(WIDTH, np.float32)
    return t


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("out")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--tokenizer", choices=TRAIN, default="byte-level")
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    tok = TRAIN[a.tokenizer](a.seed)
    tok.save(os.path.join(a.out, "tokenizer.json"))
    config = model_config(tok)
    stops = {k: config[k] for k in ("eos_token_id", "pad_token_id")}
    for name, content in [("tokenizer_config", tokenizer_config(tok, a.tokenizer)), ("config", config), ("generation_config", stops)]:
        with open(os.path.join(a.out, name + ".json"), "w") as f:
            json.dump(content, f, indent=1)
    save_file(tensors(config["vocab_size"], a.seed), os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main()
