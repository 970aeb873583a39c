#!/usr/bin/env python3
"""Draws what cinch measures. `make plot-env` installs a Python with matplotlib for it.

    plot.py compare IN.json -o OUT.svg              a file of `cinch compare --json`
    plot.py timeline NAME=FILE.csv... -o OUT.svg    files of `cinch bench throughput --timeline`
    plot.py bench NAME=FILE.json... -o OUT.svg      files of `cinch bench --output-json`

The extension of the output, .svg or .png, selects the format. The same input gives the same bytes.
Input that cannot be drawn gives one line on standard error and exit code 1.
"""
import argparse
import csv
import io
import json
import math
import pathlib
import re
import sys

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter
except ImportError as error:
    sys.exit(f"plot.py: {error}: run make plot-env, then build/plot-env/bin/python bench/plot.py")

# Colours that readers with any colour vision tell apart (Okabe and Ito).
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#444444"]
LINES = ["-", "--", ":"]
HATCHES = ["", "///", "..."]
FAINT = "#666666"
# Dates and versions are omitted, so the same input gives the same bytes.
METADATA = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}
STYLE = {
    "svg.hashsalt": "cinch",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "path.simplify": False,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 150,
}


class BadInput(Exception):
    """What is wrong with a file or an argument, in one line."""


# ---- reading ----

