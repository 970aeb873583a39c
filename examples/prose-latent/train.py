"""Trains a small model with latent attention and experts, in the form of GLM-4.7-Flash, on English
prose: a checkpoint on which selectors and policies over latent rows can be judged.

  train.py prep TEXT.jsonl TOKENIZER.json OUT.npz   tokens of documents, as make_corpus.py merges them
  train.py pack OUT.npz FOLDER                      the same in compressed parts, for a machine without
                                                    network; `train` reads such folders as well
  train.py train --text TRAIN --held HELD --tokenizer DIR --out DIR --seconds N
  train.py eval --model DIR --held HELD             held-out loss by position, with all tokens and with
                                                    a window of 256, and the load of experts

`prep` needs tokenizers; the others need torch (2.10 or later on a GPU) and safetensors. Documents
are packed up to 8,192 tokens. Hidden matrices are trained with Muon, the others with AdamW. The
biases of a router move by a fixed step towards equal loads after each step and have no gradient.
"""
import argparse
import glob
import inspect
import json
import lzma
import math
import os
import queue
import shutil
import threading
import time

import numpy as np

CONTEXT = 8192
EOS = "<|endoftext|>"
PART_TOKENS = 6_000_000


# ---- tokens ----

def prep(text, tokenizer, out):
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(tokenizer)
    end = tok.token_to_id(EOS)
    ids, lengths = [], []
    with open(text, encoding="utf-8") as f:
        documents = [json.loads(line)["t"] for line in f]
    for i in range(0, len(documents), 256):
        for e in tok.encode_batch(documents[i:i + 256]):
            ids.append(np.array(e.ids + [end], np.uint16))
            lengths.append(len(ids[-1]))
    np.savez(out, ids=np.concatenate(ids), lens=np.array(lengths))
    print(f"{sum(lengths) / 1e6:.1f} M tokens in {len(lengths)} documents")


def pack(src, folder):
    """Parts of whole documents: the lengths and the ids, low bytes apart from high bytes."""
    os.makedirs(folder, exist_ok=True)
    ids, lengths = load(src)
    ends = np.cumsum(lengths)
    first = part = 0
    while first < len(lengths):
        start = ends[first] - lengths[first]
        last = max(int(np.searchsorted(ends, start + PART_TOKENS)), first + 1)
        some = ids[start:ends[min(last, len(ends)) - 1]]
        name = os.path.join(folder, f"part-{part:02d}.xz")
        with lzma.open(name, "wb", preset=9) as f:
            np.save(f, np.array(lengths[first:last], np.uint32))
            np.save(f, some)
        print(name, len(some), "tokens,", os.path.getsize(name), "bytes", flush=True)
        first, part = last, part + 1


def load(src):
    """Ids and lengths of documents, of a file of `prep` or a folder of `pack`."""
    if not os.path.isdir(src):
        z = np.load(src)
        return z["ids"], z["lens"].astype(np.int64)
    from multiprocessing import Pool
    with Pool() as pool:
        parts = pool.map(load_part, sorted(glob.glob(os.path.join(src, "part-*.xz"))))
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def load_part(name):
    with lzma.open(name) as f:
        lengths = np.load(f)
        return np.load(f), lengths.astype(np.int64)


def pieces(lengths, rng):
    """(start, length) of all documents in pieces of at most CONTEXT tokens, shuffled."""
    out, start = [], 0
    for n in lengths.tolist():
        at, end = start, start + n
        cut = at + int(rng.integers(512, CONTEXT)) if n > CONTEXT else at + CONTEXT
        while at < end:
            stop = min(cut, end)
            if stop - at >= 32:
                out.append((at, stop - at))
            at, cut = stop, stop + CONTEXT
        start = end
    rng.shuffle(out)
    return out


