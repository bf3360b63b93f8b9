"""The errors that clients get: in the body, in the stream and after retries."""

import time

import anthropic
import openai

import fleet
from fleet import CASES, FleetTest

MESSAGES = [{"role": "user", "content": "Hello there, how are you today?"}]

# Each API as call(client, stream, model, **options).
OPENAI_APIS = {
    "chat": lambda c, stream, model, **o: c.chat.completions.create(
        **{"model": model, "messages": MESSAGES, "max_tokens": 2000, "stream": stream} | o
    ),
    "completions": lambda c, stream, model, **o: c.completions.create(
        **{"model": model, "prompt": "Hello", "max_tokens": 2000, "stream": stream} | o
    ),
    "responses": lambda c, stream, model, **o: c.responses.create(
        model=model, input="Hello", max_output_tokens=2000, stream=stream, **o
    ),
    "embeddings": lambda c, stream, model, **o: c.embeddings.create(model=model, input="Hello", **o),
}
ANTHROPIC_APIS = {
    "messages": lambda c, stream, model, **o: c.messages.create(
        model=model, messages=MESSAGES, max_tokens=2000, stream=stream, **o
    ),
    "count_tokens": lambda c, stream, model, **o: c.messages.count_tokens(model=model, messages=MESSAGES, **o),
}
STREAMS = ("chat", "completions", "responses", "messages")
# Tokens of a stream whose nodes all die after 10 tokens. Another node goes on with chats and
# completions, up to retry.max_nodes times.
TOKENS_BEFORE_FAILURE = {"chat": 30, "completions": 30, "responses": 10}

OPENAI_ERRORS = {
    400: openai.BadRequestError, 401: openai.AuthenticationError, 403: openai.PermissionDeniedError,
    404: openai.NotFoundError, 409: openai.ConflictError, 413: openai.APIStatusError,
    422: openai.UnprocessableEntityError, 429: openai.RateLimitError,
}  # fmt: skip
ANTHROPIC_ERRORS = {
    400: anthropic.BadRequestError, 401: anthropic.AuthenticationError, 403: anthropic.PermissionDeniedError,
    404: anthropic.NotFoundError, 409: anthropic.ConflictError, 413: anthropic.APIStatusError,
    422: anthropic.UnprocessableEntityError, 429: anthropic.RateLimitError,
}  # fmt: skip


def options(case):
    body = dict(case.get("body", {}))
    if "pad_bytes" in case:
        body["padding"] = "x" * case["pad_bytes"]
    return {"extra_headers": case.get("headers"), "extra_body": body}


def variants(apis, case):
    """Every API with and without streaming, where the case has both."""
    for name, call in apis.items():
        for stream in (False, True):
            if stream and name not in STREAMS or case.get("only_stream") and not stream:
                continue
            yield f"{name}{' stream' if stream else ''}", call, stream


class Bodies(FleetTest):
    """Every case of cases.json, for every API, raises the SDK's own error class."""

    def raised(self, client, call, stream, case, cls):
        with fleet.held_streams(case.get("hold", [])), self.assertRaises(cls) as caught:
            call(client, stream, case.get("model", "sim"), **options(case))
        e = caught.exception
        self.assertEqual(e.status_code, case["status"])
        if "retry_after" in case:
            self.assertEqual(e.response.headers["retry-after"], case["retry_after"])
        self.assertIn(case.get("message", ""), e.response.text)
        fleet.settle()
        return e

    def check_openai(self, case):
        router = fleet.STRICT if case.get("router") == "strict" else fleet.FLEET
        cls = OPENAI_ERRORS.get(case["status"], openai.InternalServerError)
        with fleet.openai_client(router) as client:
            for name, call, stream in variants(OPENAI_APIS, case):
                with self.subTest(case=case["name"], api=name):
                    e = self.raised(client, call, stream, case, cls)
                    if "type" in case:
                        self.assertEqual(e.type, case["type"])
                        self.assertEqual(e.body["message"], e.body["message"].strip())
                    if "code" in case:
                        self.assertEqual(e.code, case["code"])
                    if "param" in case:
                        self.assertEqual(e.param, case["param"])

    def check_anthropic(self, case):
        router = fleet.STRICT if case.get("router") == "strict" else fleet.FLEET
        cls = ANTHROPIC_ERRORS.get(case["status"], anthropic.InternalServerError)
        with fleet.anthropic_client(router) as client:
            for name, call, stream in variants(ANTHROPIC_APIS, case):
                with self.subTest(case=case["name"], api=name):
                    e = self.raised(client, call, stream, case, cls)
                    if "anthropic" in case:
                        self.assertEqual(e.body["type"], "error")
                        self.assertEqual(e.body["error"]["type"], case["anthropic"])
                        self.assertTrue(e.body["error"]["message"])


