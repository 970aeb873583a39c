"""Requests of the unmodified package openai to a server with several engines, one of which fails.

    openai_lanes.py URL N_ENGINES

Requests that have not been answered in part must succeed on the other engines, and a stream that has
begun must end with an error. Later requests succeed.
"""
import collections
import json
import sys
import threading
import urllib.request

import openai

url, n_engines = sys.argv[1], int(sys.argv[2])
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300)
CLIENTS, REQUESTS, TOKENS = 12, 8, 900
ask = dict(model="tiny", prompt="Compute 12 * 34", max_tokens=TOKENS, temperature=0,
           extra_body={"ignore_eos": True})
ends = []


def health():
    return json.load(urllib.request.urlopen(url + "/health"))


def whole():
    r = client.completions.create(**ask)
    ends.append("whole" if r.usage.completion_tokens == TOKENS else "short")


def stream():
    n = 0
    try:
        for chunk in client.completions.create(stream=True, **ask):
            n += 1
        ends.append("stream")
    except openai.APIError as error:
        ends.append("broken" if n > 0 else "refused")
        print("broken after %d events: %s" % (n, error))


def run(i):
    for _ in range(REQUESTS):
        (stream if i % 2 else whole)()


assert [e["up"] for e in health()["engines"]] == [True] * n_engines, health()
threads = [threading.Thread(target=run, args=(i,)) for i in range(CLIENTS)]
for t in threads:
    t.start()
for t in threads:
    t.join()
n = collections.Counter(ends)
print(n)
assert n["whole"] == CLIENTS * REQUESTS // 2 and n["whole"] + n["stream"] + n["broken"] == len(ends)
assert 0 <= n["broken"] <= CLIENTS // 2, n
state = health()
assert state["status"] == "ok" and [e["up"] for e in state["engines"]].count(False) == 1, state
for _ in range(4):
    whole()
assert "short" not in ends
metrics = urllib.request.urlopen(url + "/metrics").read().decode()
up = [line for line in metrics.splitlines() if line.startswith("cinch_engine_up{")]
assert len(up) == n_engines and sum(line.endswith(" 0") for line in up) == 1, up
stats = json.load(urllib.request.urlopen(url + "/stats"))
assert [bool(e["failure"]) for e in stats["engines"]].count(True) == 1, stats["engines"]
print("openai lanes: ok")
