"""An independent implementation of eviction: a Qwen3 checkpoint run with NumPy, whose KV is evicted
by the rules of docs/DESIGN.md section 2, from which it was written. It forces the continuations of
texts and compares the mean negative log-likelihood of each, under each arm, with that in a report of
`cinch compare --continue-field --json`.

usage: evict_reference.py CINCH MODEL REPORT TEXTS
TEXTS has one {"id", "prompt", "continuation"} a line; cinch tokenizes them. The arms and the values
that cinch found are those of the report. An arm without rule= has the default rule.
"""
import argparse
import json
import struct
import subprocess
from pathlib import Path

import numpy as np

F32 = np.float32
RULES = {
    "zipage": {"window": 16, "alpha": 0.8, "pooling": "first"},
    "scaled": {"window": 16, "alpha": 0.8, "pooling": "first", "sum": 1.7},
    "peak": {"window": 64, "alpha": 0.841, "pooling": "never", "sum": 0.76},
    "follow": {"window": 16, "alpha": 0, "pooling": "never", "recent": 0.5, "global": "false",
               "redundancy": "none"},
}
NUMBERS = ("budget", "window", "observe", "sinks", "recent", "alpha", "p", "tau", "lambda")


def parse_arm(text, block):
    """The parameters of an arm such as zip:128:rule=peak:observe=64."""
    name, *parts = text.split(":")
    given = {"policy": name}
    for part in parts:
        key, _, value = part.partition("=")
        if key.isdigit():
            key, value = "budget", key
        if key.startswith("no-"):
            key, value = key[3:], "false"
        given[key] = float(value) if key in NUMBERS else value
    if name == "full":
        return given
    budget = int(given.pop("budget"))
    rule = given.get("rule", "scaled")
    arm = {"rule": rule, "observe": 0, "sinks": 4, "recent": 0.125, "redundancy": "lightning",
           "head_rule": "max", "p": 0.5, "tau": 0.4, "lambda": 0.2, "combine": "convex", "global": "true",
           "move": "order", "sum": 0}
    arm.update(RULES[rule])
    arm["window"] = min(arm["window"], max(budget // 4, 16))
    arm.update(given, budget=-(-budget // block) * block)
    for key in ("window", "observe", "sinks"):
        arm[key] = int(arm[key])
    return arm


class Event:
    """Which slots a layer and kv head keeps, and where."""

    def __init__(self, arm, block):
        self.arm, self.block = arm, block
        self.ends = arm["rule"] != "zipage"

    def n_counted(self, n, kept):
        """How many of the newest queries count. kept: slots of the last event, 0 at the first."""
        w, observe = self.arm["window"], self.arm["observe"]
        if not self.ends or observe <= w:
            return w
        return min(observe, n) if kept == 0 else min(observe, max(w, n - kept))

    def attention(self, q, k):
        """a(u, v): q [w, group, d] are the newest queries, k [n, d]. Over the group the largest."""
        w, n = q.shape[0], k.shape[0]
        x = np.einsum("ugd,vd->ugv", q, k) / F32(np.sqrt(k.shape[1]))
        last = (n - w + np.arange(w))[:, None, None]
        x = np.where(np.arange(n)[None, None, :] > last, F32(-np.inf), x)
        x = np.exp(x - x.max(-1, keepdims=True))
        x = x / x.sum(-1, keepdims=True)
        return x.mean(1) if self.arm["head_rule"] == "mean" else x.max(1)

    def redundancy(self, k):
        n, b = k.shape[0], self.block
        unit = k / np.linalg.norm(k, axis=1, keepdims=True)
        spans = [(0, n)] if self.arm["redundancy"] == "flash" else [
            (at, at + b) for at in range(0, n, b)]
        sums = np.zeros(n, F32)
        for start, end in spans:
            c = unit[start:end] @ unit[start:end].T
            np.fill_diagonal(c, 0)
            for column in c.T:
                above = np.flatnonzero(column > self.arm["p"])
                if len(above):
                    column[above[-1]] = 0
            sums[start:end] = c.sum(1)
        r = np.exp(sums / F32(n if self.arm["redundancy"] == "flash" else b) / F32(self.arm["tau"]))
        return r / r.sum()

    def score(self, q, k, f, kept):
        """The score of each slot, and F. f: F of the kept slots, None at the first event."""
        arm, n = self.arm, k.shape[0]
        a, w = self.attention(q, k), q.shape[0]
        alpha = F32(arm["alpha"])
        if arm["rule"] == "peak":
            age = (w - 1 - np.arange(w)).astype(F32)
            s = (a * (alpha ** (age / 64))[:, None]).max(0)
            decay = alpha ** F32((n - kept) / 64)
        else:
            s, decay = a.mean(0), alpha
        if f is not None and arm["global"] == "true":
            s[:kept] = np.maximum(decay * f, s[:kept])
        new_f = s.copy()
        if arm["pooling"] == "always" or (arm["pooling"] == "first" and f is None):
            wide = np.pad(s, 2, constant_values=-np.inf)
            s = np.max([wide[i:i + n] for i in range(5)], axis=0)
        if arm["rule"] == "follow":
            share = 1 - np.arange(129, dtype=F32) / 256
            for v in range(arm["sinks"], n):
                reached = s[v:v + 129]
                np.maximum(reached, new_f[v] * share[:len(reached)], out=reached)
        if arm["redundancy"] == "none":
            return s, new_f
        r, weight = self.redundancy(k), F32(arm["lambda"])
        if arm["sum"]:
            s = s * F32(arm["sum"]) / s.sum()
        if arm["combine"] == "subtract":
            return s - weight * r, new_f
        return weight * s - (1 - weight) * r, new_f

    def keep(self, q, k, f, kept):
        """The slot that each target slot gets, and F of all slots."""
        arm, n = self.arm, k.shape[0]
        if arm["policy"] == "window":
            first = np.arange(arm["sinks"])
            return np.r_[first, np.arange(n - arm["budget"] + arm["sinks"], n)], None
        score, new_f = self.score(q[-self.n_counted(n, kept):], k, f, kept)
        newest = arm["window"]
        if self.ends:
            recent = arm["recent"] * (arm["budget"] if arm["recent"] < 1 else 1)
            newest = max(newest, int(recent))
            score[:arm["sinks"]] = np.inf
        score[n - newest:] = np.inf
        best = np.sort(np.lexsort((-np.arange(n), -score))[:arm["budget"]])
        if arm["move"] == "fill":
            places = np.arange(arm["budget"])
            holes = np.setdiff1d(places, best)
            places[holes] = best[best >= arm["budget"]]
            best = places
        return best, new_f


class Model:
    """A Qwen3 checkpoint in float32."""

    def __init__(self, folder):
        self.c = json.loads((folder / "config.json").read_text())
        self.t = {}
        for path in sorted(folder.glob("model*.safetensors")):
            data = path.read_bytes()
            size = struct.unpack("<Q", data[:8])[0]
            for name, x in json.loads(data[8:8 + size]).items():
                if name == "__metadata__":
                    continue
                start, end = (8 + size + at for at in x["data_offsets"])
                bits = np.frombuffer(data[start:end], np.uint16).astype(np.uint32) << 16
                self.t[name] = bits.view(F32).reshape(x["shape"])

    def norm(self, x, weight):
        mean = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + F32(self.c["rms_norm_eps"])) * self.t[weight]

    def rotate(self, x, positions):
        """x [tokens, heads, d]"""
        d = x.shape[-1]
        base = self.c["rope_theta"] ** (-np.arange(0, d, 2) / d)
        angle = np.concatenate([positions[:, None] * base] * 2, -1)[:, None, :]
        turned = np.concatenate([-x[..., d // 2:], x[..., :d // 2]], -1)
        return x * np.cos(angle).astype(F32) + turned * np.sin(angle).astype(F32)

    def forward(self, ids, start, cache):
        """Log-probabilities of the tokens after ids, whose first has the position start."""
        c, t = self.c, self.t
        x = t["model.embed_tokens.weight"][ids]
        positions = start + np.arange(len(ids))
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            a = self.norm(x, p + "input_layernorm.weight")
            q, k, v = (
                (a @ t[p + f"self_attn.{m}_proj.weight"].T).reshape(len(ids), -1, c["head_dim"])
                for m in "qkv")
            q = self.rotate(self.norm(q, p + "self_attn.q_norm.weight"), positions)
            k = self.rotate(self.norm(k, p + "self_attn.k_norm.weight"), positions)
            x = x + cache[i].attend(q, k, v) @ t[p + "self_attn.o_proj.weight"].T
            a = self.norm(x, p + "post_attention_layernorm.weight")
            gate, up = (a @ t[p + f"mlp.{m}_proj.weight"].T for m in ("gate", "up"))
            x = x + gate / (1 + np.exp(-gate)) * up @ t[p + "mlp.down_proj.weight"].T
        head = t["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
        x = self.norm(x, "model.norm.weight") @ head.T
        x -= x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))


class Cache:
    """K, V and queries of a layer. After an event each kv head has slots of its own."""

    def __init__(self, n_kv_heads):
        self.n, self.k, self.v, self.f = n_kv_heads, None, None, None
        self.q, self.kept = None, 0

    def attend(self, q, k, v):
        n_new, n_heads, d = q.shape
        group = n_heads // self.n
        q = q.reshape(n_new, self.n, group, d)
        add = (lambda old, new: new if old is None else np.concatenate([old, new], 1))
        self.k, self.v = add(self.k, k.transpose(1, 0, 2)), add(self.v, v.transpose(1, 0, 2))
        self.q = add(self.q, q.transpose(1, 0, 2, 3))  # [kv head, query, head of the group, d]
        n = self.k.shape[1]
        out = np.empty((n_new, self.n, group, d), F32)
        hidden = np.arange(n)[None, :] > (n - n_new + np.arange(n_new))[:, None]
        for h in range(self.n):
            for g in range(group):
                x = q[:, h, g] @ self.k[h].T / F32(np.sqrt(d))
                x[hidden] = -np.inf
                x = np.exp(x - x.max(-1, keepdims=True))
                out[:, h, g] = x / x.sum(-1, keepdims=True) @ self.v[h]
        return out.reshape(n_new, n_heads * d)

    def compress(self, event):
        k, v, f = [], [], []
        for h in range(self.n):
            keep, score = event.keep(self.q[h], self.k[h], self.f and self.f[h], self.kept)
            k.append(self.k[h][keep])
            v.append(self.v[h][keep])
            f.append(score[keep] if score is not None else None)
        self.k, self.v, self.f = np.stack(k), np.stack(v), f
        self.kept = self.k.shape[1]


def forced_nll(model, text, arm, block):
    """Mean negative log-likelihood of the continuation's tokens after the first, which the prompt
    alone predicts."""
    prompt, more = text["prompt"], text["continuation"]
    cache = [Cache(model.c["num_key_value_heads"]) for _ in range(model.c["num_hidden_layers"])]
    ids, at, sums = np.array(prompt + more), 0, []
    event = None if arm["policy"] == "full" else Event(arm, block)
    n_max = arm["budget"] // block + 1 if event else 0
    due = max(n_max, -(-len(prompt) // block)) * block
    while at < len(ids) - 1:
        end = len(ids) - 1 if not event else min(due, len(ids) - 1)
        logs = model.forward(ids[at:end], at, cache)
        for i in range(max(at, len(prompt)), end):
            sums.append(-logs[i - at, ids[i + 1]])
        at = end
        if event and at == due and at < len(ids) - 1:
            for layer in cache:
                layer.compress(event)
            due += block
    return float(np.mean(sums))


def tokenize(cinch, model, path):
    """The texts of the file with lists of token ids."""
    texts = [json.loads(line) for line in path.read_text().splitlines()]
    for key in ("prompt", "continuation"):
        lines = "".join(json.dumps(text[key]) + "\n" for text in texts)
        command = [cinch, "tokenize", "--model", model, "--jsonl", "--file", "-"]
        ids = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True)
        for text, line in zip(texts, ids.stdout.splitlines(), strict=True):
            text[key] = json.loads(line)
    return texts


def main():
    args = argparse.ArgumentParser()
    args.add_argument("cinch")
    args.add_argument("model", type=Path)
    args.add_argument("report", type=Path)
    args.add_argument("texts", type=Path)
    args.add_argument("--block-size", type=int, default=64)
    args.add_argument("--tolerance", type=float, default=1e-3)
    a = args.parse_args()
    model = Model(a.model)
    texts = tokenize(a.cinch, a.model, a.texts)
    bad = 0
    for arm in json.loads(a.report.read_text())["tasks"][0]["arms"]:
        for text, nll in zip(texts, arm["by_document"]["nll"], strict=True):
            own = forced_nll(model, text, parse_arm(arm["arm"], a.block_size), a.block_size)
            wrong = abs(own - nll) > a.tolerance
            bad += wrong
            print(f"{arm['arm']}, {text['id']}: {nll:.5f}, here {own:.5f}{' DIFFERS' * wrong}")
    if bad:
        raise SystemExit(f"{bad} differ by more than {a.tolerance}")


if __name__ == "__main__":
    main()
