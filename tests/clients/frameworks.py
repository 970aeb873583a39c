"""Uses chats and completions through litellm and langchain-openai, whole, streamed and in batches.

    frameworks.py URL KEY

The server must serve the bundled checkpoint under the name "tiny" with the API key KEY.
"""
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # downloads nothing
import litellm
import pydantic
from langchain_openai import ChatOpenAI, OpenAI

url, key = sys.argv[1] + "/v1", sys.argv[2]
TEXTS = ["Compute 12 * 34 by hand.", "Sort: 3 1 2"]


def messages(text):
    return [{"role": "user", "content": text}]


def litellm_answers():
    def ask(call=litellm.completion, **more):
        return call(model="openai/tiny", api_base=url, api_key=key, temperature=0, **more)

    whole = ask(messages=messages(TEXTS[0]))
    assert whole.choices[0].message.content.endswith("408"), whole
    assert whole.usage.completion_tokens > 5
    text = "".join(c.choices[0].delta.content or ""
                   for c in ask(messages=messages(TEXTS[0]), stream=True))
    assert text == whole.choices[0].message.content
    many = litellm.batch_completion(model="openai/tiny", api_base=url, api_key=key, temperature=0,
                                    messages=[messages(t) for t in TEXTS])
    assert many[0].choices[0].message.content == whole.choices[0].message.content
    r = ask(litellm.text_completion, prompt=TEXTS, max_tokens=4)
    assert len(r.choices) == 2, r
    try:
        ask(messages=messages("x"), top_p=3)
        raise AssertionError("not refused")
    except litellm.BadRequestError as e:
        assert "top_p" in str(e), e


class Point(pydantic.BaseModel):
    """A point in the plane."""
    x: int = pydantic.Field(ge=0, le=99)
    y: int = pydantic.Field(ge=0, le=99)


def litellm_calls_tools():
    """A stream has the call of the whole answer, its arguments in pieces."""
    point = {"type": "function", "function": {"name": "Point",
                                              "parameters": Point.model_json_schema()}}

    def ask(**more):
        return litellm.completion(
            model="openai/tiny", api_base=url, api_key=key, temperature=1, seed=3, max_tokens=300,
            messages=messages(TEXTS[0]), tools=[point], parallel_tool_calls=False,
            tool_choice="required", **more)

    whole = ask().choices[0].message.tool_calls[0].function
    Point(**json.loads(whole.arguments))
    chunks = list(ask(stream=True))
    pieces = [c.function.arguments for chunk in chunks
              for c in chunk.choices[0].delta.tool_calls or [] if c.function.arguments]
    assert len(pieces) >= 3 and "".join(pieces) == whole.arguments, pieces
    built = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0].function
    assert (built.name, built.arguments) == (whole.name, whole.arguments), built


def langchain_answers():
    chat = ChatOpenAI(model="tiny", base_url=url, api_key=key, temperature=0, max_retries=0)
    whole = chat.invoke(TEXTS[0])
    assert whole.content.endswith("408"), whole
    assert "".join(c.content for c in chat.stream(TEXTS[0])) == whole.content
    assert chat.batch(TEXTS)[0].content == whole.content
    llm = OpenAI(model="tiny", base_url=url, api_key=key, temperature=0, max_retries=0,
                 max_tokens=8)
    one = [llm.invoke(t) for t in TEXTS]
    assert [g[0].text for g in llm.generate(TEXTS).generations] == one
    assert "".join(llm.stream(TEXTS[1])) == one[1]


def langchain_calls_tools():
    chat = ChatOpenAI(model="tiny", base_url=url, api_key=key, temperature=1, max_retries=0,
                      max_tokens=300, seed=3)
    calls = chat.bind_tools([Point], tool_choice="Point").invoke(TEXTS[0]).tool_calls
    assert len(calls) == 1 and calls[0]["name"] == "Point", calls
    Point(**calls[0]["args"])
    one = chat.bind_tools([Point], tool_choice="any", parallel_tool_calls=False)
    assert [c["name"] for c in one.invoke(TEXTS[0]).tool_calls] == ["Point"]
    chunks = list(one.stream(TEXTS[0]))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == \
        [(c["name"], c["args"]) for c in one.invoke(TEXTS[0]).tool_calls], whole
    assert sum(bool(c["args"]) for chunk in chunks for c in chunk.tool_call_chunks) >= 3, chunks
    for method in ("function_calling", "json_schema"):
        point = chat.with_structured_output(Point, method=method).invoke(TEXTS[0])
        assert isinstance(point, Point) and 0 <= point.x <= 99, point


for use in (litellm_answers, litellm_calls_tools, langchain_answers, langchain_calls_tools):
    use()
    print(use.__name__)
