"""Train the retrieval head of selector `spec` for a Hugging Face checkpoint.

  train.py --model DIR --text FILES... --out DIR/retrieval.safetensors [--seconds 300]

The head sees the embedding of a token: q and k projections of the normed embedding, RoPE, softmax.
With --hidden-layers it also sees states of the model: those that the token before had when it
entered these layers. Its target is the attention of the full model: for each kv head the mean over
the layers from --dense-layers on and over the query heads of the group. Only tokens that a step
does not attend to anyway count: neither the --sinks nor the tail. The measure is recall at k: the
share of the target's best k tokens that are among the head's best k; with --documents also the
nats a token that their continuations lose. The orders `newest`, `random` and `target` stand beside.

Text files (.txt, .md) are joined and cut into pieces of --length tokens. Each line of a .jsonl file
with a field `text` is a piece of its own, cut at --length; with --pack such lines are joined too. A
tenth is held out. A run that was stopped goes on when it is started again with the same options.
Needs torch, transformers and safetensors; matplotlib for --plot.
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
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedTokenizerFast

MASK = (1 << 64) - 1
OWN_FILES = ("select.safetensors", "retrieval.safetensors")
SHORTEST = 8  # times sinks and recent tokens: a piece


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
    encode = lambda texts: tok(texts, add_special_tokens=False)["input_ids"]
    joined, out = [], []
    for path in a.text:
        with open(path, encoding="utf-8", errors="replace") as f:
            if not path.endswith(".jsonl"):
                joined += encode([f.read()])[0]
                continue
            lines = encode([json.loads(line)["text"] for line in f])
        if a.pack:
            joined += [i for ids in lines for i in ids]
        else:
            out += [ids[:a.length] for ids in lines]
    out = [ids for ids in out if len(ids) >= SHORTEST * (a.recent + a.sinks)]
    out += [joined[i:i + a.length] for i in range(0, len(joined) - a.length + 1, a.length)]
    if len(out) < 10:
        sys.exit(f"--text: {len(out)} pieces of --length {a.length}: expected at least 10")
    random.Random(0).shuffle(out)
    return out


# ---- the model ----

class Model:
    """The checkpoint, with an attention that can be watched in some rows (query positions), or
    replaced there by an attention to chosen tokens."""

    def __init__(self, a):
        AttentionInterface.register("watched", self.attend)
        dtype = torch.float32 if a.device == "cpu" and not a.bf16 else torch.bfloat16
        self.net = AutoModelForCausalLM.from_pretrained(
            a.model, dtype=dtype, attn_implementation="watched").to(a.device).eval()
        self.config, self.first = self.net.config, a.dense_layers
        self.n_kv = self.config.num_key_value_heads
        self.rows, self.sum, self.lists = None, None, None

    def attend(self, module, q, k, v, mask, scaling=None, **kwargs):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling,
                                             enable_gqa=q.shape[1] != k.shape[1])
        if self.rows is None or module.layer_idx < self.first:
            return out.transpose(1, 2), None
        rows = q[0, :, self.rows].view(self.n_kv, -1, len(self.rows), q.shape[-1]).float()
        logits = rows @ k[0][:, None].transpose(-1, -2).float() * scaling
        ok = torch.arange(k.shape[2], device=q.device) <= self.rows[:, None]
        if self.lists is not None:
            ok = ok & self.lists[:, None]
        share = logits.masked_fill(~ok, -1e9).softmax(-1)
        if self.lists is not None:
            out[:, :, self.rows] = (share.to(v.dtype) @ v[0][:, None]).flatten(0, 1)[None]
        else:
            self.sum = self.sum + share.mean(1)
        return out.transpose(1, 2), None

    @torch.no_grad()
    def run(self, ids, rows=None, lists=None, logits=False):
        """Runs ids [length]. Without lists, the attention that `rows` pay is summed up in
        self.sum [kv heads, rows, length], for each kv head the mean over its query heads. Returns
        the states that enter each layer, and the logits of rows."""
        self.rows, self.lists, self.sum = rows, lists, 0
        out = self.net.model(ids[None], use_cache=False, output_hidden_states=True)
        states = [h[0] for h in out.hidden_states]
        return states, self.net.lm_head(out.last_hidden_state[0, rows]).float() if logits else None


# ---- the head ----

def rms(x, weight, eps):
    x = x.float()
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


class Head(torch.nn.Module):
    """The query and the key of a token: projections of its normed embedding; with hidden_layers,
    beside it, of what `fc` makes of the states of the token before, normed too."""

    def __init__(self, config, a):
        super().__init__()
        self.hidden_layers, self.theta = a.hidden_layers, a.rope_theta
        self.n_kv, self.eps = config.num_key_value_heads, config.rms_norm_eps
        self.d = a.head_dim or getattr(config, "head_dim", None) or \
            config.hidden_size // config.num_attention_heads
        self.group = a.group or config.num_attention_heads // self.n_kv
        h, n = config.hidden_size, len(a.hidden_layers)
        width = 2 * h if n else h
        draw = lambda rows, cols: torch.nn.Parameter(torch.randn(rows, cols) / cols ** 0.5)
        self.norm = torch.nn.Parameter(torch.ones(h))
        self.q = draw(self.n_kv * self.group * self.d, width)
        self.k = draw(self.n_kv * self.d, width)
        if n:
            self.fc, self.hidden_norm = draw(h, n * h), torch.nn.Parameter(torch.ones(h))

    def tensors(self):
        out = {"norm.weight": self.norm, "q_proj.weight": self.q, "k_proj.weight": self.k}
        if self.hidden_layers:
            out |= {"fc.weight": self.fc, "hidden_norm.weight": self.hidden_norm}
        return out

    def rotate(self, x, positions):
        inv = self.theta ** (-torch.arange(0, self.d, 2, device=x.device) / self.d)
        angle = positions[:, None].float() * inv
        cos, sin = angle.cos(), angle.sin()
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def input(self, states):
        x = rms(states[0], self.norm, self.eps)
        if not self.hidden_layers:
            return x
        fused = torch.cat([states[i].float() for i in self.hidden_layers], -1) @ self.fc.T
        before = torch.cat((torch.zeros_like(fused[:1]), fused[:-1]))
        return torch.cat((x, rms(before, self.hidden_norm, self.eps)), -1)

    def forward(self, states, rows):
        """Logits [kv heads, group, rows, length]. states: of all layers, [length, hidden]."""
        x = self.input(states)
        q = (x[rows] @ self.q.T).view(len(rows), -1, self.d).transpose(0, 1)
        k = (x @ self.k.T).view(len(x), -1, self.d).transpose(0, 1)
        q = self.rotate(q, rows).view(self.n_kv, -1, len(rows), self.d)
        k = self.rotate(k, torch.arange(len(x), device=x.device))
        return q @ k[:, None].transpose(-1, -2) / self.d ** 0.5


def candidates(a, rows, length):
    """True [rows, length] where a step at a row has a candidate: behind the sinks, and before the
    tail, which begins --recent tokens before the last complete tile of 64."""
    at = torch.arange(length, device=rows.device)
    tail = rows[:, None] // 64 * 64 - a.recent
    return (at >= a.sinks) & (at[None] < tail)


def shares(head, states, rows, is_candidate):
    """log of the share that each query head gives to each candidate."""
    logits = head(states, rows).masked_fill(~is_candidate, -1e9)
    return F.log_softmax(logits, -1)


def loss_of(head, states, rows, target, is_candidate):
    mixed = torch.logsumexp(shares(head, states, rows, is_candidate), 1)
    target = target * is_candidate
    return -(target * mixed.masked_fill(~is_candidate, 0)).sum() / target.sum()


def best(score, is_candidate, k):
    """True for the best k candidates of each row, or for all of them if there are fewer."""
    k = min(k, score.shape[-1])
    score = score.masked_fill(~is_candidate, -1e9)
    chosen = torch.zeros_like(is_candidate.expand_as(score))
    return chosen.scatter_(-1, score.topk(k, -1).indices, True) & is_candidate


def orders(head, states, rows, target, is_candidate):
    """What ranks candidates, by name."""
    newest = torch.arange(target.shape[-1], device=target.device).float().expand_as(target)
    return {"head": shares(head, states, rows, is_candidate).amax(1), "newest": newest,
            "random": torch.rand_like(target), "target": target}


@torch.no_grad()
def recall(a, head, model, held):
    """Recall and recalled mass by k, of each order."""
    sums, n = {}, dict.fromkeys(a.k, 0)
    generator = torch.Generator().manual_seed(0)
    for ids in held:
        ids = torch.tensor(ids, device=a.device)
        rows = draw_rows(a, len(ids), generator)
        states, _ = model.run(ids, rows)
        ok = candidates(a, rows, len(ids))
        t = model.sum * ok
        for k in a.k:
            if ok.sum(-1).min() < k:
                continue
            n[k] += 1
            wanted = best(t, ok, k)
            for name, order in orders(head, states, rows, t, ok).items():
                mine = best(order, ok, k)
                at = sums.setdefault(k, {}).setdefault(name, [0.0, 0.0])
                at[0] += ((wanted & mine).sum(-1) / k).mean().item()
                at[1] += ((t * mine).sum(-1) / t.sum(-1)).mean().item()
    return {k: {name: {"recall": v[0] / n[k], "mass": v[1] / n[k]} for name, v in x.items()}
            for k, x in sums.items()}


def mean_and_error(values):
    mean, n = sum(values) / len(values), len(values)
    return mean, (sum((v - mean) ** 2 for v in values) / max(n - 1, 1) / n) ** 0.5


@torch.no_grad()
def losses(a, head, model):
    """Nats a token that the continuations of --documents lose, by k and order: each token of a
    continuation attends to the sinks, the tail, and one list for all layers. The states of the
    step before are here those of full attention."""
    tok = PreTrainedTokenizerFast(tokenizer_file=os.path.join(a.model, "tokenizer.json"))
    encode = lambda text: tok.encode(text, add_special_tokens=False)
    with open(a.documents, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f][:a.n_documents]
    sums = {}
    for line in tqdm(lines, unit="documents", disable=None):
        prompt, more = encode(line["prompt"]), encode(line["continuation"])
        ids = torch.tensor(prompt + more, device=a.device)
        rows = torch.arange(len(prompt), len(ids) - 1, device=a.device)
        nll = lambda logits: F.cross_entropy(logits, ids[rows + 1]).item()
        states, logits = model.run(ids, rows, logits=True)
        full, t = nll(logits), model.sum
        ok = candidates(a, rows, len(ids))
        rest = ~ok
        for name, order in orders(head, states, rows, t, ok).items():
            for k in a.k:
                lists = best(order, ok, k) | rest
                loss = nll(model.run(ids, rows, lists, logits=True)[1]) - full
                sums.setdefault(k, {}).setdefault(name, []).append(loss)
    return {k: {name: mean_and_error(v) for name, v in x.items()} for k, x in sums.items()}


# ---- the run ----

def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", required=True, help="checkpoint folder with config.json, weights "
                   "and tokenizer.json")
    p.add_argument("--text", nargs="+", required=True, help=".txt, .md or .jsonl files")
    p.add_argument("--pack", action="store_true", help="join the lines of .jsonl files")
    p.add_argument("--out", required=True, help="file to write; FILE.state is kept to resume")
    p.add_argument("--seconds", type=float, default=300, help="training time, all runs together")
    p.add_argument("--length", type=int, default=4096, help="tokens of a piece")
    p.add_argument("--context", type=int, help="positions beyond which cinch scales the head's RoPE "
                   "(YaRN); default: --length")
    p.add_argument("--rows", type=int, default=256, help="query positions of a piece in a step")
    p.add_argument("--repeat", type=int, default=1, help="steps for each piece that the model runs; "
                   "each takes this part of the rows of one of the --keep newest pieces")
    p.add_argument("--keep", type=int, default=64, help="pieces in memory, with --repeat above 1")
    p.add_argument("--bf16", action="store_true", help="run the model in bf16 on a CPU, too")
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--hidden-layers", type=int, nargs=3, default=[], metavar="LAYER",
                   help="the head sees the states that enter these layers, in ascending order; "
                   "default: none")
    p.add_argument("--group", type=int, help="query heads a kv head; default: the model's")
    p.add_argument("--head-dim", type=int, help="default: the model's")
    p.add_argument("--rope-theta", type=float, default=10000)
    p.add_argument("--dense-layers", type=int, default=2, help="as --select-dense-layers")
    p.add_argument("--sinks", type=int, default=4)
    p.add_argument("--recent", type=int, default=64)
    p.add_argument("--k", type=int, nargs="+", default=[64, 128, 256, 512])
    p.add_argument("--documents", help=".jsonl file with the fields prompt and continuation")
    p.add_argument("--n-documents", type=int, default=64, help="documents to read at most")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--plot", help="write recall by k as a picture")
    a = p.parse_args()
    a.text = sorted(f for t in a.text for f in glob.glob(t))
    if a.hidden_layers != sorted(set(a.hidden_layers)):
        p.error(f"--hidden-layers {a.hidden_layers}: expected different layers in ascending order")
    if a.length < SHORTEST * (a.recent + a.sinks):
        p.error(f"--length {a.length}: expected at least {SHORTEST * (a.recent + a.sinks)}")
    return a


def draw_rows(a, length, generator):
    """Positions behind the first quarter of a piece, which have candidates enough to be ranked."""
    first = length // 4 + a.recent + a.sinks
    rows = torch.randperm(length - first, generator=generator)[:a.rows].sort().values
    return (rows + first).to(a.device)


def save(a, head, report):
    metadata = {"hidden_layers": json.dumps(a.hidden_layers), "head_dim": str(head.d),
                "rope_theta": repr(head.theta), "context": str(a.context or a.length),
                "base": f"{base_sum(a.model):016x}",
                "recall": json.dumps({k: round(v["head"]["recall"], 4) for k, v in report.items()})}
    tensors = {n: t.detach().to(torch.bfloat16).cpu().contiguous()
               for n, t in head.tensors().items()}
    save_file(tensors, a.out + ".part", metadata)
    os.replace(a.out + ".part", a.out)


def plot(a, report):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    fig, ax = plt.subplots(figsize=(5, 3.2))
    for name in ("head", "newest", "random"):
        for measure, style in (("recall", "-"), ("mass", "--")):
            ax.plot(list(report), [r[name][measure] for r in report.values()], style, marker="o",
                    label=f"{name}: {measure}")
    ax.set(xscale="log", xlabel="k", ylabel="share", ylim=(0, 1), xticks=list(report),
           xticklabels=list(report))
    ax.legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(a.plot)


def show(report, lost):
    names = next(iter(report.values())).keys()
    print(f"{'k':>6}  " + "  ".join(f"{name + ': recall, mass':>21}" for name in names))
    for k, r in report.items():
        print(f"{k:>6}  " + "  ".join(f"{v['recall']:>14.3f} {v['mass']:>6.3f}" for v in r.values()))
    for k, r in lost.items():
        print(f"k {k}: nats a token lost: " + ", ".join(f"{n} {v:.3f} ± {e:.3f}" for n, (v, e) in r.items()))


def watch(a, model, ids, generator):
    """What the head is trained on for a piece: states that it reads, rows, and their target.

    Pieces that are kept are rounded, which halves their memory."""
    rows = draw_rows(a, len(ids), generator)
    states, _ = model.run(ids, rows)
    states = {i: states[i] for i in [0, *a.hidden_layers]}
    if a.repeat == 1:
        return states, rows, model.sum
    return {i: s.bfloat16() for i, s in states.items()}, rows, model.sum.half()


def train_step(a, head, opt, piece, generator, rate):
    states, rows, target = piece
    some = torch.randperm(len(rows), generator=generator)[:-(-len(rows) // a.repeat)].to(a.device)
    for g in opt.param_groups:
        g["lr"] = a.lr * rate
    rows, target = rows[some], target[:, some].float()
    loss = loss_of(head, states, rows, target, candidates(a, rows, len(states[0])))
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    opt.step()
    return loss.item()


def main():
    a = options()
    torch.manual_seed(a.seed)
    model = Model(a)
    data = pieces(a)
    n_held = max(1, len(data) // 10)
    train, held = data[n_held:], data[:n_held][:16]
    head = Head(model.config, a).to(a.device)
    opt = torch.optim.AdamW(head.parameters(), lr=a.lr, betas=(0.9, 0.98), weight_decay=0.01)
    generator = torch.Generator().manual_seed(a.seed)
    spent, step = 0.0, 0
    free = ("seconds", "plot", "documents", "n_documents", "k")
    options_text = json.dumps({k: v for k, v in vars(a).items() if k not in free})
    if os.path.exists(a.out + ".state"):
        state = torch.load(a.out + ".state", map_location=a.device, weights_only=True)
        if state["options"] != options_text:
            sys.exit(f"{a.out}.state is of a run with other options: remove it to start anew")
        head.load_state_dict(state["head"])
        opt.load_state_dict(state["opt"])
        generator.set_state(state["generator"].cpu())
        spent, step = state["spent"], state["step"]
    print(f"{len(train)} pieces of up to {a.length} tokens, {n_held} held out; {head.group} query "
          f"heads for each of {head.n_kv} kv heads of {head.d}; hidden layers {a.hidden_layers}",
          flush=True)

    def keep():
        torch.save({"options": options_text, "head": head.state_dict(), "opt": opt.state_dict(),
                    "generator": generator.get_state(), "spent": spent, "step": step},
                   a.out + ".state.part")
        os.replace(a.out + ".state.part", a.out + ".state")

    bar = tqdm(total=round(a.seconds), initial=round(spent), unit="s", smoothing=0)
    mean, kept, watched = None, spent, []
    draw = lambda pieces: pieces[torch.randint(len(pieces), (1,), generator=generator).item()]
    while spent < a.seconds:
        began = time.time()
        if step % a.repeat == 0 or not watched:
            ids = torch.tensor(draw(train), device=a.device)
            watched = (watched + [watch(a, model, ids, generator)])[-(a.keep if a.repeat > 1 else 1):]
        rate = min(1.0, (step + 1) / 20) * (0.02 + 0.98 * max(0.0, 1 - spent / a.seconds))
        piece = watched[-1] if step % a.repeat == 0 else draw(watched)
        loss = train_step(a, head, opt, piece, generator, rate)
        step += 1
        mean = loss if mean is None else 0.98 * mean + 0.02 * loss
        spent += time.time() - began
        bar.update(round(spent) - bar.n)
        bar.set_postfix_str(f"step {step}, loss {mean:.3f}")
        if spent - kept > 30:
            keep()
            kept = spent
    bar.close()
    keep()
    report = recall(a, head, model, held)
    save(a, head, report)
    lost = losses(a, head, model) if a.documents else {}
    print(f"{step} steps, loss {mean or 0:.3f}")
    show(report, lost)
    with open(a.out + ".json", "w") as f:
        json.dump({"options": vars(a), "steps": step, "loss": mean, "recall": report,
                   "lost": lost}, f, indent=1)
    if a.plot:
        plot(a, report)


if __name__ == "__main__":
    main()
