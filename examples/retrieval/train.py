"""Train the retrieval head of selector `spec` for a Hugging Face checkpoint.

  train.py --model DIR --text FILES... --out DIR/retrieval.safetensors [--seconds 300]

The head sees embeddings only: q and k projections of the normed embedding, RoPE, softmax. Its
target is the attention of the full model: for each kv head the mean over the layers from
--dense-layers on and over the query heads of the group. Only tokens that a step does not attend to
anyway count: neither the first --sinks nor the newest --recent. The measure is recall at k: the
share of the target's best k tokens that are among the head's best k.

Text files (.txt, .md) are joined and cut into pieces of --length tokens. Each line of a .jsonl file
with a field `text` is a piece of its own, cut at --length. A tenth is held out. A run that was stopped goes on when it is started again with the
same options. Needs torch, transformers and safetensors; matplotlib for --plot.
"""
import argparse
import glob
import json
import os
import random
import struct
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

MASK = (1 << 64) - 1
OWN_FILES = ("select.safetensors", "retrieval.safetensors")


# ---- the fingerprint of the base model, as engine/checkpoint/file_sum.c computes it ----

def hash64(h, data):
    h ^= 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & MASK
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & MASK
    return h ^ h >> 33


def hash_range(h, f, at, n):
    f.seek(at)
    while n > 0:
        data = f.read(min(n, 4096))
        if not data:
            break
        h = hash64(h, data)
        n -= len(data)
    return h


def base_sum(folder):
    h, head = 0, 64 << 10
    names = [n for n in os.listdir(folder) if n.endswith(".safetensors") and n not in OWN_FILES]
    for name in sorted(names, key=os.fsencode):
        path = os.path.join(folder, name)
        size = os.path.getsize(path)
        h = hash64(hash64(h, os.fsencode(name)), struct.pack("<Q", size))
        with open(path, "rb") as f:
            h = hash_range(h, f, 0, head)
            if size > head:
                stride = (size - head) // 256 + 1
                for at in range(head, size, stride):
                    h = hash_range(h, f, at, min(stride, 4096))
    return h


# ---- text ----

def pieces(a):
    """Lists of at most --length token ids, in the order of a seed."""
    tok = PreTrainedTokenizerFast(tokenizer_file=os.path.join(a.model, "tokenizer.json"))
    encode = lambda text: tok.encode(text, add_special_tokens=False)
    joined, out = [], []
    for path in a.text:
        with open(path, encoding="utf-8", errors="replace") as f:
            if path.endswith(".jsonl"):
                out += [encode(json.loads(line)["text"])[:a.length] for line in f]
            else:
                joined += encode(f.read())
    out = [ids for ids in out if len(ids) >= a.length // 4]
    out += [joined[i:i + a.length] for i in range(0, len(joined) - a.length + 1, a.length)]
    if len(out) < 10:
        sys.exit(f"--text: {len(out)} pieces of --length {a.length}: expected at least 10")
    random.Random(0).shuffle(out)
    return out


# ---- the target ----

class Target:
    """Sums the attention that the layers pay in some rows, by kv head."""

    def __init__(self, model, first_layer):
        self.layers = model.model.layers
        self.rows, self.sum = None, None
        for layer in self.layers[first_layer:]:
            layer.self_attn.register_forward_hook(self.add)
        self.n = len(self.layers) - first_layer
        self.n_kv = model.config.num_key_value_heads

    def add(self, module, args, out):
        weights = out[1]  # [batch, query heads, length, length]
        if weights is None:
            sys.exit("the model does not return its attention: it needs attn_implementation eager")
        w = weights[0, :, self.rows].float()
        w = w.view(self.n_kv, -1, *w.shape[1:]).mean(1) / self.n
        self.sum = w if self.sum is None else self.sum + w

    def of(self, model, ids, rows):
        """[kv heads, rows, length] for the query positions `rows` of ids [length]."""
        self.rows, self.sum = rows, None
        with torch.no_grad():
            model.model(ids[None], use_cache=False)
        return self.sum


# ---- the head ----

class Head(torch.nn.Module):
    def __init__(self, config, group, head_dim, theta):
        super().__init__()
        self.n_kv, self.d, self.theta = config.num_key_value_heads, head_dim, theta
        self.eps = config.rms_norm_eps
        hidden, n_q = config.hidden_size, config.num_key_value_heads * group
        self.norm = torch.nn.Parameter(torch.ones(hidden))
        self.q = torch.nn.Parameter(torch.randn(n_q * head_dim, hidden) / hidden ** 0.5)
        self.k = torch.nn.Parameter(torch.randn(self.n_kv * head_dim, hidden) / hidden ** 0.5)

    def rotate(self, x, positions):
        inv = self.theta ** (-torch.arange(0, self.d, 2, device=x.device) / self.d)
        angle = positions[:, None].float() * inv
        cos, sin = angle.cos(), angle.sin()
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, embedded, rows):
        """Logits [kv heads, group, rows, length]."""
        x = embedded.float()
        x = x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * self.norm
        q = (x[rows] @ self.q.T).view(len(rows), -1, self.d).transpose(0, 1)
        k = (x @ self.k.T).view(len(x), -1, self.d).transpose(0, 1)
        q = self.rotate(q, rows).view(self.n_kv, -1, len(rows), self.d)
        k = self.rotate(k, torch.arange(len(x), device=x.device))
        return q @ k[:, None].transpose(-1, -2) / self.d ** 0.5


