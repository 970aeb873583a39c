"""Uses /v1/responses through litellm and langchain-openai, whole and streamed.

    framework_responses.py URL KEY

The server must be as for openai_responses.py.
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


def litellm_uses_responses():
    point = {"type": "function", "name": "Point", "parameters": Point.model_json_schema()}

    def ask(**more):
        return litellm.responses(**{"model": "openai/tiny", "api_base": url, "api_key": key,
                                    "temperature": 0, "max_output_tokens": 300, "input": TEXT,
                                    **more})

    free = ask()
    assert [i.type for i in free.output] == ["reasoning", "message"], free.output
    assert free.usage.output_tokens_details.reasoning_tokens > 0, free.usage
    forced = {"tools": [point], "tool_choice": "required", "parallel_tool_calls": False}
    call = ask(**forced).output[-1]
    Point(**json.loads(call.arguments))
    events = list(ask(stream=True, **forced))
    pieces = "".join(e.delta for e in events
                     if e.type == "response.function_call_arguments.delta")
    assert pieces == call.arguments and events[-1].type == "response.completed", events[-1]
    history = [{"role": "user", "content": TEXT}, call.model_dump(),
               {"type": "function_call_output", "call_id": call.call_id, "output": "ok"}]
    longer = ask(input=history, tools=[point], max_output_tokens=2)
    assert longer.usage.input_tokens > ask(tools=[point]).usage.input_tokens, longer.usage


def langchain_uses_responses():
    model = ChatOpenAI(model="tiny", base_url=url, api_key=key, use_responses_api=True,
                       temperature=0, max_retries=0, max_tokens=300, reasoning={"summary": "auto"})
    whole, streamed = model.invoke(TEXT), None
    for chunk in model.stream(TEXT):
        streamed = chunk if streamed is None else streamed + chunk
    assert whole.text and streamed.text == whole.text, (streamed, whole)
    summaries = [[part["text"] for block in m.content if block["type"] == "reasoning"
                  for part in block["summary"]] for m in (whole, streamed)]
    assert summaries[0] and summaries[0] == summaries[1], summaries
    assert whole.usage_metadata["output_token_details"]["reasoning"] > 0, whole.usage_metadata
    call = model.bind_tools([Point], tool_choice="Point").invoke(TEXT)
    assert len(call.tool_calls) == 1, call
    Point(**call.tool_calls[0]["args"])
    again = [HumanMessage(TEXT), call, ToolMessage("ok", tool_call_id=call.tool_calls[0]["id"])]
    free = model.bind_tools([Point])
    more = free.invoke(again).usage_metadata["input_tokens"]
    assert more > free.invoke(TEXT).usage_metadata["input_tokens"], more
    point = model.with_structured_output(Point, method="json_schema").invoke(TEXT)
    assert isinstance(point, Point), point


for use in (litellm_uses_responses, langchain_uses_responses):
    use()
    print(use.__name__)
