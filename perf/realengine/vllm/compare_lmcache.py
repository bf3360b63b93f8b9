"""Copies of KV blocks between torch tensors and one cgn-kvcached: by the connector of deploy/vllm
over the lease socket, by LMCache over redis://, and a copy from tensor to tensor beside them.

  PYTHONPATH=deploy/vllm python compare_lmcache.py LEASE_SOCKET RESP_HOST:PORT DAEMON_PID ROUNDS

The daemon's RAM must hold 2 GiB for each round and 1 GiB more.

Prints a line of JSON for each round: seconds of wall time, of this process's CPU and of the
daemon's CPU.
"""
import asyncio
import json
import logging
import os
import sys
import threading
import time
from types import SimpleNamespace

import torch

from cognitora_kv import namespace
from cognitora_kv.copies import Cache, Load, Loader, Save, Saver
from cognitora_kv.digests import Chain, seed
from cognitora_kv.lease import Lease
from cognitora_kv.resp import Resp

# 1 GiB of blocks of a model with 16 layers, 8 heads of 128 in bfloat16, in blocks of 32 tokens.
LAYERS, HEADS, SIZE, TOKENS, BLOCKS, CHUNK = 16, 8, 128, 32, 512, 256
PROMPT = 8  # chunks that LMCache stores or loads at once
SHAPE = (BLOCKS, 2, TOKENS, HEADS, SIZE)
BYTES = LAYERS * BLOCKS * 2 * TOKENS * HEADS * SIZE * 2


def layers(make):
    return {str(i): make(SHAPE, dtype=torch.bfloat16) for i in range(LAYERS)}


class Ours:
    def __init__(self, socket, source, target):
        self.failed = []
        self.saver = Saver(Lease(socket, 60), Cache(source, BLOCKS), 4 * BYTES, self.failed.append)
        self.loader = Loader(Lease(socket, 60), Cache(target, BLOCKS), lambda places, why: self.failed.append(why))

    def save(self, name):
        self.space = namespace.text(name, "r", "bfloat16", "compare", TOKENS)
        self.chain = Chain(seed(name), TOKENS)
        self.chain.grow(list(range(BLOCKS * TOKENS)), BLOCKS)
        self.saver.add(Save("r", self.space, [
            (d, self.chain.parent(i) if i else bytes(32), self.chain.names[i], i)
            for i, d in enumerate(self.chain.digests)]))
        with self.saver.changed:
            self.saver.changed.wait_for(lambda: not self.saver.open)

    def load(self):
        self.loader.begin([Load(self.space, self.chain.digests, list(range(BLOCKS)))])
        self.loader.wait()
        if self.failed:
            raise SystemExit(f"ours failed: {self.failed[:3]}")


class LMCache:
    """LMCache's own connector, with the copies between chunks and blocks of its engine side."""

    def __init__(self, address, source, target):
        from lmcache.utils import CacheEngineKey
        from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator
        from lmcache.v1.memory_management import MemoryFormat
        from lmcache.v1.storage_backend.connector.redis_connector import RedisConnector
        self.key, self.format, self.source, self.target = CacheEngineKey, MemoryFormat.KV_2LTD, source, target
        self.allocator, self.blocks = HostMemoryAllocator(BYTES + (64 << 20)), CHUNK // TOKENS
        shape = torch.Size((2, LAYERS, CHUNK, HEADS * SIZE))
        self.shape = shape
        metadata = SimpleNamespace(get_shapes=lambda: [shape], get_dtypes=lambda: [torch.bfloat16], use_mla=False,
                                   chunk_size=CHUNK, get_num_groups=lambda: 1)
        backend = SimpleNamespace(config=SimpleNamespace(extra_config=None, use_layerwise=False), metadata=metadata,
                                  allocate=lambda shapes, dtypes, fmt: self.allocator.allocate(shapes, dtypes, fmt))
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.remote = self.wait(self.make(RedisConnector, address, backend))

    async def make(self, connector, address, backend):
        return connector("redis://" + address, self.loop, backend)

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def chunk(self, memory):
        return memory.tensor.view(2, LAYERS, self.blocks, TOKENS, HEADS, SIZE)

    def save(self, name):
        self.keys = [self.key(name, 1, 0, i, torch.bfloat16) for i in range(BLOCKS // self.blocks)]
        for first in range(0, len(self.keys), PROMPT):
            objects = [self.gather(i) for i in range(first, first + PROMPT)]
            self.wait(self.remote.batched_put(self.keys[first : first + PROMPT], objects))
            self.free(objects)

    def load(self):
        for first in range(0, len(self.keys), PROMPT):
            some = self.keys[first : first + PROMPT]
            found = self.wait(self.remote.batched_get_non_blocking("l", some))
            if len(found) != len(some):
                raise SystemExit(f"LMCache found {len(found)} of {len(some)} chunks")
            for i, memory in enumerate(found, first):
                self.scatter(i, memory)
            self.free(found)

    def gather(self, i):
        memory = self.allocator.allocate([self.shape], [torch.bfloat16], self.format)
        to = self.chunk(memory)
        for n, layer in enumerate(self.source.values()):
            to[:, n].copy_(layer[i * self.blocks : (i + 1) * self.blocks].transpose(0, 1))
        return memory

    def scatter(self, i, memory):
        come = self.chunk(memory)
        for n, layer in enumerate(self.target.values()):
            layer[i * self.blocks : (i + 1) * self.blocks].transpose(0, 1).copy_(come[:, n])

    def free(self, objects):
        for memory in objects:
            memory.ref_count_down()


def touch(address, size):
    """Fills the daemon's memory and empties it: the kernel provides pages at their first use."""
    resp, value = Resp(address, 60), bytes(32 << 20)
    for i in range(size // len(value)):
        resp.ask([[b"SET", b"touch-%d" % i, value]])
    resp.ask([[b"FLUSHALL"]])
    resp.close()


def daemon_seconds(pid):
    """Returns the CPU time of all threads that a process has."""
    tasks = f"/proc/{pid}/task"
    return sum(int(open(f"{tasks}/{t}/schedstat").read().split()[0]) for t in os.listdir(tasks)) / 1e9


def measured(pid, do):
    wall, own, daemon = time.perf_counter(), time.process_time(), daemon_seconds(pid)
    do()
    return [round(v, 5) for v in (time.perf_counter() - wall, time.process_time() - own, daemon_seconds(pid) - daemon)]


def main():
    logging.disable(logging.INFO)
    socket, address, pid, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    touch(address, (2 * rounds + 1) * BYTES)
    source, target = layers(torch.rand), layers(torch.zeros)  # no two blocks are equal
    ours, theirs = Ours(socket, source, target), LMCache(address, source, target)
    for i in range(rounds):
        r = {"bytes": BYTES}
        for name, side in (("ours", ours), ("lmcache", theirs)) if i % 2 else (("lmcache", theirs), ("ours", ours)):
            r[name + "_save"] = measured(pid, lambda: side.save(f"round-{i}"))
            for t in target.values():
                t.zero_()
            r[name + "_load"] = measured(pid, side.load)
            if not all(torch.equal(source[n], target[n]) for n in source):
                raise SystemExit(f"{name} came back with other bytes")
        r["memcpy"] = measured(pid, lambda: [target[n].copy_(source[n]) for n in source])
        print(json.dumps(r), flush=True)


if __name__ == "__main__":
    main()
