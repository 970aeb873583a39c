"""Lets the openai package call tools, whole and streamed.

    openai_tools.py URL KEY

The server must serve the bundled checkpoint under the name "tiny", with --tool-call-parser,
--chat-template qwen3, which renders tools, and the API key KEY. The checkpoint knows no tools, so
every call is the work of the token masks.
"""
import json
import re
import sys

import openai

QUESTION = [{"role": "user", "content": "Compute 12 * 34 by hand."}]


def tool(name, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties),
              "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("multiply", a={"type": "integer", "minimum": 0, "maximum": 999},
              b={"type": "integer", "minimum": 0, "maximum": 999}),
         tool("look_up", word={"type": "string", "maxLength": 8}, unit={"enum": ["c", "f"]})]
NAMED = {"type": "function", "function": {"name": "look_up"}}


def ask(client, seed, **more):
    return client.chat.completions.create(
        **{"model": "tiny", "messages": QUESTION, "tools": TOOLS, "temperature": 1.5, "seed": seed,
           "max_tokens": 300, **more})


def is_id(text):
    """The templates of the Mistral models want nine letters and digits."""
    return re.fullmatch("call_[0-9a-f]{24}|[0-9A-Za-z]{9}", text)


def check_call(call):
    arguments = json.loads(call.function.arguments)
    assert call.type == "function" and is_id(call.id), call
    if call.function.name == "multiply":
        assert set(arguments) == {"a", "b"}, arguments
        assert all(type(x) is int and 0 <= x <= 999 for x in arguments.values()), arguments
    else:
        assert call.function.name == "look_up" and set(arguments) == {"word", "unit"}, call
        assert len(arguments["word"]) <= 8 and arguments["unit"] in ("c", "f"), arguments


def calls_of(message):
    return [(c.function.name, c.function.arguments) for c in message.tool_calls or []]


def tools_can_be_required(client):
    for seed in range(6):
        for choice, one in (("required", False), ("required", True), (NAMED, True)):
            more = {"tool_choice": choice}
            if choice == "required":
                more["parallel_tool_calls"] = not one
            whole = ask(client, seed, **more).choices[0]
            if whole.finish_reason == "length":  # calls may follow each other up to the limit
                assert not one, whole
                continue
            assert whole.finish_reason == ("stop" if choice is NAMED else "tool_calls"), whole
            calls = whole.message.tool_calls
            assert not whole.message.content and calls and (len(calls) == 1 or not one), whole
            for call in calls:
                check_call(call)
            assert choice is not NAMED or calls[0].function.name == "look_up", calls
            with client.chat.completions.stream(
                    model="tiny", messages=QUESTION, tools=TOOLS, temperature=1.5, seed=seed,
                    max_tokens=300, **more) as stream:
                for _ in stream:
                    pass
                streamed = stream.get_final_completion().choices[0]
            assert streamed.finish_reason == whole.finish_reason, streamed
            assert calls_of(streamed.message) == calls_of(whole.message), (streamed, whole)
    other = tool("f", x={"not": {"type": "string"}})
    other["function"]["strict"] = True
    try:
        ask(client, 0, tools=[other], tool_choice="required")
        raise AssertionError("not refused")
    except openai.BadRequestError as e:
        assert "parameters of function f: schema at #/properties/x: keyword 'not'" in str(e), e


def read_stream(stream):
    """The content, calls, finish and number of deltas of each call."""
    content, calls, counts, finish = "", [], [], None
    for chunk in stream:
        choice = chunk.choices[0]
        assert finish is None, "a chunk after the last"
        finish = choice.finish_reason
        content += choice.delta.content or ""
        for delta in choice.delta.tool_calls or []:
            if delta.index == len(calls):  # the first of a call: everything but its arguments
                assert is_id(delta.id) and delta.type == "function", delta
                assert delta.function.name and delta.function.arguments == "", delta
                calls.append((delta.function.name, ""))
                counts.append(0)
            else:
                assert delta.index == len(calls) - 1 and delta.id is None, delta
                assert delta.function.name is None and delta.function.arguments, delta
                name, arguments = calls[-1]
                calls[-1] = name, arguments + delta.function.arguments
                counts[-1] += 1
    return content, calls, counts, finish


def arguments_are_streamed(client):
    most = 0
    for seed in range(6):
        whole = ask(client, seed, tool_choice=NAMED).choices[0]
        content, calls, counts, finish = read_stream(ask(client, seed, tool_choice=NAMED,
                                                         stream=True))
        assert calls == calls_of(whole.message) and len(calls) == 1, (calls, whole)
        assert content == "" and finish == whole.finish_reason == "stop", (content, finish)
        most = max(most, *counts)
    assert most >= 3, "the arguments came in at most %d pieces" % most


