"""Writes schemas.json: schemas as Pydantic, OpenAPI generators and Zod emit them.

    make_schemas.py

Needs pydantic 2 and fastapi. The forms of Zod are written down here: zod-to-json-schema (Zod 3) and
z.toJSONSchema (Zod 4).
"""
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import json
import os
import pathlib
import typing as t
import uuid

import fastapi
import pydantic as p
from pydantic import Field
from typing_extensions import Annotated, TypedDict

HERE = os.path.dirname(os.path.abspath(__file__))


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Address(p.BaseModel):
    street: str
    zip: Annotated[str, Field(pattern=r"^\d{5}$")]
    note: t.Optional[str] = None


class Person(p.BaseModel):
    """A person."""
    name: Annotated[str, Field(min_length=1, max_length=40, examples=["Ann"])]
    age: Annotated[int, Field(ge=0, le=150)]
    address: Address
    friends: list["Person"] = []


class Cat(p.BaseModel):
    kind: t.Literal["cat"] = "cat"
    lives: Annotated[int, Field(ge=0, le=9)]


class Dog(p.BaseModel):
    kind: t.Literal["dog"] = "dog"
    name: str


class Pet(p.BaseModel):
    pet: Annotated[t.Union[Cat, Dog], Field(discriminator="kind")]


class Closed(p.BaseModel):
    model_config = p.ConfigDict(extra="forbid")
    a: int
    b: t.Optional[bool] = None


class Open(p.BaseModel):
    model_config = p.ConfigDict(extra="allow")
    a: int


class Tree(p.BaseModel):
    value: int
    children: list["Tree"] = Field(default=[], max_length=3)


class Extra(p.BaseModel):
    x: int = Field(json_schema_extra={"x-order": 1, "unit": "m", "nullable": True})


class Pair(t.NamedTuple):
    left: int
    right: str


class Movie(TypedDict):
    title: str
    year: int


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


def constrained(kind, **fields):
    return Annotated[kind, Field(**fields)]


PYDANTIC = [
    str, int, float, bool, None, bytes, dt.date, dt.time, dt.datetime, dt.timedelta, uuid.UUID,
    p.UUID4, decimal.Decimal, p.AnyUrl, p.HttpUrl, p.SecretStr, ipaddress.IPv4Address,
    ipaddress.IPv6Address, p.IPvAnyAddress, ipaddress.IPv4Network, pathlib.Path, p.Json, t.Any,
    Colour, Level, Address, Person, Pet, Closed, Open, Tree, Extra, Pair, Movie, Point,
    t.Optional[int], t.Union[int, str, None], t.Literal["a", 1, True, None], list[int], set[str],
    set[Colour], frozenset[t.Literal[1, 2, 3]], tuple[int, str], tuple[int, ...], dict[str, int],
    dict[str, Address], dict[Colour, int], dict[constrained(str, pattern="^[a-z]+$"), int],
    list[list[float]], p.PositiveInt, p.NonNegativeFloat, p.NegativeFloat, p.Base64Str,
    constrained(int, multiple_of=5), constrained(float, gt=0, lt=1),
    constrained(float, ge=0.5, le=0.95), constrained(int, ge=-(2**53) + 1, le=2**53 - 1),
    constrained(str, min_length=3, max_length=8, pattern="^[a-z]+$"),
    constrained(str, max_length=100000), constrained(list[int], min_length=1, max_length=4),
    constrained(set[int], max_length=3), constrained(dict[str, int], min_length=1),
    constrained(float, multiple_of=0.5), constrained(decimal.Decimal, max_digits=5,
                                                     decimal_places=2),
    p.NaiveDatetime, p.AwareDatetime, p.PastDate, p.ByteSize, p.FilePath, p.JsonValue,
    t.Union[Cat, Dog], list[Annotated[t.Union[Cat, Dog], Field(discriminator="kind")]],
]

