"""Stores pages with SGLang's own HiCacheNixl in the S3 listener of a cgn-kvcached, loads them
again, and publishes their KV events with SGLang's own publisher. It is what an SGLang does beyond
its GPU, without the engine. The prompts are those of kv/hicache/testdata/pages.json, the first
without and the second with a cache salt, and the host memory is a tensor.

    pip download sglang==0.5.23 --no-deps && python3 -m zipfile -e sglang-*.whl sglang-source
    bin/cgn-kvcached --data DIR --sock DIR/kv.sock --s3 127.0.0.1:29017 &
    bin/cgn-ctl sim --listen 127.0.0.1:29031 --model m &
    bin/cgn-agent --config AGENT.toml &   # kind = "sglang", url = "http://127.0.0.1:29031",
        # kv_events: endpoint = "tcp://127.0.0.1:29030", report = "DIR/kv.sock",
        # kv_events.hicache: bucket = "kvcache", model = "org/m"
    export SGLANG=sglang-source
    python perf/realengine/sglang/pages.py 127.0.0.1:29017 tcp://127.0.0.1:29030
    bin/cgn-ctl kv stats --sock DIR/kv.sock    # 4 count, 4 are not told

The Python is that of run.sh vllm. NIXL's wheel for CUDA 13 lacks a library of its plugin OBJ, so
the wheel for CUDA 12 takes its place.
"""
import base64
import json
import os
import sys
import time
import types

import msgspec
import nixl_cu12
import nixl_cu12._api
import nixl_cu12._bindings
import torch

sys.modules.update({"nixl": nixl_cu12, "nixl._api": nixl_cu12._api, "nixl._bindings": nixl_cu12._bindings})
for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.mem_cache", "sglang.srt.mem_cache.storage",
             "sglang.srt.mem_cache.storage.nixl", "sglang.srt.disaggregation"):
    module = types.ModuleType(name)  # a package whose __init__.py does not run: it needs a GPU's libraries
    module.__path__ = [os.path.join(os.environ["SGLANG"], *name.split("."))]
    sys.modules[name] = module
pool_host = types.ModuleType("sglang.srt.mem_cache.pool_host")  # for annotations only
pool_host.HostKVCache = object
sys.modules[pool_host.__name__] = pool_host

from sglang.srt.disaggregation.kv_events import KVEventBatch, ZmqEventPublisher  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig  # noqa: E402
from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl  # noqa: E402

PAGE, PAGES, LAYERS = 64, 4, 2


class Host:
    """Host memory in the layout page_first: keys and values, tokens, layers, heads."""

    page_size, layout, pin_memory = PAGE, "page_first", False

    def __init__(self):
        self.kv_buffer = torch.randn(2, PAGES * PAGE, LAYERS, 4, 8).to(torch.bfloat16)

    def get_page_buffer_meta(self, indices):
        size = self.kv_buffer[0, :PAGE].nbytes
        at = [self.kv_buffer[half, i].data_ptr() for i in indices[::PAGE].tolist() for half in (0, 1)]
        return at, [size] * len(at)


s3, events = sys.argv[1:]
settings = {"plugin": {"obj": {"active": True, "bucket": "kvcache", "endpoint_override": s3, "scheme": "http",
            "access_key": "cognitora", "secret_key": "cognitora", "use_virtual_addressing": "false"}}}
store = HiCacheNixl(HiCacheStorageConfig(
    tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
    enable_storage_metrics=False, is_page_first_layout=True, model_name="org/m", extra_config=settings))
host, every = Host(), torch.arange(PAGES * PAGE)
store.register_mem_pool_host(host)
publisher = ZmqEventPublisher(0, endpoint=events, bind=True)
with open("kv/hicache/testdata/pages.json") as f:
    prompts = {p["name"]: p for p in json.load(f)["prompts"]}
for name in "plain", "salt":
    hashes = prompts[name]["hashes"]
    before = store.batch_exists(hashes)
    stored = store.batch_set_v1(hashes, every)
    after, was = store.batch_exists(hashes), host.kv_buffer.clone()
    host.kv_buffer.zero_()
    loaded = store.batch_get_v1(hashes, every)
    print(name, "pages there before:", before, "stored:", sum(stored), "there:", after, "loaded:", sum(loaded),
          "equal:", torch.equal(was, host.kv_buffer), flush=True)
time.sleep(4)  # the agent connects
for name in "salt", "plain":
    publisher.publish(msgspec.msgpack.decode(base64.b64decode(prompts[name]["batch"]), type=KVEventBatch))
time.sleep(4)  # the agent tells
