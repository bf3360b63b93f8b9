"""Tests of what is saved beside loads that fail. They need vLLM to be importable, and no daemon."""
import contextlib
import random
import threading
import time
from types import SimpleNamespace
import unittest
from unittest import mock

from test_package import FakeRequest, planner
from cognitora_kv.copies import Cache, Loader, Saver
from cognitora_kv.doubts import Doubts
import torch

TOKENS = 32


class Steps:
    """A scheduler's steps: (request, first token, tokens, places) for new and running ones."""

    def __init__(self, *new, on=(), preempted=()):
        self.preempted_req_ids = set(preempted)
        self.scheduled_new_reqs = [mock.Mock(req_id=r.request_id, num_computed_tokens=computed, block_ids=(places,))
                                   for r, computed, _, places in new]
        self.scheduled_cached_reqs = SimpleNamespace(
            req_ids=[r.request_id for r, *_ in on], num_computed_tokens=[computed for _, computed, *_ in on],
            new_block_ids=[(places,) if places else None for *_, places in on], resumed_req_ids=set())
        self.num_scheduled_tokens = {r.request_id: tokens for r, _, tokens, _ in (*on, *new)}


def saved(plan):
    """Returns the places that a plan saves, by request."""
    return {request: [block[3] for block in blocks] for request, _, blocks in plan.saves}


