"""Tests of the package without vLLM: digests and names against those of the Go packages, stores
against a running cgn-kvcached, copies between tensors and the daemon.

  KV_LEASE=SOCKET KV_RESP=HOST:PORT python -m unittest discover -s deploy/vllm/tests
"""
import contextlib
import json
import os
from pathlib import Path
import socket
import struct
import sys
import tempfile
import time
from types import SimpleNamespace
import unittest
from unittest import mock

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))
ROOT = HERE.parents[3]

from cognitora_kv import namespace  # noqa: E402
from cognitora_kv.copies import Cache, Load, Loader, Save, Saver  # noqa: E402
from cognitora_kv.digests import TOKENS, Chain, model_id, seed  # noqa: E402
from cognitora_kv.handover import FEW, LONGEST, MOST as WAITING, PAUSE, Wait, asks, in_parts, says, wanted  # noqa: E402
from cognitora_kv.lease import OK, Expired, Lease, Refused  # noqa: E402
from cognitora_kv.reads import MOST, Reads  # noqa: E402
from cognitora_kv.resp import Resp  # noqa: E402
import torch  # noqa: E402

SPACE = namespace.text("m", "r", "float32", "test", 32)
NOBODY = "/nonexistent/kv-lease.sock"


def store(kind):
    return Lease(os.environ["KV_LEASE"], 10) if kind == "lease" else Resp(os.environ["KV_RESP"], 10)


KINDS = ("lease", "resp")


def chain(start, blocks, tokens=32):
    made = Chain(seed("m", "", start), tokens)
    made.grow(list(range(blocks * tokens)), blocks)
    return made


