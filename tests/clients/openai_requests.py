"""Uses chats and completions through the openai package, with the calls of its documentation.

    openai_requests.py URL KEY

The server must serve the bundled checkpoint under the names "tiny" and "org/tiny", with
--kv-policies full,zip, --kv-selectors ds, --select-tokens 64, --tool-call-parser hermes and the API
key KEY. Each function below is one use case; its name is printed after it has run.
"""
import json
import sys
import time

import openai
from prometheus_client.parser import text_string_to_metric_families

QUESTION = [{"role": "user", "content": "Compute 12 * 34 by hand."}]


def expect(error, call, **members):
    """The call must raise this class of the package, with these attributes."""
    try:
        call()
    except error as e:
        assert type(e) is error, (type(e), e)
        for name, value in members.items():
            assert getattr(e, name) == value, (name, getattr(e, name), str(e))
        return e
    raise AssertionError(f"expected {error.__name__}, got no error")


def chat(client, **more):
    return client.chat.completions.create(model="tiny", messages=QUESTION, temperature=0, **more)


def a_chat_answers(client):
    r = chat(client)
    assert r.object == "chat.completion" and r.model == "tiny" and r.id.startswith("chatcmpl-")
    assert abs(r.created - time.time()) < 600
    message = r.choices[0].message
    assert message.role == "assistant" and "408" in message.content, message
    assert r.choices[0].finish_reason == "stop"
    u = r.usage
    assert u.total_tokens == u.prompt_tokens + u.completion_tokens and u.completion_tokens > 5
    assert u.kv["policy"] == "full" and u.kv["compressions"] == 0, u.kv


