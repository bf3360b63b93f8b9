"""Writes templates with what Jinja makes of them, in the environment that transformers has for chat templates.

  python3 make_templates.py > templates.json    (needs jinja2 3.1.6)
"""
import json

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(lineno)

    def _same(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
ENV.filters["tojson"] = tojson
ENV.globals["raise_exception"] = raise_exception

CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
          "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
LLAMA = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- the system message is taken out -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
TYPES = """{%- macro kind(spec) %}
    {%- set basic = {
    "string": "str",
    "number": "float"
} %}
    {%- if basic[spec.type] is defined %}
        {{- basic[spec.type] }}
    {%- elif spec.type == "array" %}
        {{- "list[" +  kind(spec["items"]) + "]" }}
    {%- elif spec.type is iterable and spec.type is not string %}
        {{- "Union[" }}
        {%- for t in spec.type %}
            {{- kind({"type": t}) }}
            {%- if not loop.last %}
                {{- "," }}
            {%- endif %}
        {%- endfor %}
        {{- "]" }}
    {%- else %}
        {{- "Any" }}
    {%- endif %}
{%- endmacro %}
{% for tool in tools or [] %}
{{ tool.function.name }}(
{%- for name, fields in tool.function.parameters.properties|items %}
    {{- name + ": " + kind(fields) }}
    {%- if not loop.last %}, {% endif %}
{%- endfor %})
{% endfor %}
  {% for m in messages if m.role != "system" %}
  {{ loop.index }}/{{ loop.length }} {{ m.role|upper }}: {{ m.content if m.content is string else m.content|selectattr('type', 'equalto', 'text')|map(attribute='text')|map('trim')|join('|') }}
  {% else %}
  nothing
  {% endfor %}
end """
SNIPPETS = [
    "{{ 1 + 2 * 3 - 4 // 2 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2.0 }} {{ 1e3 if false else 0.1 + 0.2 }}",
    "{{ [1, 'a', none, true, 2.5, {'k': \"it's\"}, 'x\"y\\n'] }} {{ 'a' ~ 1 ~ none ~ [2] }}",
    "{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ 'abcdef'[1:4] }}{{ 'abcdef'[::-1] }}{{ 'abcdef'[-9:-2:2] }}{{ [1,2,3][5] }}{{ [1,2,3][1:] }}",
    "{{ nothing }}|{{ nothing is defined }}|{{ nothing|default('d') }}|{{ ''|d('e', true) }}|{{ nothing|length }}|{{ 'x' in nothing }}|{% for x in nothing %}y{% endfor %}",
    "{{ {'b': 1, 'a': [1, {'c': 'é\\u2028\\u007f<>&\\'\"'}]}|tojson }} {{ {'b': 1.0, 'a': []}|tojson(indent=2) }} {{ {'b': 1, 'a': {}}|tojson(sort_keys=true, separators=(',', ':')) }} {{ 'é😀'|tojson(ensure_ascii=true) }}",
    "{% set x = 1 %}{% for i in range(3) %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for a in ['x', 'y', 'z'] %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 3) }}{{ {'a': 1}.keys()|list }}",
    "{% set ns = namespace(a=1, b='x') %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}",
    "{% macro f(a, b=2, c='z') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f() }}{{ f(1, 2, 3)|upper }}",
    "{% set block %}  a {{ 1 + 1 }}\n{% endset %}<{{ block }}>{{ block|trim }}",
    "  {% if true %}\n  a\n  {% endif %}\n  b {%- if true %}\n c {% endif -%}  \n  d\n{#- x -#}  e {# y #}\n f\n",
    "  {%+ if true %}\n x{% endif +%}\n y\n{{ 'z' }}\n{{- 'w' -}}\n v\n\n",
    "{{ 'a b  c'.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'xxaxx'.strip('x') }}{{ ' a '.lstrip() }}|{{ 'aXbX'.replace('X', '-') }}{{ 'abc'.startswith('a') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.find('c') }}{{ 'hello world'.title() }}{{ 'abc'.upper() }}",
    "{{ not true or false and true }}{{ 1 < 2 < 3 }}{{ 1 == 1.0 }}{{ 'a' not in 'bc' }}{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 'a' is string and 1 is not string }}{{ [] is sequence }}{{ {} is mapping }}{{ 1 is number }}{{ none is none }}",
    "{{ ['b', 'a']|join(', ') }}{{ [1, 2, 3]|first }}{{ [1, 2, 3]|last }}{{ 'abc'|first }}{{ [3, 4]|length }}{{ '12'|int + 1 }}{{ 'x'|int }}{{ '1.5'|float }}{{ -3|abs }}{{ 'abc'|reverse }}{{ {'b': 1, 'A': 2}|dictsort }}".replace("{{ {'b': 1, 'A': 2}|dictsort }}", "{% for k, v in {'b': 1, 'A': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}"),
    "{{ [1, 2, 3, 4]|select('odd')|list }}{{ [1, 2, none]|select|list }}{{ [{'a': 1}, {'a': 2}]|selectattr('a', 'gt', 1)|list|length }}{{ [{'a': 1}, {}]|rejectattr('a', 'defined')|list|length }}{{ [{'a': {'b': 5}}]|map(attribute='a.b')|list }}",
    "{{ messages[0] }}", "{{ messages|length }}{{ messages[-1].content }}", "{{ raise_exception('no') }}", "{{ nothing.x }}", "{{ messages.append(1) }}", "{{ 'a' + 1 }}", "{{ 'a' < 1 }}", "{{ none|length }}",
    "{% generation %}{{ 1 }}{% endgeneration %}", "{{ 'tab\\tnew\\nline\\\\ \\'q\\' \\u00e9 \\x41 \\d' }}", "{{ ('a' 'b') }}{{ (1) }}{{ 'x' if 0 }}{{ 'x' if false else 'y' if true else 'z' }}",
    "{% if messages %}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% endif %}", "a\r\nb\r\n{% if true %}\r\nc{% endif %}\r\n", "{{ 1.0 * 3 }}{{ 10000000000000000.0 }}{{ 0.00001 }}{{ 123456789.125 }}", "{{ true + 1 }}{{ -true }}{{ 5 // 2.0 }}",
    "{{ '%' }}{{ '}}' }}{{ \"{{\" }}{{ {'a': {'b': 1}}['a']['b'] }}", "{{ messages|map(attribute='role')|unique|join(',') }}", "{{ 'ab\\ncd\\n'.splitlines() }}{{ 'abc'.removeprefix('a') }}{{ 'a.b'.count('.') }}{{ '12'.isdigit() }}",
    "{% for m in messages recursive %}{% endfor %}", "{% include 'x' %}", "{{ x|nosuch }}", "{{ x is nosuch }}", "{{ x.nosuch() }}", "{{ 2 ** 3 }}", "{% call f() %}{% endcall %}", "{% filter upper %}x{% endfilter %}", "{{ f(*a) }}",
]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather, in °C & more", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": ["number", "null"]}, "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["city"]}}}]
CHATS = [
    {"messages": [{"role": "user", "content": " Hello <world> "}], "add_generation_prompt": True, "bos_token": "<s>"},
    {"messages": [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "größer 日本"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nOK"}, {"role": "user", "content": "go on"}],
     "add_generation_prompt": True, "tools": TOOLS, "enable_thinking": False, "bos_token": "<s>"},
    {"messages": [{"role": "user", "content": "weather?"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "x": 1.50}}}]},
                  {"role": "tool", "content": "{\"t\": 3}", "tool_call_id": "call_1"}, {"role": "assistant", "content": "3"}], "tools": TOOLS, "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": "c"}], "add_generation_prompt": True},
]

cases = []
for source, chats in [(t, CHATS) for t in (CHATML, LLAMA, QWEN, TYPES)] + [(s, CHATS[1:2]) for s in SNIPPETS]:
    for chat in chats:
        case = {"template": source, "variables": chat}
        try:
            case["want"] = ENV.from_string(source).render(**chat)
        except Exception as e:
            case["error"] = type(e).__name__
        cases.append(case)
print(json.dumps(cases, ensure_ascii=False, indent=0))