def batches(lengths, n_tokens, rng):
    """Endless batches: indices of tokens, ends of their pieces (padded), positions."""
    starts, sizes, n = [], [], 0
    while True:
        for start, size in pieces(lengths, rng):
            while size:
                m = min(size, n_tokens - n)
                starts.append(start)
                sizes.append(m)
                n, start, size = n + m, start + m, size - m
                if n < n_tokens:
                    continue
                size_of = np.array(sizes)
                begins = np.concatenate([[0], np.cumsum(size_of)[:-1]])
                ends = np.full(n_tokens // 32 + 2, n_tokens, np.int32)
                ends[0] = 0
                ends[1:len(sizes) + 1] = np.cumsum(size_of)[:len(ends) - 1]
                at = np.arange(n_tokens)
                yield (np.repeat(np.array(starts) - begins, size_of) + at, ends,
                       at - np.repeat(begins, size_of))
                starts, sizes, n = [], [], 0


# ---- the model ----

def config_of(a, vocab, eos):
    return {
        "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
        "vocab_size": vocab, "hidden_size": a.hidden, "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads, "num_key_value_heads": a.heads,
        "q_lora_rank": a.q_rank, "kv_lora_rank": a.rank, "qk_nope_head_dim": a.nope,
        "qk_rope_head_dim": a.rope, "v_head_dim": a.value, "rope_interleave": True,
        "intermediate_size": a.intermediate, "first_k_dense_replace": 1,
        "n_routed_experts": a.experts, "num_experts_per_tok": a.used, "n_shared_experts": 1,
        "moe_intermediate_size": a.expert_width, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 1.8, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": CONTEXT, "rope_theta": 1000000.0, "rope_scaling": None,
        "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": eos, "pad_token_id": eos,
        "initializer_range": 0.02, "use_cache": True, "num_nextn_predict_layers": 0}


def attend_plain(q, k, v, ends, scale, window=None, rows=512):
    """Causal attention inside of pieces, with rows of queries at a time. window: (sinks, newest)."""
    import torch
    n = len(q)
    at = torch.arange(n, device=q.device)
    piece = torch.searchsorted(ends[1:].contiguous().long(), at, right=True)
    first = ends.long()[piece]
    out = torch.empty(n, v.shape[1], v.shape[2], device=v.device, dtype=v.dtype)
    for i in range(0, n, rows):
        r = at[i:i + rows, None]
        sees = (at[None] <= r) & (piece[None] == piece[i:i + rows, None])
        if window:
            sinks, newest = window
            sees &= (at[None] > r - newest) | (at[None] < first[i:i + rows, None] + sinks)
        x = torch.einsum("qhd,khd->hqk", q[i:i + rows].float(), k.float()) * scale
        w = x.masked_fill(~sees, -math.inf).softmax(-1)
        out[i:i + rows] = torch.einsum("hqk,khd->qhd", w, v.float()).to(v.dtype)
    return out


def varlen():
    """Attention of torch for pieces, on a GPU."""
    from torch.nn.attention.varlen import varlen_attn
    causal = {"window_size": (-1, 0)} if "window_size" in inspect.signature(
        varlen_attn).parameters else {"is_causal": True}
    import torch.nn.functional as F

    def attend(q, k, v, ends, scale, window=None):
        # The default scale is that of the width of q. Rows of V are made as wide.
        assert abs(scale - q.shape[-1] ** -0.5) < 1e-6 and not window
        wide = F.pad(v, (0, q.shape[-1] - v.shape[-1]))
        return varlen_attn(q, k, wide, ends, ends, CONTEXT, CONTEXT, **causal)[..., :v.shape[-1]]
    return attend


def build(c, device):
    import torch
    from torch import nn
    import torch.nn.functional as F
    heads, nope, rope, value = (c["num_attention_heads"], c["qk_nope_head_dim"],
                                c["qk_rope_head_dim"], c["v_head_dim"])
    hidden, rank, q_rank = c["hidden_size"], c["kv_lora_rank"], c["q_lora_rank"]
    n_experts, used = c["n_routed_experts"], c["num_experts_per_tok"]
    width = c["moe_intermediate_size"]
    scale = (nope + rope) ** -0.5

    class Norm(nn.Module):
        def __init__(self, n, eps):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

        def forward(self, x):
            return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.eps).to(x.dtype)

    def linear(n_in, n_out):
        return nn.Linear(n_in, n_out, bias=False)

    def turn(x, cos, sin):
        """Rotates the pairs (2i, 2i + 1) of the last dimension."""
        a, b = x[..., 0::2].float(), x[..., 1::2].float()
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_a_proj, self.q_a_layernorm = linear(hidden, q_rank), Norm(q_rank, 1e-6)
            self.q_b_proj = linear(q_rank, heads * (nope + rope))
            self.kv_a_proj_with_mqa = linear(hidden, rank + rope)
            self.kv_a_layernorm = Norm(rank, 1e-6)
            self.kv_b_proj = linear(rank, heads * (nope + value))
            self.o_proj = linear(heads * value, hidden)

        def forward(self, x, cos, sin, ends, attend, window):
            n = len(x)
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(n, heads, nope + rope)
            row, k_rope = self.kv_a_proj_with_mqa(x).split((rank, rope), -1)
            kv = self.kv_b_proj(self.kv_a_layernorm(row)).view(n, heads, nope + value)
            k_rope = turn(k_rope[:, None], cos, sin).expand(n, heads, rope)
            q = torch.cat((q[..., :nope], turn(q[..., nope:], cos, sin)), -1)
            k = torch.cat((kv[..., :nope], k_rope), -1)
            out = attend(q, k, kv[..., nope:].contiguous(), ends, scale, window)
            return self.o_proj(out.reshape(n, heads * value))

    class Mlp(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.gate_proj, self.up_proj = linear(hidden, n), linear(hidden, n)
            self.down_proj = linear(n, hidden)

        def forward(self, x):
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)), None

    class Experts(nn.Module):
        """All experts compute all tokens; those that a token does not take have weight 0."""
        def __init__(self):
            super().__init__()
            self.router = nn.Parameter(torch.zeros(n_experts, hidden))
            self.register_buffer("bias", torch.zeros(n_experts))
            self.gate = nn.Parameter(torch.zeros(n_experts, width, hidden))
            self.up = nn.Parameter(torch.zeros(n_experts, width, hidden))
            self.down = nn.Parameter(torch.zeros(n_experts, hidden, width))
            self.shared_experts = Mlp(width)

        def forward(self, x):
            with torch.autocast(x.device.type, enabled=False):
                score = torch.sigmoid(F.linear(x.float(), self.router.float()))
            chosen = (score.detach() + self.bias).topk(used, -1).indices
            weight = score.gather(-1, chosen)
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]
            every = torch.zeros_like(score).scatter(-1, chosen, weight)
            act = F.silu(F.linear(x, self.gate.flatten(0, 1))) * F.linear(x, self.up.flatten(0, 1))
            act = act.view(len(x), n_experts, width) * every[..., None].to(act.dtype)
            out = F.linear(act.flatten(1), self.down.transpose(0, 1).flatten(1))
            loads = torch.zeros_like(score).scatter(-1, chosen, 1.0).sum(0)
            return out + self.shared_experts(x)[0], loads

    class Layer(nn.Module):
        def __init__(self, i):
            super().__init__()
            eps = c["rms_norm_eps"]
            self.input_layernorm, self.self_attn = Norm(hidden, eps), Attention()
            self.post_attention_layernorm = Norm(hidden, eps)
            dense = i < c["first_k_dense_replace"]
            self.mlp = Mlp(c["intermediate_size"]) if dense else Experts()

        def forward(self, x, *more):
            x = x + self.self_attn(self.input_layernorm(x), *more)
            y, loads = self.mlp(self.post_attention_layernorm(x))
            return x + y, loads

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(c["vocab_size"], hidden)
            self.layers = nn.ModuleList(Layer(i) for i in range(c["num_hidden_layers"]))
            self.norm = Norm(hidden, c["rms_norm_eps"])
            self.attend = varlen() if device == "cuda" else attend_plain
            self.dtype = torch.bfloat16 if device == "cuda" else torch.float32

        def forward(self, ids, targets, positions, ends, attend=None, window=None):
            """Losses of all tokens, and the loads of experts [layers with experts, experts]."""
            inverse = c["rope_theta"] ** (-torch.arange(0, rope, 2, device=ids.device) / rope)
            angle = positions[:, None, None].float() * inverse
            cos, sin = angle.cos(), angle.sin()
            x = self.embed_tokens(ids).to(self.dtype)
            loads = []
            for layer in self.layers:
                x, load = layer(x, cos, sin, ends, attend or self.attend, window)
                if load is not None:
                    loads.append(load)
            logits = F.linear(self.norm(x), self.embed_tokens.weight.to(x.dtype))
            losses = F.cross_entropy(logits.float(), targets, ignore_index=-100, reduction="none")
            return losses, torch.stack(loads)

    return Model().to(device)


