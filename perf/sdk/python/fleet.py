"""The fleet that run.sh brought up, as the suites see it."""

import contextlib
import json
import os
import time
import unittest
import urllib.request

import anthropic
import openai

FLEET = os.environ["CGN_SDK_FLEET"]  # three simulated engines behind agents, model "sim"
STRICT = os.environ["CGN_SDK_STRICT"]  # one engine under the names of run.sh, small limits
ENGINES = os.environ["CGN_SDK_ENGINES"].split(",")  # of the fleet
LOCKED = os.environ["CGN_SDK_LOCKED"]  # the strict router's engine
KEY = "sesame"  # that LOCKED demands
GUARDED = os.environ["CGN_SDK_GUARDED"]  # LOCKED behind API keys
KEYS = json.loads(os.environ["CGN_SDK_KEYS"])  # of GUARDED, by name


def _document(variable):
    with open(os.environ[variable], encoding="utf-8") as f:
        return json.load(f)


CASES, RETRIES = _document("CGN_SDK_CASES"), _document("CGN_SDK_RETRIES")

SETTLE_SECONDS = 15  # within which nodes that failed must be back


def openai_client(router=FLEET, **options):
    return openai.OpenAI(base_url=router + "/v1", **{"api_key": "none", "max_retries": 0, "timeout": 30} | options)


def anthropic_client(router=FLEET, **options):
    return anthropic.Anthropic(base_url=router, **{"api_key": "none", "max_retries": 0, "timeout": 30} | options)


def get_json(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def guarded_requests():
    """How many requests GUARDED has answered, once it has counted those that have just ended.

    Those for completions are left out: held streams end at any time.
    """
    was, now = -1, guarded_counts()
    while was != now:
        time.sleep(0.02)
        was, now = now, guarded_counts()
    return now


def guarded_counts():
    request = urllib.request.Request(os.environ["CGN_SDK_METRICS"], headers={"x-api-key": KEYS["reader"]})
    with urllib.request.urlopen(request, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    counts = [line for line in lines if line.startswith("cgn_router_requests_total{") and 'api="completions"' not in line]
    return sum(int(line.split()[-1]) for line in counts)


def set_fault(engine, fault):
    """Makes fault (a dict, see /sim/fault of the engine) strike the engine's next requests."""
    request = urllib.request.Request(engine + "/sim/fault", json.dumps(fault).encode(), method="POST")
    urllib.request.urlopen(request, timeout=10).close()


def clear_faults():
    for engine in [*ENGINES, LOCKED]:
        urllib.request.urlopen(urllib.request.Request(engine + "/sim/fault", method="DELETE"), timeout=10).close()


def engine_sum(field):
    return sum(get_json(engine + "/sim/stats")[field] for engine in ENGINES)


def poll(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def settle():
    """Waits until every node takes requests again and its failures of before are outweighed."""
    for client, model, headers in [
        *((_fleet, "sim", {"x-cgn-node": f"sim-{i + 1}"}) for i in range(len(ENGINES))),
        (_strict, "keyed", {}),
        (_strict, "narrow", {}),
    ]:

        def answers():
            try:
                for _ in range(2):
                    client.completions.create(model=model, prompt="settle", max_tokens=1, extra_headers=headers)
            except openai.APIStatusError as e:
                if e.status_code == 503:
                    return False
                raise
            return True

        poll(answers, SETTLE_SECONDS, f"{model} {headers} answers")


_fleet = openai_client()
_strict = openai_client(STRICT)


@contextlib.contextmanager
def held_streams(models):
    """Keeps one stream of the strict router open for each of models."""
    with contextlib.ExitStack() as stack:
        for model in models:
            stream = _strict.completions.create(model=model, prompt="hold", max_tokens=4000, stream=True)
            stack.enter_context(stream)
            next(stream)
        yield


class FleetTest(unittest.TestCase):
    """Every test begins with a healthy fleet."""

    def setUp(self):
        clear_faults()
        settle()
        self.openai = openai_client()
        self.addCleanup(self.openai.close)
        self.anthropic = anthropic_client()
        self.addCleanup(self.anthropic.close)

    def assertEngineNotices(self, leave, what):
        """Calls leave, upon which some engine must see its client go and stop computing."""
        before = engine_sum("aborted")
        leave()
        poll(lambda: engine_sum("aborted") > before and engine_sum("running") == 0, 2, what)


def words(n):
    return " ".join(f"word{i}" for i in range(n))


WEATHER = {
    "name": "get_weather",
    "description": "Tells the weather in a city",
    "schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}