def _add_cases():
    for case in CASES:
        name = case["name"].replace(" ", "_")
        setattr(Bodies, f"test_openai_{name}", lambda self, case=case: self.check_openai(case))
        setattr(Bodies, f"test_anthropic_{name}", lambda self, case=case: self.check_anthropic(case))


_add_cases()


def openai_tokens(event):
    """How many tokens an event of a stream brings."""
    if getattr(event, "type", "").endswith(".delta"):
        return 1
    choices = getattr(event, "choices", None)
    if not choices:
        return 0
    return 1 if getattr(choices[0], "text", None) or getattr(getattr(choices[0], "delta", None), "content", None) else 0


class Streams(FleetTest):
    """A stream that fails after its beginning raises; it never just ends."""

    def consume(self, stream, tokens):
        n = 0
        try:
            for event in stream:
                n += tokens(event)
        except (openai.APIError, anthropic.APIError) as e:
            return n, e
        self.fail(f"the stream ended after {n} tokens as if it were complete")

    def test_openai_engine_dies(self):
        for name in ("chat", "completions", "responses"):
            with self.subTest(api=name):
                stream = OPENAI_APIS[name](self.openai, True, "sim", extra_headers={"x-sim-fault": "die_after=10"})
                n, e = self.consume(stream, openai_tokens)
                self.assertEqual(n, TOKENS_BEFORE_FAILURE[name])
                self.assertEqual((e.code, e.type), ("backend_failed", "upstream_error"))
                fleet.settle()

    def test_openai_engine_closes(self):
        for name in ("chat", "completions", "responses"):
            with self.subTest(api=name):
                stream = OPENAI_APIS[name](
                    self.openai, True, "sim", extra_headers={"x-sim-fault": "die_after=10,close=fin"}
                )
                self.assertEqual(self.consume(stream, openai_tokens)[0], TOKENS_BEFORE_FAILURE[name])
                fleet.settle()

    def test_openai_stream_goes_on(self):
        """Two engines die in the middle, and the client sees one whole stream."""
        for name in ("chat", "completions"):
            with self.subTest(api=name):
                for engine in fleet.ENGINES[:2]:
                    fleet.set_fault(engine, {"die_after": 10, "count": 1})
                for _ in range(3):  # at least one of them meets a fault
                    events = list(OPENAI_APIS[name](self.openai, True, "sim", max_tokens=40))
                    self.assertEqual(sum(map(openai_tokens, events)), 40)
                    self.assertEqual(len({event.id for event in events}), 1)
                    self.assertEqual([r for e in events for c in e.choices if (r := c.finish_reason)], ["length"])
                fleet.settle()

    def test_openai_deadline(self):
        for name in ("chat", "completions", "responses"):
            with self.subTest(api=name):
                stream = OPENAI_APIS[name](self.openai, True, "sim", extra_headers={"x-cgn-deadline-ms": "700"})
                n, e = self.consume(stream, openai_tokens)
                self.assertGreater(n, 0)
                self.assertEqual((e.code, e.type), ("deadline_exceeded", "timeout_error"))

    def test_nothing_follows_the_error(self):
        """Neither [DONE] nor message_stop: on the wire, the error event is the last one."""
        options = {"extra_headers": {"x-sim-fault": "die_after=3"}, "stream": True, "model": "sim"}
        chat, completions = self.openai.chat.completions, self.openai.completions
        for name, answer, last in (
            ("chat", chat.with_streaming_response.create(messages=MESSAGES, **options), 'data: {"error":'),
            ("completions", completions.with_streaming_response.create(prompt="Hello", **options), 'data: {"error":'),
            ("responses", self.openai.responses.with_streaming_response.create(input="Hello", **options), "event: error"),
            (
                "messages",
                self.anthropic.messages.with_streaming_response.create(messages=MESSAGES, max_tokens=9, **options),
                "event: error",
            ),
        ):
            with self.subTest(api=name), answer as raw:
                events = b"".join(raw.iter_bytes()).decode().rstrip().split("\n\n")
                self.assertTrue(events[-1].startswith(last), events[-1])
                self.assertFalse([e for e in events if "[DONE]" in e or "message_stop" in e])
                fleet.settle()

    def anthropic_stream(self, **headers):
        call = ANTHROPIC_APIS["messages"]
        stream = call(self.anthropic, True, "sim", extra_headers={k.replace("_", "-"): v for k, v in headers.items()})
        return self.consume(stream, lambda event: event.type == "content_block_delta")

    def test_anthropic_engine_dies(self):
        n, e = self.anthropic_stream(x_sim_fault="die_after=10")
        self.assertEqual(n, 10)
        self.assertEqual((e.body["type"], e.body["error"]["type"]), ("error", "api_error"))
        self.assertTrue(e.body["request_id"])

    def test_anthropic_deadline(self):
        n, e = self.anthropic_stream(x_cgn_deadline_ms="700")
        self.assertGreater(n, 0)
        self.assertEqual(e.body["error"]["type"], "timeout_error")


