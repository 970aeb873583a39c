"""Naive references for the scores of a compression event, and the golden files made with them.

Written only from the paper (Zipage, appendix C) and the definitions in engine/cpu/score.h, in
float64, for clarity and not for speed. Writes tests/golden/compress; the README there describes the
files. Inputs are not stored: draw() makes them from a seed, as tests/test_compress_cpu.c does.
"""
import json
from pathlib import Path
import numpy as np

OUT = Path(__file__).parent / "compress"


def draw(seed, stream, index):
    """Uniform in [-1, 1) with 24 bits, exact in float32: splitmix64 of (seed, stream, index)."""
    with np.errstate(over="ignore"):
        z = np.asarray(index, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(seed) * np.uint64(0xD1B54A32D192ED03) + np.uint64(stream << 56)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) / 2**23 - 1


def keys_of(c, layer, head, n):
    """[n, d]: the key of a slot is one of eight centres plus noise, so some keys are similar."""
    d, base = c["head_dim"], (layer * c["kv_heads"] + head) * n
    slot, j = base + np.arange(n)[:, None], np.arange(d)[None, :]
    centre = ((draw(c["seed"], 1, slot) + 1) * 4).astype(np.int64)
    k = draw(c["seed"], 2, centre * 256 + j) + 0.5 * draw(c["seed"], 3, slot * d + j)
    return k.astype(np.float32).astype(np.float64)


def counted(c):
    """How many of the newest queries the event counts."""
    if c["rule"] == "zipage" or c["observe"] <= c["window"]:
        return c["window"]
    n_new = c["block"] * c["n_blocks"] - c["n_history"]
    if c["first"]:
        return min(c["observe"], c["block"] * c["n_blocks"])
    return min(c["observe"], max(c["window"], n_new))


def queries_of(c, layer, head):
    """[w, group, d], oldest first. A value depends on its position and query head."""
    w, d, group = counted(c), c["head_dim"], c["heads"] // c["kv_heads"]
    pos = c["position_end"] - w + np.arange(w)
    q_head = (pos[:, None] * c["layers"] + layer) * c["heads"] + head * group + np.arange(group)
    return c["query_scale"] * draw(c["seed"], 4, q_head[:, :, None] * d + np.arange(d))


def history_of(c, layer, head, n):
    return (draw(c["seed"], 5, (layer * c["kv_heads"] + head) * n + np.arange(n)) + 1) / 128


def attention(q, k, peak_alpha=None, head_rule="max"):
    """The mean over the queries, or, with peak_alpha, the largest decayed probability. Of the heads
    of a query the largest probability counts, or their mean."""
    w, group, d = q.shape
    n = len(k)
    s = np.zeros(n)
    for u in range(w):
        best = np.zeros(n)
        for g in range(group):
            seen = n - w + u + 1
            a = k[:seen] @ q[u, g] / np.sqrt(d)
            e = np.exp(a - a.max())
            p = e / e.sum()
            best[:seen] = np.maximum(best[:seen], p) if head_rule == "max" else best[:seen] + p / group
        if peak_alpha is None:
            s += best
        else:
            s = np.maximum(s, best * peak_alpha ** ((w - 1 - u) / 64))
    return s / w if peak_alpha is None else s


def global_score(s, f, alpha, first, n_history):
    s = s.copy()
    if not first:
        for v in range(n_history):
            s[v] = max(alpha * f[v], s[v])
    return s


def pooled(s):
    return np.array([s[max(0, v - 2):v + 3].max() for v in range(len(s))])


def followed(s, sinks):
    """The best of a slot and of the 128 before it but the sinks, less by 1/256 for each slot."""
    return np.array([max([s[v]] + [s[v - d] * (1 - d / 256) for d in range(1, 129)
                                   if v - d >= sinks]) for v in range(len(s))])


def cosine_sums(k, p):
    """Row sums of the cosines in one span, and whether a rounding error could change them."""
    norm = np.linalg.norm(k, axis=1, keepdims=True)
    unit = np.divide(k, norm, out=np.zeros_like(k), where=norm > 0)
    cos = unit @ unit.T
    np.fill_diagonal(cos, 0)
    unsure = False
    for col in range(len(k)):
        above = np.flatnonzero(cos[:, col] > p)
        unsure |= list(np.flatnonzero(cos[:, col] > p - 2e-6))[-1:] != list(above)[-1:]
        unsure |= list(np.flatnonzero(cos[:, col] > p + 2e-6))[-1:] != list(above)[-1:]
        if len(above):
            cos[above[-1], col] = 0
    return cos.sum(axis=1), unsure