def initialise(model, n_layers):
    from torch import nn
    for name, p in model.named_parameters():
        if p.ndim < 2:
            continue
        small = "o_proj" in name or "down" in name
        std = p.shape[-1] ** -0.5 * ((2 * n_layers) ** -0.5 if small else 1.0)
        nn.init.normal_(p, std=0.02 if "embed" in name or "router" in name else std)


# ---- the checkpoint ----

def tensors_of(model):
    """By the names of the published checkpoints."""
    out = {}
    for name, t in model.state_dict().items():
        t = t.detach().float().cpu()
        head, _, last = ("model." + name).rpartition(".")
        if last in ("gate", "up", "down") and t.ndim == 3:
            for e, matrix in enumerate(t):
                out[f"{head}.experts.{e}.{last}_proj.weight"] = matrix
        elif last == "router":
            out[head + ".gate.weight"] = t
        elif last == "bias":
            out[head + ".gate.e_score_correction_bias"] = t
        else:
            out[f"{head}.{last}"] = t
    return out


def save(model, c, out, tokenizer):
    import torch
    from safetensors.torch import save_file
    os.makedirs(out, exist_ok=True)
    tensors = {n: (t if n.endswith("_bias") else t.to(torch.bfloat16)).contiguous()
               for n, t in tensors_of(model).items()}
    total = sum(t.nbytes for t in tensors.values())
    shards, taken = [{}, {}], 0
    for name in sorted(tensors):
        shards[taken * 2 >= total][name] = tensors[name]
        taken += tensors[name].nbytes
    names = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-00002.safetensors"
        save_file(shard, os.path.join(out, file), {"format": "pt"})
        names |= dict.fromkeys(shard, file)
    eos = c["eos_token_id"]
    files = {"config.json": c,
             "generation_config.json": {"eos_token_id": eos, "pad_token_id": eos,
                                        "do_sample": False},
             "model.safetensors.index.json": {"metadata": {"total_size": total},
                                              "weight_map": names}}
    for file, content in files.items():
        with open(os.path.join(out, file), "w", encoding="utf-8") as f:
            json.dump(content, f, indent=1)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(tokenizer, file), os.path.join(out, file))


