"""Writes faults.txt with the functions of vLLM 0.32: the key and the name in KV events of a prompt's
first block, for an engine and for engines that differ in one thing. Run it with a Python that has
vLLM.

    PYTHONHASHSEED=0 python make_faults.py > faults.txt
"""
import os

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils as u
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.kv_offload.file_mapper import FileMapper

layers = [f"model.layers.{i}.self_attn.attn" for i in range(2)]


def block(what, model="/models/tiny", size=32, dtype="bfloat16", seed="0", algorithm="sha256_cbor", extra=None, tp=1):
    files = FileMapper("", model, size, 1, tp, 1, 1, 1, 0, dtype, [{"tokens_per_block": size, "layer_names": layers}])
    os.environ["PYTHONHASHSEED"] = seed
    hash_of = get_hash_fn_by_name(algorithm)
    u.init_none_hash(hash_of)
    h = u.hash_block_tokens(hash_of, None, range(size), extra)
    print(files.get_file_name(make_offload_key(h, 0)).lstrip("/"), u.maybe_convert_block_hash(h), what)


block("none")
block("seed", seed="1")
block("block size", size=16)
block("data type", dtype="float16")
block("adapter", extra=(("lora", "sql"),))
block("salt", extra=("salt",))
block("hash function", algorithm="sha256")
block("model", model="/models/other")
