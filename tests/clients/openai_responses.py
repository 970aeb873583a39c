"""Uses responses through the openai package: whole, streamed, parsed, with tools, in a batch.

    openai_responses.py URL KEY

The server must serve the bundled checkpoint under the name "tiny", with --tool-call-parser,
--reasoning-parser qwen3, --chat-template qwen3, --spool, and the API key KEY. The checkpoint knows no
tools, so every call is the work of the token masks.
"""
import json
import sys
import time

import openai
import pydantic

TEXT = "Compute 12 * 34 by hand."
INTEGER = {"type": "integer", "minimum": 0, "maximum": 999}
MULTIPLY = {"type": "function", "name": "multiply", "description": "Multiplies.", "strict": True,
            "parameters": {"type": "object", "properties": {"a": INTEGER, "b": INTEGER},
                           "required": ["a", "b"], "additionalProperties": False}}
LOOK_UP = {"type": "function", "name": "look_up", "strict": False,
           "parameters": {"type": "object", "properties": {"unit": {"enum": ["c", "f"]}},
                          "required": ["unit"], "additionalProperties": False}}


class Point(pydantic.BaseModel):
    """A point in the plane."""
    x: int = pydantic.Field(ge=0, le=99)
    y: int = pydantic.Field(ge=0, le=99)


def ask(client, seed=0, **more):
    return client.responses.create(**{"model": "tiny", "input": TEXT, "temperature": 1.2,
                                      "max_output_tokens": 300, "extra_body": {"seed": seed},
                                      **more})


def said(response):
    """What a response says, without its ids."""
    out = []
    for item in response.output:
        if item.type == "message":
            out += [("message", part.text) for part in item.content]
        elif item.type == "reasoning":
            out += [("reasoning", part.text) for part in item.content + item.summary]
        else:
            out.append((item.name, item.arguments))
    return out


