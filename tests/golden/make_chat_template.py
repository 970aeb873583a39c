"""make_chat_template.py: writes tests/golden/chat_template/cases.json. It has chats rendered by
transformers' apply_chat_template (Jinja) from the templates of public checkpoints, and templates
that must not be recognised. Needs transformers and jinja2; see the README in that folder."""
import datetime
import json
import os
import random

import transformers
from tokenizers import Tokenizer, models

HERE = os.path.dirname(os.path.abspath(__file__))
TODAY = "<<today>>"  # replaces the current date in rendered chats

PLAIN = ("{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content"
         " + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}"
         "{{- '<|im_start|>assistant\\n' }}{%- endif %}")
# The common one-line form, with a BOS first.
PLAIN_BOS = ("{{ bos_token }}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n'"
             " + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
PLAIN_FORMATTED = """{# one message after the other #}
{% for message in messages -%}
    {{- "<|im_start|>" + message["role"] + "\\n" + message["content"] + "<|im_end|>\\n" -}}
{% endfor %}
{% if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" -}}
{% endif %}
"""
QWEN2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
         "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
         "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
         "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
TOOLS_TEXT = (r'''"\n\n# Tools\n\nYou may call one or more functions to assist with the user query.'''
              r'''\n\nYou are provided with function signatures within <tools></tools> XML tags:'''
              r'''\n<tools>"''')
TOOLS_END = (r'''"\n</tools>\n\nFor each function call, return a json object with function name and '''
             r'''arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": '''
             r'''<function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n"''')
TOOL_CALLS = r"""        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
"""
TOOL_TURN = r"""    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
"""
QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- '@SYSTEM@' }}
    {%- endif %}
    {{- """ + TOOLS_TEXT + r""" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- """ + TOOLS_END + r""" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\n@SYSTEM@<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
""" + TOOL_CALLS + r"""        {{- '<|im_end|>\n' }}
""" + TOOL_TURN + r"""    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
QWQ = QWEN25.replace("        {{- '@SYSTEM@' }}\n", "        {{- '' }}\n").replace(
    "    {%- else %}\n        {{- '<|im_start|>system\\n@SYSTEM@<|im_end|>\\n' }}\n", "").replace(
    ' or (message.role == "assistant" and not message.tool_calls) %}', " %}").replace(
    """    {%- elif message.role == "assistant" %}
""", r"""    {%- elif message.role == "assistant" and not message.tool_calls %}
        {%- set content = message.content %}
        {%- if not loop.last %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
""").replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}")
QWEN3 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- """ + TOOLS_TEXT.replace(r'"\n\n#', '"#') + r""" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- """ + TOOLS_END + r""" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
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
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
""" + TOOL_CALLS + r"""        {%- endif %}
        {{- '<|im_end|>\n' }}
""" + TOOL_TURN.replace("(loop.index0 == 0)", "loop.first") + r"""    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""
QWEN3_THINKING = QWEN3.replace(r"""    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
""", r"""    {{- '<|im_start|>assistant\n<think>\n' }}
""")
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
          "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | "
          "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
          "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")
