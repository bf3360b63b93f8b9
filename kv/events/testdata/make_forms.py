#!/usr/bin/env python3
"""Writes forms.json: one batch in every form that engines in the field have sent it in, as hexadecimal msgpack, encoded here without a library.

  python3 kv/events/testdata/make_forms.py > kv/events/testdata/forms.json
"""
import json, struct, sys


class Wide(int):
    """A number that is sent in 64 bits, as some encoders do."""


def pack(x):
    if x is None:
        return b"\xc0"
    if x is True or x is False:
        return b"\xc3" if x else b"\xc2"
    if isinstance(x, float):
        return b"\xcb" + struct.pack(">d", x)
    if isinstance(x, Wide):
        return b"\xd3" + struct.pack(">q", x) if x < 2**63 else b"\xcf" + struct.pack(">Q", x)
    if isinstance(x, int):
        for head, form, low, high in ((None, "B", 0, 2**7), (None, "b", -32, 0), (0xCC, "B", 0, 2**8), (0xCD, "H", 0, 2**16), (0xCE, "I", 0, 2**32),
                                      (0xCF, "Q", 0, 2**64), (0xD0, "b", -2**7, 0), (0xD1, "h", -2**15, 0), (0xD2, "i", -2**31, 0), (0xD3, "q", -2**63, 0)):
            if low <= x < high:
                return (bytes([head]) if head else b"") + struct.pack(">" + form, x)
    if isinstance(x, str):
        b = x.encode()
        return (bytes([0xA0 | len(b)]) if len(b) < 32 else b"\xd9" + bytes([len(b)])) + b
    if isinstance(x, bytes):
        return b"\xc4" + bytes([len(x)]) + x
    if isinstance(x, list):
        head = bytes([0x90 | len(x)]) if len(x) < 16 else b"\xdc" + struct.pack(">H", len(x))
        return head + b"".join(map(pack, x))
    if isinstance(x, dict):
        return bytes([0x80 | len(x)]) + b"".join(pack(k) + pack(v) for k, v in x.items())
    raise TypeError(x)


T = list(range(1000, 1032))  # two blocks of 16
RAW = [bytes(range(32)), bytes(range(32, 64))]
BIG, NEG = 17350091314601353792, -5
STORED = {"type": "BlockStored", "block_hashes": [BIG, 7], "parent_block_hash": None, "token_ids": T, "block_size": 16}
FULL = {**STORED, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [None, None], "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
FORMS = {
    "array, oldest": [1.5, [["BlockStored", [BIG, 7], None, T, 16, None], ["BlockRemoved", [7]]]],
    "array, with medium": [1.5, [["BlockStored", [BIG, 7], None, T, 16, None, "GPU"], ["BlockRemoved", [7], "GPU"]], 0],
    "array, all fields": [1.5, [["BlockStored", [BIG, 7], None, T, 16, None, "GPU", None, [None, None], 0, "full_attention", None], ["BlockRemoved", [7], "GPU", 0]], 0],
    "array, more fields than known": [1.5, [["BlockStored", [BIG, 7], None, T, 16, None, "GPU", None, None, 0, "mla_attention", None, "x", {"y": [1]}], ["BlockRemoved", [7], "GPU", 0, 5]], 0, "z"],
    "map, defaults left out": [1.5, [STORED, {"type": "BlockRemoved", "block_hashes": [7]}], 0],
    "map, all fields": [1.5, [FULL, {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0}], 0],
    "map, unknown fields": [1.5, [{"locality": {"a": [1, 2.5]}, **FULL, "ownership": b"x"}, {"type": "BlockRemoved", "block_hashes": [7], "cost": 1.25}], None],
    "map, type last": [1.5, [{**{k: v for k, v in FULL.items() if k != "type"}, "type": "BlockStored"}, {"block_hashes": [7], "type": "BlockRemoved"}]],
    "batch is a map": {"ts": 1.5, "events": [FULL, {"type": "BlockRemoved", "block_hashes": [7]}], "data_parallel_rank": 0},
    "batch is a map, SGLang's rank": {"type": "KVEventBatch", "ts": 1.5, "events": [FULL, ["BlockRemoved", [7]]], "attn_dp_rank": 0},
    "hashes in 64 bits": [1.5, [{**FULL, "block_hashes": [Wide(BIG), Wide(7)]}, {"type": "BlockRemoved", "block_hashes": [Wide(7)]}], 0],
    "hashes are negative": [1.5, [{**FULL, "block_hashes": [BIG, NEG]}, {"type": "BlockRemoved", "block_hashes": [Wide(NEG)]}], 0],
    "hashes are bytes": [1.5, [{**FULL, "block_hashes": RAW}, {"type": "BlockRemoved", "block_hashes": [RAW[1]]}], 0],
    "tokens are pairs": [1.5, [{**FULL, "token_ids": [[t, t + 1] for t in T]}, {"type": "BlockRemoved", "block_hashes": [7]}], 0],
    "tokens in 64 bits": [1.5, [{**FULL, "token_ids": [Wide(t) for t in T]}, {"type": "BlockRemoved", "block_hashes": [7]}], 0],
    "one event a block": [1.5, [{**FULL, "block_hashes": [BIG], "token_ids": T[:16], "extra_keys": [None]},
                                {**FULL, "block_hashes": [7], "parent_block_hash": BIG, "token_ids": T[16:], "extra_keys": [None]}, ["BlockRemoved", [7]]], 0],
    "blocks of 8 tokens": [1.5, [{**FULL, "block_hashes": [1, BIG, 3, 7], "block_size": 8, "extra_keys": None}, ["BlockRemoved", [7]]], 0],
    "a block of 32 tokens, and then one of 16": [1.5, [{**FULL, "block_hashes": [9], "block_size": 32, "extra_keys": None}, ["BlockRemoved", [9]],
                                                       {**FULL, "block_hashes": [1], "token_ids": T[:16], "extra_keys": []}], 0],
    "other kinds and groups besides": [1.5, [["BlockMoved", [1], 2], {"type": "Tick"}, {**FULL, "group_idx": 1, "kv_cache_spec_kind": "sliding_window", "block_hashes": [50, 51]}, FULL,
                                             {"type": "BlockRemoved", "block_hashes": [BIG], "group_idx": 1}, {"type": "BlockRemoved", "block_hashes": [7], "group_idx": 0}], 0],
}
json.dump({name: pack(batch).hex() for name, batch in FORMS.items()}, sys.stdout, indent=1)
print()
