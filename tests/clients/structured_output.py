"""Answers under random schemas must be valid under them.

    structured_output.py CINCH MODEL [N] [SEED]

Draws N schemas, of answers or of tools, and some expressions and choices. Answers each with
run-batch at temperature 2, and checks every whole answer with the jsonschema package, or with
Python's re. An answer that max_tokens cut is not checked. Prints the figures; the exit status is 1 if
an answer is wrong.
"""
import json
import os
import random
import re
import string
import subprocess
import sys
import tempfile

import jsonschema

NAMES = ["a", "b", "id", "name", "x y", "é", 'q"', "back\\slash", "long_name_of_a_member", ""]
PATTERNS = ["^[a-z]{2,4}$", "b", "^x|y$", r"^\d{3}-\d{4}$", "^(ab|cd)+$", r"^\w+ \S{1,3}$",
            "[^a-y]", "^$", "é{2}", r'^["\\/]+$', r"^.{0,5}$", r"^[\W]{1,4}$", "^a?b*c+$"]
FORMATS = {"date": r"\d{4}-\d\d-\d\d", "time": r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
           "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
           "ipv4": r"\d{1,3}(\.\d{1,3}){3}", "email": r"[^@\s]+@[^@\s]+\.[a-zA-Z]+",
           "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"}
KNOWN = ("no text matches", "expected bounds with a number", "which is not a property")
REGEXES = ["[a-z]{1,8}", r"(\d{1,3}\.){3}\d{1,3}", "(yes|no)(, (yes|no)){0,3}", "[é-ü]{2,5}!",
           r"#[0-9a-fA-F]{6}", "a|bc|def", r"\w{3}( \w{3}){2}", r"[^\s]{4,9}", r"-?[1-9]\d{0,4}"]


def value(r, depth=0):
    kind = r.randrange(7 if depth < 2 else 5)
    if kind == 0:
        return r.choice([None, True, False])
    if kind < 3:
        return r.choice([0, 1, -7, 3.25, 1e20, 123456789])
    if kind < 5:
        return "".join(r.choice('ab "\\/\n\té✓😀') for _ in range(r.randrange(6)))
    if kind == 5:
        return [value(r, depth + 1) for _ in range(r.randrange(3))]
    return {n: value(r, depth + 1) for n in r.sample(NAMES, r.randrange(3))}


def numeric(r, kind):
    s = {"type": kind}
    lo = r.randrange(-2000, 2000) if r.random() < 0.7 else r.randrange(-3, 3)
    if r.random() < 0.5:
        s[r.choice(["minimum", "exclusiveMinimum"])] = lo + r.choice([0, 0, 0.5])
    if r.random() < 0.5:
        s[r.choice(["maximum", "exclusiveMaximum"])] = lo + 3 + r.randrange(2000)
    if kind == "integer" and r.random() < 0.2:
        s["multipleOf"] = r.choice([2, 3, 7, 10])
    if kind == "number" and r.random() < 0.2:
        most = r.choice(["maximum", "exclusiveMaximum"])
        s = {"type": kind, "minimum": lo + 0.5, most: lo + 0.95}
    return s


def text(r):
    s = {"type": "string"}
    kind = r.randrange(4)
    if kind == 0:
        s["pattern"] = r.choice(PATTERNS)
    elif kind == 1:
        s["format"] = r.choice(list(FORMATS))
    elif kind == 2:
        s["minLength"] = r.randrange(4)
        if r.random() < 0.7:
            s["maxLength"] = s["minLength"] + r.randrange(8)
    if kind == 0 and r.random() < 0.4:
        s[r.choice(["minLength", "maxLength"])] = r.randrange(3, 9)
    return s


def array(r, depth):
    s = {"type": "array"}
    if r.random() < 0.8:
        s["items"] = schema(r, depth + 1)
    if r.random() < 0.2:
        s["prefixItems"] = [schema(r, depth + 1) for _ in range(r.randrange(1, 3))]
    s["maxItems"] = r.randrange(4)
    s["minItems"] = r.randrange(s["maxItems"] + 1)
    return s