LLAMA31 = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message + builtin tools #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\n\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You have access to the following functions. To call a function, please respond with JSON for a function call." }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {{- "Do not use variables.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{#- Custom tools are passed in a user message with some extra guidance #}
{%- if tools_in_user_message and not tools is none %}
    {#- Extract the first user message so we can plug it in here #}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {{- "Given the following functions, please respond with a JSON for a function call " }}
    {{- "with its proper arguments that best answers the given prompt.\n\n" }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {{- "Do not use variables.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {%- if builtin_tools is defined %}
            {#- This means we're in ipython mode #}
            {{- "<|eom_id|>" }}
        {%- else %}
            {{- "<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
LLAMA32 = LLAMA31.replace("""    {%- set date_string = "26 Jul 2024" %}
""", """    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
""")
DEEPSEEK = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = "
    "message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message "
    "in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + "
    "message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is "
    "none %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not "
    "ns.is_first %}{{'<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + "
    "'<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + "
    "tool['function']['arguments'] + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- set ns.is_first = true "
    "-%}{%- else %}{{'\\n' + '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + "
    "tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + "
    "'```' + '<｜tool▁call▁end｜>'}}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}{%- endif %}{%- "
    "endfor %}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none "
    "%}{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}"
    "{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' "
    "in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + "
    "content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- "
    "set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜tool▁outputs▁begin｜>"
    "<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- set "
    "ns.is_output_first = false %}{%- else %}{{'\\n<｜tool▁output▁begin｜>' + message['content'] + "
    "'<｜tool▁output▁end｜>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}"
    "{{'<｜tool▁outputs▁end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}"
    "{{'<｜Assistant｜><think>\\n'}}{% endif %}")
DEEPSEEK_JOINED = DEEPSEEK.replace("system_prompt='')", "system_prompt='', is_first_sp=true)").replace(
    "{% set ns.system_prompt = message['content'] %}",
    "{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}"
    "{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' "
    "+ message['content'] %}{%- endif %}")

QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
KNOWN = {  # name: (family, template, BOS)
    "plain": ("chatml", PLAIN, None),
    "plain with BOS": ("chatml", PLAIN_BOS, "<s>"),
    "plain, formatted": ("chatml", PLAIN_FORMATTED, None),
    "Qwen2": ("qwen2", QWEN2, None),
    "Qwen2.5": ("qwen2", QWEN25.replace("@SYSTEM@", QWEN_SYSTEM), None),
    "Qwen2.5 base": ("qwen2", QWEN25.replace("@SYSTEM@", "You are a helpful assistant."), None),
    "Qwen2.5-Math": ("qwen2", QWEN25.replace(
        "@SYSTEM@", r"Please reason step by step, and put your final answer within \\boxed{}."), None),
    "QwQ": ("qwen3", QWQ, None),
    "Qwen3": ("qwen3", QWEN3, None),
    "Qwen3-Thinking": ("qwen3", QWEN3_THINKING, None),
    "Llama 3": ("llama3", LLAMA3, "<|begin_of_text|>"),
    "Llama 3, always open": ("llama3", LLAMA3.replace("{% if add_generation_prompt %}", "").replace(
        "assistant<|end_header_id|>\\n\\n' }}{% endif %}", "assistant<|end_header_id|>\\n\\n' }}"),
        "<|begin_of_text|>"),
    "Llama 3.1": ("llama3", LLAMA31, "<|begin_of_text|>"),
    "Llama 3.2": ("llama3", LLAMA32, "<|begin_of_text|>"),
    "DeepSeek-R1-Distill": ("deepseek-r1", DEEPSEEK, "<｜begin▁of▁sentence｜>"),
    "DeepSeek-R1, first": ("deepseek-r1", DEEPSEEK.replace("<｜Assistant｜><think>\\n", "<｜Assistant｜>"),
                           "<｜begin▁of▁sentence｜>"),
    "DeepSeek-R1, joined": ("deepseek-r1", DEEPSEEK_JOINED, "<｜begin▁of▁sentence｜>"),
    "Qwen3, reasoning in content alone": ("qwen3", QWEN3.replace(
        "message.reasoning_content is string", "false").replace(
        "message.reasoning_content", "''"), None),
}
UNKNOWN = {
    "trims": PLAIN.replace("message.content", "message.content | trim"),
    "strips": PLAIN.replace("message.content", "message.content.strip()"),
    "own words": PLAIN.replace("'<|im_start|>' + message.role", "'Be kind. <|im_start|>' + message.role"),
    "literal text": "Hello{% for message in messages %}" + PLAIN[27:],
    "literal newline": PLAIN.replace("{%- if", "\n\n{{ '' }}{%- if"),
    "no newline": PLAIN.replace("<|im_end|>\\n", "<|im_end|>"),
    "no answer": PLAIN[:PLAIN.index("{%- if")],
    "two defaults": QWEN2 + QWEN2.replace("a helpful", "another"),
    "thinks otherwise": QWEN3.replace("'<think>\\n\\n</think>\\n\\n'", "'<think>\\n'"),
    "no_think flag": QWEN3.replace("enable_thinking", "thinking_mode"),
    "phi-4": PLAIN.replace("message.role + '\\n'", "message.role + '<|im_sep|>'"),
    "is_last_user": DEEPSEEK.replace("is_first=false", "is_first=false, is_last_user=false"),
    "keeps reasoning": DEEPSEEK.replace("content.split('</think>')[-1]", "content"),
    "another cutoff": LLAMA31.replace("December 2023", "March 2025"),
    "mistral": "{{ bos_token }}{% for message in messages %}{{ '[INST] ' + message['content'] + "
               "' [/INST]' }}{% endfor %}",
    "reasons otherwise": PLAIN.replace("+ message.content", "+ (message.reasoning_content or '') + "
                                       "message.content"),
    "empty tags": "{{}}{%%}{##}",
    "unclosed": "{{ '<|im_start|>",
    "unclosed escape": "{{ '<|im_start|>\\",
    "unclosed comment": "<|im_start|>{# ",
}
TEXTS = ["Hello", "  spaces around \n\n", "\u00a0\u2003 odd spaces \x1c\x85", "", "two\nlines\n", "é中文🙂",
         "<think>\nhm\n</think>\n\nSo: 4.", "\n\n</think>\n\n\nleft", "<think>open", "a</think>b</think>\nc",
         "<think>\n\n</think>\n\nplain", "x<think>y<think>\nz\n\n</think>w", "<|im_end|>",
         "<tool_response>\n1\n</tool_response>", "<tool_response>no", "%s {{ x }}"]


def chats(family, rng, has_tools):
    yield [("user", "Hi")]
    yield [("system", "Be brief."), ("user", "Hi")]
    yield [("user", "2+2?"), ("assistant", "<think>\neasy\n</think>\n\n4"), ("user", "3+3?")]
    yield [("system", " S1 "), ("user", "a"), ("system", "S2"), ("assistant", "b")]
    yield [("assistant", "<think>\nfirst\n</think>\n\nI speak first")]
    yield [("system", "only")]
    roles = ["user", "assistant", "system"] + (["tool"] if has_tools else [])
    for _ in range(14):
        yield [(rng.choice(roles), rng.choice(TEXTS)) for _ in range(rng.randint(1, 7))]


def reasoned_chats(rng, has_tools):
    """Chats whose assistant messages may have their reasoning in a separate field, as (role,
    content, reasoning or None)."""
    result = "<tool_response>\n1\n</tool_response>"
    yield [("user", "2+2?", None), ("assistant", "4", "easy"), ("user", "3+3?", None)]
    yield [("user", "2+2?", None), ("assistant", "call", "use it"), ("user", result, None)]
    yield [("user", "2+2?", None), ("assistant", "4", "easy"), ("system", "S", None)]
    yield [("user", "2+2?", None), ("assistant", "4", "one"), ("assistant", "5", "\ntwo\n")]
    yield [("user", "q", None), ("assistant", "<think>\nin\n</think>\n\nout", "beside"),
           ("user", result, None), ("assistant", "<think>\nin\n</think>\n\nout", "")]
    roles = ["user", "assistant", "assistant", "system"] + (["tool"] if has_tools else [])
    for _ in range(12):
        chat = [(rng.choice(roles), rng.choice(TEXTS)) for _ in range(rng.randint(1, 7))]
        yield [(r, c, rng.choice([None, "", "why", "\n\nlines\n\n", "a</think>b", " <think>x"])
                if r == "assistant" else None) for r, c in chat]


def message_of(role, content, reasoning=None):
    message = {"role": role, "content": content}
    return message if reasoning is None else {**message, "reasoning_content": reasoning}


def main():
    rng, rng_reasoned = random.Random(3), random.Random(4)
    cases, programs = [], {}
    for name, (family, program, bos) in KNOWN.items():
        t = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()),
                                                 bos_token=bos, chat_template=program)
        programs[name] = {"family": family, "bos": bos, "program": program}
        has_tools = "tool_response" in program
        all_chats = list(chats(family, rng, has_tools))
        if family in ("qwen2", "qwen3"):
            all_chats += reasoned_chats(rng_reasoned, has_tools)
        for chat in all_chats:
            messages = [message_of(*m) for m in chat]
            for thinking in (-1, 0, 1) if "enable_thinking" in program else (-1,):
                extra = {} if thinking < 0 else {"enable_thinking": bool(thinking)}
                text = t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True,
                                             **extra)
                if "strftime_now" in program:
                    text = text.replace(datetime.datetime.now().strftime("%d %b %Y"), TODAY)
                cases.append({"template": name, "messages": messages, "thinking": thinking,
                              "text": text})
    out = os.path.join(HERE, "chat_template", "cases.json")
    with open(out, "w", encoding="utf-8") as f:
        f.write(f'{{"transformers": "{transformers.__version__}",\n"templates": ')
        json.dump(programs, f, ensure_ascii=False, indent=0)
        f.write(',\n"unknown": ')
        json.dump(UNKNOWN, f, ensure_ascii=False, indent=0)
        f.write(',\n"cases": [\n')
        f.write(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases))
        f.write("\n]}\n")
    print(f"{len(KNOWN)} templates, {len(cases)} cases, {len(UNKNOWN)} unknown templates")


if __name__ == "__main__":
    main()
