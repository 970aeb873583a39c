#!/usr/bin/env python3
"""Kills `cinch serve` (SIGKILL) many times while it runs batches, and checks the files it leaves.

Each round starts the server on the same spool, makes sure that batches are running, and kills the
server at a random moment: while it starts, receives an upload, or answers lines. The rules:

  * a file or batch that the server has acknowledged exists after the next start;
  * a line that a file had when the process was killed is in the file at the end, unchanged and in
    the same place;
  * each custom_id of a finished batch has one line of valid JSON, in the output or the error file;
  * chats that run at the same time and preempt batch requests change none of this;
  * each line equals that of `cinch run-batch` for the same input, except for the time, whether one
    engine or four share the lines.

Usage: serve_chaos.py [--cinch build/cinch] [--rounds 50] [--seed 1]
"""
import argparse
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid

MODEL = "examples/tiny-reasoner"
SHARED = ["--model", MODEL, "--kv-budget", "64", "--block-size", "32", "--kv-policy", "zip",
          "--threads", "1", "--served-model-name", "tiny", "--seed", "3"]


def fail(text):
    sys.exit("serve_chaos: " + text)


def make_input(rng, n_lines):
    """Lines of different lengths. One of them is refused when it runs."""
    lines = []
    for i in range(n_lines):
        body = {"messages": [{"role": "user",
                              "content": "Compute %d * %d by hand." % (rng.randrange(10**6), i)}],
                "max_tokens": rng.choice([2, 4, 8, 20, 80]), "temperature": 0.8}
        if i == n_lines // 2:
            body["max_tokens"] = -1
        lines.append(json.dumps({"custom_id": "r%d" % i, "method": "POST",
                                 "url": "/v1/chat/completions", "body": body}))
    return "\n".join(lines) + "\n"


def normal(line):
    """A line of an output without the members that may differ between two runs."""
    body = line["response"]["body"]
    body.pop("created", None)
    # Ids end with a number of the run.
    for holder, name in ((line, "id"), (line["response"], "request_id"), (body, "id")):
        if name in holder:
            holder[name] = holder[name].rpartition("-")[0]
    # The number of cached prompt tokens depends on batch composition. The answer does not.
    if "usage" in body:
        body["usage"].pop("prompt_tokens_details", None)
    return line


def run_offline(cinch, folder, text):
    name = os.path.join(folder, uuid.uuid4().hex)
    with open(name + ".in", "w", encoding="utf-8") as f:
        f.write(text)
    done = subprocess.run([cinch, "run-batch", "-i", name + ".in", "-o", name + ".out",
                           "--progress", "none", *SHARED], capture_output=True, text=True)
    if done.returncode not in (0, 2):
        fail("run-batch: exit %d: %s" % (done.returncode, done.stderr))
    with open(name + ".out", encoding="utf-8") as f:
        lines = [normal(json.loads(line)) for line in f]
    return {line["custom_id"]: line for line in lines}