def members(r, depth):
    s = {"type": "object"}
    names = r.sample(NAMES, r.randrange(5))
    if names or r.random() < 0.5:
        s["properties"] = {n: schema(r, depth + 1) for n in names}
    if names and r.random() < 0.7:
        s["required"] = r.sample(names, r.randrange(len(names) + 1))
    kind = r.randrange(4)
    if kind == 0:
        s["additionalProperties"] = schema(r, depth + 2)
    elif kind < 3:
        s["additionalProperties"] = False
    if r.random() < 0.15:
        s["patternProperties"] = {"^[a-m]": schema(r, depth + 2)}
    if r.random() < 0.15:
        s["minProperties"] = 1
    if kind == 0 and r.random() < 0.3:
        s["propertyNames"] = {"maxLength": 9}
    return s


def one_of(r, depth):
    """Schemas without a common value: other types, or objects with a tag."""
    if r.random() < 0.4:
        some = [text(r), numeric(r, r.choice(["integer", "number"])), array(r, depth),
                members(r, depth), {"const": r.choice([None, True])}]
        return {"oneOf": r.sample(some, r.randrange(1, 4))}
    some = []
    for tag in r.sample(["cat", "dog", 1, None, 2.5], r.randrange(1, 4)):
        s = members(r, depth)
        s["properties"] = dict(s.get("properties", {}), kind={"const": tag})
        s["required"] = s.get("required", []) + ["kind"]
        some.append(s)
    return {"oneOf": some, "discriminator": {"propertyName": "kind"}}


def schema(r, depth=0):
    kind = r.randrange(14)
    if depth > 3:
        kind %= 8
    if kind == 0:
        return {"enum": [value(r) for _ in range(r.randrange(1, 5))]}
    if kind == 1:
        return {"const": value(r)}
    if kind == 2:
        return {"type": r.choice(["boolean", "null", ["string", "null"], ["integer", "boolean"]])}
    if kind < 5:
        return numeric(r, r.choice(["integer", "number"]))
    if kind < 7:
        return text(r)
    if kind == 7:
        return {"$ref": "#/$defs/node"} if r.random() < 0.5 else {"title": "anything"}
    if kind == 13:
        return {"allOf": [members(r, depth + 1), members(r, depth + 1)]}
    if kind == 8:
        return {"anyOf": [schema(r, depth + 1) for _ in range(r.randrange(1, 4))]}
    if kind == 9:
        return one_of(r, depth)
    return array(r, depth) if kind == 10 else members(r, depth)


def root(r):
    s = members(r, 0) if r.random() < 0.7 else schema(r)
    s["$defs"] = {"node": {"type": "object", "properties": {
        "v": numeric(r, "integer"),
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "required": ["v"]}}
    return s


def functions(r):
    tools = []
    for name in r.sample(["f", "fg", "look_up", "get weather", "g-1"], r.randrange(1, 4)):
        function = {"name": name}
        if r.random() < 0.9:
            function["parameters"] = dict(members(r, 0), **{"$defs": root(r)["$defs"]})
        tools.append({"type": "function", "function": function})
    named = {"type": "function", "function": {"name": r.choice(tools)["function"]["name"]}}
    return {"tools": tools, "tool_choice": r.choice(["required", named]),
            "parallel_tool_calls": r.random() < 0.2}


def draw(r, i):
    kind = r.randrange(24)
    if kind > 19:
        return functions(r)
    if kind == 0:
        return {"structured_outputs": {"regex": r.choice(REGEXES)}}
    if kind == 1:
        words = ["".join(r.choice(string.ascii_letters + " é") for _ in range(r.randrange(1, 9)))
                 for _ in range(r.randrange(1, 5))]
        return {"structured_outputs": {"choice": words}}
    if kind == 2:
        return {"response_format": {"type": "json_object"}}
    if kind < 8:
        return {"structured_outputs": {"json": root(r)}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": f"s{i}",
                                                                       "schema": root(r)}}}


