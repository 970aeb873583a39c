"""Many clients at once, each with its own sockets, in another process than the server.

    load.py make COUNT TOKENS REQUESTS.jsonl
        writes a batch file of seeded completions
    load.py streams URL REQUESTS.jsonl OUTPUT.jsonl
        sends every line at once, each as a stream over its own connection; each stream must be
        complete and equal its answer in OUTPUT.jsonl, the output of `cinch run-batch`
    load.py steady URL COUNT CLIENTS GROWTH_KIB
        sends COUNT short requests over CLIENTS connections, some streamed, some disconnected before
        the answer; the server's memory may grow by GROWTH_KIB after the first tenth
    load.py rude URL PER_KIND
        opens PER_KIND connections that send a header byte by byte, PER_KIND that send nothing and
        PER_KIND that read nothing of a stream; a normal client sends requests at the same time, and
        each must be answered at the first try

Uses only the standard library: with a thousand streams, an HTTP package would measure itself.
"""
import asyncio
import json
import random
import sys
import time
from urllib.parse import urlsplit

WORDS = "Sort Compute needle story sums 3 1 4 1 5 9 2 6 by hand : * +".split()


def make(count, tokens, path):
    draw = random.Random(20240)
    with open(path, "w") as f:
        for i in range(count):
            prompt = " ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 12)))
            body = {"prompt": prompt, "seed": i, "temperature": 1, "ignore_eos": True,
                    "max_tokens": draw.randint(tokens // 2, tokens * 3 // 2)}
            f.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                                "body": body}) + "\n")


# ---- a minimal HTTP client ----

async def connect(url):
    at = urlsplit(url)
    for _ in range(100):
        try:
            return await asyncio.open_connection(at.hostname, at.port, limit=1 << 20)
        except ConnectionError:
            await asyncio.sleep(0.05)  # the queue of pending connections is full
    raise ConnectionError(url)


def post(path, body):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


async def read_head(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = head.split("content-length: ")[1].split("\r")[0] if "content-length:" in head else None
    return int(head.split()[1]), length and int(length)


async def read_chunks(reader):
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)


async def read_reply(reader):
    status, length = await read_head(reader)
    if length is not None:
        return status, await reader.readexactly(length)
    return status, b"".join([part async for part in read_chunks(reader)])


