#!/usr/bin/env python3
"""Chats during a batch whose compressed requests hold all KV memory and every query slot.

  swap.py make REQUESTS TOKENS FILE          writes a batch file
  swap.py talk URL FILE OUTPUT               runs the file as a batch, sends chats, compares

`talk` starts the batch, waits until requests of the batch have been compressed, and sends chats
that are long enough to need a query slot. Each chat must be answered while the batch runs. Requests
of the batch must have moved to the swap space and back. The text, log-probabilities and usage of
the batch must equal OUTPUT, which `cinch run-batch` wrote with memory for all requests.
"""
import json
import sys
import time
import urllib.request
import uuid

N_CHATS, CHAT_TOKENS = 6, 80


def fail(text):
    sys.exit("swap: " + text)


def make(n, tokens, path):
    with open("examples/tiny-reasoner/prompts/ledger.jsonl") as f:
        prompts = [json.loads(line)["prompt"] for line in f][:n]
    with open(path, "w") as f:
        for i, prompt in enumerate(prompts):
            body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens,
                    "ignore_eos": True, "logprobs": True, "top_logprobs": 2}
            body["temperature"] = i % 2
            if i % 3 == 0:
                body["frequency_penalty"] = 0.4
            f.write(json.dumps({"custom_id": "r%d" % i, "method": "POST",
                                "url": "/v1/chat/completions", "body": body}) + "\n")


def ask(url, body=None, kind="application/json"):
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return reply.read().decode()


def upload(url, path):
    edge = uuid.uuid4().hex
    with open(path) as f:
        content = f.read()
    form = ('--%s\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            '--%s\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
            '%s\r\n--%s--\r\n' % (edge, edge, content, edge))
    kind = "multipart/form-data; boundary=" + edge
    return json.loads(ask(url + "/v1/files", form.encode(), kind))["id"]


def metric(url, name):
    for line in ask(url + "/metrics").splitlines():
        if line.startswith(name + "{"):
            return float(line.rsplit(" ", 1)[1])
    fail("no metric " + name)


def wait(what, condition):
    for _ in range(60000):
        if condition():
            return
        time.sleep(0.01)
    fail("not reached in 600 s: " + what)


def normal(line):
    """A line of an output without the members that may differ between two runs."""
    answer = json.loads(line)
    body = answer["response"]["body"]
    for key in ("id", "created"):
        body.pop(key, None)
    body["usage"].pop("prompt_tokens_details", None)
    return answer["custom_id"], (body, answer["error"])


def talk(url, path, output):
    batch = json.loads(ask(url + "/v1/batches", {
        "input_file_id": upload(url, path), "endpoint": "/v1/chat/completions",
        "completion_window": "24h"}))["id"]
    state = {}

    def look():
        state.update(json.loads(ask(url + "/v1/batches/" + batch)))
        return state["status"]

    wait("compressions", lambda: metric(url, "cinch_compressions_total") >= 16)
    slowest_s = 0
    for i in range(N_CHATS):
        began_s = time.monotonic()
        body = {"messages": [{"role": "user", "content": "Compute %d * 37 by hand." % i}],
                "max_tokens": CHAT_TOKENS, "ignore_eos": True}
        answer = json.loads(ask(url + "/v1/chat/completions", body))
        if answer["usage"]["completion_tokens"] != CHAT_TOKENS:
            fail("chat %d: %s" % (i, answer))
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        if look() != "in_progress":
            fail("expected the batch in progress after chat %d, got %s" % (i, state["status"]))
    n_out = metric(url, "cinch_swapped_out_requests_total")
    if n_out < 1: # a chat may also use what the chat before it left free
        fail("expected a request swapped out for %d chats, got none" % N_CHATS)
    wait("the end of the batch", lambda: look() == "completed")
    with open(output) as f:
        want = dict(normal(line) for line in f)
    got = dict(map(normal, ask("%s/v1/files/%s/content" % (url, state["output_file_id"]))
                   .splitlines()))
    for name in want:
        if want[name] != got.get(name):
            fail("%s differs from the offline run:\n%s\n%s" % (name, want[name], got.get(name)))
    for name in ("vllm:num_requests_swapped", "cinch_swap_blocks_used",
                 "cinch_swap_windows_used"):
        if metric(url, name) != 0:
            fail("expected %s to be 0 at the end, got %g" % (name, metric(url, name)))
    if metric(url, "cinch_swapped_in_requests_total") != n_out:
        fail("fewer requests were swapped in than out")
    print("swap: %d requests were swapped out for %d chats; the slowest chat took %.1f s"
          % (n_out, N_CHATS, slowest_s))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        talk(*sys.argv[2:])