class Holding(unittest.TestCase):
    """The scheduler's side."""

    def setUp(self):
        self.p, self.daemon = planner(self, 16)
        self.daemon.has = set(range(4))

    def loads(self, name, first, more=4 * TOKENS, on=()):
        """Plans a step that loads the first four blocks of a request and computes the next ones."""
        r = FakeRequest(name, 16 * TOKENS)
        self.assertEqual(self.p.matched(r, 0), 4 * TOKENS)
        self.p.allocated(r, 4 * TOKENS)
        return r, self.p.plan(Steps((r, 4 * TOKENS, more, list(range(first, first + 8))), on=on))

    def test_saves_wait_for_the_result_of_loads(self):
        r, plan = self.loads("r", 10)
        self.assertEqual((len(plan.loads), saved(plan)), (1, {}))
        plan2 = self.p.plan(Steps(on=[(r, 8 * TOKENS, 2 * TOKENS, [18, 19])]))  # planned before the result
        self.assertEqual(saved(plan2), {})
        self.assertEqual(self.p.loaded(plan.step, set()), set())
        plan = self.p.plan(Steps(on=[(r, 10 * TOKENS, TOKENS, [20])]))
        self.assertEqual(saved(plan), {"r": list(range(14, 21))}, "in one piece, which is taken whole")
        self.assertEqual(saved(self.p.plan(Steps(on=[(r, 11 * TOKENS, TOKENS, [21])]))), {"r": [21]})

    def test_a_failed_load_drops_them(self):
        r, plan = self.loads("r", 10)
        self.p.plan(Steps(on=[(r, 8 * TOKENS, 2 * TOKENS, [18, 19])]))
        self.assertEqual(self.p.loaded(plan.step, {12}), set(range(12, 20)))
        plan = self.p.plan(Steps(on=[(r, 2 * TOKENS, 4 * TOKENS, None)]))
        self.assertEqual(saved(plan), {"r": [12, 13, 14, 15]}, "computed again")
        plan = self.p.plan(Steps(on=[(r, 6 * TOKENS, 4 * TOKENS, None)]))
        self.assertEqual(saved(plan), {"r": [16, 17, 18, 19]})
        self.assertEqual(self.p.doubts.bad, set())

    def test_others_wait_only_if_they_share_blocks(self):
        other, shares = FakeRequest("other", 16 * TOKENS), FakeRequest("shares", 16 * TOKENS)
        for r in (other, shares):
            self.p.follow(r)
        self.p.plan(Steps((other, 0, TOKENS, [50])))
        a, plan = self.loads("a", 10, on=[(other, TOKENS, TOKENS, [51])])
        self.assertEqual(saved(plan), {"other": [51]})
        step, plan = plan.step, self.p.plan(Steps((shares, 6 * TOKENS, TOKENS, [30, 11, 12, 13, 14, 15, 31])))
        self.assertEqual(saved(plan), {})
        self.assertEqual(self.p.loaded(step, {10}), {*range(10, 18), 31}, "shares has another copy of the failed block")
        plan = self.p.plan(Steps(on=[(other, 2 * TOKENS, TOKENS, [52]), (shares, 7 * TOKENS, TOKENS, [32])]))
        self.assertEqual(saved(plan), {"other": [52]})
        plan = self.p.plan(Steps(on=[(a, 0, 8 * TOKENS, None), (shares, 8 * TOKENS, TOKENS, [33])]))
        self.assertEqual(saved(plan), {"a": list(range(10, 18))}, "shares has computed 31 to 33 from garbage")
        new = FakeRequest("new", 16 * TOKENS)
        self.p.follow(new)
        plan = self.p.plan(Steps((new, 7 * TOKENS, 2 * TOKENS, [*range(10, 16), 32, 33, 34])))
        self.assertEqual(saved(plan), {}, "the engine's own cache has handed garbage out")
        plan = self.p.plan(Steps(on=[(new, 6 * TOKENS, 3 * TOKENS, None)]))
        self.assertEqual(saved(plan), {"new": [32, 33, 34]})

    def test_one_that_shares_the_blocks_of_the_same_step(self):
        shares = FakeRequest("shares", 16 * TOKENS)
        self.p.follow(shares)
        a = FakeRequest("a", 16 * TOKENS)
        self.p.matched(a, 0), self.p.allocated(a, 4 * TOKENS)
        plan = self.p.plan(Steps((a, 4 * TOKENS, TOKENS, [*range(10, 15)]),
                                 (shares, 4 * TOKENS, 2 * TOKENS, [*range(10, 14), 20, 21])))
        self.assertEqual(saved(plan), {})
        self.p.loaded(plan.step, {11})
        plan = self.p.plan(Steps(on=[(a, TOKENS, 4 * TOKENS, None), (shares, 4 * TOKENS, 2 * TOKENS, None)]))
        self.assertEqual(saved(plan), {"a": [11, 12, 13, 14], "shares": [20, 21]})

    def test_a_request_ends_before_the_result(self):
        for failed, want in ((set(), {"r": [14, 15, 16, 17]}), ({10}, {})):
            r, plan = self.loads("r", 10)
            self.assertEqual(self.p.finished(r), (True, None))
            later = self.p.plan(Steps())
            self.assertEqual((saved(later), later.ended), ({}, set()), "no result yet")
            self.p.loaded(plan.step, failed)
            later = self.p.plan(Steps())
            self.assertEqual((saved(later), later.ended), (want, {"r"}))
            self.assertEqual((self.p.ended, self.p.holds), ({}, {}))

    def test_preempted_requests_lose_their_blocks(self):
        r, plan = self.loads("r", 10)
        self.assertEqual(saved(self.p.plan(Steps(preempted={"r"}))), {})
        self.p.loaded(plan.step, set())
        self.assertEqual(saved(self.p.plan(Steps())), {})

    def test_a_result_that_never_comes_is_a_failure(self):
        self.loads("a", 10)
        b, plan = self.loads("b", 20)
        self.assertEqual(self.p.loaded(plan.step, set()), set(range(10, 18)))
        self.assertEqual(saved(self.p.plan(Steps())), {"b": [24, 25, 26, 27]})

    def test_another_connector_loads_in_the_step(self):
        for failed, want in ((set(), {"r": [14, 15, 16, 17]}), ({12}, {})):
            r = FakeRequest("r", 16 * TOKENS)
            self.daemon.has = set()
            self.assertEqual(self.p.matched(r, 0), 0)
            self.p.allocated(r, 0)
            plan = self.p.plan(Steps((r, 4 * TOKENS, 4 * TOKENS, list(range(10, 18)))))
            self.assertEqual((plan.others, saved(plan)), (True, {}))
            self.assertEqual(self.p.loaded(plan.step, failed), set(range(12, 18)) if failed else set())
            self.assertEqual(saved(self.p.plan(Steps())), want)
            self.p.finished(r)

    def test_a_handed_over_prompt_is_stored_whole(self):
        r = FakeRequest("r", 8 * TOKENS, {"cgn_store": True})
        self.daemon.has = set()
        self.assertEqual(self.p.matched(r, 0), 0)
        plan = self.p.plan(Steps((r, 4 * TOKENS, 4 * TOKENS, list(range(10, 18)))))
        self.p.loaded(plan.step, set())
        self.assertEqual(saved(self.p.plan(Steps())), {"r": list(range(10, 18))}, "with what another connector loads")

    def test_requests_without_names_carry_garbage(self, aborted=False):
        a, plan = self.loads("a", 10)
        step, image = plan.step, FakeRequest("image", 16 * TOKENS)
        image.mm_features = ["an image"]
        self.assertEqual(self.p.matched(image, 6 * TOKENS), 0)
        self.p.allocated(image, 0)
        self.p.plan(Steps((image, 6 * TOKENS, 4 * TOKENS, [*range(10, 16), 30, 31, 32, 33])))
        if aborted:
            self.assertEqual(self.p.finished(image), (False, None))
        self.assertEqual(self.p.loaded(step, {12}), {*range(12, 18), *range(30, 34)})
        self.assertEqual(self.p.left, [])
        new = FakeRequest("new", 16 * TOKENS)
        self.assertEqual(self.p.matched(new, 10 * TOKENS), 0)
        plan = self.p.plan(Steps((new, 10 * TOKENS, 2 * TOKENS, [*range(10, 16), 30, 31, 32, 33, 40, 41])))
        self.assertEqual(saved(plan), {})
        self.assertEqual(self.p.finished(image), (False, None))
        self.assertNotIn("image", self.p.followed)

    def test_aborted_requests_without_names_carry_garbage(self):
        self.test_requests_without_names_carry_garbage(aborted=True)

    def test_failures_of_another_connector(self):
        r, plan = self.loads("r", 10)
        self.p.loaded(plan.step, set())
        self.assertEqual(self.p.loaded(0, {15}), {15, 16, 17})
        self.assertEqual(saved(self.p.plan(Steps())), {})


