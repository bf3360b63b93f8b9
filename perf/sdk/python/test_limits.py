"""The limits of the router: headers, error classes, and when the SDKs retry."""

import datetime
import re

import anthropic
import openai

import fleet
from fleet import FleetTest

MESSAGES = [{"role": "user", "content": "Hello there"}]
APIS = {
    "openai": (openai, lambda c, **o: c.chat.completions.with_raw_response.create(messages=MESSAGES, **o)),
    "anthropic": (anthropic, lambda c, **o: c.messages.with_raw_response.create(messages=MESSAGES, **o)),
}


def clients(max_retries):
    """For each SDK its module, a call, a client, and the requests that the client sends."""
    for name, (sdk, call) in APIS.items():
        sent = []
        http = sdk.DefaultHttpxClient(event_hooks={"request": [sent.append]})
        make = fleet.openai_client if sdk is openai else fleet.anthropic_client
        with make(fleet.STRICT, max_retries=max_retries, http_client=http) as client:
            yield name, sdk, call, client, sent


class Limits(FleetTest):
    def refused(self, sdk, call, client, model, max_tokens):
        """Asks until a limit refuses, and returns the error."""
        for _ in range(100):
            try:
                call(client, model=model, max_tokens=max_tokens)
            except sdk.RateLimitError as e:
                return e
        self.fail(f"{model} is not limited")

    def test_headers(self):
        for name, _, call, client, _ in clients(2):
            for stream in (False, True):
                with self.subTest(sdk=name, stream=stream):
                    h = call(client, model="paced", max_tokens=1, stream=stream).headers
                    if name == "openai":
                        self.assertEqual(h["x-ratelimit-limit-requests"], "30")
                        self.assertLess(int(h["x-ratelimit-remaining-requests"]), 30)
                        self.assertRegex(h["x-ratelimit-reset-requests"], r"^(\d+m)?[0-9.]+m?s$")
                    else:
                        self.assertEqual(h["anthropic-ratelimit-requests-limit"], "30")
                        self.assertLess(int(h["anthropic-ratelimit-requests-remaining"]), 30)
                        datetime.datetime.fromisoformat(h["anthropic-ratelimit-requests-reset"].replace("Z", "+00:00"))

    def test_retries_when_there_will_be_room(self):
        for name, sdk, call, client, sent in clients(2):
            with self.subTest(sdk=name):
                e = self.refused(sdk, call, client.with_options(max_retries=0), "paced", 1)
                self.assertEqual(e.status_code, 429)
                if sdk is openai:
                    self.assertEqual((e.code, e.type), ("rate_limit_exceeded", "requests"))
                    self.assertRegex(e.message, r"Limit 30, Used \d+, Requested 1\. Please try again in [0-9.]+m?s\.")
                else:
                    self.assertEqual(e.body["error"]["type"], "rate_limit_error")
                self.assertLessEqual(int(e.response.headers["retry-after-ms"]), 2000)
                del sent[:]
                call(client, model="paced", max_tokens=1)
                self.assertIn(len(sent), (2, 3))

    def test_no_retry_without_hope(self):
        for model, max_tokens, code in (("spent", 400, "insufficient_quota"), ("tight", 100, "rate_limit_exceeded")):
            for name, sdk, call, client, sent in clients(2):
                with self.subTest(sdk=name, model=model):
                    e = self.refused(sdk, call, client, model, max_tokens)
                    if sdk is openai:
                        self.assertEqual(e.code, code)
                    del sent[:]
                    self.assertEqual(e.response.headers["x-should-retry"], "false")
                    with self.assertRaises(sdk.RateLimitError):
                        call(client, model=model, max_tokens=max_tokens)
                    self.assertEqual(len(sent), 1)
                    self.assertTrue(re.search("Limit [0-9]+", str(e)))