def a_response_answers(client):
    r = ask(client, temperature=0, instructions="Be short.", metadata={"a": "b"}, top_p=1)
    assert r.object == "response" and r.model == "tiny" and r.id.startswith("resp_"), r
    assert abs(r.created_at - time.time()) < 60 and r.status == "completed" and not r.error, r
    assert [i.type for i in r.output] == ["reasoning", "message"], r.output
    assert r.output[1].role == "assistant" and r.output_text == r.output[1].content[0].text
    u = r.usage
    assert u.total_tokens == u.input_tokens + u.output_tokens and u.output_tokens > 5, u
    assert 0 < u.output_tokens_details.reasoning_tokens < u.output_tokens, u
    assert u.input_tokens_details.cached_tokens >= 0 and u.kv["policy"] == "full", u
    assert r.store is False and r.instructions == "Be short." and r.metadata == {"a": "b"}, r
    assert r.temperature == 0 and r.max_output_tokens == 300 and r.tools == [], r
    cut = ask(client, temperature=0, max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut
    assert cut.output[-1].status == "incomplete" and cut.usage.output_tokens == 3, cut


def kinds_of(events):
    """The names of events, each once where it repeats, without "response."."""
    out = []
    for e in events:
        name = e.type.removeprefix("response.")
        if not out or out[-1] != name:
            out.append(name)
    return out


def part(kind, index="content_part"):
    return ["output_item.added", index + ".added", kind + ".delta", kind + ".done",
            index + ".done", "output_item.done"]


CALL = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done"]


def a_stream_has_the_events_of_openai(client):
    forms = (({"temperature": 0}, part("reasoning_text") + part("output_text")),
             ({"temperature": 0, "reasoning": {"summary": "auto"}},
              part("reasoning_summary_text", "reasoning_summary_part") + part("output_text")),
             ({"tools": [MULTIPLY], "tool_choice": "required", "parallel_tool_calls": False,
               "reasoning": {"effort": "none"}}, CALL))
    for more, kinds in forms:
        whole = ask(client, **more)
        events = list(ask(client, stream=True, **more))
        assert [e.sequence_number for e in events] == list(range(len(events)))
        assert kinds_of(events) == ["created", "in_progress"] + kinds + ["completed"], \
            kinds_of(events)
        assert events[0].response.status == "in_progress" and not events[0].response.output
        last = events[-1].response
        assert said(last) == said(whole) and last.usage.output_tokens == whole.usage.output_tokens
        for i, item in enumerate(last.output):
            deltas = [e.delta for e in events
                      if e.type.endswith(".delta") and e.output_index == i]
            assert "".join(deltas) == said(last)[i][1], deltas
            done = [e.item for e in events
                    if e.type == "response.output_item.done" and e.output_index == i]
            assert done == [item], done


def the_stream_helper_follows(client):
    with client.responses.stream(model="tiny", input=TEXT, temperature=0) as stream:
        snapshots = [e.snapshot for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text, snapshots
    with client.responses.stream(model="tiny", input=TEXT, temperature=1, text_format=Point,
                                 extra_body={"seed": 3}) as stream:
        for _ in stream:
            pass
        point = stream.get_final_response().output_parsed
    assert isinstance(point, Point), point


def texts_are_parsed(client):
    point = client.responses.parse(model="tiny", input=TEXT, text_format=Point, temperature=1,
                                   max_output_tokens=200, extra_body={"seed": 3}).output_parsed
    assert isinstance(point, Point) and 0 <= point.x <= 99, point
    r = ask(client, text={"format": {"type": "json_object"}}, max_output_tokens=600)
    assert r.status == "incomplete" or isinstance(json.loads(r.output_text), dict), r


def logprobs_belong_to_the_text(client):
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "temperature": 0}
    whole = ask(client, **more).output[-1].content[0]
    assert len(whole.logprobs) > 1, whole
    tokens = "".join(p.token for p in whole.logprobs)
    assert tokens.startswith(whole.text), (tokens, whole.text)
    for p in whole.logprobs:
        assert len(p.top_logprobs) == 2 and p.top_logprobs[0].token == p.token, p
    events = list(ask(client, stream=True, **more))
    deltas = [p for e in events if e.type == "response.output_text.delta" for p in e.logprobs]
    done = next(e for e in events if e.type == "response.output_text.done")
    assert [p.token for p in deltas] == [p.token for p in whole.logprobs], deltas
    assert [p.token for p in done.logprobs] == [p.token for p in whole.logprobs], done


def calls_and_their_outputs_go_back(client):
    for choice in ("required", {"type": "function", "name": "multiply"},
                   {"type": "allowed_tools", "mode": "required",
                    "tools": [{"type": "function", "name": "multiply"}]}):
        more = {"tools": [MULTIPLY, LOOK_UP], "tool_choice": choice, "parallel_tool_calls": False}
        r = ask(client, **more)
        call = r.output[-1]
        assert call.type == "function_call" and call.call_id, r.output
        assert choice == "required" or call.name == "multiply", call
        assert set(json.loads(call.arguments)) <= {"a", "b", "unit"}, call
        history = [{"role": "user", "content": TEXT}, *r.output,
                   {"type": "function_call_output", "call_id": call.call_id, "output": "408"}]
        plain = [i if isinstance(i, dict) else i.model_dump(exclude_none=True) for i in history]
        for again in (history, plain):
            longer = ask(client, input=again, tools=[MULTIPLY, LOOK_UP], max_output_tokens=4)
            assert longer.usage.input_tokens > r.usage.input_tokens, longer.usage
            assert not getattr(longer, "warnings", None), longer
    free = ask(client, tools=[MULTIPLY], tool_choice="none", temperature=0)
    assert all(i.type != "function_call" for i in free.output), free


def what_needs_storage_is_refused(client):
    refused = {"previous_response_id": "resp_1", "conversation": "conv_1", "background": True,
               "prompt": {"id": "p"}}
    hosted = [[{"type": t}] for t in ("web_search", "file_search", "code_interpreter", "mcp",
                                      "computer_use_preview", "image_generation")]
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
    cases = [({k: v}, k) for k, v in refused.items()] + [({"tools": t}, "tools") for t in hosted]
    cases += [({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
              ({"input": image}, "input"), ({"max_output_tokens": -1}, "max_output_tokens")]
    for more, param in cases:
        try:
            ask(client, **more)
        except openai.BadRequestError as e:
            assert e.param == param and len(str(e)) > 30, (e, more)
        else:
            raise AssertionError(f"{more} was not refused")
    r = ask(client, input=[{"role": "user", "content": "a", "mood": 1}], max_output_tokens=2)
    assert r.warnings == ["input[].mood: unknown field, ignored"], r


def a_batch_has_responses(client):
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/responses",
              "body": {"input": TEXT, "max_output_tokens": 4 + i}} for i in range(3)]
    lines[2]["body"]["previous_response_id"] = "resp_1"
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/responses",
                                  completion_window="24h")
    for _ in range(600):
        batch = client.batches.retrieve(batch.id)
        if batch.status in ("completed", "failed"):
            break
        time.sleep(0.1)
    assert batch.status == "completed" and batch.request_counts.completed == 2, batch
    assert batch.usage.output_tokens == 9 and batch.usage.input_tokens > 9, batch.usage
    out = [json.loads(line) for line in client.files.content(batch.output_file_id).text.split("\n")
           if line]
    for line in out:
        body = line["response"]["body"]
        assert body["object"] == "response" and body["status"] == "incomplete", body
        assert body["usage"]["output_tokens"] == 4 + int(line["custom_id"]), body
    (bad,) = [json.loads(line) for line in
              client.files.content(batch.error_file_id).text.split("\n") if line]
    assert bad["response"]["body"]["error"]["param"] == "previous_response_id", bad


if __name__ == "__main__":
    with openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key=sys.argv[2], max_retries=0) as c:
        for use in (a_response_answers, a_stream_has_the_events_of_openai,
                    the_stream_helper_follows, texts_are_parsed, logprobs_belong_to_the_text,
                    calls_and_their_outputs_go_back, what_needs_storage_is_refused,
                    a_batch_has_responses):
            use(c)
            print(use.__name__)
