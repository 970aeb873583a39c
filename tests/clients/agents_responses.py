"""Runs agents of openai-agents and pydantic-ai, which use /v1/responses unless told otherwise: the loop
of tool calls, typed outputs, histories, whole and streamed.

    agents_responses.py URL KEY

The server must be as for openai_responses.py.
"""
import asyncio
import os
import sys
from typing import Annotated

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
import agents
import openai
import pydantic
import pydantic_ai
from pydantic_ai.models import openai as pydantic_openai
from pydantic_ai.providers.openai import OpenAIProvider

url, key = sys.argv[1] + "/v1", sys.argv[2]
TEXT = "Compute 12 * 34 by hand."
Small = Annotated[int, pydantic.Field(ge=0, le=99)]


class Point(pydantic.BaseModel):
    """A point in the plane."""
    x: Small
    y: Small


calls = []


def multiply(a: Small, b: Small) -> str:
    """Multiplies two numbers.

    Args:
        a: the first
        b: the second
    """
    calls.append((a, b))
    return "408"


# ---- openai-agents ----

def agent(**more):
    client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)
    settings = agents.ModelSettings(temperature=1, max_tokens=900, reasoning={"effort": "none"},
                                    parallel_tool_calls=False, extra_body={"seed": 3},
                                    **more.pop("settings", {}))
    model = agents.OpenAIResponsesModel(model="tiny", openai_client=client)
    return agents.Agent(name="a", instructions="Be short.", model=model, model_settings=settings,
                        **more)


async def openai_agents_run_tools():
    calls.clear()
    one = agent(tools=[agents.function_tool(multiply)], settings={"tool_choice": "required"})
    whole = await agents.Runner.run(one, TEXT)
    kinds = [type(i).__name__ for i in whole.new_items]
    assert kinds == ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"], kinds
    assert len(calls) == 1 and whole.context_wrapper.usage.requests == 2, calls
    assert whole.context_wrapper.usage.output_tokens > 5, whole.context_wrapper.usage
    streamed = agents.Runner.run_streamed(one, TEXT)
    events = [e.data.type async for e in streamed.stream_events()
              if e.type == "raw_response_event"]
    assert events.count("response.completed") == 2 and len(calls) == 2, events
    assert calls[0] == calls[1] and streamed.final_output == whole.final_output, calls


async def openai_agents_call_tools_before_typed_outputs():
    calls.clear()
    one = agent(tools=[agents.function_tool(multiply)], output_type=Point,
                settings={"tool_choice": "required"})
    whole = await agents.Runner.run(one, TEXT)
    streamed = agents.Runner.run_streamed(one, TEXT)
    async for _ in streamed.stream_events():
        pass
    assert isinstance(whole.final_output, Point) and len(calls) == 2, (whole, calls)
    assert streamed.final_output == whole.final_output and calls[0] == calls[1], (streamed, calls)


async def openai_agents_have_typed_outputs_and_histories():
    one = agent(output_type=Point)
    first = await agents.Runner.run(one, TEXT)
    assert isinstance(first.final_output, Point), first
    history = first.to_input_list() + [{"role": "user", "content": "Again."}]
    second = await agents.Runner.run(one, history)
    used = [r.context_wrapper.usage.input_tokens for r in (first, second)]
    assert isinstance(second.final_output, Point) and used[1] > used[0], used
    session = agents.SQLiteSession("s")
    for _ in range(2):
        last = await agents.Runner.run(one, TEXT, session=session)
    assert last.context_wrapper.usage.input_tokens > used[0], last.context_wrapper.usage


# ---- pydantic-ai ----

def pydantic_agent(seed=3, effort="none", **more):
    model = pydantic_openai.OpenAIResponsesModel(
        "tiny", provider=OpenAIProvider(base_url=url, api_key=key))
    settings = {"temperature": 1, "max_tokens": 900, "parallel_tool_calls": False,
                "extra_body": {"seed": seed}, "openai_reasoning_effort": effort}
    if effort != "none":  # at random, the checkpoint may reason without an end
        settings["temperature"] = 0
    return pydantic_ai.Agent(model, instructions="Be short.", model_settings=settings, **more)


async def pydantic_ai_has_typed_outputs():
    for form, effort in ((Point, "none"), (pydantic_ai.NativeOutput(Point), "low")):
        one = pydantic_agent(output_type=form, effort=effort)
        whole = await one.run(TEXT)
        kinds = [type(part).__name__ for part in whole.all_messages()[1].parts]
        assert ("ThinkingPart" in kinds) == (effort == "low"), kinds
        assert isinstance(whole.output, Point) and whole.usage.output_tokens > 5, whole
        async with one.run_stream(TEXT) as run:
            streamed = [o async for o in run.stream_output()][-1]
        assert streamed == whole.output, (streamed, whole.output)
        again = await one.run(TEXT, message_history=whole.all_messages())
        assert again.usage.input_tokens > whole.usage.input_tokens, again.usage


async def pydantic_ai_runs_tools():
    calls.clear()
    for seed in range(12):  # the tool or the output: the checkpoint chooses by chance
        one = pydantic_agent(seed, output_type=Point, tools=[multiply])
        run = await one.run(TEXT, usage_limits=pydantic_ai.UsageLimits(request_limit=20))
        assert isinstance(run.output, Point), run
        if calls and run.usage.requests > 1:
            return
    raise AssertionError("no tool was called")


async def main():
    for use in (openai_agents_run_tools, openai_agents_call_tools_before_typed_outputs,
                openai_agents_have_typed_outputs_and_histories, pydantic_ai_has_typed_outputs,
                pydantic_ai_runs_tools):
        await use()
        print(use.__name__)


asyncio.run(main())