class Elsewhere(FleetTest):
    """What the router and the SDK mend between them."""

    def test_one_engine_fails(self):
        for fault in ({"status": 500}, {"status": 503}, {"status": 429}, {"reset": True}, {"garbage": True}):
            with self.subTest(fault=fault):
                fleet.set_fault(fleet.ENGINES[0], fault)
                for i in range(12):
                    self.openai.chat.completions.create(
                        model="sim", messages=[{"role": "user", "content": f"{fault} {i}"}], max_tokens=1
                    )
                fleet.clear_faults()
                fleet.settle()

    def test_sdk_honours_retry_after(self):
        for engine in fleet.ENGINES:
            fleet.set_fault(engine, {"status": 429, "retry_after": 1, "count": 1})
        begun = time.monotonic()
        with fleet.openai_client(max_retries=1) as client:
            answer = client.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=1)
        self.assertTrue(answer.choices)
        self.assertGreaterEqual(time.monotonic() - begun, 1)

    def test_client_timeout(self):
        for cls, call in (
            (openai.APITimeoutError, lambda h: OPENAI_APIS["chat"](self.openai, False, "sim", timeout=0.3, extra_headers=h)),
            (
                anthropic.APITimeoutError,
                lambda h: ANTHROPIC_APIS["messages"](self.anthropic, False, "sim", timeout=0.3, extra_headers=h),
            ),
        ):
            with self.subTest(error=cls.__name__), self.assertRaises(cls):
                call({"x-sim-fault": "hang"})

    def test_closed_port(self):
        with fleet.openai_client("http://127.0.0.1:1") as client, self.assertRaises(openai.APIConnectionError):
            client.models.list()


class Keys(FleetTest):
    """Authorization: the backend's own key, or the client's where forward_auth passes it on."""

    def test_backend_key(self):
        with fleet.openai_client(fleet.STRICT, api_key="wrong") as client:
            self.assertTrue(OPENAI_APIS["embeddings"](client, False, "keyed").data)

    def test_client_key(self):
        with fleet.openai_client(fleet.STRICT, api_key=fleet.KEY) as client:
            self.assertTrue(OPENAI_APIS["embeddings"](client, False, "open").data)
        with fleet.anthropic_client(fleet.STRICT, api_key=None, auth_token=fleet.KEY) as client:
            self.assertGreater(ANTHROPIC_APIS["count_tokens"](client, False, "open").input_tokens, 0)