def redundancy(k, span, p, tau):
    parts = [cosine_sums(k[i:i + span], p) for i in range(0, len(k), span)]
    x = np.concatenate([sums for sums, _ in parts]) / span / tau
    e = np.exp(x - x.max())
    return e / e.sum(), any(unsure for _, unsure in parts)


def weights(c):
    if c["redundancy"] == "none":
        return 1.0, 0.0
    convex = c["combine"] == "convex"
    return (c["lambda"], 1 - c["lambda"]) if convex else (1.0, c["lambda"])


def select(score, keep):
    """The `keep` slots with the highest scores, in ascending order. Ties go to the higher slot."""
    order = sorted(range(len(score)), key=lambda v: (-score[v], -v))
    return sorted(order[:keep])


def filled(kept, keep):
    """With kv move fill: the kept slot of each target slot. Kept slots below `keep` do not move."""
    holes = sorted(set(range(keep)) - set(kept))
    behind = sorted(v for v in kept if v >= keep)
    place = {v: v for v in kept if v < keep} | dict(zip(holes, behind, strict=True))
    return [place[i] for i in range(keep)]


def margin_ok(s, r, score, c, keep):
    """True when no rounding error of float32 can change the kept set."""
    order = np.sort(score)[::-1]
    if keep == len(score) or order[keep - 1] == np.inf > order[keep]:
        return True
    at = np.abs(score - order[keep - 1]).argmin()
    ws, wr = weights(c)
    near = 1e-5 * (ws * s[at] + wr * r[at])
    if order[keep - 1] - order[keep] > near:
        return True
    return bool(np.all(score[np.abs(score - order[keep - 1]) < near] == order[keep - 1]))


def event(c, layer, head):
    """Every stage of one (layer, kv head), or None if a rounding error could change the result."""
    if c["rule"] == "follow":
        c = c | {"global": False, "pooling": "never", "redundancy": "none"}
    b, n = c["block"], c["block"] * c["n_blocks"]
    k, q = keys_of(c, layer, head, n), queries_of(c, layer, head)
    peak = c["rule"] == "peak"
    s_att = s = attention(q, k, c["alpha"] if peak else None, c["head_rule"])
    if c["global"]:
        factor = c["alpha"] ** ((n - c["n_history"]) / 64) if peak else c["alpha"]
        s = global_score(s, history_of(c, layer, head, n), factor, c["first"], c["n_history"])
    s_glob = s
    if c["pooling"] == "always" or (c["pooling"] == "first" and c["first"]):
        s = pooled(s)
    if c["rule"] == "follow":
        s = followed(s, c["sinks"])
    s_pooled = s
    r, unsure = np.zeros(n), False
    if c["redundancy"] != "none":
        span = b if c["redundancy"] == "lightning" else n
        r, unsure = redundancy(k, span, c["p"], c["tau"])
    if c["rule"] != "zipage" and c["redundancy"] != "none":
        s = s * ({"scaled": 1.7, "peak": 0.76}[c["rule"]] / s.sum())
    ws, wr = weights(c)
    final = ws * s - wr * r
    forced = final.copy()
    keep = c["n_target"] * b
    forced[n - c["window"]:] = np.inf
    if c["rule"] != "zipage":
        forced[:c["sinks"]] = np.inf
        newest = int(c["recent"] * keep) if c["recent"] < 1 else c["recent"]
        forced[n - max(newest, c["window"]):] = np.inf
    if unsure or not margin_ok(s, r, forced, c, keep):
        return None
    kept = select(forced, keep)
    return [s_att, s_glob, s_pooled, r, final], [kept, filled(kept, keep)]


DEFAULTS = {"layers": 1, "heads": 8, "kv_heads": 2, "head_dim": 64, "block": 64, "n_blocks": 7,
            "n_target": 6, "window": 16, "ring": 48, "position_end": 1001, "first": False,
            "n_history": 0, "global": True, "alpha": 0.8, "pooling": "first",
            "redundancy": "lightning", "p": 0.5, "tau": 0.4, "lambda": 0.2, "combine": "convex",
            "query_scale": 2.0, "rule": "zipage", "sinks": 4, "recent": 0.125,
            "observe": 0, "head_rule": "max"}

