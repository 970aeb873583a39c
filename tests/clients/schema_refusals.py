"""A check for schemathesis, which SCHEMATHESIS_HOOKS names: a request that is valid under openapi.json
is refused only for one of REASONS, which its schemas do not say."""
import re

import schemathesis

REASONS = re.compile("|".join((
    # What depends on the model, the options of the server or what it holds.
    "expected (an|a token) id below",
    "context length|exceed the queue of",
    r"samples \(--max-n\)",
    "is not enabled: add it to --kv-",
    "expected 0 with --scheduling-policy fcfs",
    "no such (file|batch)",
    # What depends on another member.
    "kv .* with kv .*change one of the two",
    "tool_choice: expected (the name of one of the tools|tools beside it)",
    "the request asks for another structure too",
    "structured_outputs: expected json, .* got none",
    "structured output, bad_words and min_tokens do not exclude",
    "min_(tokens|pattern_size|count) (is|0, got)",
    "(stream_options|top_logprobs|continue_final_message): needs ",
    "prompt_logprobs: not available with ",
    "logit_bias names token .* twice",
    # Texts and numbers.
    r"structured output \(",  # a JSON Schema or an expression
    "NUL",
    r"(is 0|e-[0-9]+): expected (a (finite )?number )?above 0",  # too small for a float
    # Not exact in a double.
    r"expected a whole number .*, got -?([0-9]{16,}\.0|[0-9.]+e1[5-9])",
    "the prompt is empty",  # texts without tokens
    # The form of an upload.
    "unknown form field|Content-Disposition of a part",
)))


@schemathesis.check
def valid_requests_are_accepted(ctx, response, case):
    refused = 400 <= response.status_code < 500 and response.status_code not in (404, 409, 429)
    if refused and case.meta and case.meta.generation.mode.is_positive:
        message = response.json()["error"]["message"]
        assert REASONS.search(message), f"{response.status_code} for a valid request: {message}"
