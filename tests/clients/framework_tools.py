"""Calls tools through litellm and langchain-openai, whole and streamed, and sends the calls and
their results back, as agents do.

    framework_tools.py URL KEY

The server must serve the bundled checkpoint under the name "tiny", with --tool-call-parser,
--chat-template qwen3, which renders tools, and the API key KEY.
"""
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # downloads nothing
import litellm
import pydantic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

url, key = sys.argv[1] + "/v1", sys.argv[2]
TEXT = "Compute 12 * 34 by hand."


class Point(pydantic.BaseModel):
    """A point in the plane."""
    x: int = pydantic.Field(ge=0, le=99)
    y: int = pydantic.Field(ge=0, le=99)


def litellm_calls_tools():
    point = {"type": "function", "function": {"name": "Point",
                                              "parameters": Point.model_json_schema()}}
    question = [{"role": "user", "content": TEXT}]

    def ask(messages=question, **more):
        return litellm.completion(
            model="openai/tiny", api_base=url, api_key=key, temperature=1, seed=3, max_tokens=300,
            messages=messages, tools=[point], parallel_tool_calls=False, **more)

    message = ask(tool_choice="required").choices[0].message
    whole = message.tool_calls[0].function
    Point(**json.loads(whole.arguments))
    chunks = list(ask(tool_choice="required", stream=True))
    pieces = [c.function.arguments for chunk in chunks
              for c in chunk.choices[0].delta.tool_calls or [] if c.function.arguments]
    assert len(pieces) >= 3 and "".join(pieces) == whole.arguments, pieces
    built = litellm.stream_chunk_builder(chunks).choices[0].message
    assert built.tool_calls[0].function.name == whole.name == "Point", built
    assert built.tool_calls[0].function.arguments == whole.arguments, built
    lengths = [ask().usage.prompt_tokens]
    for answer in (message, message.model_dump(), built):
        result = {"role": "tool", "content": "ok", "tool_call_id": message.tool_calls[0].id}
        lengths.append(ask(question + [answer, result]).usage.prompt_tokens)
    assert lengths[0] < lengths[1] == lengths[2] == lengths[3], lengths


def chat(max_tokens=300):
    return ChatOpenAI(model="tiny", base_url=url, api_key=key, temperature=1, max_retries=0,
                      max_tokens=max_tokens, seed=3)


def stream(model, messages):
    chunks = list(model.stream(messages))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole, sum(bool(c["args"]) for chunk in chunks for c in chunk.tool_call_chunks)


def langchain_calls_tools():
    calls = chat().bind_tools([Point], tool_choice="Point").invoke(TEXT).tool_calls
    assert len(calls) == 1 and calls[0]["name"] == "Point", calls
    Point(**calls[0]["args"])
    one = chat().bind_tools([Point], tool_choice="any", parallel_tool_calls=False)
    message = one.invoke(TEXT)
    streamed, n_pieces = stream(one, TEXT)
    for m in (message, streamed):
        assert [(c["name"], c["args"]) for c in m.tool_calls] == [("Point", calls[0]["args"])], m
    assert n_pieces >= 3, n_pieces
    free = chat().bind_tools([Point])
    first = free.invoke(TEXT).usage_metadata["input_tokens"]
    result = ToolMessage("ok", tool_call_id=message.tool_calls[0]["id"])
    history = [HumanMessage(TEXT), message, result]
    assert free.invoke(history).usage_metadata["input_tokens"] > first
    for method in ("function_calling", "json_schema"):
        point = chat().with_structured_output(Point, method=method).invoke(TEXT)
        assert isinstance(point, Point) and 0 <= point.x <= 99, point


def langchain_sends_back_calls_that_were_cut_off():
    n_cut = 0
    for limit in range(5, 300, 5):
        one = chat(limit).bind_tools([Point], tool_choice="any", parallel_tool_calls=False)
        message = one.invoke(TEXT)
        streamed, _ = stream(one, TEXT)
        finish = message.response_metadata["finish_reason"]
        assert streamed.response_metadata["finish_reason"] == finish, (limit, streamed)
        if finish != "length":
            break
        calls = message.invalid_tool_calls
        n_calls = len(calls) + len(message.tool_calls)
        assert n_calls == len(streamed.tool_call_chunks), (limit, streamed)
        n_cut += len(calls)
        history = [HumanMessage(TEXT), message] + [ToolMessage("bad", tool_call_id=c["id"])
                                                   for c in calls]
        chat(1).bind_tools([Point]).invoke(history)
    assert n_cut >= 2, n_cut


for use in (litellm_calls_tools, langchain_calls_tools,
            langchain_sends_back_calls_that_were_cut_off):
    use()
    print(use.__name__)
