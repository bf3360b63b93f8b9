"""Writes a tiny llama with random weights as OUT.gguf: seeded, in a blink, without network.

Its byte-level BPE vocabulary is trained on generated text. Output is printable ASCII:
hidden channel 0 carries a constant, and the output row of every other token weighs that
channel far down.
"""
import argparse
import json
import random

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WIDTH, LAYERS, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 64, 2, 4, 2, 512, 32768
END, TURN, TURN_END = SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] if m['content'] is string else '')"
    " + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SYLLABLES = "ca che ro ut er mo del to ken pre fix the an is ing st on re li us".split()


def sentences(seed):
    r = random.Random(seed)
    for _ in range(400):
        yield " ".join("".join(r.choices(SYLLABLES, k=r.randint(1, 3))) for _ in range(12))


def train(seed):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(sentences(seed), trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return tok


def describe(w, tok, vocabulary):
    w.add_name("tiny-random")
    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(2 * WIDTH)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(WIDTH // HEADS)
    w.add_rope_freq_base(10000.0)
    w.add_vocab_size(len(vocabulary))
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(vocabulary)
    w.add_token_types([gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in vocabulary])
    w.add_token_merges([" ".join(m) for m in json.loads(tok.to_str())["model"]["merges"]])
    w.add_bos_token_id(vocabulary.index(END))
    w.add_eos_token_id(vocabulary.index(TURN_END))
    w.add_add_bos_token(False)
    w.add_chat_template(CHAT)


def printable(tok, token):
    return token not in SPECIAL and all(" " <= c <= "~" for c in tok.decoder.decode([token]))


def fill(w, tok, vocabulary, seed):
    rng = np.random.default_rng(seed)

    def weights(rows, columns, scale):
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    def silent(matrix):  # leaves channel 0 as it is
        matrix[0, :] = 0
        return matrix

    embedding, output = weights(len(vocabulary), WIDTH, 1.0), weights(len(vocabulary), WIDTH, 0.6)
    embedding[:, 0] = 8.0
    output[:, 0] = [0.0 if printable(tok, t) else -20.0 for t in vocabulary]
    w.add_tensor("token_embd.weight", embedding)
    w.add_tensor("output.weight", output)
    w.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    kv = WIDTH // HEADS * KV_HEADS
    for layer in range(LAYERS):
        at, scale = f"blk.{layer}.", WIDTH ** -0.5
        w.add_tensor(at + "attn_norm.weight", np.ones(WIDTH, np.float32))
        w.add_tensor(at + "ffn_norm.weight", np.ones(WIDTH, np.float32))
        w.add_tensor(at + "attn_q.weight", weights(WIDTH, WIDTH, scale))
        w.add_tensor(at + "attn_k.weight", weights(kv, WIDTH, scale))
        w.add_tensor(at + "attn_v.weight", weights(kv, WIDTH, scale))
        w.add_tensor(at + "attn_output.weight", silent(weights(WIDTH, WIDTH, scale)))
        w.add_tensor(at + "ffn_gate.weight", weights(2 * WIDTH, WIDTH, scale))
        w.add_tensor(at + "ffn_up.weight", weights(2 * WIDTH, WIDTH, scale))
        w.add_tensor(at + "ffn_down.weight", silent(weights(WIDTH, 2 * WIDTH, (2 * WIDTH) ** -0.5)))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("out")
    p.add_argument("--seed", type=int, default=7)
    a = p.parse_args()
    tok = train(a.seed)
    vocabulary = sorted(tok.get_vocab(), key=tok.get_vocab().get)
    w = gguf.GGUFWriter(a.out, "llama")
    describe(w, tok, vocabulary)
    fill(w, tok, vocabulary, a.seed)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