def candidates(a, rows, length):
    """True [rows, length] where a step at a row has a candidate."""
    at = torch.arange(length, device=rows.device)
    return (at >= a.sinks) & (at[None] <= rows[:, None] - a.recent)


def shares(head, embedded, rows, is_candidate):
    """log of the share that each query head gives to each candidate."""
    logits = head(embedded, rows).masked_fill(~is_candidate, -1e9)
    return F.log_softmax(logits, -1)


def loss_of(head, embedded, rows, target, is_candidate):
    mixed = torch.logsumexp(shares(head, embedded, rows, is_candidate), 1)
    target = target * is_candidate
    return -(target * mixed.masked_fill(~is_candidate, 0)).sum() / target.sum()


@torch.no_grad()
def recall(a, head, target, embed, held):
    """Recall and recalled mass by k, beside those of the newest k."""
    sums = {k: [0.0] * 4 for k in a.k}
    n = dict.fromkeys(a.k, 0)
    for ids, rows, t in held:
        ok = candidates(a, rows, len(ids))
        rank = shares(head, embed(ids), rows, ok).amax(1)
        t = (t.to(rank.device) * ok).float()
        newest = torch.arange(len(ids), device=rank.device).float().expand_as(rank)
        newest = newest.masked_fill(~ok, -1)
        for k in a.k:
            if ok.sum(-1).min() < k:
                continue
            n[k] += 1
            best = torch.zeros_like(t).scatter_(-1, t.topk(k, -1).indices, 1.0)
            for i, order in enumerate((rank, newest)):
                mine = torch.zeros_like(t).scatter_(-1, order.topk(k, -1).indices, 1.0)
                sums[k][2 * i] += ((best * mine).sum(-1) / k).mean().item()
                sums[k][2 * i + 1] += ((t * mine).sum(-1) / t.sum(-1)).mean().item()
    names = ("recall", "mass", "newest_recall", "newest_mass")
    return {k: dict(zip(names, (x / n[k] for x in v))) for k, v in sums.items() if n[k]}


# ---- the run ----

def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", required=True, help="checkpoint folder with config.json, weights "
                   "and tokenizer.json")
    p.add_argument("--text", nargs="+", required=True, help=".txt, .md or .jsonl files")
    p.add_argument("--out", required=True, help="file to write; FILE.state is kept to resume")
    p.add_argument("--seconds", type=float, default=300, help="training time, all runs together")
    p.add_argument("--length", type=int, default=2048, help="tokens of a piece: the head's context")
    p.add_argument("--rows", type=int, default=256, help="query positions of a piece in a step")
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--group", type=int, help="query heads a kv head; default: the model's")
    p.add_argument("--head-dim", type=int, help="default: the model's")
    p.add_argument("--rope-theta", type=float, default=10000)
    p.add_argument("--dense-layers", type=int, default=2, help="as --select-dense-layers")
    p.add_argument("--sinks", type=int, default=4)
    p.add_argument("--recent", type=int, default=64)
    p.add_argument("--k", type=int, nargs="+", default=[32, 64, 128, 256, 512])
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--plot", help="write recall by k as a picture")
    a = p.parse_args()
    a.text = sorted(f for t in a.text for f in glob.glob(t))
    if a.length < 8 * (a.recent + a.sinks):
        p.error(f"--length {a.length}: expected at least {8 * (a.recent + a.sinks)}")
    return a


def draw_rows(a, length, generator):
    """Positions behind the first quarter of a piece, which have candidates enough to be ranked."""
    first = length // 4 + a.recent + a.sinks
    rows = torch.randperm(length - first, generator=generator)[:a.rows].sort().values
    return (rows + first).to(a.device)


def held_out(a, target, model, held):
    g = torch.Generator().manual_seed(0)
    for ids in held:
        ids = torch.tensor(ids, device=a.device)
        rows = draw_rows(a, len(ids), g)
        yield ids, rows, target.of(model, ids, rows)


