"""Writes keys.txt with the functions of vLLM 0.32: for each block the key of its object, and its name
in KV events. Run it with PYTHONHASHSEED=0 and a Python that has vLLM."""
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils as u
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.kv_offload.file_mapper import FileMapper

layers = [f"model.layers.{i}.self_attn.attn" for i in range(2)]
for model, blocks in ("/models/tiny", 32), ("org/Tiny-1.0", 16):
    files = FileMapper("", model, blocks, 1, 2, 1, 1, 1, 0, "bfloat16",
                       [{"tokens_per_block": blocks, "layer_names": layers}])
    for algorithm in "sha256", "sha256_cbor":
        hash_of = get_hash_fn_by_name(algorithm)
        u.init_none_hash(hash_of)
        parent = None
        for i in range(2):
            parent = u.hash_block_tokens(hash_of, parent, range(i * blocks, (i + 1) * blocks),
                                         (("lora", "sql"),) if i else None)
            key = files.get_file_name(make_offload_key(parent, 0))
            print(key.lstrip("/"), u.maybe_convert_block_hash(parent))  # NIXL's client drops the slash
