"""What Hugging Face's tokenizers make of texts: the reference that router/tokens is held to.

  real.py golden DIR   writes DIR/tokenizers.json
  real.py serve DIR    answers lines {"variant": NAME, "texts": [...]} on standard input with lists of ids

Needs the package tokenizers 0.23.3.
"""
import json
import random
import sys

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = [
    r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]

WORDS = ("the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you were "
         "all her she there would their we him been has when who will no more if out so up said what its about than into them can only other "
         "router cache prefill decode token block overlap engine don't it's we'll THEY'RE Größe naïve café 123 2024 3.14 你好 世界 模型 缓存 日本語 "
         "тест слово مرحبا 안녕 def return self.value = {} () [] <tag> // /* */ http://example.com/x?y=z 😀 👍🏽").split()
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>"]


def corpus():
    r = random.Random(7)
    for _ in range(3000):
        words = [w if r.random() < 0.9 else w.upper() for w in r.choices(WORDS, k=12)]
        yield r.choice(["", " ", "\n", "\t"]) + r.choice([" ", " ", " ", "  ", "\n", ", "]).join(words) + r.choice([".", "!\n", "\n\n", "..."])


def train():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=1000, special_tokens=[AddedToken(s, special=True) for s in SPECIAL], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return json.loads(tok.to_str())


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def added(content, i, **flags):
    return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags


def variants(base):
    size = len(base["model"]["vocab"])
    bos = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
           "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [base["model"]["vocab"]["<|begin_of_text|>"]], "tokens": ["<|begin_of_text|>"]}}}
    plain = base["added_tokens"]
    return {
        "gpt2": {"pre_tokenizer": BYTES | {"use_regex": True}, "post_processor": BYTES},
        "spaced": {"pre_tokenizer": BYTES | {"use_regex": True, "add_prefix_space": True}, "post_processor": None},
        "llama3": {"pre_tokenizer": sequence(split(LLAMA3), BYTES), "ignore_merges": True,
                   "post_processor": {"type": "Sequence", "processors": [BYTES, bos]}},
        "qwen": {"pre_tokenizer": sequence(split(QWEN), BYTES), "normalizer": {"type": "NFC"}, "post_processor": BYTES,
                 "added_tokens": plain + [added("<tool_call>", size, special=False), added("</tool_call>", size + 1, special=False)]},
        "o200k": {"pre_tokenizer": sequence(split(O200K, "Removed", True), BYTES), "post_processor": BYTES},
        "deepseek": {"pre_tokenizer": sequence(*[split(p) for p in DEEPSEEK], BYTES), "normalizer": {"type": "Sequence", "normalizers": []}, "post_processor": BYTES,
                     "added_tokens": plain + [added("<｜User｜>", size), added("user said", size + 1, special=False, normalized=True)]},
        "stripping": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, BYTES | {"use_regex": True}), "normalizer": {"type": "NFC"}, "post_processor": BYTES,
                      "added_tokens": plain + [added("<mask>", size, lstrip=True), added("[INST]", size + 1, lstrip=True, rstrip=True),
                                               added("é<n>", size + 2, normalized=True), added("<|im_", size + 3)]},
    }


def build(base, variant):
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": base["added_tokens"], "normalizer": None, "decoder": None, "model": dict(base["model"])}
    variant = dict(variant)
    whole["model"]["ignore_merges"] = variant.pop("ignore_merges", False)
    return whole | variant


def texts():
    r = random.Random(11)
    fixed = ["", " ", "a", "Hello world", "Hello  world", " Hello\nworld\n\n  x", "don't DON'T we'LL x'ſ 'S'", "1234567 12 ³½ Ⅷ", "\r\n\r\n x\r\n", "a\u00a0b\u2003c\u3000d\u0085e\u001ff",
             "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<|im_start", "<|im_start|><|im_start|>", "x <mask>  y <mask>", "a  [INST]  b [INST]", "é<n> e\u0301<n>",
             "e\u0301 é \u1100\u1161 \u212b \u0958", "ＡＢＣ１２３", "你好，世界。模型\n缓存 日本語のテスト", "😀👍🏽👨‍👩‍👧 z", "----------" * 20, "=" * 300, " " * 70 + "x", "\n" * 60 + "y", "ab" * 100, "aA" * 60 + "A" * 80,
             "user said <｜User｜> user said", "</tool_call><tool_call>", "\u0000\u0001\u007f\u0080", "\ud7ff\ue000\ufffd\U0010ffff", "naïve café Größe ǅ ʰ ª", "def f(self):\n    return self.value  # x\n\t\tif x:\n"]
    return fixed + [noise(r) for _ in range(60)]


def noise(r):
    pools = [WORDS, [" ", "  ", "\n", "\t", "\r\n", "\u00a0", "'s", "'LL", "'ſ"], SPECIAL + ["<mask>", "[INST]", "<tool_call>"],
             [chr(c) for c in range(33, 127)], [chr(c) for c in range(0xa0, 0x24f)], [chr(c) for c in (*range(0x300, 0x370), *range(0x1f00, 0x2070))]]
    out = []
    for _ in range(r.randint(1, 40)):
        if r.random() < 0.1:
            c = r.randrange(0x110000)
            out.append(chr(c) if not 0xd800 <= c < 0xe000 else "x")
        else:
            out.append(r.choice(r.choice(pools)))
        if r.random() < 0.5:
            out.append(" ")
    return "".join(out)


def golden(folder):
    base = train()
    found = {"model": base["model"], "added_tokens": base["added_tokens"], "texts": texts(), "variants": {}}
    for name, v in variants(base).items():
        tok = Tokenizer.from_str(json.dumps(build(base, v)))
        found["variants"][name] = {"file": v, "ids": [tok.encode(t, add_special_tokens=False).ids for t in found["texts"]],
                                   "special": tok.encode("Hello", add_special_tokens=True).ids}
    with open(folder + "/tokenizers.json", "w") as f:
        json.dump(found, f, separators=(",", ":"))


def serve(folder, large=None):
    with open(folder + "/tokenizers.json") as f:
        base = json.load(f)
    toks = {n: Tokenizer.from_str(json.dumps(build(base, v["file"]))) for n, v in base["variants"].items()}
    if large:
        toks["large"] = Tokenizer.from_file(large)
    for line in sys.stdin:
        ask = json.loads(line)
        print(json.dumps([toks[ask["variant"]].encode(t, add_special_tokens=False).ids for t in ask["texts"]]), flush=True)


if __name__ == "__main__":
    {"golden": golden, "serve": serve}[sys.argv[1]](*sys.argv[2:])