def save(a, head, config, report):
    metadata = {"hidden_layers": "[]", "head_dim": str(head.d), "rope_theta": repr(head.theta),
                "context": str(a.length), "base": f"{base_sum(a.model):016x}",
                "recall": json.dumps({k: round(v["recall"], 4) for k, v in report.items()})}
    tensors = {"norm.weight": head.norm, "q_proj.weight": head.q, "k_proj.weight": head.k}
    tensors = {n: t.detach().to(torch.bfloat16).cpu().contiguous() for n, t in tensors.items()}
    save_file(tensors, a.out + ".part", metadata)
    os.replace(a.out + ".part", a.out)


def plot(a, report):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    fig, ax = plt.subplots(figsize=(5, 3.2))
    for name, label in (("recall", "head: recall"), ("mass", "head: mass"),
                        ("newest_recall", "newest k: recall"), ("newest_mass", "newest k: mass")):
        style = "--" if name.startswith("newest") else "-"
        ax.plot(list(report), [r[name] for r in report.values()], style, marker="o", label=label)
    ax.set(xscale="log", xlabel="k", ylabel="share", ylim=(0, 1), xticks=list(report),
           xticklabels=list(report))
    ax.legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(a.plot)


def main():
    a = options()
    torch.manual_seed(a.seed)
    dtype = torch.float32 if a.device == "cpu" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype,
                                                 attn_implementation="eager").to(a.device).eval()
    config = model.config
    data = pieces(a)
    n_held = max(1, len(data) // 10)
    train, held = data[n_held:], data[:n_held][:16]
    target = Target(model, a.dense_layers)
    embed = lambda ids: model.get_input_embeddings()(ids).detach()
    group = a.group or config.num_attention_heads // config.num_key_value_heads
    head_dim = a.head_dim or getattr(config, "head_dim", None) or \
        config.hidden_size // config.num_attention_heads
    head = Head(config, group, head_dim, a.rope_theta).to(a.device)
    opt = torch.optim.AdamW(head.parameters(), lr=a.lr, betas=(0.9, 0.98), weight_decay=0.01)
    generator = torch.Generator().manual_seed(a.seed)
    spent, step = 0.0, 0
    options_text = json.dumps({k: v for k, v in vars(a).items() if k not in ("seconds", "plot")})
    if os.path.exists(a.out + ".state"):
        state = torch.load(a.out + ".state", map_location=a.device, weights_only=True)
        if state["options"] != options_text:
            sys.exit(f"{a.out}.state is of a run with other options: remove it to start anew")
        head.load_state_dict(state["head"])
        opt.load_state_dict(state["opt"])
        generator.set_state(state["generator"].cpu())
        spent, step = state["spent"], state["step"]
    print(f"{len(train)} pieces of up to {a.length} tokens, {n_held} held out; {group} query heads for "
          f"each of {config.num_key_value_heads} kv heads of {head_dim}", flush=True)

    def keep():
        torch.save({"options": options_text, "head": head.state_dict(), "opt": opt.state_dict(),
                    "generator": generator.get_state(), "spent": spent, "step": step},
                   a.out + ".state.part")
        os.replace(a.out + ".state.part", a.out + ".state")

    bar = tqdm(total=round(a.seconds), initial=round(spent), unit="s", smoothing=0)
    mean, kept = None, spent
    while spent < a.seconds:
        began = time.time()
        ids = train[torch.randint(len(train), (1,), generator=generator).item()]
        ids = torch.tensor(ids, device=a.device)
        rows = draw_rows(a, len(ids), generator)
        t = target.of(model, ids, rows)
        warm = min(1.0, (step + 1) / 20)
        rest = max(0.0, 1 - spent / a.seconds)
        for g in opt.param_groups:
            g["lr"] = a.lr * warm * (0.05 + 0.95 * rest)
        loss = loss_of(head, embed(ids), rows, t, candidates(a, rows, len(ids)))
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        opt.step()
        step += 1
        mean = loss.item() if mean is None else 0.95 * mean + 0.05 * loss.item()
        spent += time.time() - began
        bar.update(round(spent) - bar.n)
        bar.set_postfix_str(f"step {step}, loss {mean:.3f}")
        if spent - kept > 30:
            keep()
            kept = spent
    bar.close()
    keep()
    report = recall(a, head, target, embed, held_out(a, target, model, held))
    save(a, head, config, report)
    print(f"{'k':>6} {'recall':>7} {'mass':>7}   newest k: recall, mass")
    for k, r in report.items():
        print(f"{k:>6} {r['recall']:>7.3f} {r['mass']:>7.3f} {r['newest_recall']:>19.3f} "
              f"{r['newest_mass']:>6.3f}")
    with open(a.out + ".json", "w") as f:
        json.dump({"options": vars(a), "steps": step, "loss": mean, "recall": report}, f, indent=1)
    if a.plot:
        plot(a, report)


if __name__ == "__main__":
    main()
