"""chat_reference.py: what make_chat_template.py and tests/chat_template_check.sh share. It has the Jinja
environment that transformers uses for chat templates, and conversations. Needs jinja2."""
import datetime
import functools
import glob
import json
import os

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


class Generation(Extension):
    """{% generation %}, which marks an answer for training and writes its text."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def environment(now=None):
    """As in transformers/utils/chat_template_utils.py. now: a datetime instead of the clock."""
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: (now or datetime.datetime.now()).strftime(f)
    return env


@functools.lru_cache(maxsize=None)
def compiled(env, source):
    return env.from_string(source)


@functools.lru_cache(maxsize=None)
def reads_parts(env, source):
    """True if a template has a loop over a content, as one that takes lists of parts has."""
    def is_content(node):
        while isinstance(node, nodes.Filter):
            node = node.node
        if isinstance(node, nodes.Getitem):
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        return (getattr(node, "attr", None) or getattr(node, "name", None)) == "content"

    return any(is_content(loop.iter) for loop in env.parse(source).find_all(nodes.For))


def prepared(env, source, variables):
    """Joins the text parts of contents for a template that does not read parts, as cinch does."""
    try:
        if reads_parts(env, source):
            return variables
    except jinja2.TemplateSyntaxError:
        return variables
    messages = [{**m, "content": "\n".join(part["text"] for part in m["content"])}
                if isinstance(m.get("content"), list) else m for m in variables["messages"]]
    return {**variables, "messages": messages}


def text_arguments(call):
    function = call["function"]
    if isinstance(function["arguments"], str):
        return call
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def variants(variables):
    """As they are; with the arguments of tool calls as text; with "" for null contents; with both."""
    for contents in (False, True):
        for arguments in (False, True):
            messages = []
            for m in variables["messages"]:
                if contents and m.get("content", "") is None:
                    m = {**m, "content": ""}
                if arguments and "tool_calls" in m:
                    m = {**m, "tool_calls": [text_arguments(call) for call in m["tool_calls"]]}
                messages.append(m)
            yield {**variables, "messages": messages}


def render(env, source, variables):
    """(text, None) or (None, error). The variables are those that cinch passes, and where they fail
    their other variants."""
    errors = []
    for chat in variants(variables):
        given = {"tools": None, "documents": None, "add_generation_prompt": True, **TOKENS,
                 **prepared(env, source, chat)}
        try:
            return compiled(env, source).render(**given), None
        except Exception as e:  # jinja2 passes on any exception of Python
            errors.append(f"{type(e).__name__}: {e}")
    return None, errors[0]


def templates():
    """{name: source} of the folder chat_template/templates."""
    found = {}
    for path in sorted(glob.glob(os.path.join(HERE, "chat_template", "templates", "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as f:
            found[os.path.basename(path)[:-len(".jinja")]] = f.read()
    return found


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a city",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "A name, e.g. \"Köln\""},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius",
                     "description": "the unit"},
            "days": {"type": ["integer", "null"], "description": "how many", "minimum": 1.5}}}}},
    {"type": "function", "function": {
        "name": "search", "description": "Finds <b>pages</b> & more",
        "parameters": {"type": "object", "properties": {
            "queries": {"type": "array", "items": {"type": "string"}, "description": "a list"},
            "filter": {"type": "object", "description": "a filter", "properties": {
                "lang": {"type": "string", "description": "its language"}, "safe": {
                    "type": "boolean", "description": "if safe"}}},
            "shape": {"type": "array", "description": "nested", "items": {
                "type": "array", "items": {"type": "number"}}}}}}},
    {"type": "function", "function": {
        "name": "now", "description": "The time", "parameters": {"type": "object",
                                                                "properties": {}}}},
]
TEXTS = ["Hello", "  spaces around \n\n", "\u00a0\u2003 odd spaces \x1c\x85", "", "two\nlines\n",
         "line\r\nends\r\n", "é中文🙂 \u2028 x", "<think>\nhm\n</think>\n\nSo: 4.",
         "\n\n</think>\n\n\nleft", "<think>open", "a</think>b</think>\nc",
         "<think>\n\n</think>\n\nplain", "x<think>y<think>\nz\n\n</think>w", "<|im_end|>",
         "<tool_response>\n1\n</tool_response>", "<tool_response>no", "%s {{ x }} {% y %}",
         "/think well", "be quick /no_think", "\"quoted\" 'text' \\ back\tslash", "word " * 12]
ARGUMENTS = [{}, {"city": "Köln", "unit": "celsius"}, {"queries": ["a", "b\n"], "n": 3, "x": 1.5e-7},
             {"filter": {"lang": None, "safe": True}, "shape": [[1, 2.0], []]}]


def random_chat(rng, strict):
    """A list of messages; strict: user and assistant alternate after an optional system message."""
    chat = []
    if rng.random() < 0.4:
        chat.append({"role": "system", "content": rng.choice(TEXTS)})
    turns = rng.randint(1, 5)
    while turns > 0:
        turns -= 1
        chat.append({"role": "user", "content": rng.choice(TEXTS)})
        if not strict and rng.random() < 0.4:
            calls = [{"id": f"call{rng.randint(10000, 99999)}", "type": "function", "function": {
                "name": rng.choice(["get_weather", "search", "now"]),
                "arguments": rng.choice(ARGUMENTS)}} for _ in range(rng.randint(1, 2))]
            chat.append({"role": "assistant", "content": rng.choice([None, "", "I look it up."]),
                         "tool_calls": calls})
            for call in calls:
                chat.append({"role": "tool", "content": rng.choice(TEXTS),
                             "tool_call_id": call["id"]})
        if turns > 0 or rng.random() < 0.3:
            answer = {"role": "assistant", "content": rng.choice(TEXTS)}
            if rng.random() < 0.4:
                answer["reasoning_content"] = rng.choice(["", "why", "\n\nlines\n\n", "a</think>b",
                                                          " <think>x"])
            chat.append(answer)
        if not strict and rng.random() < 0.1:
            rng.shuffle(chat)
    if not strict and rng.random() < 0.1:
        chat[0]["content"] = [{"type": "text", "text": "part one"}, {"type": "text", "text": "2"}]
    return chat


def random_variables(rng):
    strict = rng.random() < 0.4
    variables = {"messages": random_chat(rng, strict)}
    if not strict and rng.random() < 0.5:
        variables["tools"] = rng.sample(TOOLS, rng.randint(1, len(TOOLS)))
    if rng.random() < 0.15:
        variables["documents"] = [{"title": "One", "text": "Some text."}, {"text": "More\ntext"}]
    if rng.random() < 0.4:
        variables["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.15:
        variables["add_generation_prompt"] = False
    return variables
