"""Structured output through instructor's modes and through magentic: sets, URLs, optional members,
whole and streamed, with retries and calls of functions.

    structured_frameworks.py URL

The server must serve the bundled checkpoint under the name "tiny", with --tool-call-parser hermes
and --chat-template qwen3, which renders tools.
"""
import sys
from collections.abc import Iterable
from typing import Annotated, Literal, Optional, Union

import instructor
import magentic
import openai
from instructor import Mode
from instructor.core import IncompleteOutputException
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, ValidationError, field_validator

url = sys.argv[1] + "/v1"
TEXT = "Describe a page."
Small = Annotated[int, Field(ge=0, le=99)]
Unit = Literal["m", "kg"]


class Page(BaseModel):
    url: Annotated[AnyUrl, Field(max_length=40)]
    tags: set[Literal["a", "b", "c"]]
    score: Annotated[float, Field(ge=0.5, le=0.95)]
    note: Optional[Annotated[str, Field(max_length=5)]] = None


class Point(BaseModel):
    """A point in the plane."""
    x: Small
    y: Small


class Mass(BaseModel):
    """A mass."""
    value: Small
    unit: Unit


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


# ---- instructor ----

FORCED = (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS)


def ask(mode, form, call="create", seed=1, **more):
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
    completions = instructor.from_openai(client, mode=mode).chat.completions
    responses = mode is Mode.RESPONSES_TOOLS
    more = {"temperature": 2, "max_retries": 0, "extra_body": {"seed": seed},
            "max_output_tokens" if responses else "max_tokens": 400, **more}
    return getattr(completions, call)(model="tiny", response_model=form,
                                      messages=[{"role": "user", "content": TEXT}], **more)


def instructor_modes_have_typed_outputs():
    for mode in FORCED:
        pages = [ask(mode, Page, seed=seed) for seed in range(4)]
        assert all(isinstance(page, Page) for page in pages), (mode, pages)
        assert len({str(page.url) for page in pages}) > 1, (mode, pages)


def instructor_reads_any_object():
    for seed in range(40):  # the checkpoint may write members without an end
        try:
            assert isinstance(ask(Mode.JSON, Anything, seed=seed, max_tokens=60), Anything)
            return
        except IncompleteOutputException:
            pass
    raise AssertionError("no whole object")


def instructor_streams():
    for mode in FORCED:
        parts = list(ask(mode, Point, "create_partial"))
        assert len(parts) >= 3 and parts[0].y is None, (mode, parts)
        assert Point(**parts[-1].model_dump()), (mode, parts)
        points, seed = [], 0
        while not points and seed < 40:
            try:
                points += ask(mode, Point, "create_iterable", seed)
            except ValidationError as e:  # instructor fails on {}, which the schema it sent allows
                assert "input_value={}" in str(e), e
            seed += 1
        assert points and all(isinstance(p, Point) for p in points), (mode, points)


def instructor_asks_again():
    for mode in FORCED:
        seen = []

        class Picky(Point):
            @field_validator("y")
            @classmethod
            def second(cls, y):
                seen.append(y)
                if len(seen) == 1:
                    raise ValueError("not the first")
                return y

        point = ask(mode, Picky, max_retries=2)
        assert isinstance(point, Picky) and len(seen) == 2, (mode, seen)


def instructor_reads_text_and_several_calls():
    def forced(regex):
        return {"seed": 1, "structured_outputs": {"regex": regex}}

    point, mass = r'\{"x": [0-9], "y": [0-9]\}', r'\{"value": [0-9], "unit": "(m|kg)"\}'
    block = ask(Mode.MD_JSON, Point, extra_body=forced("```json\n" + point + "\n```"))
    assert isinstance(block, Point), block
    calls = "".join('<tool_call>\n\\{"name": "%s", "arguments": %s\\}\n</tool_call>' % c
                    for c in (("Point", point), ("Mass", mass)))
    both = list(ask(Mode.PARALLEL_TOOLS, Iterable[Union[Point, Mass]], extra_body=forced(calls)))
    assert [type(b) for b in both] == [Point, Mass], both


# ---- magentic ----

def multiply(a: Small, b: Small, unit: Optional[Unit] = None) -> str:
    """Multiplies two numbers."""
    return f"{a * b} {unit}"


def magentic_asks(form, seed=1, **more):
    model = magentic.OpenaiChatModel("tiny", base_url=url, api_key="none", seed=seed,
                                     temperature=2, max_tokens=400)

    def describe(what: str): ...

    describe.__annotations__["return"] = form
    return magentic.prompt("Describe {what}.", model=model, **more)(describe)("a page")


def magentic_has_typed_outputs():
    for seed in range(4):
        assert isinstance(magentic_asks(Page, seed), Page)
    for form, kind in ((bool, bool), (list[Small], list), (dict[str, Small], dict),
                       (Union[Page, bool], (Page, bool))):
        answer = magentic_asks(form)
        assert isinstance(answer, kind), (form, answer)
    text = magentic_asks(str)
    assert text and "".join(magentic_asks(magentic.StreamedStr)) == text, text


def magentic_calls_functions():
    units, seed = set(), 0
    while not (None in units and len(units) > 1):
        assert seed < 40, units
        call = magentic_asks(magentic.FunctionCall[str], seed, functions=[multiply])
        assert call().split()[0].isdigit(), call
        units.add(call.arguments.get("unit"))
        seed += 1
    many = magentic_asks(magentic.ParallelFunctionCall[str], functions=[multiply])
    assert all(product.split()[0].isdigit() for product in many()), many


for use in (instructor_modes_have_typed_outputs, instructor_reads_any_object,
            instructor_streams, instructor_asks_again, instructor_reads_text_and_several_calls,
            magentic_has_typed_outputs, magentic_calls_functions):
    use()
    print(use.__name__)
