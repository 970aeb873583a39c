"""make_chat_template.py: writes tests/golden/chat_template/cases.json: chats rendered by jinja2 from the
templates in that folder, and small templates for single constructs. Needs jinja2 and transformers,
whose renderer must give the same text; see the README in that folder."""
import json
import os

import transformers.utils.chat_template_utils as reference

import chat_reference
import chat_snippets
from chat_reference import HERE, TOKENS, TOOLS


def call(name, arguments, key):
    return {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "What is 2+2?"}
WEATHER = {"role": "assistant", "content": None,
           "tool_calls": [call("get_weather", {"city": "Köln", "days": 2}, "call12345")]}
RESULT = {"role": "tool", "content": "{\"degrees\": 21}", "tool_call_id": "call12345",
          "name": "get_weather"}
NEXT = {"role": "user", "content": "And 3+3?"}
THOUGHT = {"role": "assistant", "content": "<think>\neasy\n</think>\n\n4"}

CHATS = {
    "user": {"messages": [{"role": "user", "content": "Hi"}]},
    "system": {"messages": [SYSTEM, {"role": "user", "content": " Hi é🙂 \n"}]},
    "turns": {"messages": [SYSTEM, ASKED, {"role": "assistant", "content": " 4 "}, NEXT]},
    "answered": {"messages": [ASKED, {"role": "assistant", "content": "4\n"}],
                 "add_generation_prompt": False},
    "line ends": {"messages": [{"role": "user", "content": "a\r\n\r\n b\r\n"}]},
    "thinking on": {"messages": [ASKED, THOUGHT, NEXT], "enable_thinking": True},
    "thinking off": {"messages": [ASKED, THOUGHT, NEXT], "enable_thinking": False},
    "reasoning": {"messages": [ASKED, {"role": "assistant", "content": "4", "reasoning_content":
                                       "\neasy"}, NEXT, {"role": "assistant", "content": "6",
                                                         "reasoning_content": "also easy"}]},
    "tools": {"messages": [SYSTEM, ASKED], "tools": TOOLS},
    "call": {"messages": [ASKED, WEATHER, RESULT], "tools": TOOLS[2:]},
    "calls": {"messages": [ASKED, {**WEATHER, "content": "Two calls.", "tool_calls":
                                   WEATHER["tool_calls"] + [call("now", {}, "call67890")]},
                           RESULT, {**RESULT, "content": "noon", "tool_call_id": "call67890"},
                           {"role": "assistant", "content": "Warm."}, NEXT]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"},
                                                        {"type": "text", "text": "two "}]}]},
    "documents": {"messages": [ASKED], "documents": [{"title": "One", "text": "Some text."},
                                                     {"text": "More\ntext"}]},
    "answer first": {"messages": [THOUGHT, SYSTEM, ASKED, ASKED]},
}


class Date:
    """Writes formats instead of dates; the test puts the date of the day in."""
    def strftime(self, text):
        return "<<" + text + ">>"


def check(source, variables, text):
    """transformers must give the same text, where the date does not matter."""
    if text is None or "strftime_now" in source:
        return
    out = None
    for variant in chat_reference.variants(variables):
        given = {"add_generation_prompt": True, **TOKENS, **variant}
        messages = given.pop("messages")
        tools, documents = given.pop("tools", None), given.pop("documents", None)
        try:
            out, _ = reference.render_jinja_template([messages], tools=tools, documents=documents,
                                                     chat_template=source, **given)
            break
        except Exception:  # the template expects another variant
            pass
    assert out and out[0] == text, (source, variables, out, text)


def main():
    env = chat_reference.environment(Date())
    cases, snippets = [], []
    for name, source in chat_reference.templates().items():
        for chat, variables in CHATS.items():
            text, _ = chat_reference.render(env, source, variables)
            check(source, chat_reference.prepared(env, source, variables), text)
            cases.append([name, chat, text])
    for source in chat_snippets.snippets():
        text, error = chat_reference.render(env, source, chat_snippets.VARIABLES)
        assert error is None, (source, error)
        snippets.append([source, text])
    for source in chat_snippets.ERRORS:
        text, error = chat_reference.render(env, source, chat_snippets.VARIABLES)
        assert error, source
        snippets.append([source, None])
    with open(os.path.join(HERE, "chat_template", "cases.json"), "w", encoding="utf-8") as f:
        f.write(f'{{"tokens": {json.dumps(TOKENS)},\n"chats": ')
        json.dump(CHATS, f, ensure_ascii=False)
        f.write(',\n"variables": ')
        json.dump(chat_snippets.VARIABLES, f)
        for key, rows in (("cases", cases), ("snippets", snippets)):
            lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
            f.write(f',\n"{key}": [\n{lines}\n]')
        f.write("}\n")
    failed = sum(text is None for _, _, text in cases)
    print(f"{len(cases)} cases, {failed} of them errors, {len(snippets)} snippets")


if __name__ == "__main__":
    main()