class Names(unittest.TestCase):
    def test_digests(self):
        cases = json.loads((ROOT / "router/prefix/testdata/digests.json").read_text())
        checked = 0
        for c in cases:
            start = seed(*(c.get(k) or "" for k in ("model", "adapter", "salt")))
            self.assertEqual(start.hex(), c["seed"])
            tokens = c.get("tokens") or []
            for size in (16, 32, 64, 128):
                made = Chain(start, size)
                made.grow(tokens, len(tokens) // size)
                for i, (digest, names) in enumerate(zip(made.digests, made.names)):
                    last = (i + 1) * size // TOKENS
                    self.assertEqual(digest.hex(), c["digests"][last - 1])
                    inner = c["digests"][last - size // TOKENS : last - 1]
                    self.assertEqual(names.hex(), "".join(d[:16] for d in inner))
                    checked += 1
        self.assertGreater(checked, 2)

    def test_a_chain_grows_as_it_would_at_once(self):
        at_once, grown, tokens = chain("", 9), Chain(seed("m"), 32), list(range(9 * 32))
        for n in (1, 1, 4, 9):
            grown.grow(tokens, n)
        self.assertEqual((grown.digests, grown.names), (at_once.digests, at_once.names))
        self.assertEqual(grown.parent(0), seed("m"))
        self.assertEqual(grown.parent(3), grown.digests[2])

    def test_namespaces(self):
        for n in json.loads((ROOT / "kv/block/testdata/addresses.json").read_text())["Namespaces"]:
            f = n["Fields"]
            if f.get("Space"):
                continue
            made = namespace.text(f["Model"], f["Revision"], f["DType"], f["Layout"], f["Tokens"],
                                  (f["TP"], f.get("TPRank", 0)), (f["PP"], f.get("PPRank", 0)), f.get("Tenant", ""))
            self.assertEqual(made, n["Text"])
            self.assertEqual(model_id(made).hex(), n["ID"])
        with self.assertRaisesRegex(ValueError, "shorten"):
            namespace.text("m" * 512, "r", "d", "l", 32)

    def test_revisions(self):
        with tempfile.TemporaryDirectory() as d:
            at = Path(d)
            with self.assertRaisesRegex(ValueError, "no weights"):
                namespace.revision_of(at)
            (at / "config.json").write_text("{}")
            (at / "model.safetensors").write_bytes(bytes(1 << 20))
            first = namespace.revision_of(at)
            self.assertEqual(first, namespace.revision_of(at))
            for change in (
                lambda: (at / "config.json").write_text('{"a":1}'),
                lambda: (at / "model.safetensors").write_bytes(bytes((1 << 20) - 1) + b"x"),
                lambda: (at / "model.safetensors").write_bytes(bytes((1 << 20) + 1)),
                lambda: (at / "more.safetensors").write_bytes(b""),
            ):
                change()
                self.assertNotEqual(first, namespace.revision_of(at))
            commit = at / "snapshots" / ("a" * 40)
            commit.mkdir(parents=True)
            self.assertEqual(namespace.revision_of(commit), "a" * 40)


class Stores(unittest.TestCase):
    def keep(self, s, made, contents):
        size = max(map(len, contents))
        room = s.room(size * len(contents))
        for i, c in enumerate(contents):
            room.memory[i * size : i * size + len(c)] = c
        return s.keep(room, SPACE, [
            (i * size, len(c), made.digests[i], made.parent(i) if i else bytes(32), made.names[i])
            for i, c in enumerate(contents)])

    def test_what_is_kept_is_found_and_read(self):
        for kind in KINDS:
            with self.subTest(kind):
                s, made = store(kind), chain(kind, 600)
                contents = [struct.pack("<I", i) * (1 + i % 3) for i in range(599)] + [b"z" * 70_000]
                self.assertEqual(s.find(SPACE, made.digests[:3]), [False] * 3)
                self.assertEqual(self.keep(s, made, contents), 600)
                self.assertEqual(self.keep(s, made, contents[:2]), 2, "again")
                self.assertEqual(s.find(SPACE, made.digests), [True] * 600)
                self.assertEqual(s.find(SPACE + "other", made.digests[:1]), [False])
                n = s.at_once(70_000)
                for at in range(0, 600, n):
                    with s.get(SPACE, made.digests[at : at + n]) as pieces:
                        self.assertEqual([bytes(p) for p in pieces], contents[at : at + n])
                with s.get(SPACE, [made.digests[0], seed("nobody"), made.digests[1]]) as pieces:
                    self.assertEqual([p is None for p in pieces], [False, True, False])
                s.close()
                with s.get(SPACE, made.digests[:1]) as pieces:  # connects anew
                    self.assertEqual(bytes(pieces[0]), contents[0])
                s.close()

    def test_both_ways_lead_to_the_same_blocks(self):
        lease, resp, made = store("lease"), store("resp"), chain("both", 1)
        self.keep(resp, made, [b"over resp"])
        with lease.get(SPACE, made.digests) as pieces:
            self.assertEqual(bytes(pieces[0]), b"over resp")
        lease.close(), resp.close()

    def test_nobody_answers(self):
        for s in (Lease(NOBODY, 1), Resp("127.0.0.1:1", 1)):
            for _ in range(2):
                with self.assertRaisesRegex(OSError, "cgn-kvcached at"):
                    s.find(SPACE, [seed("m")])
            s.close()

    def test_a_daemon_that_has_started_anew(self):
        for kind in KINDS:
            with self.subTest(kind):
                s, made = store(kind), chain("anew " + kind, 1)
                self.keep(s, made, [b"x"])
                old, (here, there) = s.socket, socket.socketpair()
                here.settimeout(10)
                s.socket = here
                there.close()  # as the daemon's end of a connection when it stops
                self.assertEqual(s.find(SPACE, made.digests), [True])
                s.close(), old.close()

    def test_a_late_lease(self):
        s, made = store("lease"), chain("late", 1)
        self.keep(s, made, [b"x"])  # connects, which reads the clock
        later = time.monotonic_ns() + 10**11
        with mock.patch("cognitora_kv.lease.time.monotonic_ns") as clock:
            clock.side_effect = lambda: later
            with self.assertRaises(Expired), s.get(SPACE, made.digests):
                pass
        s.close()


class FakeLease:
    """A lease that notes what it is told, or fails."""

    def __init__(self):
        self.told, self.fails, self.left_out = [], None, []

    def read(self, node, namespaces):
        if self.fails:
            raise self.fails
        self.told.append((node, namespaces))
        return self.left_out

    def close(self):
        pass


class Reading(unittest.TestCase):
    def test_the_daemon_is_told(self):
        s = store("lease")
        self.assertEqual(s.read("node", [SPACE]), [])
        self.assertEqual(s.reads, {SPACE: OK})
        other = namespace.text("m", "r2", "float32", "test", 32)
        for wanted in ([SPACE, other], [other], [other]):
            self.assertEqual(s.read("node", wanted), [])
            self.assertEqual(list(s.reads), wanted)
        s.close()
        self.assertEqual(s.read("node", [other]), [], "connects anew")
        self.assertEqual(list(s.reads), [other])
        with self.assertRaisesRegex(OSError, "status 7"):
            s.read("node", ["no namespace"])
        s.close()

    def test_there_is_a_bound(self):
        s = store("lease")
        many = [namespace.text("m", f"r{i}", "float32", "test", 32) for i in range(65)]
        self.assertEqual(s.read("bounded", many), many[64:])
        self.assertEqual(s.read("bounded", many), many[64:], "again")
        s.close()

    def test_adapters_come_and_go(self):
        lease, told = FakeLease(), []
        r = Reads(lease, "node", "base", lambda *text: told.append(text))
        self.assertEqual(lease.told, [("node", ["base"])], "before the constructor returns")

        def comes(*wanted):
            limit = time.monotonic() + 60
            while lease.told[-1][1] != list(wanted):
                self.assertLess(time.monotonic(), limit, lease.told[-1])
                time.sleep(0.01)

        r.use("a", "base+1")
        comes("base", "base+1")
        r.use("b", "base+2")
        r.use("a", "base+3")  # other weights
        comes("base", "base+2", "base+3")
        r.use("c", "base+2")  # the same weights
        self.assertEqual(r.wanted(), ["base", "base+2", "base+3"])
        for i in range(MOST):
            r.use(f"n{i}", f"n{i}")
        comes("base", *(f"n{i}" for i in range(1, MOST)))
        r.anew("base+g")
        comes("base+g")
        r.close()
        self.assertEqual(told, [])

    def test_failures_are_said_once(self):
        lease, told = FakeLease(), []
        lease.fails = OSError("gone")
        r = Reads(lease, "node", "base", lambda *text: told.append(text))
        self.assertEqual((r.tell(), len(told)), (1.0, 1))
        self.assertIn("gone", told[0][1])
        lease.fails = Refused("an old daemon")
        self.assertEqual((r.tell(), r.tell(), len(told)), (60.0, 60.0, 2))
        lease.fails, lease.left_out = None, ["base"]
        self.assertEqual((r.tell(), r.tell(), len(told)), (1.0, 1.0, 3))
        r.close()


class Waiting(unittest.TestCase):
    def test_params(self):
        self.assertTrue(asks({"cgn_store": True}))
        for odd in (None, {}, [], "x", {"cgn_store": 1}, {"cgn_store": "true"}):
            self.assertFalse(asks(odd))
        space = model_id(SPACE)[:8].hex()
        self.assertEqual((says(64, SPACE), says(0, SPACE)), ({"cgn_tokens": 64, "cgn_space": space}, None))
        for params, want in (
            (None, (0, 1.0)), ({"cgn_tokens": 64}, (64, 1.0)), ({"cgn_tokens": 64, "cgn_wait_ms": 250}, (64, 0.25)),
            ({"cgn_tokens": -3, "cgn_wait_ms": -1}, (0, 0)), ({"cgn_tokens": "64", "cgn_wait_ms": None}, (0, 1.0)),
            ({"cgn_tokens": True, "cgn_wait_ms": 1e300}, (0, LONGEST)), ({"cgn_tokens": float("nan")}, (0, 1.0)),
            ({"cgn_tokens": 64, "cgn_space": space}, (64, 1.0)), ({"cgn_tokens": 64, "cgn_space": "another"}, (0, 0)),
        ):
            self.assertEqual(wanted(params, SPACE), want)

    def test_the_wait_is_bounded(self):
        now = 0.0
        w = Wait((100, 0.01), lambda: now)
        self.assertFalse(w.pauses())
        self.assertTrue(w.goes_on(32, 128, 2))
        self.assertTrue(w.pauses())
        now = 2 * PAUSE
        self.assertFalse(w.pauses())
        self.assertTrue(w.goes_on(64, 128, 1))
        now = 0.01
        self.assertFalse(w.goes_on(64, 128, 1))
        self.assertFalse(w.goes_on(0, 128, 1), "it has ended")
        self.assertFalse(w.pauses())

    def test_what_is_there_ends_the_wait(self):
        for there, most, waiting in ((100, 128, 1), (96, 96, 1), (0, 128, WAITING + 1), (0, 0, 1)):
            w = Wait((100, 1), lambda: 0.0)
            self.assertFalse(w.goes_on(there, most, waiting))
            self.assertIsNone(w.until)


    def test_a_wait_looks_few_blocks_up(self):
        for there in (0, 3, FEW, FEW + 1, 5 * FEW, 900, 1000):
            asked = []
            digests = list(range(1000))
            found = in_parts(lambda part: asked.append(len(part)) or sum(d < there for d in part), digests)
            self.assertEqual(found, there)
            self.assertLessEqual(sum(asked), 5 * there + FEW)
            self.assertLessEqual(len(asked), 5)
        self.assertEqual(in_parts(len, []), 0)


class FakeRequest:
    """What the planner reads of a request of vLLM."""

    def __init__(self, name, tokens, params=None):
        self.request_id, self.all_token_ids, self.kv_transfer_params = name, list(range(tokens)), params
        self.num_tokens = self.num_prompt_tokens = self.num_computed_tokens = tokens
        self.lora_request = self.cache_salt = None
        self.skip_reading_prefix_cache = False


class FakeStore:
    """A daemon that has the first blocks of a chain, or does not answer."""

    def __init__(self, made):
        self.digests, self.has, self.asked, self.fails = made.digests, set(), 0, False

    def find(self, namespace, digests):
        self.asked += 1
        if self.fails:
            raise OSError("gone")
        return [self.digests.index(d) in self.has for d in digests]


class FakeSteps:
    """The steps of a scheduler, one request in each."""

    def __init__(self, request, computed, places):
        self.preempted_req_ids, self.scheduled_cached_reqs = None, mock.Mock(req_ids=[])
        self.scheduled_new_reqs = [mock.Mock(req_id=request.request_id, num_computed_tokens=computed,
                                             block_ids=(places,))]
        self.num_scheduled_tokens = {request.request_id: request.num_tokens - computed}


def planner(test, blocks=8):
    """Returns a Planner, and its daemon, which can have the first blocks of a FakeRequest."""
    try:
        from cognitora_kv.connector import Planner
    except ImportError as e:
        test.skipTest(f"no vLLM: {e}")
    made = Chain(seed("m"), 32)
    made.grow(list(range(32 * blocks)), blocks)
    store = FakeStore(made)
    settings = mock.Mock(block_tokens=32, tp=1, pp=1, model="m")
    settings.store.return_value, settings.reads.return_value = store, None
    settings.adapter.return_value, settings.namespace.return_value = "", SPACE
    return Planner(settings), store


class Planning(unittest.TestCase):
    """The scheduler's side. It needs vLLM to be importable."""

    def planner(self):
        return planner(self)

    def test_it_waits_for_what_another_engine_stores(self):
        p, store = self.planner()
        r = FakeRequest("d", 8 * 32 + 5, {"cgn_tokens": 8 * 32})
        clock = [0.0]
        p.follow(r).wait.clock = lambda: clock[0]
        self.assertIsNone(p.matched(r, 0))
        self.assertIsNone(p.matched(r, 0))
        self.assertEqual(store.asked, 1, "the second lookup came too early")
        store.has, clock[0] = {0, 1, 2}, 0.1
        self.assertIsNone(p.matched(r, 0))
        store.has, clock[0] = set(range(8)), 0.2
        self.assertEqual(p.matched(r, 0), 8 * 32)
        self.assertEqual(p.matched(r, 3 * 32), 5 * 32, "after a preemption")

    def test_it_takes_what_is_there_in_the_end(self):
        p, store = self.planner()
        r = FakeRequest("d", 8 * 32, {"cgn_tokens": 8 * 32, "cgn_wait_ms": 100})
        clock, store.has = [0.0], {0, 1, 5}
        p.follow(r).wait.clock = lambda: clock[0]
        self.assertIsNone(p.matched(r, 32))
        clock[0] = 0.1
        self.assertEqual(p.matched(r, 32), 32)

    def test_an_adapter_is_a_model_of_its_own(self):
        p, _ = self.planner()
        base, tuned, salted = (FakeRequest(name, 32) for name in "bts")
        tuned.lora_request = salted.lora_request = mock.Mock(lora_name="sql")
        salted.cache_salt = "tenant"
        self.assertEqual([p.follow(r).chain.start for r in (base, tuned, salted)],
                         [seed("m"), seed("sql"), seed("sql", "", "tenant")])

    def test_a_reset_leaves_all_blocks(self):
        p, store = self.planner()
        p.settings.named.side_effect = lambda adapter: p.settings.revision
        p.settings.namespace.side_effect = lambda named, tp, pp: "space of " + named
        p.settings.revision, p.reads = "old", mock.Mock()
        p.settings.reset.side_effect = lambda: setattr(p.settings, "revision", "new")
        store.has = set(range(8))
        running, waits = FakeRequest("r", 8 * 32), FakeRequest("w", 8 * 32)
        for r in (running, waits):
            self.assertEqual(p.matched(r, 0), 7 * 32)
        p.allocated(running, 7 * 32)
        plan = p.plan(FakeSteps(running, 7 * 32, list(range(8))))
        self.assertEqual(([x[0] for x in plan.loads], plan.saves), (["old"], []))
        p.reset()
        p.loaded(plan.step, set())
        p.reads.anew.assert_called_once_with("space of new")
        plan = p.plan(FakeSteps(running, 0, list(range(8))))  # it computes with the weights of both
        self.assertEqual((plan.loads, plan.saves), ([], []))
        asked = []
        store.find = lambda space, digests: asked.append(space) or [False] * len(digests)
        self.assertEqual((p.matched(running, 0), p.matched(waits, 0)), (0, 0))
        self.assertEqual(asked, ["space of new"] * 2)
        p.allocated(running, 0)
        plan = p.plan(FakeSteps(running, 0, list(range(8))))
        self.assertEqual([(s[1], len(s[2])) for s in plan.saves], [("new", 8)])
        self.assertEqual(p.finished(running), (True, None))

    def test_a_preempted_request_is_read_until_it_ends(self):
        p, _ = self.planner()
        r = FakeRequest("r", 8 * 32, {"cgn_store": True})
        p.matched(r, 0)
        p.plan(FakeSteps(r, 0, list(range(8))))
        p.reset()
        self.assertEqual(p.finished(r), (True, None), "ranks may read its blocks, which count no longer")

    def test_it_waits_for_no_daemon_that_is_gone(self):
        p, store = self.planner()
        r, store.fails = FakeRequest("d", 8 * 32, {"cgn_tokens": 8 * 32}), True
        self.assertEqual((p.matched(r, 0), p.matched(r, 0)), (0, 0))
        self.assertEqual(p.waiting(FakeRequest("e", 1)), 1)
        p.again = 0.0
        self.assertEqual(p.matched(r, 0), 0, "it asks again, and has not waited")

    def test_it_says_what_it_stores(self):
        p, store = self.planner()
        r = FakeRequest("p", 8 * 32 + 5, {"cgn_store": True})
        self.assertEqual(p.matched(r, 0), 0)
        plan = p.plan(FakeSteps(r, 0, list(range(9))))
        self.assertEqual([b[3] for b in plan.saves[0][2]], list(range(8)))
        self.assertEqual(p.finished(r), (True, says(8 * 32, SPACE)))
        plain = FakeRequest("q", 64)
        p.matched(plain, 0)
        self.assertEqual(p.finished(plain), (False, None))
        self.assertEqual(p.finished(FakeRequest("unknown", 64, {"cgn_store": True})), (False, None))
        p.matched(r, 0)
        p.again = time.monotonic() + 60
        self.assertEqual(p.finished(r), (False, None), "the daemon is gone")

    def test_it_stores_again_what_only_the_engine_has(self):
        p, store = self.planner()
        r, store.has = FakeRequest("p", 8 * 32, {"cgn_store": True}), {0, 1}
        self.assertEqual(p.matched(r, 6 * 32), 0)
        self.assertEqual([b[3] for b in p.plan(FakeSteps(r, 6 * 32, list(range(8)))).saves[0][2]], list(range(2, 8)))
        r, store.has = FakeRequest("p2", 8 * 32, {"cgn_store": True}), set(range(7))
        self.assertEqual((p.matched(r, 6 * 32), p.matched(r, 7 * 32)), (32, 0))
        self.assertEqual([b[3] for b in p.plan(FakeSteps(r, 7 * 32, list(range(8)))).saves[0][2]], [7])


def caches(blocks=64):
    """Two layers as vLLM has them: blocks in the first dimension, or in the second."""
    torch.manual_seed(7)
    return {"a": torch.rand(blocks, 2, 4, 32, 8), "b": torch.rand(2, blocks, 32, 4, 8).permute(0, 1, 3, 2, 4)}


class Refusals(unittest.TestCase):
    """What the connector does not start with. It needs vLLM to be importable."""

    def refusal(self, spec, groups=1, parallel=None, policy="recompute", **cache):
        try:
            from cognitora_kv.connector import Settings
        except ImportError as e:
            self.skipTest(f"no vLLM: {e}")
        config = SimpleNamespace(parallel_config=SimpleNamespace(**parallel or {}),
                                 cache_config=SimpleNamespace(**cache),
                                 kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy))
        kept = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)] * groups)
        try:
            Settings.check(None, config, kept)
        except ValueError as e:
            return str(e)
        return ""

    def test_what_cannot_be_kept(self):
        kind = type("FullAttentionSpec", (), {})
        full = kind()
        full.block_size = 128
        self.assertEqual(self.refusal(full), "")
        self.assertIn("2 groups of layers", self.refusal(full, groups=2))
        self.assertIn("calculate-kv-scales", self.refusal(full, calculate_kv_scales=True))
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            self.assertIn(name, self.refusal(full, parallel={name: 2}))
        for size in (8, 40, 1024):
            full.block_size = size
            self.assertIn("--block-size", self.refusal(full))
        sliding = type("SlidingWindowSpec", (), {"block_size": 32})()
        self.assertIn("SlidingWindowSpec", self.refusal(sliding))
        mixed = type("Uniform", (), {"block_size": 32, "kv_cache_specs": {"a": kind(), "b": sliding}})()
        self.assertIn("SlidingWindowSpec", self.refusal(mixed))

    def test_blocks_that_are_gone_must_be_computed(self):
        full = type("FullAttentionSpec", (), {"block_size": 128})()
        wanted = 'set "kv_load_failure_policy": "recompute" in --kv-transfer-config'
        self.assertIn(wanted, self.refusal(full, policy="fail"))
        multi = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_load_failure_policy="fail"))
        with mock.patch("cognitora_kv.connector.get_current_vllm_config_or_none", return_value=multi):
            self.assertIn(wanted, self.refusal(full))



