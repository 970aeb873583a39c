"""Answers a file of chat requests with Ray Data: an actor is a cinch server on its GPU.

    python answer.py MODEL IN.jsonl OUT_DIR [--actors 8] [-- OPTION...]

IN.jsonl has lines as `cinch run-batch` reads them, with custom_id. OUT_DIR gets files of lines with
custom_id, status and response. Options after -- are those of `cinch serve`. CINCH names the program.

A server that cannot start ends the run with its last line. One that dies later ends its actor. Ray
starts another one, which answers the rows again: an exception would end the whole dataset. A run
that is started again leaves out the lines that OUT_DIR has.
"""
import argparse
import asyncio
import concurrent.futures
import ctypes
import glob
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import ray

PR_SET_PDEATHSIG = 1
# Rows in flight of an actor: more than --max-num-seqs, or seats stay empty.
BATCH, BATCHES = 64, 4


class Connection(http.client.HTTPConnection):
    """To the socket file of a server."""

    def __init__(self, path):
        super().__init__("localhost", timeout=3600)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def end_with_the_actor():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Server:
    def __init__(self, model, options):
        self.path = tempfile.mkdtemp(prefix="cinch-") + "/socket"
        self.threads = concurrent.futures.ThreadPoolExecutor(BATCH * BATCHES)
        self.last_line = ""
        # Ray has set CUDA_VISIBLE_DEVICES: the actor's GPU is the first one.
        self.process = subprocess.Popen(
            [os.environ.get("CINCH", "cinch"), "serve", "--model", model, "--uds", self.path,
             "--access-log", "off", *options],
            stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=end_with_the_actor)
        log = threading.Thread(target=self.pass_log_on, daemon=True)
        log.start()
        while not self.is_up():
            if self.process.poll() is not None:
                log.join(10)
                raise RuntimeError(f"the server did not start: {self.last_line}")
            time.sleep(0.2)

    def pass_log_on(self):
        for line in self.process.stderr:
            sys.stderr.write(line)
            sys.stderr.flush()
            self.last_line = line.strip() or self.last_line

    def is_up(self):
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def ask(self, method, path, body=None):
        c = Connection(self.path)
        c.request(method, path, body, {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, r.read().decode(), float(r.getheader("Retry-After") or 1)

    def answer(self, line):
        body = json.dumps(json.loads(line)["body"])
        while True:
            try:
                status, text, retry_s = self.ask("POST", "/v1/chat/completions", body)
            except (OSError, http.client.HTTPException):
                os._exit(1)
            if status not in (429, 503):
                return status, text
            time.sleep(retry_s)

    async def __call__(self, batch):
        loop = asyncio.get_running_loop()
        answers = await asyncio.gather(
            *(loop.run_in_executor(self.threads, self.answer, line) for line in batch["text"]))
        yield {"custom_id": batch["custom_id"], "status": [status for status, _ in answers],
               "response": [text for _, text in answers]}


def answered(folder):
    """The ids in the files of earlier runs. The last line of a run that was killed may be torn."""
    ids = set()
    for path in glob.glob(os.path.join(folder, "*.json")):
        with open(path) as lines:
            ids.update(json.loads(line)["custom_id"] for line in lines if line.endswith("}\n"))
    return ids


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=1, help="of an actor")
    parser.add_argument("--local-cpus", type=int, help="Ray on this machine, with so many CPUs")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    o, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1:]
    ray.init(num_cpus=o.local_cpus, include_dashboard=False)
    done = answered(o.output)
    lines = ray.data.read_text(os.path.abspath(o.input))
    lines = lines.map(lambda row: {"custom_id": json.loads(row["text"])["custom_id"], **row})
    lines = lines.filter(lambda row: row["custom_id"] not in done)
    # Otherwise the name of a checkpoint in the Hugging Face cache.
    model = os.path.abspath(o.model) if os.path.isdir(o.model) else o.model
    answers = lines.map_batches(
        Server, fn_constructor_args=(model, options), batch_size=BATCH,
        compute=ray.data.ActorPoolStrategy(size=o.actors, max_tasks_in_flight_per_actor=BATCHES),
        max_concurrency=BATCHES, num_cpus=1, num_gpus=o.gpus)
    answers.write_json(os.path.abspath(o.output))


if __name__ == "__main__":
    main()
