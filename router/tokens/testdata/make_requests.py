"""Writes requests.json: bodies of each API, and what vLLM's renderer makes of them.

    vllm launch render MODEL --served-model-name tiny --port PORT --chat-template testdata/whole.jinja --enable-auto-tool-choice --tool-call-parser hermes
    python3 make_requests.py http://127.0.0.1:PORT > requests.json

MODEL is the one of perf/realengine/vllm/make_tiny_model.py, with a tokenizer whose post_processor puts <|endoftext|> (id 0) before
a prompt, so that it shows which APIs ask for it. Without a text the renderer refused the body.
"""
import json
import sys
import urllib.error
import urllib.request

schema = {"type": "object", "properties": {"city": {"type": "string"}}}
weather = {"type": "function", "name": "get_weather", "description": "Weather in °C", "parameters": schema}
anthropic = {"name": "get_weather", "description": "Weather in °C", "input_schema": schema}
chat_tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema, "strict": True, "description": "d"}}


def user(content):
    return {"role": "user", "content": content}


def text(t, kind="text"):
    return {"type": kind, "text": t}


def call(arguments, name="get_weather"):
    return {"type": "function_call", "call_id": "c1", "name": name, "arguments": arguments, "id": "fc_1", "status": "completed"}


def chat_call(arguments):
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": arguments}}]}