def read_text(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise BadInput(f"{path}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise BadInput(f"{path}: expected UTF-8 text, got byte {e.object[e.start]:#04x}") from e


def read_json(path):
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as e:
        raise BadInput(f"{path}: expected JSON, got: {e}") from e


KINDS = {dict: "an object", list: "a list", str: "a string", float: "a number"}


def kind_of(value):
    """Returns dict, list, str, float for a number that can be drawn, or None."""
    if isinstance(value, (dict, list, str)):
        return type(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float if is_number and abs(value) < 1e100 else None


def need(value, kind, path, *keys):
    """Returns value[key][key]..., which must be of that kind. A missing key counts as null."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if kind_of(value) is not kind:
        what = ".".join(keys) or "the file"
        got = KINDS.get(kind_of(value), json.dumps(value))
        raise BadInput(f"{path}: expected {KINDS[kind]} as {what}, got {got}")
    return value


def read_timeline(path):
    """Returns the rows, with the columns that the panels show, as numbers."""
    columns = ["time_s", "steps", "output_tokens", "waiting", "recomputed_tokens"]
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        missing = [c for c in columns if c not in (reader.fieldnames or [])]
        if missing:
            raise BadInput(f"{path}: expected the column {missing[0]} of a timeline, got "
                           f"{', '.join(reader.fieldnames or ['an empty file'])}")
        rows = []
        for row in reader:
            rows.append({c: float(row[c] or "nan") for c in columns})
            if not all(abs(v) < 1e100 for v in rows[-1].values()):
                raise ValueError
    except (ValueError, csv.Error) as e:
        raise BadInput(f"{path}: line {reader.line_num}: expected numbers") from e
    if not rows:
        raise BadInput(f"{path}: expected rows below the names of the columns, got none")
    return rows


def named_files(pairs):
    """Returns {NAME: FILE} in the given order."""
    out = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not (name and equals and path):
            raise BadInput(f"expected NAME=FILE, got '{pair}'")
        if name in out:
            raise BadInput(f"{path}: the name {name} is given twice")
        out[name] = path
    return out


# ---- drawing ----

def new_figure(width, height):
    """Leaves room at the edges: a viewer without matplotlib's font may draw text slightly wider."""
    figure = Figure(figsize=(width, height))
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.06)
    return figure


def series_id(panel, i, name):
    """The id of a series' group in an SVG file."""
    return f"series-{panel}-{i}-" + re.sub(r"[^A-Za-z0-9_.]+", "-", name)


def round_ticks(axis, n, integer=False):
    """At most n + 1 ticks, at round numbers."""
    axis.set_major_locator(MaxNLocator(n, steps=[1, 2, 2.5, 5, 10], integer=integer))
    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))


def legend(figure, handles, names):
    figure.legend(handles, names, loc="outside upper left", ncols=min(len(names), 5),
                  handlelength=2.2)


def save(figure, path):
    out = io.BytesIO()
    suffix = path.suffix.lower()
    figure.savefig(out, format=suffix[1:], metadata=METADATA[suffix])
    try:
        path.write_bytes(out.getvalue())
    except OSError as e:
        raise BadInput(f"{path}: {e.strerror}") from e


# ---- compare ----

POLICIES = {"full": ("full KV", "o"), "zip": ("zip", "s"), "window": ("window", "D")}


def compare_point(arm, graded, path):
    """Returns share, interval and KV tokens of an arm, or None when nothing was graded or
    compared."""
    kept = need(arm, float, path, "kv_memory", "peak_tokens_mean")
    if not graded:
        if need(arm, dict, path, "agreement").get("same_best_share") is None:
            return None
        share = need(arm, float, path, "agreement", "same_best_share")
        return share, share, share, kept
    if arm.get("exact_match") is None:
        return None
    return (*(need(arm, float, path, "exact_match", k) for k in ("share", "low_95", "high_95")),
            kept)


def read_compare(path):
    """Returns (graded, [(task, [(arm, policy, point)])]). Every task has the same arms in the same
    order. In an incomplete comparison the last task has fewer."""
    file = read_json(path)
    tasks = need(file, list, path, "tasks")
    arms = [a for t in tasks for a in need(t, list, path, "arms")]
    if not arms:
        raise BadInput(f"{path}: expected at least one task with an arm, got none")
    graded = any(need(a, dict, path).get("exact_match") is not None for a in arms)
    out = []
    for task in tasks:
        out.append((need(task, str, path, "task"), []))
        for arm in task["arms"]:
            policy = need(arm, str, path, "kv", "policy")
            if policy not in POLICIES:
                raise BadInput(f"{path}: expected a policy of {', '.join(POLICIES)}, got {policy}")
            out[-1][1].append((need(arm, str, path, "arm"), policy,
                               compare_point(arm, graded, path)))
    if file.get("complete") is not True:
        print(f"plot.py: {path}: incomplete comparison, arms are missing", file=sys.stderr)
    return graded, out


def draw_task(ax, panel, title, arms):
    """Draws a row for each arm: the share with its interval, and the KV tokens on the right."""
    handles = {}
    for i, (policy, (name, marker)) in enumerate(POLICIES.items()):
        points = [(row, *p) for row, (_, of, p) in enumerate(arms) if of == policy and p]
        if not points:
            continue
        y, share, low, high, _ = zip(*points)
        spread = [[max(0, 100 * (s - l)) for s, l in zip(share, low)],
                  [max(0, 100 * (h - s)) for s, h in zip(share, high)]]
        handles[name] = ax.errorbar([100 * s for s in share], y, xerr=spread, fmt=marker,
                                    color=COLOURS[i], markersize=5, elinewidth=1.5, clip_on=False)
        handles[name].lines[0].set_gid(series_id(panel, i, policy))
    beside = {"textcoords": "offset points", "ha": "right", "color": FAINT}
    for row, (_, _, point) in enumerate(arms):
        if point:
            ax.annotate(f"{point[3]:,.0f}", (1, row), (36, 0), va="center",
                        xycoords=("axes fraction", "data"), **beside)
    ax.annotate("KV peak,\ntokens", (1, 1), (36, 4), xycoords="axes fraction", size=7, **beside)
    ax.set_title(title, weight="bold")
    return handles


def draw_compare(args):
    graded, tasks = read_compare(args.file)
    names = max(([arm for arm, _, _ in arms] for _, arms in tasks), key=len)
    columns = min(len(tasks), args.columns)
    lines = math.ceil(len(tasks) / columns)
    figure = new_figure(0.8 + 0.078 * max(len(n) for n in names) + 2.3 * columns,
                        0.7 + lines * (0.9 + 0.24 * len(names)))
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
    handles = {}
    for panel, (ax, (task, arms)) in enumerate(zip(axes, tasks)):
        handles.update(draw_task(ax, panel, task, arms))
        ax.tick_params(labelbottom=True)
        ax.tick_params(axis="y", length=0, pad=9)
    for ax in axes[len(tasks):]:
        ax.remove()
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    axes[0].set_xlim(0, 100)
    axes[0].set_xticks(range(0, 101, 25))
    figure.supxlabel("exact match, % of the prompts, with the 95 % interval" if graded else
                     "tokens that full KV would have chosen too, %", size=9)
    legend(figure, handles.values(), handles.keys())
    return figure


# ---- timeline ----

def merged(rows, seconds):
    """Merges rows to at least that many seconds: sums counts, keeps the last of other values."""
    out, start, sums = [], 0.0, {}
    for i, row in enumerate(rows):
        for key in ("steps", "output_tokens", "recomputed_tokens"):
            sums[key] = sums.get(key, 0) + row[key]
        if row["time_s"] - start >= seconds or i == len(rows) - 1:
            took = max(row["time_s"] - start, 1e-9)
            out.append({**row, **sums, "middle_s": start + took / 2, "took_s": took})
            start, sums = row["time_s"], {}
    return out


def curves(rows):
    """{(title, unit): points}, the panels of a timeline."""
    again, recomputed = 0, []
    for r in rows:
        again += r["recomputed_tokens"]
        recomputed.append((r["time_s"], again))
    return {
        ("output tokens/s", "tokens/s"):
            [(r["middle_s"], r["output_tokens"] / r["took_s"]) for r in rows],
        ("requests that get a token in a step, mean", "requests"):
            [(r["middle_s"], r["output_tokens"] / max(r["steps"], 1)) for r in rows],
        ("requests waiting", "requests"): [(r["time_s"], r["waiting"]) for r in rows],
        ("tokens recomputed so far", "tokens"): recomputed,
    }


def draw_timeline(args):
    files = named_files(args.files)
    timelines = {name: curves(merged(read_timeline(path), args.smooth))
                 for name, path in files.items()}
    # A panel whose values are all zero is omitted, but a figure needs at least one panel.
    panels = [p for i, p in enumerate(next(iter(timelines.values())))
              if i == 0 or any(y for t in timelines.values() for _, y in t[p])]
    figure = new_figure(8.5, 0.7 + 1.75 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (ax, (title, unit)) in enumerate(zip(axes, panels)):
        lines = []
        for i, (name, timeline) in enumerate(timelines.items()):
            x, y = zip(*timeline[title, unit])
            lines += ax.plot(x, y, color=COLOURS[i % len(COLOURS)], linewidth=1.4,
                             linestyle=LINES[i // len(COLOURS) % len(LINES)],
                             marker="o" if len(x) == 1 else None,
                             gid=series_id(panel, i, name))
        ax.set_title(title)
        ax.set_ylabel(unit)
        ax.set_ylim(bottom=0)
        round_ticks(ax.yaxis, 4, integer=True)
    axes[-1].set_xlabel("time, seconds")
    axes[-1].set_xlim(left=0)
    round_ticks(axes[-1].xaxis, 10)
    figure.align_ylabels(axes)
    legend(figure, lines, timelines)
    return figure


# ---- bench ----

OUTPUT_SPEED = ["output_tokens_per_second", "output_throughput"]  # bench throughput, bench serve
METRICS = {
    "output_tokens_per_second": "output tokens/s",
    "output_throughput": "output tokens/s",
    "requests_per_second": "requests/s",
    "request_throughput": "requests/s",
    "mean_batch": "requests in a step, mean",
}


def metric_of(file, metric, path, *keys):
    """Returns that figure of a result. Without a name: the output tokens/s of either bench."""
    result = need(file, dict, path, *keys)
    if not metric:
        metric = next((m for m in OUTPUT_SPEED if m in result), OUTPUT_SPEED[0])
    return need(file, float, path, *keys, metric)


def add(groups, group, name, value, path):
    if name in groups.setdefault(group, {}):
        raise BadInput(f"{path}: the name {f'{group}/{name}' if name else group} is given twice")
    groups[group][name] = value


def read_bench(args):
    """Returns {group: {series: value}}; series is "" for a bar without a series."""
    out = {}
    for file in args.files:
        if "=" not in file:
            for group, results in need(read_json(file), dict, file).items():
                if kind_of(results) is not dict:
                    raise BadInput(f"{file}: expected results by group and name, got a figure as "
                                   f"{group}; a single result is drawn as NAME={file}")
                for name in results:
                    value = metric_of(results, args.metric, file, name)
                    add(out, group, name, value, file)
            continue
        [(name, path)] = named_files([file]).items()
        group, _, series = name.partition("/")
        add(out, group, series, metric_of(read_json(path), args.metric, path), path)
    if not out:
        raise BadInput(f"{args.files[0]}: expected at least one result, got none")
    return out


def draw_bench(args):
    groups = read_bench(args)
    names = list(dict.fromkeys(name for results in groups.values() for name in results))
    figure = new_figure(max(5, 1.2 + 0.35 * (len(names) + 1) * len(groups)), 3)
    ax = figure.subplots()
    bars = []
    for i, name in enumerate(names):
        width = 0.84 / len(names)
        here = [(g, r[name]) for g, r in enumerate(groups.values()) if name in r]
        at = [g + (i - (len(names) - 1) / 2) * width for g, _ in here]
        bars.append(ax.bar(at, [v for _, v in here], 0.92 * width,
                           color=COLOURS[i % len(COLOURS)], edgecolor="white", linewidth=0,
                           hatch=HATCHES[i // len(COLOURS) % len(HATCHES)]))
        for (group, value), patch in zip(here, bars[-1]):
            patch.set_gid(series_id(group, i, name))
        ax.bar_label(bars[-1], [f"{v:,.0f}" if abs(v) >= 100 else f"{v:.3g}" for _, v in here],
                     size=7, padding=2)
    ax.set_xticks(range(len(groups)), groups)
    ax.tick_params(axis="x", length=0)
    ax.grid(visible=False, axis="x")
    ax.set_xlim(-0.5, len(groups) - 0.5)
    ax.margins(y=0.1)
    round_ticks(ax.yaxis, 5)
    metric = args.metric or OUTPUT_SPEED[0]
    ax.set_ylabel(METRICS.get(metric, metric.replace("_", " ")))
    ax.set_xlabel(args.xlabel)
    ax.set_title(args.title)
    labelled = [(b, name) for b, name in zip(bars, names) if name]
    if labelled:
        legend(figure, *zip(*labelled))
    return figure


def seconds(text):
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value


def arguments():
    p = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = p.add_subparsers(dest="kind", required=True)

    def kind(name, draw, summary):
        sub = kinds.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.add_argument("-o", "--output", type=pathlib.Path, required=True, metavar="OUT.svg|png")
        sub.set_defaults(draw=draw)
        return sub

    sub = kind("compare", draw_compare, "quality and KV kept of each arm, one panel per task")
    sub.add_argument("file", metavar="IN.json", help="a file of cinch compare --json")
    sub.add_argument("--columns", type=int, default=2, choices=range(1, 9), metavar="1..8",
                     help="panels side by side (2)")
    sub = kind("timeline", draw_timeline, "output tokens/s, requests in a step, requests waiting "
               "and recomputed tokens over time")
    sub.add_argument("files", nargs="+", metavar="NAME=FILE.csv",
                     help="a file of cinch bench throughput --timeline; each file is a curve")
    sub.add_argument("--smooth", type=seconds, default=1.0, metavar="SECONDS",
                     help="a point is the mean of at least this many seconds (1)")
    sub = kind("bench", draw_bench, "a bar for each result, groups of bars side by side")
    sub.add_argument("files", nargs="+", metavar="[GROUP/]NAME=FILE.json|FILE.json",
                     help="a file of cinch bench --output-json; without NAME=, a file of several "
                     "results, {GROUP: {NAME: result}}")
    sub.add_argument("--metric", metavar="KEY", help="the figure to draw (output tokens/s)")
    sub.add_argument("--title", default="")
    sub.add_argument("--xlabel", default="")
    return p.parse_args()


def main():
    args = arguments()
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)
    try:
        if args.output.suffix.lower() not in METADATA:
            raise BadInput(f"{args.output}: expected a name that ends in .svg or .png")
        save(args.draw(args), args.output)
    except BadInput as e:
        sys.exit(f"plot.py: {e}")


if __name__ == "__main__":
    main()
