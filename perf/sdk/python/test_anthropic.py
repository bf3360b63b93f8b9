"""anthropic-python against the fleet: /v1/messages."""

import time

import fleet
from fleet import FleetTest

MESSAGES = [{"role": "user", "content": "Tell me about rivers. " + fleet.words(40)}]
TOOL = {"name": "get_weather", "description": "Tells the weather", "input_schema": fleet.WEATHER["schema"]}


class Messages(FleetTest):
    def test_create(self):
        answer = self.anthropic.messages.create(model="sim", messages=MESSAGES, max_tokens=8, system="Be brief.")
        self.assertEqual((answer.type, answer.role, answer.stop_reason), ("message", "assistant", "max_tokens"))
        self.assertTrue(answer.content[0].text)
        self.assertEqual(answer.usage.output_tokens, 8)

    def test_repeated_prompt_is_cached(self):
        ask = [{"role": "user", "content": f"at {time.time_ns()} " + fleet.words(200)}]
        first = self.anthropic.messages.with_raw_response.create(model="sim", messages=ask, max_tokens=2)
        second = self.anthropic.messages.with_raw_response.create(model="sim", messages=ask, max_tokens=2)
        self.assertEqual(first.headers["x-cgn-node"], second.headers["x-cgn-node"])
        usage = second.parse().usage
        self.assertGreater(usage.cache_read_input_tokens, usage.input_tokens)

    def test_stream(self):
        events = list(self.anthropic.messages.create(model="sim", messages=MESSAGES, max_tokens=8, stream=True))
        self.assertEqual(events[0].type, "message_start")
        self.assertEqual(events[-1].type, "message_stop")
        self.assertEqual(sum(e.type == "content_block_delta" for e in events), 8)
        self.assertEqual(events[-2].usage.output_tokens, 8)

    def test_stream_helper(self):
        with self.anthropic.messages.stream(model="sim", messages=MESSAGES, max_tokens=8) as stream:
            said = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(final.content[0].text, said)
        self.assertEqual(final.usage.output_tokens, 8)

    def test_tool_stream(self):
        with self.anthropic.messages.stream(
            model="sim", messages=MESSAGES, max_tokens=200, tools=[TOOL], tool_choice={"type": "any"}
        ) as stream:
            pieces = sum(e.type == "content_block_delta" for e in stream)
            final = stream.get_final_message()
        self.assertEqual((final.stop_reason, final.content[0].name), ("tool_use", "get_weather"))
        self.assertEqual(set(final.content[0].input), {"city", "days"})
        self.assertGreater(pieces, 3)

    def test_tool_result(self):
        use = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo", "days": 1}}
        answer = self.anthropic.messages.create(
            model="sim",
            max_tokens=3,
            tools=[TOOL],
            messages=[
                *MESSAGES,
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}]},
            ],
        )
        self.assertTrue(answer.content[0].text)

    def test_count_tokens(self):
        counted = self.anthropic.messages.count_tokens(model="sim", messages=MESSAGES)
        usage = self.anthropic.messages.create(model="sim", messages=MESSAGES, max_tokens=1).usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + (usage.cache_read_input_tokens or 0))

    def test_cancel(self):
        stream = self.anthropic.messages.create(model="sim", messages=MESSAGES, max_tokens=4000, stream=True)
        for _ in range(4):
            next(iter(stream))
        self.assertEngineNotices(stream.close, "the engine notices a closed stream")
