"""openai-python against the fleet: every API that the router serves."""

import asyncio
import json
import time

import openai

import fleet
from fleet import FleetTest

USER = [{"role": "user", "content": "Tell me about rivers. " + fleet.words(40)}]
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Tells the weather", "parameters": fleet.WEATHER["schema"]},
}
FLAT_TOOL = {"type": "function", "name": "get_weather", "parameters": fleet.WEATHER["schema"], "strict": False}


class Models(FleetTest):
    def test_list(self):
        models = list(self.openai.models.list())
        self.assertEqual([m.id for m in models], ["sim"])
        self.assertEqual(models[0].object, "model")
        self.assertGreater(models[0].created, 0)

    def test_retrieve(self):
        self.assertEqual(self.openai.models.retrieve("sim").id, "sim")

    def test_retrieve_unknown(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.openai.models.retrieve("nope")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_union_of_backends(self):
        with fleet.openai_client(fleet.STRICT) as strict:
            self.assertEqual({m.id for m in strict.models.list()}, {"keyed", "narrow", "open"})


class Chat(FleetTest):
    def test_create(self):
        answer = self.openai.chat.completions.create(model="sim", messages=USER, max_tokens=8)
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertTrue(answer.choices[0].message.content)
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 8)

    def test_repeated_prompt_is_cached(self):
        ask = [{"role": "user", "content": f"at {time.time_ns()} " + fleet.words(200)}]
        first = self.openai.chat.completions.with_raw_response.create(model="sim", messages=ask, max_tokens=2)
        second = self.openai.chat.completions.with_raw_response.create(model="sim", messages=ask, max_tokens=2)
        self.assertEqual(first.headers["x-cgn-node"], second.headers["x-cgn-node"])
        cached = second.parse().usage.prompt_tokens_details.cached_tokens
        self.assertGreater(cached, 0.8 * second.parse().usage.prompt_tokens)
        matched, total = map(int, second.headers["x-cgn-overlap"].split("/"))
        self.assertEqual(matched, total)

    def test_request_id_and_attempts(self):
        raw = self.openai.chat.completions.with_raw_response.create(
            model="sim", messages=USER, max_tokens=1, extra_headers={"x-request-id": "suite-17"}
        )
        self.assertEqual(raw.headers["x-request-id"], "suite-17")
        self.assertEqual(raw.parse()._request_id, "suite-17")
        self.assertEqual(raw.headers["x-cgn-attempts"], "1")

    def test_choices(self):
        answer = self.openai.chat.completions.create(model="sim", messages=USER, max_tokens=4, n=3)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])

    def test_multipart_content(self):
        parts = [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        ]
        answer = self.openai.chat.completions.create(model="sim", messages=[{"role": "user", "content": parts}], max_tokens=2)
        self.assertTrue(answer.choices[0].message.content)

    def test_stream_with_usage(self):
        chunks = list(
            self.openai.chat.completions.create(
                model="sim", messages=USER, max_tokens=9, stream=True, stream_options={"include_usage": True}
            )
        )
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 9)
        self.assertIsNotNone(chunks[-1].usage.prompt_tokens_details)
        said = [c for c in chunks if c.choices and c.choices[0].delta.content]
        self.assertEqual(len(said), 9)
        self.assertEqual([c.choices[0].finish_reason for c in chunks[:-1]][-1], "length")

    def test_stream_without_usage(self):
        for chunk in self.openai.chat.completions.create(model="sim", messages=USER, max_tokens=5, stream=True):
            self.assertEqual(len(chunk.choices), 1, "a usage chunk that nobody asked for")
            self.assertIsNone(chunk.usage)

    def test_stream_equals_whole(self):
        whole = self.openai.chat.completions.create(
            model="sim", messages=USER, max_tokens=20, extra_headers={"x-cgn-node": "sim-1"}
        )
        stream = self.openai.chat.completions.create(
            model="sim", messages=USER, max_tokens=20, stream=True, extra_headers={"x-cgn-node": "sim-1"}
        )
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in stream), whole.choices[0].message.content)

    def test_stream_helper(self):
        with self.openai.chat.completions.stream(model="sim", messages=USER) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertIn("content.done", kinds)
        self.assertEqual(final.choices[0].finish_reason, "stop")

    def test_logprobs(self):
        answer = self.openai.chat.completions.create(model="sim", messages=USER, max_tokens=4, logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), 4)
        self.assertTrue(all(t.logprob <= 0 and len(t.top_logprobs) == 3 for t in content))

    def test_stream_logprobs(self):
        stream = self.openai.chat.completions.create(
            model="sim", messages=USER, max_tokens=4, logprobs=True, top_logprobs=2, stream=True
        )
        seen = [t for c in stream if c.choices and c.choices[0].logprobs for t in c.choices[0].logprobs.content]
        self.assertEqual(len(seen), 4)
        self.assertTrue(all(len(t.top_logprobs) == 2 for t in seen))

    def test_structured_output(self):
        schema = {"name": "answer", "schema": fleet.WEATHER["schema"]}
        answer = self.openai.chat.completions.create(
            model="sim", messages=USER, response_format={"type": "json_schema", "json_schema": schema}
        )
        self.assertEqual(set(json.loads(answer.choices[0].message.content)), {"city", "days"})

    def test_many_at_once(self):
        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=fleet.FLEET + "/v1", api_key="none", max_retries=0) as client:
                async def one(i):
                    stream = await client.chat.completions.create(
                        model="sim", messages=[{"role": "user", "content": f"question {i}"}], max_tokens=5, stream=True
                    )
                    return [c async for c in stream]

                return await asyncio.gather(*(one(i) for i in range(48)))

        for chunks in asyncio.run(all_of_them()):
            self.assertEqual(sum(1 for c in chunks if c.choices[0].delta.content), 5)


