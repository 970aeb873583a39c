#!/usr/bin/env python3
"""Simulates a file of requests on 1 to 1,000 GPUs: static shards beside lines that GPUs take one by
one, with slow GPUs, late starts and failures.

    python3 bench/scale_sim.py [--lines-per-gpu 4000] [--lengths OUT.jsonl ...] [--gpus 8,64,1000]
    python3 bench/scale_sim.py --check DIR

Lengths are those of answers in output files of run-batch; without, they are lognormal. A step of a
GPU takes --step-ms plus --row-us for each request. A row of the table is a case: the share of wall
time and of GPU time that is lost beside GPUs that are always full. --check reads the outputs of the
shards of one run (DIR/*.jsonl, with DIR/*.json of --summary-json beside them): the steps and tokens
of each shard must be those of the simulation within a tenth. Needs only the standard library.
"""
import argparse
import collections
import glob
import heapq
import json
import math
import random
import sys

CASES = {  # slow: speed of the first GPU; late: starts spread over so many s; mtbf: of a GPU, in h
    "equal": {},
    "one GPU at 0.8 of the speed": {"slow": 0.8},
    "starts spread over 20 min": {"late": 1200},
    "failures every 12 h": {"mtbf": 12},
}


class Gpu:
    """Runs lines of a queue of lengths. Time is that of steps; a failure loses what runs."""

    def __init__(self, queue, a, start_s=0.0, speed=1.0, mtbf_h=0.0, rng=None):
        self.queue, self.a, self.speed, self.mtbf_s, self.rng = queue, a, speed, mtbf_h * 3600, rng
        self.t = start_s + a.start_s
        self.step = self.tokens = 0
        self.running = []  # heap of (last step, length)
        self.fails_at = self.next_failure()

    def next_failure(self):
        return self.t + self.rng.expovariate(1 / self.mtbf_s) if self.mtbf_s else math.inf

    def take_line(self):
        n = self.queue.popleft()
        heapq.heappush(self.running, (self.step + n, n))

    def fill(self):
        while self.queue and len(self.running) < self.a.seats:
            self.take_line()

    def step_s(self):
        return (self.a.step_ms / 1e3 + self.a.row_us / 1e6 * len(self.running)) / self.speed

    def next_at(self):
        if not self.running:
            return math.inf
        return min(self.t + (self.running[0][0] - self.step) * self.step_s(), self.fails_at)

    def go_on(self):
        """Until the next line ends, or the failure."""
        at = self.next_at()
        if at == self.fails_at:
            self.queue.extendleft(n for _, n in self.running)
            self.running = []
            self.t = at + self.a.restart_s
            self.fails_at = self.next_failure()
        else:
            self.step, self.t = self.running[0][0], at
            while self.running and self.running[0][0] == self.step:
                self.tokens += heapq.heappop(self.running)[1]
        self.fill()


def run(gpus):
    """Returns the times at which the GPUs have nothing left to do. At first they take turns."""
    for _ in range(gpus[0].a.seats):
        for g in gpus:
            if g.queue:
                g.take_line()
    waiting = [(g.next_at(), i) for i, g in enumerate(gpus)]
    heapq.heapify(waiting)
    while waiting:
        at, i = heapq.heappop(waiting)
        if at == math.inf:
            continue
        gpus[i].go_on()
        heapq.heappush(waiting, (gpus[i].next_at(), i))
    return [g.t for g in gpus]


def simulate(lengths, n, a, takes_lines, slow=1.0, late=0.0, mtbf=0.0):
    rng = random.Random(a.seed)
    shared = collections.deque(lengths)
    queues = [shared if takes_lines else collections.deque(lengths[i::n]) for i in range(n)]
    gpus = []
    for i in range(n):
        start_s = late * i / max(n - 1, 1)
        gpus.append(Gpu(queues[i], a, start_s, slow if i == 0 else 1.0, mtbf, rng))
    ends = run(gpus)
    full = a.seats / (a.step_ms / 1e3 + a.row_us / 1e6 * a.seats)  # tokens/s
    ideal_s = sum(lengths) / (n * full)
    return 1 - ideal_s / max(ends), 1 - n * ideal_s / sum(ends)


def answer_lengths(paths):
    """Output tokens by custom_id."""
    found = {}
    for path in paths:
        for line in open(path):
            o = json.loads(line)
            usage = ((o.get("response") or {}).get("body") or {}).get("usage") or {}
            if usage.get("completion_tokens"):
                found[o["custom_id"]] = usage["completion_tokens"]
    return found


def check(a):
    worst = 0
    for path in sorted(glob.glob(a.check + "/*.jsonl")):
        real = json.load(open(path[:-1]))
        lengths = list(answer_lengths([path]).values())
        a.start_s = 0
        gpu = Gpu(collections.deque(lengths), a)
        run([gpu])
        off = [abs(gpu.step / e["steps"] - 1) for e in real["engines"]]
        off.append(abs(gpu.tokens / real["completion_tokens"] - 1))
        worst = max(worst, *off)
        print("%s: steps %d, simulated %d; tokens %d, simulated %d" % (
            path, real["engines"][0]["steps"], gpu.step, real["completion_tokens"], gpu.tokens))
    print("the largest difference is %.1f %%" % (100 * worst))
    return 0 if 0 < worst < 0.1 else 1


def lognormal(a, n):
    rng = random.Random(a.seed)
    return [max(1, min(a.most, int(a.median * math.exp(rng.gauss(0, a.sigma))))) for _ in range(n)]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--gpus", default="1,8,64,1000")
    p.add_argument("--lines-per-gpu", type=int, default=4000)
    p.add_argument("--lengths", nargs="*", help="output files of run-batch")
    p.add_argument("--median", type=float, default=4000, help="of lognormal lengths")
    p.add_argument("--sigma", type=float, default=1)
    p.add_argument("--most", type=int, default=32768)
    p.add_argument("--seats", type=int, default=320, help="requests of a GPU at once")
    p.add_argument("--step-ms", type=float, default=6)
    p.add_argument("--row-us", type=float, default=75)
    p.add_argument("--start-s", type=float, default=90, help="until the model is loaded")
    p.add_argument("--restart-s", type=float, default=600, help="after a failure")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--check", metavar="DIR")
    a = p.parse_args()
    if a.check:
        return check(a)
    known = list(answer_lengths(a.lengths).values()) if a.lengths else None
    print("%-6s %-30s %22s %22s" % ("GPUs", "case", "static: wall, GPU lost", "by line: wall, GPU"))
    for n in map(int, a.gpus.split(",")):
        count = n * a.lines_per_gpu
        lengths = random.Random(a.seed).choices(known, k=count) if known else lognormal(a, count)
        for case, options in CASES.items():
            lost = [simulate(lengths, n, a, takes, **options) for takes in (False, True)]
            print("%-6d %-30s" % (n, case) + "".join("%15.3f %6.3f" % x for x in lost), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