CASES = {
    "bundled first event": {"first": True, "n_history": 384},
    "bundled later event": {"n_history": 384},
    "two layers": {"layers": 2, "n_blocks": 3, "n_target": 2, "n_history": 128},
    "window 48": {"window": 48, "n_history": 384},
    "window 1": {"window": 1, "n_blocks": 4, "n_target": 3, "n_history": 192},
    "window above the block": {"block": 16, "window": 45, "n_blocks": 9, "n_target": 5,
                               "n_history": 80},
    "window fills the budget": {"block": 16, "window": 32, "n_blocks": 3, "n_target": 2,
                                "n_history": 32},
    "first event above the cap": {"first": True, "n_blocks": 10, "n_target": 2},
    "first event above the cap, flash": {"first": True, "n_blocks": 9, "n_target": 2,
                                         "redundancy": "flash", "kv_heads": 1, "heads": 3},
    "history shorter than the kept": {"n_blocks": 5, "n_target": 3, "n_history": 77},
    "no group": {"heads": 2, "n_blocks": 3, "n_target": 2, "n_history": 128},
    "group of 3, head 80": {"heads": 6, "head_dim": 80, "block": 32, "n_history": 192},
    "group of 8, head 128": {"heads": 8, "kv_heads": 1, "head_dim": 128, "block": 256,
                             "n_blocks": 2, "n_target": 1, "n_history": 256},
    "group of 40": {"heads": 40, "kv_heads": 1, "head_dim": 16, "n_blocks": 3, "n_target": 2,
                    "n_history": 128},
    "head 16, block 16": {"heads": 4, "head_dim": 16, "block": 16, "n_history": 96},
    "head 256": {"heads": 2, "kv_heads": 1, "head_dim": 256, "n_blocks": 5, "n_target": 4,
                 "n_history": 256, "query_scale": 1.0},
    "block 256, flash": {"block": 256, "kv_heads": 1, "heads": 4, "n_blocks": 3, "n_target": 2,
                         "redundancy": "flash", "n_history": 512},
    "block 128": {"block": 128, "kv_heads": 1, "heads": 4, "n_blocks": 4, "n_target": 3,
                  "n_history": 384},
    "block 16, flash": {"block": 16, "n_blocks": 13, "n_target": 5, "redundancy": "flash",
                        "n_history": 80},
    "without global": {"global": False, "n_blocks": 4, "n_target": 3, "n_history": 192},
    "without redundancy, pooled": {"redundancy": "none", "pooling": "always", "n_blocks": 4,
                                   "n_target": 3, "n_history": 192},
    "without redundancy or pooling": {"redundancy": "none", "pooling": "never", "first": True,
                                      "n_blocks": 4, "n_target": 3},
    "attention alone": {"redundancy": "none", "pooling": "never", "global": False, "n_blocks": 4,
                        "n_target": 3},
    "pooled always, later event": {"pooling": "always", "n_blocks": 4, "n_target": 3,
                                   "n_history": 192},
    "never pooled, first event": {"pooling": "never", "first": True, "n_blocks": 4, "n_target": 3},
    "subtract": {"combine": "subtract", "lambda": 0.5, "n_blocks": 4, "n_target": 3,
                 "n_history": 192},
    "subtract, flash, first": {"combine": "subtract", "first": True, "redundancy": "flash",
                               "n_blocks": 4, "n_target": 3},
    "lambda 0": {"lambda": 0.0, "n_blocks": 4, "n_target": 3, "n_history": 192},
    "lambda 1": {"lambda": 1.0, "n_blocks": 4, "n_target": 3, "n_history": 192},
    "threshold below 0": {"p": -0.25, "n_blocks": 4, "n_target": 3, "n_history": 192},
    "threshold high, cold": {"p": 0.8, "tau": 0.05, "n_blocks": 4, "n_target": 3,
                             "redundancy": "flash", "n_history": 192},
    "alpha 1": {"alpha": 1.0, "n_blocks": 4, "n_target": 3, "n_history": 192},
    "keep all": {"n_blocks": 3, "n_target": 3, "n_history": 192},
    "ring wraps": {"window": 40, "ring": 40, "position_end": 40 * 7, "n_blocks": 3, "n_target": 2,
                   "n_history": 128},
    "scaled, pooled first event": {"rule": "scaled", "first": True, "n_blocks": 4, "n_target": 3},
    "scaled, later event": {"rule": "scaled", "n_history": 384},
    "scaled, subtract, flash": {"rule": "scaled", "combine": "subtract", "redundancy": "flash",
                                "n_blocks": 4, "n_target": 3, "n_history": 192},
    "scaled, without redundancy": {"rule": "scaled", "redundancy": "none", "n_blocks": 4,
                                   "n_target": 3, "n_history": 192},
    "peak, first event": {"rule": "peak", "first": True, "window": 48, "n_blocks": 6,
                          "n_target": 3},
    "peak, later event": {"rule": "peak", "window": 48, "n_history": 384, "sinks": 9},
    "peak, one query": {"rule": "peak", "window": 1, "recent": 0, "sinks": 0, "n_blocks": 4,
                        "n_target": 3, "n_history": 192},
    "peak, window above the block": {"rule": "peak", "block": 16, "window": 45, "n_blocks": 9,
                                     "n_target": 5, "n_history": 80, "recent": 50, "alpha": 0.5},
    "peak, alone": {"rule": "peak", "redundancy": "none", "pooling": "never", "global": False,
                    "n_blocks": 4, "n_target": 3, "recent": 60},
    "peak, observes, first event": {"rule": "peak", "first": True, "observe": 100, "ring": 100,
                                    "n_blocks": 6, "n_target": 3},
    "peak, observes, later event": {"rule": "peak", "observe": 100, "ring": 112, "n_history": 384},
    "peak, observes all": {"rule": "peak", "first": True, "observe": 100, "ring": 100, "block": 16,
                           "n_blocks": 5, "n_target": 3, "position_end": 80},
    "scaled, observes": {"rule": "scaled", "observe": 40, "ring": 40, "block": 32,
                         "n_blocks": 7, "n_target": 6, "n_history": 192, "recent": 0.5},
    "peak, flash, alpha 0": {"rule": "peak", "redundancy": "flash", "alpha": 0.0, "n_blocks": 4,
                             "n_target": 3, "n_history": 192},
    "follow, first event": {"rule": "follow", "first": True, "n_blocks": 6, "n_target": 3,
                            "recent": 0.75},
    "follow, later event": {"rule": "follow", "n_history": 384, "recent": 0.25, "sinks": 9},
    "follow, fewer slots than it reaches": {"rule": "follow", "block": 16, "window": 3, "recent": 0,
                                            "n_blocks": 5, "n_target": 3, "n_history": 48},
    "follow, one query, no sinks": {"rule": "follow", "window": 1, "recent": 0, "sinks": 0,
                                    "n_blocks": 4, "n_target": 3, "n_history": 192},
    "follow, more sinks than it reaches": {"rule": "follow", "sinks": 150, "recent": 0.25,
                                           "n_history": 384},
    "follow, one slot by its score": {"rule": "follow", "recent": 187, "n_blocks": 4,
                                      "n_target": 3, "n_history": 192},
    "follow, group of 3, head 80": {"rule": "follow", "heads": 6, "head_dim": 80, "block": 32,
                                    "layers": 2, "n_history": 192, "recent": 0.5},
    "mean of heads, first event": {"head_rule": "mean", "first": True, "n_blocks": 4,
                                   "n_target": 3},
    "mean of heads, group of 40": {"head_rule": "mean", "heads": 40, "kv_heads": 1, "head_dim": 16,
                                   "n_blocks": 3, "n_target": 2, "n_history": 128},
    "mean of heads, scaled": {"head_rule": "mean", "rule": "scaled", "n_history": 384},
    "mean of heads, peak, observes": {"head_rule": "mean", "rule": "peak", "observe": 100,
                                      "ring": 112, "n_history": 384},
    "mean of heads, follow": {"head_rule": "mean", "rule": "follow", "n_history": 384,
                              "recent": 0.25},
}


def main():
    out, data, offset = [], bytearray(), 0
    for i, (name, changes) in enumerate(CASES.items()):
        c = DEFAULTS | changes | {"name": name}
        for seed in range(1000 * (i + 1), 1000 * (i + 2)):
            c["seed"] = seed
            heads = [event(c, l, h) for l in range(c["layers"]) for h in range(c["kv_heads"])]
            if all(heads):
                break
        else:
            raise SystemExit(f"{name}: a rounding error could change the result of every seed")
        c["offset"] = len(data)
        for stages, lists in heads:
            data += b"".join(x.astype("<f4").tobytes() for x in stages)
            data += b"".join(np.array(x, "<u4").tobytes() for x in lists)
        out.append(c)
    lines = ",\n".join(json.dumps(c, sort_keys=True) for c in out)
    (OUT / "cases.json").write_text(f"[\n{lines}\n]\n")
    (OUT / "expect.bin").write_bytes(data)
    print(len(out), "cases,", len(data), "bytes, seeds", [c["seed"] % 1000 for c in out])


if __name__ == "__main__":
    main()