OPENAPI_31 = [
    {"type": ["string", "null"], "format": "date-time"},
    {"type": "integer", "format": "int32", "minimum": 0},
    {"type": "integer", "format": "int64"}, {"type": "number", "format": "double"},
    {"type": "string", "format": "byte"}, {"type": "string", "format": "hostname"},
    {"type": "string", "contentMediaType": "image/png", "contentEncoding": "base64"},
    {"type": "object", "properties": {"a": {"type": "string", "readOnly": True,
                                            "example": "x"}}, "x-internal": True},
    {"allOf": [{"$ref": "#/components/schemas/Base"},
               {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}],
     "components": {"schemas": {"Base": {"type": "object", "required": ["a"], "properties": {
         "a": {"type": "string", "maxLength": 9}}}}}},
    {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
    {"oneOf": [{"type": "object", "properties": {"t": {"type": "string", "enum": ["a"]}},
                "required": ["t"]},
               {"type": "object", "properties": {"t": {"type": "string", "enum": ["b"]}},
                "required": ["t"]}], "discriminator": {"propertyName": "t"}},
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
     "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
]

SAFE = 9007199254740991
OBJECT = {"type": "object", "additionalProperties": False,
          "$schema": "http://json-schema.org/draft-07/schema#"}
ZOD = [  # 3, then 4
    {"type": "string", "format": "email"}, {"type": "string", "format": "uri"},
    {"type": "string", "format": "uuid"}, {"type": "string", "minLength": 1},
    {"type": "number", "exclusiveMinimum": 0}, {"type": "integer", "multipleOf": 3},
    {"not": {"not": {}}}, {"type": "array", "items": {"type": "string"}, "minItems": 1},
    {"type": "array", "minItems": 2, "maxItems": 2, "items": [{"type": "string"},
                                                             {"type": "number"}]},
    {"type": "object", "additionalProperties": {"type": "number"},
     "propertyNames": {"enum": ["a", "b"]}},
    {"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": ["string", "null"]},
    {"type": "number", "minimum": 0, "exclusiveMinimum": True},
    {"type": "array", "uniqueItems": True, "items": {"type": "string", "enum": ["x", "y"]}},
    {**OBJECT, "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}},
     "required": ["a"]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
               {"type": "object", "properties": {"b": {"type": "number"}}, "required": ["b"]}]},
    {"$ref": "#/definitions/s", "definitions": {"s": {**OBJECT, "properties": {
        "n": {"type": "integer"}}, "required": ["n"]}}},
    {"type": "integer", "minimum": -SAFE, "maximum": SAFE},
    {"type": "integer", "exclusiveMinimum": 0, "maximum": SAFE},
    {"type": "string", "format": "date", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
    {"type": "string", "format": "uuid",
     "pattern": "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-"
                "[0-9a-fA-F]{12})$"},
    {"type": "string", "format": "email", "pattern": r"^(?!\.)[A-Za-z0-9_'+\-\.]+@[a-z]+\.[a-z]+$"},
    {"type": "string", "pattern": "^abc.*"}, {"type": "string", "pattern": ".*xyz$"},
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}],
     "items": {"type": "number"}},
    {"not": {}}, {"const": "tuna", "type": "string"}, {},
    {"type": "object", "properties": {"v": {"default": 1, "type": "number"}}, "required": ["v"],
     "additionalProperties": False, "$schema": "https://json-schema.org/draft/2020-12/schema"},
]


def fastapi_schemas():
    """The components of a generated OpenAPI document, each with all of them."""
    app = fastapi.FastAPI()
    for i, model in enumerate((Person, Pet, Closed, Open, Tree, Movie)):
        app.add_api_route(f"/{i}", lambda: None, methods=["POST"], response_model=model)
    components = app.openapi()["components"]
    return [{"$ref": f"#/components/schemas/{n}", "components": components}
            for n in components["schemas"]]


def main():
    table = [("pydantic", p.TypeAdapter(kind).json_schema()) for kind in PYDANTIC]
    table += [("openapi", s) for s in OPENAPI_31 + fastapi_schemas()] + [("zod", s) for s in ZOD]
    with open(os.path.join(HERE, "schemas.json"), "w") as f:
        lines = [json.dumps({"from": source, "schema": s}) for source, s in table]
        f.write("[\n" + ",\n".join(lines) + "\n]\n")
    print(len(table), "schemas")


if __name__ == "__main__":
    main()