def open_model(folder, device):
    import torch
    from safetensors.torch import load_file
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    model = build(c, device)
    got = {}
    for file in sorted(glob.glob(os.path.join(folder, "model-*.safetensors"))):
        got |= load_file(file)
    state = {}
    for name, t in model.state_dict().items():
        head, _, last = ("model." + name).rpartition(".")
        if last in ("gate", "up", "down") and t.ndim == 3:
            state[name] = torch.stack([got[f"{head}.experts.{e}.{last}_proj.weight"].float()
                                       for e in range(len(t))])
        else:
            other = {"router": head + ".gate.weight",
                     "bias": head + ".gate.e_score_correction_bias"}
            state[name] = got[other.get(last, f"{head}.{last}")].float()
    model.load_state_dict(state)
    return model.to(device), c


# ---- training ----

class Muon:
    """Momentum whose steps are made orthogonal by Newton-Schulz iterations. Matrices of one shape
    are one stack; those of experts are a stack already."""

    def __init__(self, params, decay=0.05, momentum=0.95):
        import torch
        self.decay, self.momentum, self.groups = decay, momentum, {}
        for p in params:
            self.groups.setdefault((p.ndim, *p.shape), []).append(p)
        self.sums = {k: torch.zeros(len(v), *k[1:], device=v[0].device)
                     for k, v in self.groups.items()}

    def step(self, rate):
        import torch
        with torch.no_grad():
            for shape, params in self.groups.items():
                rows, cols = shape[-2:]
                grad = torch.stack([p.grad for p in params]).float()
                total = self.sums[shape]
                total.lerp_(grad, 1 - self.momentum)
                u = grad.lerp(total, self.momentum).flatten(0, -3).bfloat16()
                u = u.mT if rows > cols else u
                u = u / (u.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
                for _ in range(5):
                    square = u @ u.mT
                    u = 3.4445 * u + (-4.7750 * square + 2.0315 * (square @ square)) @ u
                u = (u.mT if rows > cols else u).float() * max(1.0, rows / cols) ** 0.5
                torch._foreach_mul_(params, 1 - rate * self.decay)
                torch._foreach_add_(params, list(u.view(total.shape).unbind(0)), alpha=-rate)


class Feed:
    """Batches as tensors; a thread makes them ahead."""

    def __init__(self, tokens, lengths, n_tokens, device, seed):
        import torch
        self.device, self.torch = device, torch
        self.tokens = torch.from_numpy(tokens.astype(np.int32)).to(device)
        self.queue = queue.Queue(8)
        made = batches(lengths, n_tokens, np.random.default_rng(seed))
        threading.Thread(target=lambda: [self.queue.put(b) for b in made], daemon=True).start()

    def next(self):
        at, ends, positions = (self.torch.from_numpy(x.astype(np.int32)).to(self.device)
                               for x in self.queue.get())
        ids = self.tokens[at.long()].long()
        targets = self.torch.roll(ids, -1)
        targets[ends[1:].long() - 1] = -100
        return ids, targets, positions.long(), ends


def autocast(device):
    import torch
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def held_loss(forward, held):
    import torch
    total = count = 0
    with torch.no_grad():
        for batch in held:
            losses, _ = forward(*batch)
            total += losses.sum().item()
            count += (batch[1] >= 0).sum().item()
    return total / count


def move_biases(model, loads, step):
    """Experts with more tokens than the mean become less likely, the others more likely."""
    import torch
    with torch.no_grad():
        for layer, load in zip((x for x in model.layers if hasattr(x.mlp, "bias")), loads):
            layer.mlp.bias += step * torch.sign(load.mean() - load)


def rate_at(share, step):
    """Warm-up, then constant, then linear to 0."""
    return min(1.0, (step + 1) / 150) * (1.0 if share < 0.35 else max(0.0, (1 - share) / 0.65))


def train(a):
    import torch
    from torch import nn
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    with open(os.path.join(a.tokenizer, "tokenizer.json"), encoding="utf-8") as f:
        added = {t["content"]: t["id"] for t in json.load(f)["added_tokens"]}
    vocab = max(added.values()) + 1
    c = config_of(a, vocab, added[EOS])
    model = build(c, a.device)
    initialise(model, a.layers)
    n_params = sum(p.numel() for p in model.parameters())
    apart = lambda name, p: p.ndim < 2 or "embed" in name or "router" in name
    rest = [p for n, p in model.named_parameters() if apart(n, p)]
    hidden = [p for n, p in model.named_parameters() if not apart(n, p)]
    muon = Muon(hidden)
    adam = torch.optim.AdamW(rest, lr=a.lr, betas=(0.9, 0.95), weight_decay=0.0)
    text, held_text = load(a.text), load(a.held)
    print(f"{n_params / 1e6:.2f} M parameters; {len(text[0]) / 1e6:.1f} M tokens, "
          f"{len(held_text[0]) / 1e6:.2f} M held out", flush=True)
    assert n_params <= 12_000_000, "the checkpoint may have 12 M parameters"
    feed = Feed(*text, a.tokens, a.device, a.seed)
    held_feed = Feed(*held_text, a.tokens, a.device, 0)
    held = [held_feed.next() for _ in range(a.held_batches)]
    run = torch.compile(model) if a.device == "cuda" else model

    def forward(*batch):
        with autocast(a.device):
            return run(*batch)

    began, step, said, shown = None, 0, time.time(), 0
    while True:
        spent = time.time() - began if began else 0.0
        share = min(spent / a.seconds, 1.0) if not a.steps else min(step / a.steps, 1.0)
        if share >= 1:
            break
        rate = rate_at(share, step)
        losses, loads = forward(*feed.next())
        (losses.sum() / a.tokens).backward()
        nn.utils.clip_grad_norm_(rest, 1.0)
        for group in adam.param_groups:
            group["lr"] = a.lr * rate
        muon.step(a.muon * rate)
        adam.step()
        model.zero_grad(set_to_none=True)
        move_biases(model, loads, a.bias_step * rate)
        if began is None:
            began = time.time()  # compiling does not count
        step += 1
        if step % 10 == 0:
            mean = losses.sum().item() / a.tokens  # waits, so few steps are enqueued ahead
        if step % 200 == 0 or step in (10, 50, 100):
            now = time.time()
            peak = (loads.max(1).values / loads.mean(1)).max().item()
            print(f"step {step}: loss {mean:.4f}, rate {rate:.3f}, most loaded expert "
                  f"{peak:.2f} x the mean, {step * a.tokens / 1e6:.0f} M tokens, "
                  f"{now - began:.0f} s", flush=True)
        if share * 6 > shown + 1:
            shown += 1
            print(f"held-out loss {held_loss(forward, held):.4f} at {share:.2f}", flush=True)
    print(f"{step} steps, {step * a.tokens / 1e6:.0f} M tokens, {time.time() - began:.0f} s: "
          f"held-out loss {held_loss(forward, held):.4f}", flush=True)
    save(model, c, a.out, a.tokenizer)


# ---- what the checkpoint is accepted by ----

def evaluate(a):
    """Held-out loss by position of sequences of CONTEXT tokens (full attention, and a window of 256
    with 4 sinks), and the share of tokens of the most loaded expert beside the mean."""
    import torch
    model, c = open_model(a.model, a.device)
    ids, lengths = load(a.held)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    long = [s for s, n in zip(starts, lengths) if n > a.length][:a.sequences]
    assert long, f"no held-out document has more than {a.length} tokens"
    edges = [0, 512, 2048, 4096, 8192]
    report, loads = {}, 0
    for name, window in (("full", None), ("window:256", (4, 256))):
        sums = []
        for s in long:
            x = torch.from_numpy(ids[s:s + a.length + 1].astype(np.int64)).to(a.device)
            at = torch.arange(a.length, device=a.device)
            ends = torch.tensor([0, a.length], device=a.device, dtype=torch.int32)
            with torch.no_grad(), autocast(a.device):
                losses, counts = model(x[:-1], x[1:], at, ends, attend_plain, window)
            sums.append(losses.float().cpu().numpy())
            loads = loads + counts.cpu() if window is None else loads
        report[name] = np.stack(sums)
    print(f"{len(long)} sequences of {a.length} tokens")
    for lo, hi in zip(edges, edges[1:]):
        if lo >= a.length:
            break
        full = report["full"][:, lo:hi].mean(1)
        lost = report["window:256"][:, lo:hi].mean(1) - full
        print(f"{lo:>5} to {min(hi, a.length):>5}: {full.mean():.4f}, window:256 loses "
              f"{lost.mean():.4f} ± {lost.std(ddof=1) / len(lost) ** 0.5 if len(lost) > 1 else 0:.4f}")
    peak = loads.max(1).values / loads.mean(1)
    print(f"all: {report['full'].mean():.4f}")
    print("most loaded expert, times the mean, by layer:", " ".join(f"{p:.2f}" for p in peak))


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    sub = p.add_subparsers(dest="command", required=True)
    s = sub.add_parser("prep")
    s.add_argument("text"), s.add_argument("tokenizer"), s.add_argument("out")
    s = sub.add_parser("pack")
    s.add_argument("src"), s.add_argument("folder")
    t, e = sub.add_parser("train"), sub.add_parser("eval")
    for s in (t, e):
        s.add_argument("--held", required=True, help="file of prep, or folder of pack")
        s.add_argument("--device", default="cuda")
    e.add_argument("--model", required=True)
    e.add_argument("--sequences", type=int, default=48)
    e.add_argument("--length", type=int, default=CONTEXT)
    t.add_argument("--text", required=True, help="file of prep, or folder of pack")
    t.add_argument("--tokenizer", required=True, help="folder with tokenizer.json")
    t.add_argument("--out", required=True)
    t.add_argument("--seconds", type=float, default=430, help="after the first step")
    t.add_argument("--steps", type=int, default=0, help="instead of --seconds")
    t.add_argument("--tokens", type=int, default=98304, help="of a step")
    t.add_argument("--held-batches", type=int, default=8)
    t.add_argument("--lr", type=float, default=0.003, help="of embeddings, routers and norms")
    t.add_argument("--muon", type=float, default=0.02, help="rate of the other matrices")
    t.add_argument("--bias-step", type=float, default=0.002, help="of the biases of routers")
    t.add_argument("--seed", type=int, default=1)
    for name, value in (("hidden", 256), ("layers", 8), ("heads", 8), ("q-rank", 128),
                        ("rank", 128), ("nope", 32), ("rope", 32), ("value", 32),
                        ("intermediate", 512), ("experts", 16), ("used", 4),
                        ("expert-width", 80)):
        t.add_argument("--" + name, type=int, default=value)
    return p.parse_args()


def main():
    a = options()
    if a.command == "prep":
        prep(a.text, a.tokenizer, a.out)
    elif a.command == "pack":
        pack(a.src, a.folder)
    elif a.command == "train":
        train(a)
    else:
        evaluate(a)


if __name__ == "__main__":
    main()
