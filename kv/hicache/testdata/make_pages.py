"""Writes pages.json with SGLang's own code: pages of prompts, the keys of their objects, and the KV
events about them. Nothing of SGLang is written anew here:

- hash_binding.cpp is compiled, and get_hash_str, get_storage_hash_str, hash_str_to_int64 and the
  functions that they call run as they stand in mem_cache/utils.py and cpp_utils/native_hash.py.
  The imports of utils.py (Triton kernels) are left out, so the functions are cut from the file.
- The keys are those of HiCacheNixl in storage/nixl/hicache_nixl.py, without its __init__, which
  makes a NIXL agent; the statements of __init__ that make the suffixes are cut from it.
- The events are made by KVCacheEventRecorder in mem_cache/events.py and encoded as the publisher in
  disaggregation/kv_events.py encodes them.

    pip download sglang==0.5.23 --no-deps && python3 -m zipfile -e sglang-*.whl sglang-source
    SGLANG=sglang-source python make_pages.py > pages.json

The Python needs torch, nixl, msgspec, pyzmq, pydantic, orjson and pybind11, and g++ with OpenSSL.
"""

import ast
import base64
import importlib.util
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import types

ROOT = os.environ["SGLANG"]
for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.mem_cache", "sglang.srt.mem_cache.storage",
             "sglang.srt.mem_cache.storage.nixl", "sglang.srt.disaggregation"):
    module = types.ModuleType(name)  # a package whose __init__.py does not run
    module.__path__ = [os.path.join(ROOT, *name.split("."))]
    sys.modules[name] = module


def read(path):
    with open(os.path.join(ROOT, "sglang/srt/mem_cache", path)) as f:
        return f.read()


def cut(path, names, into):
    """Runs functions of a file."""
    tree = ast.parse(read(path))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.decorator_list = []
            exec(compile(ast.Module([node], []), path, "exec"), into.__dict__)


def compiled():
    import pybind11

    out = os.path.join(tempfile.mkdtemp(), "hicache_hash_cpp" + sysconfig.get_config_var("EXT_SUFFIX"))
    subprocess.check_call(
        ["g++", "-O2", "-std=c++17", "-shared", "-fPIC", "-DTORCH_EXTENSION_NAME=hicache_hash_cpp",
         "-I" + pybind11.get_include(), "-I" + sysconfig.get_paths()["include"],
         os.path.join(ROOT, "sglang/srt/mem_cache/cpp_utils/hash_binding.cpp"), "-lcrypto", "-o", out])
    spec = importlib.util.spec_from_file_location("hicache_hash_cpp", out)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


from array import array
from typing import Any, List, Optional
import hashlib

utils = types.ModuleType("sglang.srt.mem_cache.utils")
native = compiled()
utils.__dict__.update(array=array, Any=Any, List=List, Optional=Optional, hashlib=hashlib,
                      _load_native_hash_module=lambda: native)
cut("cpp_utils/native_hash.py", {"_native_hash_input", "get_native_hash"}, utils)
cut("utils.py", {"get_hash_str", "storage_namespace_seed", "get_storage_hash_str", "hash_str_to_int64",
                 "compute_node_hash_values", "compute_node_event_hash_values"}, utils)
sys.modules[utils.__name__] = utils
pool_host = types.ModuleType("sglang.srt.mem_cache.pool_host")  # for annotations only
pool_host.HostKVCache = object
sys.modules[pool_host.__name__] = pool_host

from sglang.srt.disaggregation.kv_events import KVEventBatch
from sglang.srt.mem_cache.events import KVCacheEventRecorder
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl
import msgspec


def backend(model, rank, ranks, mla, zero_copy):
    b = object.__new__(HiCacheNixl)
    b.is_mla_model, b.is_zero_copy = mla, zero_copy
    init = ast.parse(textwrap.dedent(read("storage/nixl/hicache_nixl.py")))
    body = next(m for c in init.body if getattr(c, "name", "") == "HiCacheNixl" for m in c.body
                if getattr(m, "name", "") == "__init__").body
    made = [n for n in body if "config_suffix" in ast.unparse(n) or ast.unparse(n).startswith("model_name = ")]
    exec(compile(ast.Module(made, []), "hicache_nixl.py", "exec"),
         {"self": b, "model_name": model, "tp_rank": rank, "tp_size": ranks})
    b.close = lambda: None
    return b


class Tokens(list):
    """A key of SGLang's radix tree, as far as hashing and events read it."""

    def __init__(self, ids, extra=None, salt=None, bigram=False):
        super().__init__(ids[:-1] if bigram else ids)
        self.token_ids, self.extra_key, self.cache_salt, self.is_bigram = ids, extra, salt, bigram


def prompt(name, ids, page, **how):
    key = Tokens(ids, **how)
    hashes = utils.get_storage_hash_str(key, None, page_size=page)
    root = types.SimpleNamespace(parent=None, key=Tokens([]), hash_value=[], event_hash_value=None)
    node = types.SimpleNamespace(parent=root, key=key, hash_value=None, event_hash_value=None)
    recorder = KVCacheEventRecorder(enabled=True, page_size=page)
    recorder.record_store(node)
    events = msgspec.msgpack.encode(KVEventBatch(ts=1.5, events=recorder.take()))
    return {"name": name, "page_size": page, "tokens": ids, "hashes": hashes,
            "batch": base64.b64encode(events).decode()}


r = random.Random(23)
ids = [r.randrange(151_000) for _ in range(256)]
wide = ids[:-1] + [2**32 - 1]
prompts = [prompt("plain", ids, 64), prompt("plain 16", ids, 16), prompt("plain 128", wide, 128),
           prompt("page of 1", ids[:32], 1), prompt("salt", ids, 64, salt="s"),
           prompt("extra key", ids, 64, extra="a"), prompt("eagle", ids + [7], 64, bigram=True)]
keys = []
for model, rank, ranks, mla in (("Qwen/Qwen3-8B", 0, 1, False), ("Qwen/Qwen3-8B", 1, 2, False),
                                ("/models/a_b", 7, 16, False), ("deepseek-ai/DeepSeek-V3", 0, 1, True)):
    for zero_copy in (False, True):
        b = backend(model, rank, ranks, mla, zero_copy)
        page = prompts[0]["hashes"][:1]
        names = b._get_key_list_from_meta(page) if zero_copy else [b._get_suffixed_key(k) for k in page]
        beside = []
        for pool in PoolName if zero_copy and rank == 0 else ():
            if pool != PoolName.KV:
                for n in (1, 2):
                    beside += b._get_hybrid_component_keys(page, pool, n)
        keys.append({"model": model, "rank": rank, "ranks": ranks, "mla": mla, "halves": zero_copy,
                     "keys": names, "beside": sorted(set(beside))})
print('{"version": "0.5.23", "prompts": [')
print(",\n".join(json.dumps(p) for p in prompts))
print('], "keys": [')
print(",\n".join(json.dumps(k) for k in keys))
print("]}")