messages = {
    "plain": {"messages": [user("größer <|im_end|> 日本")]},
    "system": {"system": "Be brief.", "messages": [user("hi")]},
    "system blocks": {"system": [text("x-anthropic-billing-header: cch=1;"), text("Be "), {**text("brief."), "cache_control": {"type": "ephemeral"}}, text("")], "messages": [user("hi")]},
    "empty system": {"system": "", "messages": [user("hi")]},
    "turns": {"messages": [user([text("a")]), {"role": "assistant", "content": [text("b"), text("c")]}, user([text("d"), text(""), text("e")])]},
    "prefill": {"messages": [user("a"), {"role": "assistant", "content": "I would"}]},
    "empty turns": {"messages": [user("a"), {"role": "assistant", "content": []}, user([]), user("b")]},
    "tools": {"messages": [user("a")], "tools": [anthropic, {"name": "bare", "input_schema": {}, "type": "custom"}, {**anthropic, "strict": True, "cache_control": {"type": "ephemeral"}}]},
    "tool choice": {"messages": [user("a")], "tools": [anthropic], "tool_choice": {"type": "none"}},
    "no tools": {"messages": [user("a")], "tools": []},
    "calls": {"tools": [anthropic], "messages": [
        user("weather?"),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}, {"type": "thinking", "thinking": "!", "signature": "s"}, text("Let me see."),
                                          {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Köln", "x": [1, 2.50, None, 1e3], "b": {}}}, {"type": "tool_use", "id": "t2", "name": "get_weather", "input": {}}]},
        user([{"type": "tool_result", "tool_use_id": "t1", "content": "3"}, {"type": "tool_result", "tool_use_id": "t2", "content": [text("4"), text("°C")], "is_error": False}, text("and now?")]),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t3", "name": "get_weather", "input": {"city": "\u007f\u0001\"\\"}}]},
        user([{"type": "tool_result", "tool_use_id": "t3"}]),
    ]},
    "only thought": {"messages": [user("a"), {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"}]}, user("b")]},
    "effort": {"messages": [user("a")], "output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}},
    "thinking": {"messages": [user("a")], "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1100},
    "options": {"messages": [user("a")], "chat_template_kwargs": {"note": 5, "enable_thinking": False, "reasoning_effort": "low"}, "output_config": {"effort": "high"}},
    "salt and stops": {"messages": [user("a")], "cache_salt": "s", "stop_sequences": ["x"], "metadata": {"user_id": "u"}, "stream": True, "top_k": 3},
    "thinking disabled": {"messages": [user("a")], "thinking": {"type": "disabled"}},
    "system later": {"messages": [user("a"), {"role": "system", "content": "s"}, user("b")]},
    "image": {"messages": [user([{"type": "image", "source": {"type": "url", "url": "u"}}])]},
    "image of a tool": {"messages": [user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]}])]},
    "reference": {"messages": [user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "x"}]}])]},
    "deferred": {"messages": [user("a")], "tools": [{**anthropic, "defer_loading": True}]},
    "own tool": {"messages": [user("a")], "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "billed string": {"system": "x-anthropic-billing-header: cch=1;\nBe brief.", "messages": [user("hi")]},
}
responses = {
    "text": {"input": "größer <|im_end|> 日本"},
    "instructions": {"input": "hi", "instructions": "Be brief."},
    "empty instructions": {"input": "hi", "instructions": ""},
    "items": {"instructions": "i", "input": [{"role": "system", "content": "s"}, user("a"), {"role": "assistant", "content": "b"}, {"type": "message", **user([text("c", "input_text"), text("d", "input_text")])}]},
    "answers": {"input": [user("a"), {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [{**text("b", "output_text"), "annotations": []}]}, user("c"),
                          {"type": "message", "role": "assistant", "content": [text("d", "output_text")]}, user("e")]},
    "untyped answer": {"input": [user("a"), {"role": "assistant", "content": [text("b", "output_text")]}, user("c")]},
    "calls": {"tools": [weather], "input": [
        user("weather?"), {"type": "reasoning", "id": "rs_1", "summary": [], "content": [text("hm", "reasoning_text")]}, call('{"city": "Köln", "x": [1, 2.50, null]}'), call("", "other"), call("[1]"), call("no JSON"),
        {"type": "function_call_output", "call_id": "c1", "output": "3"}, {"type": "function_call_output", "call_id": "c2", "output": [text("4", "input_text"), text("°C", "input_text")]},
        {"type": "message", "role": "assistant", "content": [text("It is 3.", "output_text")]}, call("{}"), {"type": "function_call_output", "call_id": "c1", "output": "5", "id": "fco_1", "status": "completed"}]},
    "reasoning": {"input": [user("a"), {"type": "reasoning", "summary": [text("sum", "summary_text")]}, {"type": "message", "role": "assistant", "content": [text("b", "output_text")]},
                            {"type": "reasoning", "id": "rs_2", "summary": [], "content": [text("again", "reasoning_text")]}, {"role": "assistant", "content": "c"}, user("d")]},
    "no reasoning": {"input": [user("a"), {"type": "reasoning", "summary": []}, {"role": "assistant", "content": "b"}, user("c")]},
    "two answers": {"input": [user("a"), {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}, user("d")]},
    "tools": {"input": "a", "tools": [{**weather, "strict": True}, {"type": "function", "name": "bare"}, {"type": "function", "name": "null", "parameters": None, "strict": None, "description": None}], "tool_choice": "auto"},
    "no tools": {"input": "a", "tools": []},
    "effort": {"input": "a", "reasoning": {"effort": "medium", "summary": "auto"}},
    "no effort": {"input": "a", "reasoning": {"effort": "none"}},
    "options": {"input": "a", "chat_template_kwargs": {"note": [1, "x"], "enable_thinking": True}, "reasoning": {"effort": "none"}},
    "stored": {"input": "a", "store": False, "stream": True, "truncation": "disabled", "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"], "text": {"format": {"type": "text"}}, "prompt_cache_key": "k", "parallel_tool_calls": True, "max_output_tokens": 5},
    "previous": {"input": "a", "previous_response_id": "resp_1"},
    "truncated": {"input": "a", "truncation": "auto"},
    "continued": {"input": [user("a"), {"type": "message", "role": "assistant", "id": "m", "status": "incomplete", "content": [{**text("I would", "output_text"), "annotations": []}]}]},
    "several parts": {"input": [user("a"), {"type": "message", "role": "assistant", "content": [text("b", "output_text"), text("c", "output_text")]}, user("d")]},
    "refusal": {"input": [user("a"), {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, user("d")]},
    "developer": {"input": [{"role": "developer", "content": "s"}, user("a")]},
    "own tool": {"input": "a", "tools": [weather, {"type": "web_search"}]},
    "custom tool": {"input": "a", "tools": [{"type": "custom", "name": "x"}]},
    "image": {"input": [user([{"type": "input_image", "image_url": "u", "detail": "auto"}])]},
    "null option": {"input": "a", "chat_template_kwargs": {"note": None}},
}
chat = {
    "effort": {"messages": [user("a")], "reasoning_effort": "low", "chat_template_kwargs": {"note": 1}},
    "effort and thinking": {"messages": [user("a")], "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"}},
    "no effort": {"messages": [user("a")], "reasoning_effort": "none"},
    "arguments": {"messages": [user("a"), chat_call('{"b": 1.50, "a": []}'), chat_call(""), chat_call("[1]"), chat_call("no JSON")]},
    "tools": {"messages": [user("a")], "tools": [chat_tool]},
    "parts": {"messages": [{"role": "system", "content": [text("s"), text("t")]}, user([text("a"), text("b")])]},
    "null option": {"messages": [user("a")], "chat_template_kwargs": {"note": None}},
    "auto option": {"messages": [user("a")], "chat_template_kwargs": {"note": "auto"}},
    "billed": {"messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=1;\nBe brief."}, user("a")]},
    "odd numbers": {"messages": [user("a"), chat_call('{"a": NaN}')]},
}


def ask(path, body):
    request = urllib.request.Request(sys.argv[1] + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as e:
        return {"error": e.code, "page": e.read().decode()}


out = []
for path, bodies in (("/v1/chat/completions", chat), ("/v1/messages", messages), ("/v1/responses", responses)):
    for name, body in bodies.items():
        body = {"model": "tiny", **({"max_tokens": 16} if path == "/v1/messages" else {}), **body}
        got = ask(path + "/render", body)
        case = {"path": path, "name": name, "body": body}
        if "error" in got:
            print(path, name, got["error"], got["page"][:300], file=sys.stderr)
        else:
            case["text"] = ask("/detokenize", {"model": "tiny", "tokens": got["token_ids"]})["prompt"]
        out.append(case)
json.dump(out, sys.stdout, ensure_ascii=False, indent=1)
print()