class Random(unittest.TestCase):
    def test_garbage_is_never_taken_for_good(self):
        """Compares with a model that knows which places hold garbage at any time."""
        for number in range(300):
            r = random.Random(number)
            d, garbage, results, requests = Doubts(), set(), [], []
            free, step = set(range(40)), 0
            for _ in range(60):
                if results and (len(results) > 1 or r.random() < 0.5):
                    d.report(*results.pop(0), requests)
                    for f in requests:
                        if not d.waits(f):
                            self.assertTrue(garbage.isdisjoint(f.held), number)
                            f.held = []
                    continue
                step, failed, loads = step + 1, set(), False
                if len(requests) < 6 and len(free) > 8:
                    of = r.choice(requests) if requests else None  # other copies of its first blocks may be found
                    shared = of.places[r.randrange(3) : of.at][: r.randrange(5)] if of else []
                    if shared:
                        of.own = max(of.own, of.places.index(shared[-1]) + 1)
                    f = SimpleNamespace(held=[], after=0, bad=False, places=[*shared, *r.sample(sorted(free), 6)], at=0,
                                        own=len(shared))
                    free -= set(f.places)
                    d.begins(f, len(shared))
                    f.at = len(shared)
                    if r.random() < 0.5:
                        loads, of = True, f.places[f.at : f.at + 2]
                        failed = {p for p in of if r.random() < 0.3}
                        garbage -= set(of)
                        garbage |= failed
                        d.begins(f, f.at + 2)
                        d.loads(f, of, step)
                        f.at = f.own = f.at + 2
                    requests.append(f)
                for f in requests:
                    again = r.randrange(f.at + 1)
                    if r.random() < 0.2 and garbage.union(d.unknown).isdisjoint(f.places[:again]):
                        f.at = again  # as the engine does after a failure
                    elif r.random() < 0.2 and f.bad:
                        f.at = max(again, f.own)  # or only what no other request has
                    first, f.at = f.at, min(f.at + 1, len(f.places))
                    d.computes(f, first, f.at)
                    written = f.places[first : f.at]
                    (garbage.difference_update if garbage.isdisjoint(f.places[:first]) else garbage.update)(written)
                    f.held = [] if f.bad else [p for p in f.held if p not in written] + written
                    if not d.waits(f):
                        self.assertTrue(garbage.isdisjoint(f.held), number)
                        f.held = []
                if loads:
                    results.append((step, failed))


class FakeDaemon:
    """A daemon that has no blocks, and notes what it is to keep."""

    def __init__(self):
        self.kept = []

    def at_once(self, size):
        return 8

    @contextlib.contextmanager
    def get(self, namespace, digests):
        yield [None] * len(digests)

    def room(self, size):
        return mock.Mock(memory=memoryview(bytearray(size)))

    def keep(self, room, namespace, blocks):
        self.kept += [block[2] for block in blocks]
        return len(blocks)

    def close(self):
        pass


class Ranks(unittest.TestCase):
    """A rank says when loads have a result, and when nobody reads a finished request."""

    def rank(self):
        try:
            from cognitora_kv.connector import Plan, Rank
        except ImportError as e:
            self.skipTest(f"no vLLM: {e}")
        r, daemon = Rank.__new__(Rank), FakeDaemon()
        r.settings, r.ranks, r.by_layer = mock.Mock(), (0, 0), True
        r.lock, r.failed, r.said, r.step, r.finished, r.dropped = threading.Lock(), set(), 0.0, 0, set(), 0
        cache = Cache({"a": torch.zeros(16, 4)}, 16)
        r.loader, r.saver = Loader(daemon, cache, r.not_loaded), Saver(daemon, cache, 1 << 20, r.not_saved)
        self.addCleanup(r.close)
        return r, daemon, Plan

    def test_results(self):
        r, _, Plan = self.rank()
        for plan, places, step in ((Plan(7, loads=[("", [b"d"], [3])]), {3}, 7), (Plan(8), set(), 0),
                                   (Plan(9, others=True), set(), 9)):
            r.load(plan)
            r.save(plan)
            self.assertEqual(r.take_failed(), places)
            made = r.take_loaded()
            self.assertEqual(made.step if made else 0, step)

    def test_finished_requests(self):
        r, daemon, Plan = self.rank()
        r.save(Plan(1, saves=[("a", "", [(b"d", b"", b"", 1)])]))
        self.assertIsNone(r.saved(), "it goes on")
        r.save(Plan(2, ended={"a", "nothing saved"}))
        limit, done = time.monotonic() + 60, set()
        while done != {"a", "nothing saved"}:
            self.assertLess(time.monotonic(), limit)
            done |= r.saved() or set()
        self.assertEqual((daemon.kept, r.saved()), ([b"d"], None))


if __name__ == "__main__":
    unittest.main()