class Tools(FleetTest):
    def test_call(self):
        answer = self.openai.chat.completions.create(model="sim", messages=USER, tools=[CHAT_TOOL], tool_choice="required")
        call = answer.choices[0].message.tool_calls[0]
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(set(json.loads(call.function.arguments)), {"city", "days"})

    def test_stream(self):
        stream = self.openai.chat.completions.create(
            model="sim", messages=USER, tools=[CHAT_TOOL], tool_choice="required", stream=True
        )
        name, arguments, pieces, reason = "", "", 0, None
        for chunk in stream:
            reason = chunk.choices[0].finish_reason or reason
            for call in chunk.choices[0].delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
                pieces += 1
        self.assertEqual((name, reason), ("get_weather", "tool_calls"))
        self.assertEqual(set(json.loads(arguments)), {"city", "days"})
        self.assertGreater(pieces, 3, "the arguments came in pieces")

    def test_answer_to_a_call(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo","days":1}'}}
        answer = self.openai.chat.completions.create(
            model="sim",
            messages=[
                *USER,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
            ],
            tools=[CHAT_TOOL],
            max_tokens=3,
        )
        self.assertTrue(answer.choices[0].message.content)

    def test_responses_stream(self):
        with self.openai.responses.stream(
            model="sim", input="call the tool", tools=[FLAT_TOOL], tool_choice="required"
        ) as stream:
            deltas = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
            call = stream.get_final_response().output[0]
        self.assertEqual((call.type, call.name), ("function_call", "get_weather"))
        self.assertEqual("".join(deltas), call.arguments)


class Completions(FleetTest):
    def test_create(self):
        answer = self.openai.completions.create(model="sim", prompt="Once upon", max_tokens=6)
        self.assertTrue(answer.choices[0].text)
        self.assertEqual(answer.usage.completion_tokens, 6)

    def test_several_prompts(self):
        answer = self.openai.completions.create(model="sim", prompt=["one", "two"], max_tokens=2)
        self.assertEqual([c.index for c in answer.choices], [0, 1])

    def test_token_ids(self):
        answer = self.openai.completions.create(model="sim", prompt=list(range(100, 140)), max_tokens=2)
        self.assertEqual(answer.usage.prompt_tokens, 40)

    def test_stream_with_usage(self):
        chunks = list(
            self.openai.completions.create(
                model="sim", prompt="Once upon", max_tokens=6, stream=True, stream_options={"include_usage": True}
            )
        )
        self.assertEqual(chunks[-1].usage.completion_tokens, 6)
        self.assertEqual(sum(1 for c in chunks if c.choices and c.choices[0].text), 6)

    def test_logprobs(self):
        answer = self.openai.completions.create(model="sim", prompt="Once upon", max_tokens=3, logprobs=2)
        self.assertEqual(len(answer.choices[0].logprobs.tokens), 3)
        self.assertEqual(len(answer.choices[0].logprobs.top_logprobs[0]), 2)


class Embeddings(FleetTest):
    def test_base64(self):
        answer = self.openai.embeddings.create(model="sim", input=["one", "two"])
        self.assertEqual([e.index for e in answer.data], [0, 1])
        self.assertGreater(len(answer.data[0].embedding), 8)
        self.assertGreater(answer.usage.prompt_tokens, 0)

    def test_float(self):
        base64 = self.openai.embeddings.create(model="sim", input="one", extra_headers={"x-cgn-node": "sim-1"})
        plain = self.openai.embeddings.create(
            model="sim", input="one", encoding_format="float", extra_headers={"x-cgn-node": "sim-1"}
        )
        for a, b in zip(base64.data[0].embedding, plain.data[0].embedding, strict=True):
            self.assertAlmostEqual(a, b, places=5)


class Responses(FleetTest):
    def test_create(self):
        answer = self.openai.responses.create(model="sim", input="Hello", instructions="Be brief.", max_output_tokens=7)
        self.assertEqual(answer.status, "incomplete")
        self.assertTrue(answer.output_text)
        self.assertEqual(answer.usage.output_tokens, 7)

    def test_stream(self):
        events = list(self.openai.responses.create(model="sim", input="Hello", max_output_tokens=7, stream=True))
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        self.assertEqual(events[-1].response.usage.output_tokens, 7)
        deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual(deltas, events[-1].response.output_text)

    def test_retrieve_and_delete(self):
        made = self.openai.responses.with_raw_response.create(model="sim", input=f"Keep this {time.time_ns()}")
        answer = made.parse()
        for _ in range(4):  # another node would not know it
            again = self.openai.responses.with_raw_response.retrieve(answer.id)
            self.assertEqual(again.parse().output_text, answer.output_text)
            self.assertEqual(again.headers["x-cgn-node"], made.headers["x-cgn-node"])
        self.openai.responses.delete(answer.id)
        with self.assertRaises(openai.NotFoundError):
            self.openai.responses.retrieve(answer.id)

    def test_streamed_response_is_kept(self):
        events = list(self.openai.responses.create(model="sim", input=f"Keep {time.time_ns()}", stream=True))
        self.assertEqual(self.openai.responses.retrieve(events[0].response.id).status, "completed")

    def test_unknown_response(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.openai.responses.retrieve("resp_nobody")
        self.assertEqual(caught.exception.code, "response_not_found")

    def test_previous_response(self):
        first = self.openai.responses.with_raw_response.create(model="sim", input=f"I like rivers {time.time_ns()}")
        for _ in range(4):
            second = self.openai.responses.with_raw_response.create(
                model="sim", input="Which one?", previous_response_id=first.parse().id
            )
            self.assertEqual(second.headers["x-cgn-node"], first.headers["x-cgn-node"])
            self.assertEqual(second.parse().previous_response_id, first.parse().id)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.openai.responses.create(model="sim", input="Which?", previous_response_id="resp_nobody")
        self.assertEqual(caught.exception.code, "response_not_found")

    def test_conversation_items(self):
        answer = self.openai.responses.create(
            model="sim",
            input=[
                {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
                {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            ],
        )
        self.assertEqual(answer.status, "completed")


class Cancel(FleetTest):
    """An engine stops computing for a client that left."""

    def test_chat_stream(self):
        stream = self.openai.chat.completions.create(model="sim", messages=USER, max_tokens=4000, stream=True)
        for _ in range(3):
            next(stream)
        self.assertEngineNotices(stream.close, "the engine notices a closed stream")

    def test_responses_stream(self):
        stream = self.openai.responses.create(model="sim", input="Hello", max_output_tokens=4000, stream=True)
        for _ in range(6):
            next(stream)
        self.assertEngineNotices(stream.close, "the engine notices a closed stream")

    def test_client_timeout(self):
        def leave():
            with self.assertRaises(openai.APITimeoutError):
                self.openai.chat.completions.create(model="sim", messages=USER, max_tokens=4000, timeout=0.4)

        self.assertEngineNotices(leave, "the engine notices a client that waited long enough")
