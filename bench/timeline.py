#!/usr/bin/env python3
"""Draws timelines of `cinch bench throughput --timeline`: output tokens/s and requests in a step
over time, those that wait, and tokens computed again.

    python3 bench/timeline.py OUT.svg NAME=FILE.csv...

Several files under one NAME are not joined: each is a curve of its own. Rates are means over at
least --smooth seconds. Needs the standard library alone.
"""
import argparse
import csv

import svg


def read(path):
    with open(path, encoding="utf-8", newline="") as f:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(f)]


def merged(rows, seconds):
    """Rows of at least that many seconds: sums of what happened, the last of what stood."""
    out, start, sums = [], 0.0, {}
    for row in rows:
        for key in ("steps", "output_tokens", "recomputed_tokens", "preemptions", "compressions"):
            sums[key] = sums.get(key, 0) + row[key]
        if row["time_s"] - start >= seconds or row is rows[-1]:
            took = max(row["time_s"] - start, 1e-9)
            out.append({**row, **sums, "from_s": start, "took_s": took})
            start, sums = row["time_s"], {}
    return out


def curves(rows):
    again, lost = 0, []
    for r in rows:
        again += r["recomputed_tokens"]
        lost.append((r["time_s"], again))
    middle = [(r["from_s"] + r["took_s"] / 2, r) for r in rows]
    return {
        "output tokens/s": [(t, r["output_tokens"] / r["took_s"]) for t, r in middle],
        "requests that get a token in a step":
            [(t, r["output_tokens"] / max(r["steps"], 1)) for t, r in middle],
        "requests that wait": [(r["time_s"], r["waiting"]) for r in rows],
        "tokens computed again, so far": lost,
    }


def draw(path, timelines, smooth):
    page = svg.Page()
    page.legend(timelines)
    all_curves = {name: curves(merged(rows, smooth)) for name, rows in timelines.items()}
    for title in next(iter(all_curves.values())):
        if any(y for c in all_curves.values() for _, y in c[title]):
            svg.line_panel(page, title, "seconds", {n: c[title] for n, c in all_curves.items()})
    page.write(path)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("out")
    p.add_argument("timelines", nargs="+", metavar="NAME=FILE.csv")
    p.add_argument("--smooth", type=float, default=1.0, help="seconds of a point")
    a = p.parse_args()
    pairs = [t.split("=", 1) for t in a.timelines]
    draw(a.out, {name: read(path) for name, path in pairs}, a.smooth)


if __name__ == "__main__":
    main()
