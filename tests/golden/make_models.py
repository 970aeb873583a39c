#!/usr/bin/env python3
"""Writes the golden checkpoints and figures of models/ with transformers. See models/README.md.

    python make_models.py            writes everything
    python make_models.py NAME ...   writes some folders

Deterministic: each model has a seed for its weights, and runs in f32 on the CPU, eager attention.
"""
import json
import math
import pathlib
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers import DeepseekV2Config, DeepseekV3Config, Glm4MoeConfig, Glm4MoeLiteConfig
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import experts_f64

HERE = pathlib.Path(__file__).resolve().parent / "models"
ROOT = HERE.parents[2]
GREEDY_TOKENS = 200
# Rounding could change a greedy choice with a smaller lead than this: another seed is used.
MIN_MARGIN = 5e-4
# A text with fewer distinct tokens may hide a wrong position or cache slot: another seed is used.
MIN_DISTINCT = 12
# Rounding could change which expert a token takes if the last one that it takes and the first one
# that it does not take differ by less: another seed is used.
MIN_ROUTER_GAP = 1e-3

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 512}


def sizes(vocab, hidden, inter, layers, heads, kv_heads, head_dim, **more):
    return dict(vocab_size=vocab, hidden_size=hidden, intermediate_size=inter,
                num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
                head_dim=head_dim, bos_token_id=None, eos_token_id=None, **more)


def latent(q_rank, rank, nope, rope, value, heads, **more):
    """Keys of latent attention. head_dim follows from them."""
    return dict(q_lora_rank=q_rank, kv_lora_rank=rank, qk_nope_head_dim=nope,
                qk_rope_head_dim=rope, v_head_dim=value, num_attention_heads=heads,
                num_key_value_heads=heads, bos_token_id=None, eos_token_id=None,
                tie_word_embeddings=True, num_mtp_layers=0, **more)


