"""A second forward pass of the models with experts, and of those with latent attention, in f64 with
numpy and without transformers.

It is written from the definition of the layers. make_models.py compares its logits with those of
transformers, so that an error that cinch and transformers share would be seen.
"""
import json

import numpy as np
from safetensors.torch import load_file


def load(folder):
    """The config, and all tensors in f64 by name."""
    config = json.loads((folder / "config.json").read_text())
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors |= {n: t.double().numpy() for n, t in load_file(file).items()}
    return config, tensors


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, theta, n_rotated):
    """x [T, heads, d]: pair (i, i + n_rotated / 2) of a head turns with the position."""
    half = n_rotated // 2
    angle = np.arange(len(x))[:, None] * theta ** (-2.0 * np.arange(half) / n_rotated)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:n_rotated]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., n_rotated:]], -1)


def attention(x, w, c, theta, n_rotated):
    """w: gives a tensor of self_attn, or None."""
    n, d, heads, kv_heads = len(x), c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]

    def project(name, n_heads):
        y = x @ w(f"{name}_proj.weight").T
        bias = w(f"{name}_proj.bias")
        return (y if bias is None else y + bias).reshape(n, n_heads, d)

    q, k, v = project("q", heads), project("k", kv_heads), project("v", kv_heads)
    if w("q_norm.weight") is not None:
        q = rms_norm(q, w("q_norm.weight"), c["rms_norm_eps"])
        k = rms_norm(k, w("k_norm.weight"), c["rms_norm_eps"])
    q, k = rotate(q, theta, n_rotated), rotate(k, theta, n_rotated)
    out = np.empty((n, heads, d))
    for h in range(heads):
        g = h // (heads // kv_heads)
        s = q[:, h] @ k[:, g].T / np.sqrt(d)
        s[np.triu_indices(n, 1)] = -np.inf
        p = np.exp(s - s.max(-1, keepdims=True))
        out[:, h] = p / p.sum(-1, keepdims=True) @ v[:, g]
    return out.reshape(n, heads * d) @ w("o_proj.weight").T


