"""Chat templates in the style of common model families, and hostile ones."""

from __future__ import annotations

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("only single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}{{- message.content | tojson }}{{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n\n<tools>" }}{%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(
        message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
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
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""

GEMMA = """{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}{%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- macro turn(role, text) -%}{{ '<start_of_turn>' ~ role ~ '\n' ~ text | trim ~ '<end_of_turn>\n' }}{%- endmacro -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ turn(role, (first_user_prefix if loop.first else "") + message['content']) }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""

R1 = """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'system' %}{{ message['content'] }}{% endif %}
{%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}{% endif %}
{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|Assistant|>' + content + '<|end of sentence|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"""

FAMILIES = {"chatml": CHATML, "llama3": LLAMA3, "qwen3": QWEN3, "gemma": GEMMA, "r1": R1}

_DOUBLED = "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ %s }}"

# Templates that would run for hours or use gigabytes.
ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop that calls itself": "{% for a in range(99999) recursive %}{% if loop.depth < 3 %}"
    "{{ loop(range(99999)) }}{% endif %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "text joined": _DOUBLED % ("'ab'", "ns.x ~ ns.x", "ns.x"),
    "text added": _DOUBLED % ("'ab'", "ns.x + ns.x", "ns.x"),
    "lists of lists": _DOUBLED % ("[1]", "[ns.x, ns.x]", "ns.x"),
    "lists added": _DOUBLED % ("[1]", "ns.x + ns.x", "ns.x"),
    "dicts of dicts": _DOUBLED % ("{'a': 1}", "{'a': ns.x, 'b': ns.x}", "ns.x | tojson"),
    "lists joined": _DOUBLED % ("'ab'", "[ns.x, ns.x] | join", "ns.x"),
    "text repeated": "{{ 'a' * 10 ** 10 }}",
    "text between tags": "{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}",
    "a set block": "{% set x %}{% for i in range(9999) %}0123456789{% endfor %}{% endset %}"
    "{% for i in range(99999) %}{{ x }}{% endfor %}",
    "padding by a method": "{{ 'a'.center(9999999999) }}",
    "padding by a filter": "{{ 'a' | center(9999999999) }}",
    "padding by a format": "{{ '%9999999999d' % 1 }}",
    "padding by an argument": "{{ '%*d' % (9999999999, 1) }}",
    "padding by str.format": "{{ '{:9999999999}'.format(1) }}",
    "padding of many": "{{ range(99999) | map('center', 99999) | list }}",
    "replacement": "{{ ('y' * 99999).replace('y', 'z' * 99999) }}",
    "replacement of nothing": "{{ ('y' * 99999) | replace('', 'z' * 99999) }}",
    "a separator": "{{ ('y' * 99999).join(range(99999) | map('string')) }}",
    "a separator of a filter": "{{ range(99999) | map('string') | join('y' * 99999) }}",
    "lines indented": "{{ ('y\\n' * 99999) | indent(99999) }}",
    "lines wrapped": "{{ ('y' * 99999) | wordwrap(1, wrapstring='z' * 99999) }}",
    "tabs": "{{ ('\\t' * 99999).expandtabs(99999) }}",
    "batches": "{{ [1] | batch(999999999, 'x') | list }}",
    "slices": "{{ [1] | slice(999999999) | list }}",
    "copies": "{% set a = 'y' * 1000000 %}" + "{% set b = a[1:] %}" * 1000,
    "many operands": "{% set a = 'y' * 1000000 %}{{ a ~ " + " ~ ".join(["a"] * 1000) + " }}",
    "indented JSON": "{{ range(999) | list | tojson(indent=99999999) }}",
    "separated JSON": "{{ range(999) | list | tojson(separators=('y' * 99999, 'z')) }}",
    "integers": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "powers": "{{ 10 ** (10 ** 10) }}",
    "dates": "{{ strftime_now('%c' * 99999) }}",
}

# Templates that would escape from the sandbox, or produce values that it cannot count.
REACHING = {
    "a class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "a list changed": "{{ messages.append(1) }}",
    "a method of integers": "{{ (5).to_bytes(999999999, 'big') }}",
    "a table": "{{ 'a'.translate({97: 'b' * 100000}) }}",
    "an attribute": "{% set ns = namespace(a=1) %}{% set ns.__class__ = 3 %}",
}