def formats(name, text):
    return re.fullmatch(FORMATS[name], text) is not None


def validate(schema, answer):
    checker = jsonschema.FormatChecker(formats=())
    for name in FORMATS:
        checker.checks(name)(lambda text, name=name: not isinstance(text, str)
                             or formats(name, text))
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(answer))


def check_calls(form, message):
    assert message["content"] is None, "content beside calls"
    calls, choice = message["tool_calls"], form["tool_choice"]
    assert len(calls) == 1 or (form["parallel_tool_calls"] and choice == "required"), "several calls"
    for call in calls:
        name = call["function"]["name"]
        assert choice == "required" or choice["function"]["name"] == name, "another function"
        asked = next(t["function"] for t in form["tools"] if t["function"]["name"] == name)
        validate(asked.get("parameters", {"const": {}}), call["function"]["arguments"])


def check(form, choice):
    """Raises an exception if the answer has not the form."""
    if "tools" in form:
        finish = "tool_calls" if form["tool_choice"] == "required" else "stop"
        assert choice["finish_reason"] == finish, choice["finish_reason"]
        check_calls(form, choice["message"])
        return
    assert choice["finish_reason"] == "stop", choice["finish_reason"]
    answer = choice["message"]["content"]
    asked = form.get("structured_outputs", {})
    if "regex" in asked:
        assert re.fullmatch(asked["regex"], answer), "no match"
    elif "choice" in asked:
        assert answer in asked["choice"], "no choice"
    elif "response_format" in form and form["response_format"]["type"] == "json_object":
        assert isinstance(json.loads(answer), dict), "no object"
    else:
        validate(asked.get("json") or form["response_format"]["json_schema"]["schema"], answer)


def answer(cinch, model, parser, chosen, forms, r):
    """The output lines of run-batch for the chosen forms, with this parser of tool calls."""
    with tempfile.TemporaryDirectory() as folder:
        prompts, answers = os.path.join(folder, "in"), os.path.join(folder, "out")
        with open(prompts, "w") as f:
            for i in chosen:
                body = {"messages": [{"role": "user", "content": "Answer as asked."}],
                        "temperature": 2, "max_tokens": 120, "seed": r.randrange(1 << 30),
                        **forms[i]}
                f.write(json.dumps({"custom_id": str(i), "url": "/v1/chat/completions",
                                    "method": "POST", "body": body}) + "\n")
        subprocess.run([cinch, "run-batch", "--model", model, "-i", prompts, "-o", answers,
                        "--tool-call-parser", parser, "--log-level", "error"], check=False,
                       stderr=subprocess.DEVNULL)
        return [json.loads(line) for line in open(answers)]


def main():
    cinch, model = sys.argv[1:3]
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 300
    r = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    forms = [draw(r, i) for i in range(n)]
    lines = []
    for k, parser in enumerate(("hermes", "llama3_json")):
        lines += answer(cinch, model, parser, range(k, n, 2), forms, r)
    counts = {"whole": 0, "cut": 0, "refused": 0, "wrong": 0}
    for line in lines:
        form, body = forms[int(line["custom_id"])], line["response"]["body"]
        if line["response"]["status_code"] != 200:
            known = any(text in body["error"]["message"] for text in KNOWN)
            counts["refused" if known else "wrong"] += 1
            if not known:
                print(json.dumps(form), body["error"], file=sys.stderr)
            continue
        choice = body["choices"][0]
        if choice["finish_reason"] == "length" or body.get("warnings"):
            counts["cut"] += 1
            continue
        try:
            check(form, choice)
            counts["whole"] += 1
        except Exception as e:
            counts["wrong"] += 1
            print(f"{type(e).__name__}: {str(e)[:300]}\n  form {json.dumps(form)}\n"
                  f"  answer {choice['message']!r}", file=sys.stderr)
    print("structured output:", ", ".join(f"{v} {k}" for k, v in counts.items()))
    fine = counts["wrong"] == 0 and len(lines) == n and counts["whole"] > 0.4 * n
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
