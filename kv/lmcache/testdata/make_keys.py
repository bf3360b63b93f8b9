"""Writes made_keys.txt with LMCache 0.5.6's own CacheEngineKey and LayerCacheEngineKey: for engines of
one to sixteen workers, keys of chunks whole and layer by layer, and their fields in JSON. The halves
of redis:// are the keys with what redis_connector.py appends to them.

    python make_keys.py > made_keys.txt
"""
import json

import torch
from lmcache.utils import CacheEngineKey

CHUNKS = 0x5BF8ACAD057525C5, 0xA, 0xFFFFFFFFFFFFFFFF

for model, workers, dtype, layers in (("/models/Qwen3-8B", 1, torch.bfloat16, 0), ("org/m@1", 2, torch.half, 0),
                                      ("org/m", 16, torch.uint8, 0), ("org/m", 1, torch.float, 4),
                                      ("org/m", 2, torch.float8_e4m3fn, 3)):
    for worker in sorted({0, workers - 1}):
        for chunk in CHUNKS:
            whole = CacheEngineKey(model, workers, worker, chunk, dtype)
            for layer, key in enumerate(whole.split_layers(layers)) if layers else [(None, whole)]:
                for half in "", "kv_bytes", "metadata":
                    print(key.to_string() + half, json.dumps({"model": model, "world": workers, "worker": worker,
                          "chunk": f"{chunk:x}", "dtype": whole.to_dict()["dtype"], "layer": layer, "half": half}))
tagged = CacheEngineKey("org/m", 1, 0, CHUNKS[0], torch.half, {"lmcache.tag.user": "7"})
for key in [tagged, *tagged.split_layers(2)]:
    print(key.to_string(), json.dumps({"tags": True}))
