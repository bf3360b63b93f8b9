"""Keys and limits of the router: error classes, when the SDKs retry, and headers."""

import contextlib
import datetime
import unittest

import anthropic
import openai

import fleet
from test_errors import ANTHROPIC_ERRORS, OPENAI_ERRORS

APIS = {
    "openai": (openai, OPENAI_ERRORS, lambda c, **o: c.chat.completions.with_raw_response.create(**o)),
    "anthropic": (anthropic, ANTHROPIC_ERRORS, lambda c, **o: c.messages.with_raw_response.create(**o)),
}


def client(sdk, key, **options):
    make = fleet.openai_client if sdk is openai else fleet.anthropic_client
    return make(fleet.GUARDED, api_key=fleet.KEYS[key], **options)


def body(case, **more):
    messages = [{"role": "user", "content": "word " * case.get("words", 1)}]
    model, tokens = case.get("model", "keyed"), case.get("max_tokens", 1)
    return {"model": model, "messages": messages, "max_tokens": tokens, "extra_headers": case.get("headers")} | more


@contextlib.contextmanager
def held(case):
    """Keeps a stream of the case's model open if the case says so."""
    if not case.get("hold"):
        yield
        return
    with client(openai, "free", max_retries=5) as holder:  # the stream before may still end
        with holder.completions.create(model=case["model"], prompt="hold", max_tokens=4000, stream=True) as stream:
            next(stream)
            yield


class Retries(unittest.TestCase):
    """Every case of retries.json, with and without streaming."""

    def ask(self, case, sdk, classes, call, client, stream):
        """Asks until a request has the case's end, which takes the case's tries."""
        for _ in range(200):
            before = fleet.guarded_requests()
            try:
                call(client, **body(case, stream=stream)).http_response.read()
                e = None
            except sdk.APIStatusError as problem:
                e = problem
            tries = fleet.guarded_requests() - before
            if case.get("succeeds"):
                self.assertIsNone(e)
                if tries > 1:
                    return self.assertEqual(tries, case["tries"])
            elif e is not None:
                self.assertIsInstance(e, classes.get(case["status"], sdk.InternalServerError))
                self.assertEqual((e.status_code, tries), (case["status"], case["tries"]))
                if sdk is openai:
                    self.assertEqual(e.code, case["code"])
                else:
                    self.assertEqual(e.body["error"]["type"], case["anthropic"])
                if "retry_after" in case:
                    self.assertEqual(e.response.headers["retry-after"], case["retry_after"])
                return None
        self.fail("the limit refuses nothing")

    def test_all(self):
        for case in fleet.RETRIES:
            for name, (sdk, classes, call) in APIS.items():
                for stream in (False, True):
                    with self.subTest(case=case["name"], sdk=name, stream=stream), held(case):
                        with client(sdk, case["key"], max_retries=1) as c:
                            self.ask(case, sdk, classes, call, c, stream)


class Headers(unittest.TestCase):
    def test_limits(self):
        for stream in (False, True):
            for name, (sdk, _, call) in APIS.items():
                with self.subTest(sdk=name, stream=stream), client(sdk, "metered") as c:
                    h = call(c, **body({}, stream=stream)).headers
                    if name == "openai":
                        self.assertEqual(h["x-ratelimit-limit-tokens"], "60000")
                        self.assertLess(int(h["x-ratelimit-remaining-tokens"]), 60000)
                        self.assertRegex(h["x-ratelimit-reset-tokens"], r"^(\d+m)?[0-9.]+m?s$")
                    else:
                        self.assertEqual(h["anthropic-ratelimit-tokens-limit"], "60000")
                        self.assertLess(int(h["anthropic-ratelimit-tokens-remaining"]), 60000)
                        datetime.datetime.fromisoformat(h["anthropic-ratelimit-tokens-reset"].replace("Z", "+00:00"))
