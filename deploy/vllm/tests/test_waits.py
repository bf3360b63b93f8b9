"""Tests of what waits for loads: layers, steps, and an engine whose daemon hangs.

  KV_LEASE=SOCKET KV_RESP=HOST:PORT KV_PID=PROCESS python -m unittest discover -s deploy/vllm/tests
"""
import contextlib
import os
from pathlib import Path
import signal
import threading
import time
from types import SimpleNamespace
import unittest
from unittest import mock

from test_package import SPACE, caches, chain, store
from cognitora_kv.copies import Cache, Load, Loader, Save, Saver
import torch


def hold(process):
    """Stops a process, as if it hung."""
    os.kill(process, signal.SIGSTOP)
    limit = time.monotonic() + 60
    while (state := Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]) != "T":
        if time.monotonic() > limit:
            raise TimeoutError(f"process {process} is in state {state}")
        time.sleep(0.01)


class HeldStore:
    """A daemon that has nothing, and answers only when it may go."""

    def __init__(self):
        self.asked, self.go = threading.Event(), threading.Event()

    def at_once(self, size):
        return 8

    @contextlib.contextmanager
    def get(self, namespace, digests):
        self.asked.set()
        self.go.wait(60)
        yield [None] * len(digests)

    def close(self):
        pass


class Ranks(unittest.TestCase):
    """A rank. It needs vLLM to be importable."""

    def test_a_step_begins_after_the_load_if_layers_do_not_wait(self):
        try:
            from cognitora_kv import connector
            from vllm.distributed import parallel_state
        except ImportError as e:
            self.skipTest(f"no vLLM: {e}")
        for each in (True, False):
            held, one = HeldStore(), SimpleNamespace(rank_in_group=0)
            settings = mock.Mock(layers=["a", "b"], blocks=64, staging=1 << 20, modules={})
            settings.store.return_value, settings.namespace.return_value = held, SPACE
            with mock.patch.object(parallel_state, "get_tp_group", return_value=one), \
                    mock.patch.object(parallel_state, "get_pp_group", return_value=one):
                rank = connector.Rank(settings)
            with mock.patch.object(connector, "waits", lambda layer: each):
                rank.register(caches())
            step = threading.Thread(target=rank.load, args=(connector.Plan(loads=[("", chain("rank", 1).digests, [3])]),))
            step.start()
            held.asked.wait(60)
            step.join(60 if each else 0.1)
            self.assertEqual(step.is_alive(), not each)
            held.go.set()
            step.join(60)
            self.assertEqual((step.is_alive(), rank.take_failed()), (False, {3}))
            rank.close()

    def test_layers_that_do_not_wait(self):
        try:
            from cognitora_kv.connector import waits
            from vllm.model_executor.layers.attention import Attention, MLAAttention
            from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache
        except ImportError as e:
            self.skipTest(f"no vLLM: {e}")
        by_op, directly = MLAAttention.__new__(MLAAttention), MLAAttention.__new__(MLAAttention)
        by_op.use_direct_call, directly.use_direct_call = False, True
        own = type("AnAttentionOfAModel", (MLAAttention,), {"use_direct_call": False})
        for layer, want in ((Attention.__new__(Attention), True), (by_op, True), (directly, False), (None, False),
                            (own.__new__(own), False), (DeepseekV32IndexerCache.__new__(DeepseekV32IndexerCache), False)):
            self.assertEqual(waits(layer), want, type(layer))


class Waits(unittest.TestCase):
    def setUp(self):
        self.failed = []

    def lose(self, places, why):
        self.failed += places

    def test_a_layer_without_a_cache_waits_for_all(self):
        held = HeldStore()
        loader = Loader(held, Cache(caches(), 64), self.lose)
        loader.begin([Load(SPACE, chain("shared", 3).digests, [0, 1, 2])])
        reader = threading.Thread(target=loader.wait, args=("a layer that reads the cache of b",))
        reader.start()
        held.asked.wait(60)
        reader.join(0.1)
        self.assertTrue(reader.is_alive())
        held.go.set()
        reader.join(60)
        self.assertEqual((reader.is_alive(), loader.work, self.failed), (False, None, [0, 1, 2]))
        loader.close()

    def test_a_daemon_that_hangs_is_waited_for_once(self):
        source, made = caches(), chain("hangs", 64)
        target = {n: torch.zeros_like(t) for n, t in source.items()}
        saver = Saver(store("lease"), Cache(source, 64), 1 << 30, lambda why: None)
        saver.add(Save("r", SPACE, [(d, made.parent(i) if i else bytes(32), made.names[i], i)
                                    for i, d in enumerate(made.digests)]))
        with saver.changed:
            saver.changed.wait_for(lambda: not saver.open)
        saver.close()
        lease, asked = store("lease"), []
        loader = Loader(lease, Cache(target, 64), self.lose)
        lease.timeout, lease.at_once, connected = 1, lambda size: 8, lease.connected
        lease.find(SPACE, [])  # connects
        lease.connected = lambda: asked.append(1) or connected()
        hold(int(os.environ["KV_PID"]))
        try:
            loader.begin([Load(SPACE, made.digests[:32], list(range(32))),
                          Load(SPACE, made.digests[32:], list(range(32, 64)))])
            loader.wait()
        finally:
            os.kill(int(os.environ["KV_PID"]), signal.SIGCONT)
        self.assertEqual((len(asked), self.failed), (1, list(range(64))))
        lease.timeout = 10
        loader.begin([Load(SPACE, made.digests, list(range(64)))])  # it connects anew
        loader.wait()
        self.assertEqual(len(self.failed), 64)
        self.assertTrue(torch.equal(source["a"], target["a"]))
        loader.close()


if __name__ == "__main__":
    unittest.main()
