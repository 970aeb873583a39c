"""Structured output through the openai package, with the calls of its documentation.

    openai_structured.py URL

The server must serve the bundled checkpoint under the name "tiny", without a key.
"""
import enum
import json
import re
import sys
from typing import Literal, Optional, Union

import openai
import pydantic

HELLO = [{"role": "user", "content": "Make up a person."}]


class Colour(enum.Enum):
    red = "red"
    green = "green"


class Address(pydantic.BaseModel):
    street: str = pydantic.Field(max_length=12)
    number: int = pydantic.Field(ge=1, le=300)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1, max_length=8)
    colour: Colour
    score: float = pydantic.Field(gt=0, le=10)
    addresses: list[Address] = pydantic.Field(max_length=2)
    parent: Optional["Person"] = None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = pydantic.Field(ge=0, le=9)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: str = pydantic.Field(max_length=6)


class Home(pydantic.BaseModel):
    pet: Union[Cat, Dog] = pydantic.Field(discriminator="kind")


def a_pydantic_model_is_filled(client):
    whole = 0
    for seed in range(8):
        try:
            r = client.chat.completions.parse(model="tiny", messages=HELLO, temperature=2, seed=seed,
                                              response_format=Person, max_tokens=300)
        except openai.LengthFinishReasonError:
            continue
        person = r.choices[0].message.parsed
        assert isinstance(person, Person) and r.choices[0].finish_reason == "stop", r
        whole += 1
    assert whole >= 3, whole


def a_tagged_union_is_filled(client):
    assert "oneOf" in str(Home.model_json_schema())
    kinds = set()
    for seed in range(8):
        r = client.chat.completions.parse(model="tiny", messages=HELLO, temperature=2, seed=seed,
                                          response_format=Home, max_tokens=100)
        kinds.add(type(r.choices[0].message.parsed.pet))
    assert kinds <= {Cat, Dog} and kinds, kinds


def a_stream_gives_json(client):
    with client.chat.completions.stream(model="tiny", messages=HELLO, temperature=2, seed=5,
                                        response_format=Address, max_tokens=200) as stream:
        for _ in stream:
            pass
        address = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(address, Address) and 1 <= address.number <= 300


def json_mode_gives_an_object(client):
    for seed in range(4):
        r = client.chat.completions.create(model="tiny", messages=HELLO, temperature=2, seed=seed,
                                           response_format={"type": "json_object"}, max_tokens=200)
        if r.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(r.choices[0].message.content), dict), r


def completions_take_expressions_and_choices(client):
    def complete(**form):
        r = client.completions.create(model="tiny", prompt="The answer is ", temperature=2, n=4,
                                      max_tokens=40, extra_body={"structured_outputs": form})
        assert all(c.finish_reason == "stop" for c in r.choices), r
        return [c.text for c in r.choices]

    assert set(complete(choice=["yes", "no"])) <= {"yes", "no"}
    for text in complete(regex=r"[A-Z]{2}-\d{3}"):
        assert re.fullmatch(r"[A-Z]{2}-\d{3}", text), text
    sum_of_digits = {"gbnf": 'root ::= digit ("+" digit){1,2} # a sum\ndigit ::= [0-9]',
                     "lark": '%llguidance {}\n\nstart: D ("+" D)~1..2\nD: /[0-9]/\n'}
    for grammar in sum_of_digits.values():
        for text in complete(grammar=grammar):
            assert re.fullmatch(r"\d(\+\d){1,2}", text), text


def a_wrong_schema_is_a_bad_request(client):
    wrong = {"type": "json_schema",
             "json_schema": {"name": "x", "strict": True,
                             "schema": {"properties": {"a": {"not": {"type": "null"}}}}}}
    for stream in (False, True):
        try:
            client.chat.completions.create(model="tiny", messages=HELLO, response_format=wrong,
                                           stream=stream)
        except openai.BadRequestError as e:
            assert "#/properties/a: keyword 'not' is not supported" in str(e), e
        else:
            raise AssertionError("expected an error")


def main():
    client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=600)
    for use in (a_pydantic_model_is_filled, a_tagged_union_is_filled, a_stream_gives_json,
                json_mode_gives_an_object, completions_take_expressions_and_choices,
                a_wrong_schema_is_a_bad_request):
        use(client)
        print(use.__name__)


if __name__ == "__main__":
    main()