async def ask(url, path, body=None):
    reader, writer = await connect(url)
    writer.write(post(path, body) if body else f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    status, data = await asyncio.wait_for(read_reply(reader), 60)
    writer.close()
    return status, data


async def metric(url, name):
    _, text = await ask(url, "/metrics")
    return next(float(line.split()[-1]) for line in text.decode().splitlines()
                if line.split("{")[0].split(" ")[0] == name)


# ---- a thousand streams ----

async def stream(url, body, start, times):
    reader, writer = await connect(url)
    await start.wait()
    began = time.perf_counter()
    writer.write(post("/v1/completions", {**body, "stream": True}))
    status, _ = await read_head(reader)
    assert status == 200, status
    text, done, first = "", False, None
    async for part in read_chunks(reader):
        first = first or time.perf_counter()
        for line in part.decode().split("\n\n"):
            if line == "data: [DONE]":
                done = True
            elif line:
                text += "".join(c["text"] for c in json.loads(line[len("data: "):])["choices"])
    writer.close()
    assert done
    times.append((first - began, time.perf_counter() - began))
    return text


def percentile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


async def streams(url, requests, output):
    lines = [json.loads(line) for line in open(requests)]
    answers = {}
    for line in open(output):
        o = json.loads(line)
        answers[o["custom_id"]] = o["response"]["body"]
    start, times = asyncio.Event(), []
    tasks = [asyncio.create_task(stream(url, line["body"], start, times)) for line in lines]
    await asyncio.sleep(1)
    start.set()
    began = time.perf_counter()
    texts = await asyncio.gather(*tasks)
    seconds = time.perf_counter() - began
    bad = [line["custom_id"] for line, text in zip(lines, texts)
           if text != answers[line["custom_id"]]["choices"][0]["text"]]
    tokens = sum(a["usage"]["completion_tokens"] for a in answers.values())
    print(f"{len(lines)} streams at once, {len(bad)} differ from run-batch, {tokens} tokens in "
          f"{seconds:.1f} s: {tokens / seconds:.0f} tokens/s; first token after "
          f"{percentile([t for t, _ in times], 0.5):.2f} s (median), "
          f"{percentile([t for t, _ in times], 0.99):.2f} s (99 %)")
    assert not bad and len(texts) == len(answers) == len(lines), bad[:10]


# ---- memory ----

async def steady_client(url, left, counts):
    draw = random.Random(left[0])
    reader = writer = None
    while left[0] > 0:
        left[0] -= 1
        if not writer:
            reader, writer = await connect(url)
        kind = draw.randint(0, 9)
        body = {"prompt": " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 20))),
                "max_tokens": draw.randint(1, 3), "ignore_eos": True, "stream": kind < 5}
        if kind == 9:  # disconnects before the answer
            writer.write(post("/v1/completions", {**body, "max_tokens": 50}))
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.close()
            writer = None
            counts["left"] += 1
            continue
        writer.write(post("/v1/completions", body))
        status, _ = await asyncio.wait_for(read_reply(reader), 600)
        counts[status] = counts.get(status, 0) + 1
        if draw.randint(0, 19) == 0:
            writer.close()
            writer = None


async def steady(url, count, clients, growth_kib):
    counts, first, began = {"left": 0}, None, time.perf_counter()
    for part in range(10):
        left = [count // 10]
        await asyncio.gather(*[steady_client(url, left, counts) for _ in range(clients)])
        memory = await metric(url, "process_resident_memory_bytes") / 1024
        first = first or memory
        print(f"{(part + 1) * count // 10} requests: {memory:.0f} KiB")
    print(f"{counts} in {time.perf_counter() - began:.1f} s; memory grew by {memory - first:.0f} KiB"
          f" after the first tenth")
    assert set(counts) == {"left", 200}, counts
    assert memory - first <= growth_kib
    for _ in range(100):
        if not await metric(url, "cinch_kv_blocks_used"):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("blocks are in use without a request")


# ---- misbehaving clients ----

async def drip(url):
    while True:
        try:
            reader, writer = await connect(url)
            for byte in b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 9999:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.3)
        except (ConnectionError, OSError):
            await asyncio.sleep(0.05)


async def silent(url):
    while True:
        try:
            reader, writer = await connect(url)
            await reader.read(1)  # until the server closes the connection
            writer.close()
        except (ConnectionError, OSError):
            pass
        await asyncio.sleep(0.05)


async def deaf(url):
    while True:
        try:
            reader, writer = await connect(url)
            writer.transport.pause_reading()
            writer.write(post("/v1/completions", {"prompt": "Sort:", "max_tokens": 20,
                                                  "ignore_eos": True, "stream": True}))
            await asyncio.sleep(3)
            writer.close()
        except (ConnectionError, OSError):
            await asyncio.sleep(0.05)


async def rude(url, per_kind):
    crowd = [asyncio.create_task(kind(url)) for kind in (drip, silent, deaf)
             for _ in range(per_kind)]
    await asyncio.sleep(2)
    times = []
    for i in range(30):
        began = time.perf_counter()
        status, data = await ask(url, "/v1/completions", {"prompt": f"Sort: {i}", "max_tokens": 2})
        assert status == 200 and json.loads(data)["choices"], (status, data)
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.1)
    died = [t for t in crowd if t.done()]
    for t in crowd:
        t.cancel()
    assert not died, died[0]
    print(f"30 answers among {len(crowd)} rude connections: median {percentile(times, 0.5):.3f} s, "
          f"slowest {max(times):.3f} s")
    assert max(times) < 20


def main():
    what, *args = sys.argv[1:]
    if what == "make":
        make(int(args[0]), int(args[1]), args[2])
    elif what == "streams":
        asyncio.run(streams(*args))
    elif what == "steady":
        asyncio.run(steady(args[0], *map(int, args[1:])))
    elif what == "rude":
        asyncio.run(rude(args[0], int(args[1])))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