def a_stream_gives_the_text_of_the_whole_answer(client):
    whole, text, reasoning, usage, finish = chat(client), "", "", None, None
    with chat(client, stream=True, stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            assert chunk.object == "chat.completion.chunk"
            if chunk.usage:
                assert not chunk.choices
                usage = chunk.usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                finish = choice.finish_reason or finish
    assert text == whole.choices[0].message.content
    assert reasoning == (getattr(whole.choices[0].message, "reasoning_content", None) or "")
    assert finish == "stop" and usage.completion_tokens == whole.usage.completion_tokens


def samples_differ_and_seeds_repeat(client):
    def draw(seed):
        r = client.chat.completions.create(model="tiny", messages=QUESTION, n=3, temperature=5,
                                           seed=seed, max_tokens=40, extra_body={"top_k": 0})
        assert [c.index for c in r.choices] == [0, 1, 2]
        return [c.message.content for c in r.choices]

    assert draw(7) == draw(7) and draw(7) != draw(8) and len(set(draw(7))) > 1


def logprobs_are_typed(client):
    r = chat(client, logprobs=True, top_logprobs=3, max_tokens=4)
    tokens = r.choices[0].logprobs.content
    assert len(tokens) == 4
    for t in tokens:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3
        assert t.top_logprobs[0].logprob == max(x.logprob for x in t.top_logprobs)
        assert bytes(t.bytes).decode(errors="replace") == t.token


def stop_strings_and_limits_end_an_answer(client):
    r = chat(client, max_tokens=3)
    assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 3
    whole = chat(client).choices[0].message.content
    word = whole[len(whole) // 2:][:2]
    r = chat(client, stop=[word])
    assert r.choices[0].finish_reason == "stop"
    assert r.choices[0].message.content == whole[:whole.index(word)]


def a_request_can_set_its_compression(client):
    r = chat(client, max_tokens=600, extra_body={
        "ignore_eos": True, "kv": {"policy": "zip", "budget": 128, "window": 16}})
    kv = r.usage.kv
    assert kv["policy"] == "zip" and kv["budget"] == 128, kv
    assert kv["compressions"] > 0 and kv["freed_bytes"] > 0 and kv["peak_tokens"] < 600, kv


def a_request_can_select_its_tokens(client):
    whole = chat(client, max_tokens=400, extra_body={"ignore_eos": True})
    assert whole.usage.kv["select"] == "none" and whole.usage.kv["selected_steps"] == 0
    r = chat(client, max_tokens=400, extra_body={
        "ignore_eos": True, "kv": {"select": "ds", "select_tokens": 64}})
    kv = r.usage.kv
    assert kv["policy"] == "full" and kv["select"] == "ds", kv
    assert kv["selected_steps"] > 100 and kv["selected_tokens"] < kv["candidate_tokens"], kv
    assert r.choices[0].message.content != whole.choices[0].message.content
    for select, error in (({"select": "quest"}, "kv.select quest is not enabled"),
                          ({"select": "ds", "select_tokens": 0}, "kv.select_tokens 0")):
        try:
            chat(client, extra_body={"kv": select})
            raise AssertionError("not refused: %s" % select)
        except openai.BadRequestError as e:
            assert error in str(e), e


def tools_are_accepted(client):
    """The bundled checkpoint calls no tools: its answers must stay as they are."""
    tool = {"type": "function", "function": {"name": "multiply", "parameters": {"type": "object"}}}
    plain = chat(client).choices[0].message.content
    for choice in ("auto", "none"):
        choice = chat(client, tools=[tool], tool_choice=choice).choices[0]
        assert choice.finish_reason == "stop" and choice.message.content == plain
        assert choice.message.tool_calls is None
    with chat(client, tools=[tool], stream=True) as stream:
        deltas = [choice.delta for chunk in stream for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == plain
    assert not any(delta.tool_calls for delta in deltas)
    call = {"id": "call_1", "type": "function", "function": {"name": "multiply", "arguments": "{}"}}
    lengths = {chat(client, max_tokens=1).usage.prompt_tokens}
    for content in ({"content": ""}, {"content": None}, {}):  # agents send null
        history = [{"role": "assistant", **content, "tool_calls": [call]},
                   {"role": "tool", "content": "408", "tool_call_id": "call_1"}] + QUESTION
        r = client.chat.completions.create(model="tiny", messages=QUESTION + history, max_tokens=3)
        lengths.add(r.usage.prompt_tokens)
    assert len(lengths) == 2 and r.usage.prompt_tokens == max(lengths), lengths
    expect(openai.BadRequestError, lambda: chat(client, tool_choice="required"),
           param="tool_choice")


def completions(client):
    whole = client.completions.create(model="tiny", prompt="Sort: 3 1 2", max_tokens=12,
                                      temperature=0, logprobs=2)
    assert whole.object == "text_completion" and whole.usage.completion_tokens <= 12
    assert len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens
    parts = client.completions.create(model="tiny", prompt="Sort: 3 1 2", max_tokens=12,
                                      temperature=0, stream=True)
    assert "".join(c.text for p in parts for c in p.choices) == whole.choices[0].text


def whole_completions(client):
    """Lists of prompts, echo, scores of prompts, and no output."""
    def complete(prompt, **more):
        return client.completions.create(model="tiny", prompt=prompt, temperature=0, **more)

    texts = ["Sort: 3 1 2", "Compute 12 * 34 by hand.", "a"]
    one = [complete(t, max_tokens=8) for t in texts]
    many = complete(texts, max_tokens=8)
    assert [c.index for c in many.choices] == [0, 1, 2]
    assert [c.text for c in many.choices] == [r.choices[0].text for r in one]
    for kind in ("prompt_tokens", "completion_tokens"):
        assert getattr(many.usage, kind) == sum(getattr(r.usage, kind) for r in one), kind
    pairs = complete(texts[:2], max_tokens=3, n=2)
    assert len(pairs.choices) == 4 and pairs.choices[0].text == pairs.choices[1].text
    parts = {0: "", 1: "", 2: ""}
    for chunk in complete(texts, max_tokens=8, stream=True, echo=True):
        for c in chunk.choices:
            parts[c.index] += c.text
    assert list(parts.values()) == [t + r.choices[0].text for t, r in zip(texts, one)], parts

    ids = complete(texts[1], max_tokens=1, extra_body={"return_token_ids": True})
    prompt = ids.choices[0].prompt_token_ids
    assert len(prompt) == ids.usage.prompt_tokens and len(ids.choices[0].token_ids) == 1
    r = complete(prompt, max_tokens=0, echo=True, logprobs=1)
    assert r.choices[0].text == texts[1] and r.usage.completion_tokens == 0
    assert r.choices[0].finish_reason == "length"
    p = r.choices[0].logprobs
    assert "".join(p.tokens) == texts[1] and p.token_logprobs[0] is None and p.top_logprobs[0] is None
    assert all(v <= max(t.values()) <= 0 for v, t in zip(p.token_logprobs[1:], p.top_logprobs[1:]))
    assert [texts[1][at:].startswith(t) for at, t in zip(p.text_offset, p.tokens)] == [True] * len(prompt)
    # The score of a token is what the model gives it as output.
    longer = complete(prompt, max_tokens=4, logprobs=0, extra_body={"return_token_ids": True})
    again = complete(prompt + longer.choices[0].token_ids, max_tokens=1, echo=True, logprobs=1)
    for a, b in zip(longer.choices[0].logprobs.token_logprobs,
                    again.choices[0].logprobs.token_logprobs[len(prompt):]):
        assert abs(a - b) < 1e-4, (a, b)
    r = complete(texts[1], max_tokens=1, extra_body={"prompt_logprobs": 2})
    scores = r.choices[0].prompt_logprobs
    assert scores[0] is None and len(scores) == len(prompt)
    for token, score, value in zip(prompt[1:], scores[1:], p.token_logprobs[1:]):
        assert score[str(token)]["logprob"] == value
    alone, best = (complete(texts[1], max_tokens=1, extra_body={"prompt_logprobs": n})
                   .choices[0].prompt_logprobs[1:] for n in (0, 20))
    ranks = [a[str(token)]["rank"] for token, a in zip(prompt[1:], alone)]
    assert ranks == [b[str(token)]["rank"] for token, b in zip(prompt[1:], best)], ranks
    for token, rank, b in zip(prompt[1:], ranks, best):
        better = sum(v["logprob"] > b[str(token)]["logprob"] for v in b.values())
        assert rank == better + 1 if rank <= 20 else better == 20, (token, rank, b)
    assert max(ranks) > 20, ranks
    cut = complete(texts[1], max_tokens=1, extra_body={"truncate_prompt_tokens": 3,
                                                       "return_token_ids": True})
    assert cut.choices[0].prompt_token_ids == prompt[-3:]


def tokens_can_be_excluded(client):
    whole = chat(client, extra_body={"return_token_ids": True}).choices[0]
    seen = set(whole.token_ids)
    r = chat(client, max_tokens=20, extra_body={"return_token_ids": True,
                                                "allowed_token_ids": sorted(seen)[:5]})
    assert set(r.choices[0].token_ids) <= set(sorted(seen)[:5]), r
    bad = sorted(set(whole.message.content.split()))
    other = chat(client, extra_body={"bad_words": bad})
    assert other.choices[0].message.content.split()[0] not in bad, other
    text = client.completions.create(model="tiny", prompt="a b c", max_tokens=8, temperature=0,
                                     extra_body={"bad_words": ["d"]}).choices[0].text
    assert not text.startswith((" d", "d")), text
    expect(openai.BadRequestError, lambda: chat(client, extra_body={"allowed_token_ids": []}),
           param="allowed_token_ids")
    e = expect(openai.BadRequestError, lambda: chat(client, extra_body={"bad_words": [" "]}))
    assert "bad_words[0] is white space" in str(e), e


def chats_continue_and_show_tokens(client):
    whole = chat(client, extra_body={"return_token_ids": True})
    text, ids = whole.choices[0].message.content, whole.choices[0].token_ids
    assert len(whole.prompt_token_ids) == whole.usage.prompt_tokens
    assert len(ids) == whole.usage.completion_tokens
    r = client.chat.completions.create(
        model="tiny", temperature=0, messages=QUESTION + [{"role": "assistant", "content": text[:40]}],
        extra_body={"continue_final_message": True, "add_generation_prompt": False,
                    "return_token_ids": True})
    n = len(whole.prompt_token_ids)
    root = client.with_options(base_url=str(client.base_url).replace("/v1/", "/"))
    back = root.post("/detokenize", cast_to=object, body={"tokens": r.prompt_token_ids[n:]})
    assert r.prompt_token_ids[:n] == whole.prompt_token_ids and back["prompt"] == text[:40], back
    seen, told = [], []
    for chunk in chat(client, stream=True, stream_options={"continuous_usage_stats": True},
                      extra_body={"return_token_ids": True}):
        told += [chunk.prompt_token_ids] if hasattr(chunk, "prompt_token_ids") else []
        for c in chunk.choices:
            seen += c.token_ids
            assert chunk.usage.completion_tokens == len(seen), (chunk.usage, len(seen))
            assert chunk.usage.prompt_tokens == whole.usage.prompt_tokens
    assert seen == ids and told == [whole.prompt_token_ids]


def fields_without_effect_and_unknown_ones_are_accepted(client):
    r = chat(client, max_tokens=1, user="u", store=True, metadata={"a": "b"}, verbosity="low",
             service_tier="flex", reasoning_effort="low", extra_body={"no_such_field": 1})
    assert r.warnings == ["no_such_field: unknown field, ignored"], r
    assert not hasattr(chat(client, max_tokens=1), "warnings")
    chunks = list(chat(client, max_tokens=3, stream=True, extra_body={"no_such_field": 1}))
    told = [c.warnings for c in chunks if hasattr(c, "warnings")]
    assert told == [["no_such_field: unknown field, ignored"]], told
    expect(openai.BadRequestError, lambda: chat(client, extra_body={"kv": {"budgit": 1}}),
           param="kv")


def models(client):
    listed = client.models.list().data
    assert [m.id for m in listed] == ["tiny", "org/tiny"], listed
    for name in ("tiny", "org/tiny"):
        assert client.models.retrieve(name).id == name
    expect(openai.NotFoundError, lambda: client.models.retrieve("other"))


def errors_have_the_classes_of_the_package(client):
    e = expect(openai.NotFoundError, lambda: client.chat.completions.create(
        model="other", messages=QUESTION), status_code=404, code="model_not_found")
    assert "other" in e.message
    expect(openai.BadRequestError, lambda: chat(client, top_p=3), status_code=400, param="top_p",
           type="invalid_request_error")
    expect(openai.BadRequestError, lambda: client.completions.create(
        model="tiny", prompt="word " * 20000), status_code=400)
    stranger = client.with_options(api_key="not-the-key-at-all")
    expect(openai.AuthenticationError, lambda: chat(stranger), status_code=401)


def metrics(client):
    text = client.get("/metrics", cast_to=str, options={"headers": {"Accept": "text/plain"}})
    families = {f.name: f for f in text_string_to_metric_families(text)}
    return families


def value(families, name, **labels):
    """The sum over the engines of one series."""
    found = [s for f in families.values() for s in f.samples
             if s.name == name and labels.items() <= s.labels.items()]
    engines = [s.labels.get("engine") for s in found]
    others = {tuple(sorted((k, v) for k, v in s.labels.items() if k != "engine")) for s in found}
    assert len(others) == 1 and len(set(engines)) == len(engines), (name, labels, found)
    return sum(s.value for s in found)


def closing_a_stream_cancels_the_request(client):
    def aborted():
        return value(metrics(client.with_options(base_url=str(client.base_url).replace("/v1/", "/"))),
                     "vllm:request_success_total", finished_reason="abort")

    before = aborted()
    with chat(client, stream=True, max_tokens=4000, extra_body={"ignore_eos": True}) as stream:
        for i, _ in enumerate(stream):
            if i == 3:
                break
    deadline = time.time() + 120
    while aborted() == before and time.time() < deadline:
        time.sleep(0.05)
    assert aborted() == before + 1


def prometheus_reads_the_metrics(client):
    f = metrics(client.with_options(base_url=str(client.base_url).replace("/v1/", "/")))
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                 "vllm:kv_cache_usage_perc", "cinch_requests_blocked", "cinch_query_slots_used"):
        assert f[name].type == "gauge", name
    for name in ("vllm:prompt_tokens", "vllm:generation_tokens", "vllm:num_preemptions",
                 "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "cinch_compressions",
                 "cinch_evicted_tokens", "cinch_freed_bytes", "cinch_compression_seconds"):
        assert f[name].type == "counter", name
    for name in ("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
                 "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds",
                 "vllm:request_queue_time_seconds", "vllm:request_prompt_tokens"):
        family = f[name]
        assert family.type == "histogram", name
        buckets = [s.value for s in family.samples if s.name == name + "_bucket"]
        assert buckets == sorted(buckets) and buckets[-1] == value(f, name + "_count") > 0, name
    assert value(f, "vllm:generation_tokens_total") > 0
    assert value(f, "cinch_compressions_total") > 0 and value(f, "cinch_freed_bytes_total") > 0
    assert value(f, "cinch_compression_seconds_total") > 0
    assert value(f, "cinch_candidate_tokens_total") > value(f, "cinch_selected_tokens_total") > 0


def detokenize_inverts_tokenize(client):
    root = client.with_options(base_url=str(client.base_url).replace("/v1/", "/"))
    there = root.post("/tokenize", cast_to=object, body={"prompt": "Sort: 3 1 2"})
    assert there["count"] == len(there["tokens"]) > 0
    back = root.post("/detokenize", cast_to=object, body={"tokens": there["tokens"]})
    assert back == {"prompt": "Sort: 3 1 2"}, back


def main():
    url, key = sys.argv[1:]
    client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=600)
    for use in (a_chat_answers, a_stream_gives_the_text_of_the_whole_answer,
                samples_differ_and_seeds_repeat, logprobs_are_typed,
                stop_strings_and_limits_end_an_answer, a_request_can_set_its_compression,
                a_request_can_select_its_tokens, tools_are_accepted, completions,
                whole_completions, tokens_can_be_excluded, chats_continue_and_show_tokens,
                fields_without_effect_and_unknown_ones_are_accepted, models,
                errors_have_the_classes_of_the_package,
                closing_a_stream_cancels_the_request, prometheus_reads_the_metrics,
                detokenize_inverts_tokenize):
        use(client)
        print(use.__name__)


if __name__ == "__main__":
    main()