def yarn(rope, n):
    """Frequencies of n / 2 pairs, the factor of logits (DeepSeek's mscale), that of cos and sin."""
    freq = rope["rope_theta"] ** (-2.0 * np.arange(n // 2) / n)
    if rope.get("rope_type", rope.get("type", "default")) == "default":
        return freq, 1.0, 1.0
    factor, length = rope["factor"], rope["original_max_position_embeddings"]

    def pair(turns):
        return n * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(rope["rope_theta"]))

    low = max(np.floor(pair(rope.get("beta_fast") or 32)), 0)
    high = min(np.ceil(pair(rope.get("beta_slow") or 1)), n - 1)
    ramp = np.clip((np.arange(n // 2) - low) / (high - low if high > low else 0.001), 0, 1)
    m = 0.1 * rope.get("mscale_all_dim", 0) * np.log(factor) + 1
    turn = 1.0 if rope.get("mscale_all_dim") else 0.1 * np.log(factor) + 1
    return freq / factor * ramp + freq * (1 - ramp), m * m, turn


def latent_attention(x, w, c, rope):
    """Keys and values of each head are computed from the latent row of a token."""
    n, heads = len(x), c["num_attention_heads"]
    rank, dn, dr, dv = (c[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                                       "v_head_dim"))
    freq, logit_factor, factor = yarn(rope, dr)
    turn = np.exp(1j * np.arange(n)[:, None] * freq)[:, None] * factor

    def turned(y):
        if c.get("rope_interleave", True):
            a, b = y[..., 0::2], y[..., 1::2]
        else:
            a, b = y[..., : dr // 2], y[..., dr // 2:]
        z = (a + 1j * b) * turn
        return np.concatenate([z.real, z.imag], -1)

    if w("q_proj.weight") is not None:
        q = x @ w("q_proj.weight").T
    else:
        q = rms_norm(x @ w("q_a_proj.weight").T, w("q_a_layernorm.weight"), 1e-6)
        q = q @ w("q_b_proj.weight").T
    q = q.reshape(n, heads, dn + dr)
    row = x @ w("kv_a_proj_with_mqa.weight").T
    latent = rms_norm(row[:, :rank], w("kv_a_layernorm.weight"), 1e-6)
    k_turned, q_turned = turned(row[:, None, rank:])[:, 0], turned(q[..., dn:])
    each = (latent @ w("kv_b_proj.weight").T).reshape(n, heads, dn + dv)
    out = np.empty((n, heads, dv))
    for h in range(heads):
        s = q[:, h, :dn] @ each[:, h, :dn].T + q_turned[:, h] @ k_turned.T
        s *= logit_factor / np.sqrt(dn + dr)
        s[np.triu_indices(n, 1)] = -np.inf
        p = np.exp(s - s.max(-1, keepdims=True))
        out[:, h] = p / p.sum(-1, keepdims=True) @ each[:, h, dn:]
    return out.reshape(n, heads * dv) @ w("o_proj.weight").T


def mlp(x, gate, up, down):
    g = x @ gate.T
    return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T


def expert_weights(w, e):
    """Gate, up and down of expert e, from its own tensors or from those of the layer."""
    fused = w("experts.gate_up_proj")
    if fused is None:
        return [w(f"experts.{e}.{p}_proj.weight") for p in ("gate", "up", "down")]
    inter = fused.shape[1] // 2
    return fused[e, :inter], fused[e, inter:], w("experts.down_proj")[e]


def experts(x, w, c):
    logits, bias = x @ w("gate.weight").T, w("gate.e_score_correction_bias")
    if bias is None:
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
    else:
        scores = 1 / (1 + np.exp(-logits))
    out = np.zeros_like(x)
    for t, row in enumerate(scores):
        rank = row if bias is None else row + bias
        n_groups = c.get("n_group") or 1
        if n_groups > 1:
            groups = np.sort(rank.reshape(n_groups, -1))
            best = groups[:, -1] + (0 if bias is None else groups[:, -2])
            out_of = np.argsort(-best, kind="stable")[c["topk_group"]:]
            rank = rank.reshape(n_groups, -1).copy()
            rank[out_of] = -np.inf
            rank = rank.reshape(-1)
        chosen = np.argsort(-rank, kind="stable")[: c["num_experts_per_tok"]]
        total = row[chosen].sum() if c.get("norm_topk_prob") else 1.0
        for e in chosen:
            weight = row[e] / total * c.get("routed_scaling_factor", 1.0)
            out[t] += weight * mlp(x[t], *expert_weights(w, e))
    if w("shared_experts.up_proj.weight") is not None:
        out += mlp(x, *[w(f"shared_experts.{p}_proj.weight") for p in ("gate", "up", "down")])
    return out


def logits_of(folder, tokens):
    """The logits [T, V] of one pass over the tokens, in f64."""
    c, tensors = load(folder)
    rope = c.get("rope_parameters") or {"rope_theta": c["rope_theta"], **(c["rope_scaling"] or {})}
    is_latent = "kv_lora_rank" in c
    n_rotated = 0 if is_latent else int(c["head_dim"] * rope.get("partial_rotary_factor", 1.0))
    x = tensors["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        def part(prefix):
            return lambda name: tensors.get(f"model.layers.{layer}.{prefix}{name}")

        w, eps = part(""), c["rms_norm_eps"]
        normed = rms_norm(x, w("input_layernorm.weight"), eps)
        if is_latent:
            x = x + latent_attention(normed, part("self_attn."), c, rope)
        else:
            x = x + attention(normed, part("self_attn."), c, rope["rope_theta"], n_rotated)
        normed = rms_norm(x, w("post_attention_layernorm.weight"), eps)
        if w("mlp.gate.weight") is not None:
            x = x + experts(normed, part("mlp."), c)
        else:
            x = x + mlp(normed, *[w(f"mlp.{p}_proj.weight") for p in ("gate", "up", "down")])
    return rms_norm(x, tensors["model.norm.weight"], c["rms_norm_eps"]) @ tensors[
        "model.embed_tokens.weight"].T
