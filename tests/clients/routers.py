"""Requests to a router before two servers, of which one is killed.

    routers.py ROUTER_URL FIRST_URL SECOND_URL PID_OF_THE_FIRST
"""
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

router, first, second, pid = sys.argv[1:]
N, LATER = 24, 12


def ask(url, n=12, **more):
    """The status of a chat, and its text."""
    body = {"model": "tiny", "max_tokens": n, "temperature": 0, "ignore_eos": True,
            "messages": [{"role": "user", "content": "Sort: 3 1 2"}], **more}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    except OSError as e:
        return 0, str(e)


def text_of(answer):
    return json.loads(answer)["choices"][0]["message"]["content"]


def text_of_stream(answer):
    lines = [line[6:] for line in answer.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1:]
    deltas = [c["delta"] for line in lines[:-1] for c in json.loads(line)["choices"]]
    return "".join(d.get("content") or "" for d in deltas)


def made(url):
    """The tokens that a server has made."""
    with urllib.request.urlopen(url + "/metrics") as r:
        lines = r.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines
               if line.startswith("vllm:generation_tokens_total{"))


def ask_all(n, **more):
    got = [None] * n

    def run(i):
        got[i] = ask(router, **more)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return got


for i in range(600):
    if ask(router)[0] == 200:
        break
    time.sleep(0.5)
want = text_of(ask(second)[1])
for status, answer in ask_all(N):
    assert status == 200 and text_of(answer) == want, (status, answer)
    assert "warnings" not in json.loads(answer), answer
for status, answer in ask_all(N, stream=True):
    assert status == 200 and text_of_stream(answer) == want and "warnings" not in answer, answer
assert made(first) > 0 and made(second) > 0, (made(first), made(second))
os.kill(int(pid), signal.SIGKILL)
lost = sum(status != 200 for status, _ in ask_all(LATER))
print("failed just after the kill: %d of %d" % (lost, LATER))
until = time.time() + 300
while time.time() < until:
    answers = ask_all(LATER)
    if all(status == 200 for status, _ in answers):
        break
    time.sleep(1)
assert all(status == 200 and text_of(answer) == want for status, answer in answers), answers