def a_call_can_be_cut_off(client):
    """max_tokens ends it: whole and streamed have the arguments so far, and the next chat takes
    them."""
    n_cut = n_dropped = 0
    for limit in range(1, 300, 5):
        more = {"tool_choice": NAMED, "max_tokens": limit}
        whole = ask(client, 3, **more).choices[0]
        content, calls, _, finish = read_stream(ask(client, 3, stream=True, **more))
        assert (whole.message.content or "") == content, (limit, whole, content)
        assert calls == calls_of(whole.message) and finish == whole.finish_reason, (limit, whole)
        if finish != "length":
            break
        n_dropped += not calls
        assert not content, (limit, whole)
        if not calls:
            continue
        n_cut += 1
        call = whole.message.tool_calls[0]
        history = QUESTION + [whole.message,
                              {"role": "tool", "tool_call_id": call.id, "content": "bad arguments"}]
        assert ask(client, 3, messages=history, max_tokens=1).usage.prompt_tokens > 10
    assert n_cut >= 3 and n_dropped >= 1, (n_cut, n_dropped)


def written(client, text, **more):
    """The content and the calls of an answer with this text, which are the same in a stream."""
    more = {"extra_body": {"structured_outputs": {"choice": [text]}}, "max_tokens": 900, **more}
    whole = ask(client, 0, **more).choices[0]
    content, calls, _, finish = read_stream(ask(client, 0, stream=True, **more))
    assert content == (whole.message.content or ""), (content, whole)
    assert calls == calls_of(whole.message) and finish == whole.finish_reason, (calls, whole)
    assert finish == ("tool_calls" if calls else "stop"), whole
    return content, calls


def calls_have_many_spellings(client):
    one = '{"name": "multiply", "arguments": {"a": 2, "b": 3}}'
    other = '{"arguments": {"word": "x"}, "name": "look_up"}'
    two = [("multiply", '{"a": 2, "b": 3}'), ("look_up", '{"word": "x"}')]
    for text in (f"<tool_call>\n{one}\n</tool_call>\n<tool_call>\n{other}\n</tool_call>",
                 f"<tool_call>{one}\n{other}</tool_call>", f"<tool_call>[{one}, {other}]</tool_call>",
                 f"<|python_tag|>{one}; {other}", f"[TOOL_CALLS] [{one}, {other}]",
                 '[TOOL_CALLS]multiply[ARGS]{"a": 2, "b": 3}[TOOL_CALLS]look_up{"word": "x"}',
                 '<function=multiply>{"a": 2, "b": 3}</function>'
                 '<function=look_up>{"word": "x"}</function>'):
        assert written(client, text) == ("", two), text
        assert written(client, "Hm. " + text) == ("Hm.", two), text
    tags = ("<tool_call>\n<function=multiply>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n3\n"
            "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=look_up>\n"
            "<parameter=word>\nx\n</parameter>\n")
    for text in (tags + "</function>\n</tool_call>", tags + "</tool_call>", tags,
                 tags + "</function>\n</tool_call>\n"):
        assert written(client, text) == ("", two), text
    text = "<tool_call>[multiply(a=2, b=3), look_up(word='x')]</tool_call>"
    assert written(client, f"```python\n{text}\n```") == ("", two), text
    for arguments, passed in (('"{\\"a\\": 2}"', '{"a": 2}'), ("null", "{}"), ('""', "{}")):
        text = '<tool_call>{"name": "multiply", "arguments": %s}</tool_call>' % arguments
        assert written(client, text) == ("", [("multiply", passed)]), text
    for text in ('{"name": "multiply"}', '{"name": "Bob", "arguments": {}}'):
        assert written(client, f"<tool_call>{text}</tool_call>") == (text, []), text


def json_that_was_asked_for_is_no_call(client):
    schema = {"type": "object", "properties": {"name": {"enum": ["multiply"]},
                                               "arguments": {"type": "object", "properties": {}}},
              "required": ["name", "arguments"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for more in ({"response_format": form},
                 {"extra_body": {"structured_outputs": {"json": schema}}}):
        whole = ask(client, 1, **more).choices[0]
        assert not whole.message.tool_calls and whole.finish_reason == "stop", whole
        assert json.loads(whole.message.content)["name"] == "multiply", whole


def main():
    url, key = sys.argv[1:]
    client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=600)
    for use in (tools_can_be_required, arguments_are_streamed, a_call_can_be_cut_off,
                calls_have_many_spellings, json_that_was_asked_for_is_no_call):
        use(client)
        print(use.__name__)


if __name__ == "__main__":
    main()