class Copies(unittest.TestCase):
    def setUp(self):
        self.failed, self.told = [], []

    def fail(self, places, why):
        self.failed += places

    def copies(self, kind, most=1 << 30, blocks=64):
        source, target = caches(blocks), {n: torch.zeros_like(t) for n, t in caches(blocks).items()}
        saver = Saver(store(kind), Cache(source, blocks), most, self.told.append)
        loader = Loader(store(kind), Cache(target, blocks), self.fail)
        self.addCleanup(saver.close), self.addCleanup(loader.close)
        return source, target, saver, loader

    def saved(self, saver, made, places, request="r"):
        saver.add(Save(request, SPACE, [(made.digests[i], made.parent(i) if i else bytes(32), made.names[i], p)
                                        for i, p in enumerate(places)]))
        with saver.changed:
            saver.changed.wait_for(lambda: not saver.open)

    def test_blocks_go_and_come_back(self):
        for kind in KINDS:
            with self.subTest(kind):
                source, target, saver, loader = self.copies(kind)
                made = chain("copies " + kind, 40)
                self.saved(saver, made, range(20, 60))
                self.assertEqual((saver.saved, saver.dropped, self.told), (40, 0, []))
                loader.begin([Load(SPACE, made.digests[:10], list(range(10))),
                              Load(SPACE, made.digests[10:], list(range(10, 40)))])
                loader.wait("a")
                self.assertTrue(torch.equal(source["a"][20:60], target["a"][:40]))
                loader.wait()
                self.assertTrue(torch.equal(source["b"][:, 20:60], target["b"][:, :40]))
                self.assertEqual(self.failed, [])
                self.assertEqual(float(target["a"][40:].abs().sum()), 0)

    def test_what_is_missing_fails_and_the_rest_comes(self):
        source, target, saver, loader = self.copies("lease")
        made = chain("gaps", 6)
        self.saved(saver, made, range(3))
        with contextlib.closing(store("resp")) as resp:
            resp.keep(resp.room(8), SPACE, [(0, 8, made.digests[4], made.digests[3], made.names[4])])  # too short
        loader.begin([Load(SPACE, made.digests, [9, 8, 7, 6, 5, 4])])
        loader.wait()
        self.assertEqual(sorted(self.failed), [4, 5, 6])
        self.assertTrue(torch.equal(source["a"][:3], target["a"][[9, 8, 7]]))

    def test_nothing_waits_for_a_daemon_that_is_gone(self):
        layers = caches()
        saver = Saver(Lease(NOBODY, 1), Cache(layers, 64), 1 << 30, self.told.append)
        loader = Loader(Lease(NOBODY, 1), Cache(layers, 64), self.fail)
        made = chain("gone", 3)
        self.saved(saver, made, range(3))
        loader.begin([Load(SPACE, made.digests, [0, 1, 2])])
        loader.wait("b")
        loader.wait()
        self.assertEqual((saver.saved, saver.dropped, len(self.told), self.failed), (0, 3, 1, [0, 1, 2]))
        saver.close(), loader.close()

    def test_what_waits_is_bounded_and_can_be_cancelled(self):
        _, _, saver, _ = self.copies("lease", most=1)
        made = chain("bound", 3)
        blocks = [(made.digests[0], bytes(32), made.names[0], 0)]
        for r in "abc":
            saver.add(Save(r, SPACE, blocks * 2))
        saver.cancel({"a", "b", "c"})
        self.assertTrue(all(saver.idle(r) for r in "abc"))
        self.assertEqual((saver.waiting, saver.saved + saver.dropped), (0, 6))

    def test_blocks_are_found_in_a_tensor(self):
        with self.assertRaisesRegex(ValueError, "no dimension"):
            Cache({"a": torch.zeros(3, 4)}, 5)
        with self.assertRaisesRegex(ValueError, "both dimensions"):
            Cache({"a": torch.zeros(2, 2, 3)}, 2)


if __name__ == "__main__":
    unittest.main()