class Connection(http.client.HTTPConnection):
    """Over the socket of a server: a port that was free may be taken meanwhile."""

    def __init__(self, path):
        super().__init__("localhost", timeout=900)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Server:
    """One server process."""

    def __init__(self, cinch, spool, log, n_engines):
        self.socket = spool + ".socket"
        self.process = subprocess.Popen(
            [cinch, "serve", "--uds", self.socket, "--spool", spool, "--access-log", "off",
             "--max-batch-inflight", "12", "--max-num-seqs", "5", "--device", "cpu",
             "--data-parallel-size", str(n_engines),
             "--kv-cache-memory-bytes", "24M", *SHARED],
            stdout=log, stderr=log)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def request(self, method, path, body=None, content_type="application/json"):
        c = Connection(self.socket)
        try:
            headers = {"Content-Type": content_type} if body is not None else {}
            c.request(method, path, body=body, headers=headers)
            reply = c.getresponse()
            return reply.status, reply.read()
        finally:
            c.close()

    def ask(self, method, path, body=None, content_type="application/json"):
        status, data = self.request(method, path, body, content_type)
        if status != 200:
            fail("%s %s: %d %s" % (method, path, status, data[:300]))
        return data

    def ask_json(self, *args):
        return json.loads(self.ask(*args))

    def wait_until_up(self, seconds=900):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                fail("the server exited, code %d" % self.process.returncode)
            try:
                if self.request("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)  # not listening yet, or 503 while the model loads
        fail("the server did not start in %d s" % seconds)

    def upload(self, text):
        edge = uuid.uuid4().hex
        form = ("--%s\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
                "--%s\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n"
                "\r\n%s\r\n--%s--\r\n" % (edge, edge, text, edge))
        return self.ask_json("POST", "/v1/files", form.encode(),
                             "multipart/form-data; boundary=" + edge)["id"]

    def chat_until_killed(self):
        """Sends interactive requests, which run before batch requests."""
        body = json.dumps({"messages": [{"role": "user", "content": "Compute 12 * 34 by hand."}],
                           "max_tokens": 30})
        try:
            while self.process.poll() is None:
                self.ask("POST", "/v1/chat/completions", body)
        except (OSError, http.client.HTTPException):
            pass

    def create(self, file_id):
        return self.ask_json("POST", "/v1/batches", json.dumps(
            {"input_file_id": file_id, "endpoint": "/v1/chat/completions",
             "completion_window": "24h"}))["id"]


class Watch:
    """The files of the spool between two server processes."""

    def __init__(self, spool):
        self.files = os.path.join(spool, "files")
        self.lines = {}

    def whole_lines(self, name):
        with open(os.path.join(self.files, name), "rb") as f:
            data = f.read()
        return data[:data.rfind(b"\n") + 1]

    def look(self):
        """Records each file's lines. They must begin with the lines recorded before."""
        if not os.path.isdir(self.files):
            return
        for name in os.listdir(self.files):
            if name.endswith(".json"):
                continue
            now = self.whole_lines(name)
            before = self.lines.get(name, b"")
            if not now.startswith(before):
                fail("%s has lost lines" % name)
            self.lines[name] = now


def read_lines(server, batch):
    lines = []
    for member in ("output_file_id", "error_file_id"):
        if batch[member]:
            content = server.ask("GET", "/v1/files/%s/content" % batch[member])
            if not content.endswith(b"\n"):
                fail("%s of %s ends with an incomplete line" % (member, batch["id"]))
            lines += [json.loads(line) for line in content.splitlines()]
    return lines


def check(server, batch_id, want):
    batch = server.ask_json("GET", "/v1/batches/" + batch_id)
    if batch["status"] != "completed":
        fail("%s is %s" % (batch_id, batch["status"]))
    seen = set()
    for line in read_lines(server, batch):
        custom_id = line["custom_id"]
        if custom_id in seen:
            fail("%s: %s has two lines" % (batch_id, custom_id))
        seen.add(custom_id)
        if normal(line) != want[custom_id]:
            fail("%s: %s differs from the offline run:\n%s\n%s" %
                 (batch_id, custom_id, json.dumps(line), json.dumps(want[custom_id])))
    if seen != set(want):
        fail("%s: expected %d lines, got %d" % (batch_id, len(want), len(seen)))
    counts = batch["request_counts"]
    if (counts["completed"], counts["failed"]) != (len(want) - 1, 1):
        fail("%s: counts %s" % (batch_id, counts))


class Chaos:
    def __init__(self, args, folder):
        self.cinch, self.folder = args.cinch, folder
        self.rng = random.Random(args.seed)
        self.spool = os.path.join(folder, "spool")
        self.watch = Watch(self.spool)
        self.log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
        self.inputs = [make_input(self.rng, n) for n in (12, 25, 50)]
        self.wants = [run_offline(self.cinch, folder, text) for text in self.inputs]
        self.batches = {}  # id -> which input
        self.n_checked = 0

    def start(self):
        return Server(self.cinch, self.spool, self.log, self.rng.choice((1, 4)))

    def statuses(self, server):
        return {b: server.ask_json("GET", "/v1/batches/" + b)["status"] for b in self.batches}

    def settle(self, server):
        """Checks the finished batches, and keeps two batches running."""
        for batch_id, status in self.statuses(server).items():
            if status == "completed":
                check(server, batch_id, self.wants[self.batches.pop(batch_id)])
                self.n_checked += 1
            elif status not in ("validating", "in_progress", "finalizing"):
                fail("%s is %s" % (batch_id, status))
        while len(self.batches) < 2:
            which = self.rng.randrange(len(self.inputs))
            self.batches[server.create(server.upload(self.inputs[which]))] = which

    def round(self):
        server = self.start()
        kind = self.rng.random()
        if kind < 0.15:  # killed while it starts
            time.sleep(self.rng.random() * 0.8)
        else:
            server.wait_until_up()
            self.settle(server)
            if kind < 0.3:  # killed during an upload that gets no reply
                with socket.socket(socket.AF_UNIX) as s:
                    s.connect(server.socket)
                    s.sendall(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n"
                              b"Content-Type: multipart/form-data; boundary=e\r\n\r\n--e\r\n"
                              b"Content-Disposition: form-data; name=\"file\"\r\n\r\nhalf")
                    time.sleep(self.rng.random() * 0.1)
            else:
                if kind < 0.5:
                    for _ in range(3):
                        threading.Thread(target=server.chat_until_killed, daemon=True).start()
                time.sleep(self.rng.random() ** 2 * 8)
        server.kill()
        self.watch.look()

    def finish(self):
        server = self.start()
        server.wait_until_up()
        end = time.monotonic() + 900
        while any(s != "completed" for s in self.statuses(server).values()):
            if time.monotonic() > end:
                fail("batches did not complete in 900 s: %s" % self.statuses(server))
            time.sleep(0.1)
        for batch_id, which in self.batches.items():
            check(server, batch_id, self.wants[which])
            self.n_checked += 1
        server.process.send_signal(signal.SIGTERM)
        if server.process.wait(600) != 0:
            fail("SIGTERM: expected exit code 0, got %d" % server.process.returncode)
        self.watch.look()
        if os.listdir(os.path.join(self.spool, "tmp")):
            fail("files are left in tmp/ of the spool")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cinch", default="build/cinch")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="cinch-chaos-")
    chaos = Chaos(args, folder)
    try:
        for i in range(args.rounds):
            chaos.round()
            print("round %d: %d batches checked" % (i + 1, chaos.n_checked), flush=True)
        chaos.finish()
    except BaseException:
        chaos.log.flush()
        with open(chaos.log.name, encoding="utf-8") as f:
            sys.stderr.write(f.read()[-4000:])
        sys.stderr.write("the spool is kept in %s\n" % folder)
        raise
    shutil.rmtree(folder)
    print("%d rounds, %d batches checked line by line" % (args.rounds, chaos.n_checked))


if __name__ == "__main__":
    main()