# name: (class, config, dtype, sequence length, shard size or None, config.json in the old form)
MODELS = {
    "qwen3-bf16": (Qwen3Config, sizes(
        300, 64, 96, 3, 4, 2, 16, tie_word_embeddings=True, max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "bfloat16", 100, None, False),
    "qwen3-d80-f32": (Qwen3Config, sizes(
        288, 32, 64, 2, 2, 2, 80, tie_word_embeddings=False, max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "float32", 70, "150KB",
        False),
    "qwen3-d256-yarn-bf16": (Qwen3Config, sizes(
        311, 32, 48, 1, 4, 1, 256, tie_word_embeddings=True, max_position_embeddings=512,
        rope_parameters=dict(YARN)), "bfloat16", 41, None, True),
    "qwen2-f16": (Qwen2Config, sizes(
        300, 64, 112, 2, 8, 1, 16, tie_word_embeddings=False, max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "float16", 64, "90KB", True),
    "qwen2-tied-bf16": (Qwen2Config, sizes(
        299, 48, 80, 2, 3, 3, 32, tie_word_embeddings=True, max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), "bfloat16", 53, None,
        False),
    "llama-f32": (LlamaConfig, sizes(
        300, 32, 64, 2, 2, 2, 16, tie_word_embeddings=False, max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), "float32", 40, None,
        True),
    "llama-llama3-bf16": (LlamaConfig, sizes(
        304, 64, 96, 3, 4, 1, 32, tie_word_embeddings=True, max_position_embeddings=131072,
        rms_norm_eps=1e-5, rope_parameters=dict(LLAMA3)), "bfloat16", 90, "100KB", True),
    "llama-yarn-bias-f16": (LlamaConfig, sizes(
        300, 64, 96, 2, 8, 2, 16, tie_word_embeddings=False, max_position_embeddings=2048,
        attention_bias=True, rope_parameters=dict(YARN)), "float16", 80, None, False),
    "mistral-bf16": (MistralConfig, sizes(
        301, 64, 112, 3, 4, 2, 32, tie_word_embeddings=False, max_position_embeddings=2048,
        sliding_window=None, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "bfloat16", 77, "120KB",
        True),
    # Layers 0 and 3 are dense: 0 by the step, 3 by its number.
    "qwen3-moe-bf16": (Qwen3MoeConfig, sizes(
        300, 32, 48, 4, 4, 2, 16, tie_word_embeddings=True, max_position_embeddings=2048,
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, norm_topk_prob=True,
        decoder_sparse_step=2, mlp_only_layers=[3],
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "bfloat16", 30, "60KB",
        True),
    "qwen3-moe-fused-f32": (Qwen3MoeConfig, sizes(
        288, 32, 48, 2, 2, 1, 16, tie_word_embeddings=True, max_position_embeddings=2048,
        num_experts=5, num_experts_per_tok=3, moe_intermediate_size=16, norm_topk_prob=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "float32", 30, None, False),
    "glm4-moe-bf16": (Glm4MoeConfig, sizes(
        300, 32, 48, 3, 12, 1, 16, tie_word_embeddings=True, max_position_embeddings=2048,
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1,
        routed_scaling_factor=2.5, first_k_dense_replace=1, use_qk_norm=True, attention_bias=True,
        num_mtp_layers=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}),
        "bfloat16", 30, None, False),
    "glm4-moe-plain-f32": (Glm4MoeConfig, sizes(
        290, 32, 48, 2, 2, 2, 32, tie_word_embeddings=True, max_position_embeddings=2048,
        n_routed_experts=4, num_experts_per_tok=1, moe_intermediate_size=16, n_shared_experts=2,
        first_k_dense_replace=0, use_qk_norm=False, attention_bias=False, norm_topk_prob=False,
        num_mtp_layers=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}),
        "float32", 30, None, False),
    # Latent attention: one row for all heads and tokens. Positions go beyond those before YaRN.
    "deepseek-v2-moe-bf16": (DeepseekV2Config, latent(
        None, 32, 16, 16, 16, 4, vocab_size=300, hidden_size=32, intermediate_size=48,
        num_hidden_layers=3, max_position_embeddings=5120, n_routed_experts=6,
        num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=2,
        first_k_dense_replace=1,
        rope_parameters=dict(YARN, factor=40.0, original_max_position_embeddings=128, mscale=0.707,
                             mscale_all_dim=0.707)), "bfloat16", 30, "60KB", True),
    "deepseek-v2-moe-groups-f32": (DeepseekV2Config, latent(
        24, 48, 24, 32, 40, 3, vocab_size=290, hidden_size=48, intermediate_size=48,
        num_hidden_layers=2, max_position_embeddings=2048, n_routed_experts=8,
        num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=1,
        first_k_dense_replace=1, topk_method="group_limited_greedy", n_group=4, topk_group=2,
        routed_scaling_factor=1.5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4}), "float32", 30, None, False),
    "deepseek-v3-moe-bf16": (DeepseekV3Config, latent(
        24, 32, 16, 16, 16, 20, vocab_size=300, hidden_size=40, intermediate_size=48,
        num_hidden_layers=3, max_position_embeddings=5120, n_routed_experts=8,
        num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=1,
        first_k_dense_replace=2, n_group=4, topk_group=2, routed_scaling_factor=2.5,
        rope_parameters=dict(YARN, factor=40.0, original_max_position_embeddings=128, mscale=1.0,
                             mscale_all_dim=1.0)), "bfloat16", 30, None, True),
    "deepseek-v3-moe-halves-f32": (DeepseekV3Config, latent(
        None, 64, 8, 16, 24, 2, vocab_size=290, hidden_size=32, intermediate_size=48,
        num_hidden_layers=2, max_position_embeddings=2048, n_routed_experts=4,
        num_experts_per_tok=1, moe_intermediate_size=16, n_shared_experts=1,
        first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=False,
        routed_scaling_factor=1.0, rope_interleave=False,
        rope_parameters=dict(YARN, factor=4.0, original_max_position_embeddings=128)),
        "float32", 30, None, False),
    "glm4-lite-moe-bf16": (Glm4MoeLiteConfig, latent(
        32, 48, 24, 16, 32, 5, vocab_size=300, hidden_size=40, intermediate_size=48,
        num_hidden_layers=3, max_position_embeddings=2048, n_routed_experts=6,
        num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1,
        mlp_layer_types=["dense", "sparse", "dense"],
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "bfloat16", 30, None, False),
    # A rank of 2, 4 or 8 has whole kv heads; the vocabulary is split unevenly.
    "llama-ranks-bf16": (LlamaConfig, sizes(
        301, 64, 128, 3, 16, 8, 16, tie_word_embeddings=False, max_position_embeddings=2048,
        attention_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
        "bfloat16", 60, None, False),
}

# Folders with only a config, for the cos/sin table: head sizes and scalings that no tiny model has.
ROPES = {
    "rope-llama3-d128": dict(head_dim=128, max_position_embeddings=131072, rope=dict(LLAMA3)),
    "rope-llama3-d64-x32": dict(head_dim=64, max_position_embeddings=131072,
                                rope=dict(LLAMA3, factor=32.0)),
    "rope-yarn-d128": dict(head_dim=128, max_position_embeddings=131072, rope=dict(
        YARN, rope_theta=1e6, original_max_position_embeddings=32768)),
    "rope-yarn-d64-mscale": dict(head_dim=64, max_position_embeddings=163840, rope=dict(
        YARN, factor=40.0, original_max_position_embeddings=4096, beta_fast=16, beta_slow=2,
        mscale=0.707, mscale_all_dim=0.5)),
    "rope-yarn-d80-ramp": dict(head_dim=80, max_position_embeddings=8192, rope=dict(
        YARN, rope_theta=5e5, factor=2.5, original_max_position_embeddings=3000, truncate=False,
        attention_factor=1.25)),
}
ROPE_POSITIONS = [0, 1, 2, 63, 64, 100, 1000, 2047, 8191, 40000, 131071]


def random_weights(model, seed):
    """Weights with a large spread: with the usual 0.02, the logits of such a small model hardly
    differ. Embeddings are small, because a tied model would otherwise only repeat its input."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=g)
        if name.endswith("norm.weight"):
            p.data = 1 + 0.2 * x
        elif p.ndim == 1:
            p.data = 0.3 * x
        elif "embed_tokens" in name or "lm_head" in name:
            p.data = (0.2 if model.config.tie_word_embeddings else 0.7) * x
        else:
            p.data = x * (1.2 / math.sqrt(p.shape[-1]))
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.data = 0.1 * torch.randn(b.shape, generator=g)


def router_gap(model, tokens):
    """The smallest lead of the last expert that a token takes over the first that it does not."""
    gaps = [math.inf]

    def look(module, args, _):
        x = args[0].reshape(-1, args[0].shape[-1])
        scores = x @ module.weight.T
        if hasattr(module, "e_score_correction_bias"):
            scores = scores.sigmoid() + module.e_score_correction_bias
        if getattr(module, "topk_group", None) and module.topk_group < module.num_group:
            groups = scores.unflatten(-1, (module.num_group, -1))
            has_bias = hasattr(module, "e_score_correction_bias")
            ranks = groups.topk(2).values.sum(-1) if has_bias else groups.max(-1).values
            best = ranks.topk(module.topk_group + 1)
            gaps.append((best.values[:, -2] - best.values[:, -1]).min().item())
            out = torch.ones_like(ranks).scatter(1, best.indices[:, :-1], 0).bool()
            scores = groups.masked_fill(out.unsqueeze(-1), -math.inf).flatten(1)
        best = scores.topk(module.top_k + 1).values
        gaps.append((best[:, -2] - best[:, -1]).min().item())

    hooks = [m.register_forward_hook(look) for m in model.modules() if "TopK" in type(m).__name__
             or "TopkRouter" in type(m).__name__]
    model(input_ids=torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return min(gaps)


def fuse_experts(folder):
    """Writes the experts of a layer as one tensor, as some published files have them."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    layers = {n.split(".mlp.")[0] for n in tensors if ".mlp.experts." in n}
    for layer in sorted(layers):
        each = {}
        for name in [n for n in tensors if n.startswith(f"{layer}.mlp.experts.")]:
            expert, part, _ = name.removeprefix(f"{layer}.mlp.experts.").split(".")
            each[int(expert), part] = tensors.pop(name)
        n = 1 + max(e for e, _ in each)
        tensors[f"{layer}.mlp.experts.gate_up_proj"] = torch.stack(
            [torch.cat([each[e, "gate_proj"], each[e, "up_proj"]]) for e in range(n)])
        tensors[f"{layer}.mlp.experts.down_proj"] = torch.stack(
            [each[e, "down_proj"] for e in range(n)])
    save_file(tensors, file, metadata={"format": "pt"})


def to_old_form(config):
    """config.json before transformers 5: rope_theta at the top, rope_scaling, torch_dtype."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    if rope["rope_type"] == "yarn":
        rope["type"] = rope.pop("rope_type")
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    return config


def rope_rows(rotary, n_positions):
    at = [p for p in ROPE_POSITIONS if p < n_positions]
    half = rotary.inv_freq.shape[0]
    turned = rotary(torch.zeros(1, dtype=torch.float32), torch.tensor([at]))
    cos, sin = (turned.real, turned.imag) if torch.is_tensor(turned) else turned
    return {"rope.positions": torch.tensor(at, dtype=torch.int32),
            "rope.inv_freq": rotary.inv_freq.float().clone(),
            "rope.cos": cos[0, :, :half].contiguous(), "rope.sin": sin[0, :, :half].contiguous()}


@torch.no_grad()
def greedy(model, tokens, n, stop=()):
    """Token ids, and the smallest lead of a chosen logit over the next best."""
    out, lead = [], math.inf
    ids, cache = torch.tensor([tokens]), None
    while len(out) < n:
        r = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = r.past_key_values
        best = r.logits[0, -1].topk(2)
        lead = min(lead, (best.values[0] - best.values[1]).item())
        out.append(best.indices[0].item())
        if out[-1] in stop:
            break
        ids = torch.tensor([[out[-1]]])
    return out, lead


def load(folder, dtype=torch.float32):
    experts = {"experts_implementation": "eager"} if "moe" in folder.name else {}
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", **experts).eval()


@torch.no_grad()
def make_model(name, seed):
    cls, config, dtype, length, shard, old = MODELS[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(cls(**config), attn_implementation="eager")
    random_weights(model, seed)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard or "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if old:
        text = to_old_form(json.loads((folder / "config.json").read_text()))
        (folder / "config.json").write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")

    model = load(folder)
    tokens = np.random.default_rng(seed).integers(0, config["vocab_size"], length).tolist()
    if router_gap(model, tokens) < MIN_ROUTER_GAP:
        return make_model(name, seed + 1000)
    logits = model(input_ids=torch.tensor([tokens])).logits[0]
    exact = load(folder, torch.float64)(input_ids=torch.tensor([tokens])).logits[0]
    text, lead = greedy(model, tokens, GREEDY_TOKENS)
    gap = router_gap(model, tokens + text)
    if lead < MIN_MARGIN or len(set(text)) < MIN_DISTINCT or gap < MIN_ROUTER_GAP:
        return make_model(name, seed + 1000)
    # Checks the greedy text: cached decoding and recomputing the whole sequence must agree.
    for i, t in enumerate(text):
        again = model(input_ids=torch.tensor([tokens + text[:i]])).logits[0, -1].argmax().item()
        assert again == t, (name, i)
    if "fused" in name:
        fuse_experts(folder)
    if "moe" in name:
        difference = np.abs(experts_f64.logits_of(folder, tokens) - logits.numpy()).max()
        print(f"{name}: |f32 - second pass in f64| {difference:.1e}")
        assert difference < 3e-5, name
    n_positions = model.config.max_position_embeddings
    save_file({"tokens": torch.tensor(tokens, dtype=torch.int32), "logits": logits.contiguous(),
               "greedy": torch.tensor(text, dtype=torch.int32),
               **rope_rows(model.model.rotary_emb, n_positions)}, folder / "golden.safetensors")
    print(f"{name}: seed {seed}, logits std {logits.std().item():.2f}, "
          f"|f32 - f64| {(logits - exact).abs().max().item():.1e}, greedy lead {lead:.1e}")


def make_rope(name):
    spec, folder = ROPES[name], HERE / name
    folder.mkdir(exist_ok=True)
    keys = sizes(300, 2 * spec["head_dim"], 96, 1, 2, 1, spec["head_dim"])
    config = LlamaConfig(architectures=["LlamaForCausalLM"], rope_parameters=spec["rope"],
                         max_position_embeddings=spec["max_position_embeddings"], **keys)
    config.save_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    rotary = LlamaRotaryEmbedding(config)
    save_file(rope_rows(rotary, spec["max_position_embeddings"]), folder / "golden.safetensors")
    print(f"{name}: attention factor {rotary.attention_scaling:.6f}")


@torch.no_grad()
def make_tiny_reasoner():
    """Runs four prompts of the bundled checkpoint to their end; stores logits at six positions."""
    source, folder = ROOT / "examples" / "tiny-reasoner", HERE / "tiny-reasoner"
    folder.mkdir(exist_ok=True)
    tokenizer, model = AutoTokenizer.from_pretrained(source), load(source)
    out, lead = {}, math.inf
    for i, task in enumerate(["ledger", "notes", "sums", "hops"]):
        line = json.loads((source / "prompts" / f"{task}.jsonl").read_text().splitlines()[0])
        text = f"<|im_start|>user\n{line['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        prompt = tokenizer.encode(text, add_special_tokens=False)
        answer, margin = greedy(model, prompt, 2000, stop=(2045, 2043))
        lead = min(lead, margin)
        n = len(prompt)
        at = [0, n // 2, n - 1, n + 63, n + 199, n + len(answer) - 2]
        logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, at]
        out |= {f"{i}.prompt": torch.tensor(prompt, dtype=torch.int32),
                f"{i}.greedy": torch.tensor(answer, dtype=torch.int32),
                f"{i}.positions": torch.tensor(at, dtype=torch.int32),
                f"{i}.logits": logits.contiguous()}
        said = tokenizer.decode(answer).split("</think>")[-1].removesuffix("<|im_end|>").strip()
        print(f"tiny-reasoner {i} {task}: prompt {n}, greedy {len(answer)}, lead {margin:.1e}, "
              f"answer {'right' if said == line['answer'] else 'wrong'}")
    save_file(out, folder / "golden.safetensors")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(2)
    wanted = sys.argv[1:] or [*MODELS, *ROPES, "tiny-reasoner"]
    for i, name in enumerate([*MODELS, *ROPES, "tiny-reasoner"]):
        if name not in wanted:
            continue
        if name in MODELS:
            make_model(name, i + 1)
        elif name in ROPES:
            make_rope(name)
        else:
            make_tiny_reasoner()


if __name__ == "__main__":
    main()
