#!/usr/bin/env python3
"""Writes the FP8 checkpoints of models/fp8-* and their figures. See models/README.md.

    python make_fp8.py            writes everything
    python make_fp8.py NAME ...   writes some folders

transformers runs a plain checkpoint with the dequantised values, made by the code below from the
formulas of the formats. Where transformers itself can dequantise a file, both must agree.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config
from transformers import DeepseekV3Config, Glm4MoeConfig, Glm4MoeLiteConfig, LlamaConfig
from transformers import Qwen2Config, Qwen3Config, Qwen3MoeConfig

from make_models import GREEDY_TOKENS, MIN_DISTINCT, MIN_MARGIN, MIN_ROUTER_GAP
from make_models import greedy, latent, random_weights, router_gap, sizes

HERE = pathlib.Path(__file__).resolve().parent / "models"
E4M3 = torch.float8_e4m3fn
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
BLOCK = 128


def group(weights, inputs):
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                          "input_activations": inputs}}}


# name: (class, config, form, dtype of scales, quantization_config, ends of names left plain)
MODELS = {
    # Partial blocks; 64 rows of k and of v, and 208 of gate, end inside a block of the fused matrix.
    "fp8-block": (Qwen3Config, sizes(
        256, 144, 208, 2, 4, 2, 32, tie_word_embeddings=True, max_position_embeddings=512,
        rope_parameters=PLAIN), "block", torch.float32,
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
         "weight_block_size": [128, 128], "modules_to_not_convert": [
             "lm_head", "model.layers.1.self_attn.o_proj"]},
        ["layers.1.self_attn.o_proj"]),
    "fp8-block-ue8m0": (LlamaConfig, sizes(
        256, 128, 256, 1, 8, 4, 32, tie_word_embeddings=True, max_position_embeddings=512,
        rope_parameters=PLAIN), "block", torch.float8_e8m0fnu,
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
         "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}, []),
    "fp8-channel": (Qwen2Config, sizes(
        256, 96, 160, 2, 3, 1, 32, tie_word_embeddings=True, max_position_embeddings=512,
        rope_parameters=PLAIN), "row", torch.bfloat16,
        {"quant_method": "compressed-tensors", "format": "float-quantized",
         "quantization_status": "compressed", "ignore": ["lm_head", r"re:.*layers\.1\.mlp.*"],
         **group({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True,
                  "dynamic": False},
                 {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True})},
        ["layers.1.mlp.gate_proj", "layers.1.mlp.up_proj", "layers.1.mlp.down_proj"]),
    "fp8-tensor": (LlamaConfig, sizes(
        256, 80, 144, 2, 5, 1, 16, tie_word_embeddings=True, max_position_embeddings=512,
        rope_parameters=PLAIN), "tensor", torch.float32,
        {"quant_algo": "FP8", "kv_cache_quant_algo": None,
         "exclude_modules": ["lm_head", "model.layers.0.self_attn*"]},
        [f"layers.0.self_attn.{p}_proj" for p in "qkvo"]),
    # Layer 1 is dense, and the experts of layer 2 are plain. 80 rows of gate end inside a block.
    "fp8-moe-block": (Qwen3MoeConfig, sizes(
        256, 144, 208, 4, 4, 2, 32, tie_word_embeddings=True, max_position_embeddings=512,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=80, norm_topk_prob=True,
        mlp_only_layers=[1], rope_parameters=PLAIN), "block", torch.float32,
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
         "weight_block_size": [128, 128], "modules_to_not_convert": [
             "lm_head", "mlp.gate", "model.layers.2.mlp.experts"]},
        ["layers.2.mlp.experts"]),
    "fp8-moe-fused": (Qwen3MoeConfig, sizes(
        256, 160, 96, 3, 4, 2, 32, tie_word_embeddings=True, max_position_embeddings=512,
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=144, norm_topk_prob=False,
        rope_parameters=PLAIN), "block", torch.float32,
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
         "weight_block_size": [128, 128]}, []),
    "fp8-moe-channel": (Glm4MoeConfig, sizes(
        256, 96, 160, 3, 4, 1, 32, tie_word_embeddings=True, max_position_embeddings=512,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, n_shared_experts=1,
        routed_scaling_factor=1.5, first_k_dense_replace=1, use_qk_norm=True, attention_bias=True,
        num_mtp_layers=0, rope_parameters=dict(PLAIN, partial_rotary_factor=0.5)),
        "row", torch.bfloat16,
        {"quant_method": "compressed-tensors", "format": "float-quantized",
         "quantization_status": "compressed", "ignore": ["lm_head", r"re:.*mlp\.gate$"],
         **group({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True,
                  "dynamic": False},
                 {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True})}, []),
    # Heads of 32 rows, of which the last 16 rotate, inside blocks; kv_b_proj of layer 1 is plain.
    "fp8-latent-moe-block": (DeepseekV3Config, latent(
        136, 48, 16, 16, 32, 5, vocab_size=256, hidden_size=144, intermediate_size=80,
        num_hidden_layers=2, max_position_embeddings=512, n_routed_experts=3,
        num_experts_per_tok=1, moe_intermediate_size=48, n_shared_experts=1,
        first_k_dense_replace=1, n_group=1, topk_group=1, rope_parameters=PLAIN),
        "block", torch.float32,
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
         "weight_block_size": [128, 128], "modules_to_not_convert": [
             "lm_head", "mlp.gate", "model.layers.1.self_attn.kv_b_proj"]},
        ["layers.1.self_attn.kv_b_proj"]),
    "fp8-latent-moe-channel": (Glm4MoeLiteConfig, latent(
        None, 48, 24, 16, 32, 3, vocab_size=256, hidden_size=96, intermediate_size=80,
        num_hidden_layers=2, max_position_embeddings=512, n_routed_experts=3,
        num_experts_per_tok=1, moe_intermediate_size=48, n_shared_experts=1,
        mlp_layer_types=["dense", "sparse"], rope_parameters=PLAIN), "row", torch.bfloat16,
        {"quant_method": "compressed-tensors", "format": "float-quantized",
         "quantization_status": "compressed", "ignore": ["lm_head", r"re:.*mlp\.gate$"],
         **group({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True,
                  "dynamic": False},
                 {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True})}, []),
}


def spread(scale, rows, cols, form):
    """The scale of each element."""
    if form == "block":
        scale = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return scale.float().broadcast_to(rows, cols) if form != "block" else scale[:rows, :cols]


def quantise(w, form, dtype):
    """e4m3 values and scales, as the formats describe them."""
    rows, cols = w.shape
    if form == "block":
        n, k = -(-rows // BLOCK), -(-cols // BLOCK)
        padded = torch.zeros(n * BLOCK, k * BLOCK)
        padded[:rows, :cols] = w
        most = padded.reshape(n, BLOCK, k, BLOCK).abs().amax((1, 3))
    elif form == "row":
        most = w.abs().amax(1, keepdim=True)
    else:
        most = w.abs().amax().reshape(())
    scale = most / 448
    if dtype == torch.float8_e8m0fnu:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    scale = scale.to(dtype)
    each = spread(scale.float(), rows, cols, form)
    return (w / each).clamp(-448, 448).to(E4M3), scale


def round_input(x, form, static):
    """x rounded to e4m3: each row and 128 columns, each row, or with a static scale."""
    cols = x.shape[-1]
    if form == "block":
        k = -(-cols // BLOCK)
        padded = torch.nn.functional.pad(x, (0, k * BLOCK - cols)).unflatten(-1, (k, BLOCK))
        s = padded.abs().amax(-1, keepdim=True) / 448
        return ((padded / s.where(s > 0, 1)).to(E4M3).float() * s).flatten(-2)[..., :cols]
    s = static if static is not None else x.abs().amax(-1, keepdim=True) / 448
    return (x / s).clamp(-448, 448).to(E4M3).float() * s


def linears(model):
    return {n: m for n, m in model.named_modules()
            if isinstance(m, torch.nn.Linear) and n != "lm_head"}


def experts(model):
    """The modules that have the matrices of all experts: gate_up_proj and down_proj."""
    return {n: m for n, m in model.named_modules() if type(m).__name__.endswith("Experts")
            or type(m).__name__.endswith("NaiveMoe")}


@torch.no_grad()
def load(folder):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager",
        **({"experts_implementation": "eager"} if "moe" in str(folder) else {})).eval()


@torch.no_grad()
def logits_of(folder, tokens):
    model = load(folder)
    return model, model(input_ids=torch.tensor([tokens])).logits[0]


def quantise_experts(name, module, form, dtype, suffix, fused):
    """Tensors of the file. The module gets the dequantised values."""
    tensors, n = {}, len(module.gate_up_proj)
    parts = {"gate_up_proj": module.gate_up_proj, "down_proj": module.down_proj}
    for part, w in parts.items():
        stacked = []
        for e in range(n):
            pieces = [(part, w[e])] if fused or part == "down_proj" else list(
                zip(("gate_proj", "up_proj"), w[e].chunk(2)))
            back = []
            for piece, x in pieces:
                values, scale = quantise(x, form, dtype)
                back.append(values.float() * spread(scale.float(), *values.shape, form))
                stacked.append((values, scale))
                if not fused:
                    tensors[f"{name}.{e}.{piece}.weight"] = values
                    tensors[f"{name}.{e}.{piece}.{suffix}"] = scale
            w[e].copy_(torch.cat(back))
        if fused:
            tensors[f"{name}.{part}"] = torch.stack([v for v, _ in stacked])
            tensors[f"{name}.{part}{suffix.removeprefix('weight')}"] = torch.stack(
                [s for _, s in stacked])
    return tensors


def round_experts(module, form):
    """Replaces the forward pass of a module by one whose products round their inputs."""
    def forward(x, chosen, weights):
        out = torch.zeros_like(x)
        rounded = round_input(x, form, None)
        for t in range(len(x)):
            for e, weight in zip(chosen[t].tolist(), weights[t]):
                gate, up = (module.gate_up_proj[e] @ rounded[t]).chunk(2)
                act = round_input((torch.nn.functional.silu(gate) * up)[None], form, None)[0]
                out[t] += weight * (module.down_proj[e] @ act)
        return out
    module.forward = forward


def input_scales(model, names, tokens):
    """The largest input of q, k and v, of gate and up, and of the others, each over 448."""
    most = {}
    hooks = [m.register_forward_pre_hook(
        lambda m, a, n=n: most.__setitem__(n, a[0].abs().max() / 448))
        for n, m in linears(model).items() if n in names]
    model(input_ids=torch.tensor([tokens]))
    for h in hooks:
        h.remove()
    return most


@torch.no_grad()
def make(name, seed):
    cls, config, form, dtype, quant, plain = MODELS[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(cls(**config), attn_implementation="eager")
    random_weights(model, seed)
    model.to(torch.bfloat16).float()
    tokens = np.random.default_rng(seed).integers(0, config["vocab_size"], 24).tolist()
    names = [n for n in linears(model) if not n.endswith(tuple(plain))]
    tensors, scales = {}, {}
    suffix = "weight_scale_inv" if quant.get("weight_block_size") else "weight_scale"
    for n, m in experts(model).items():
        if not n.endswith(tuple(plain)):
            tensors |= quantise_experts(n, m, form, dtype, suffix, "fused" in name)
    for n in names:
        values, scale = quantise(model.get_submodule(n).weight, form, dtype)
        tensors[f"{n}.weight"] = values
        tensors[f"{n}.{suffix}"] = scales[n] = scale
        w = values.float() * spread(scale.float(), *values.shape, form)
        model.get_submodule(n).weight.copy_(w)
    with tempfile.TemporaryDirectory(suffix="moe" if "moe" in name else "") as dequantised:
        model.save_pretrained(dequantised)
        reference, logits = logits_of(dequantised, tokens)
    more = {}
    if "moe" in name:
        text, lead = greedy(reference, tokens, GREEDY_TOKENS)
        gap = router_gap(reference, tokens + text)
        if lead < MIN_MARGIN or len(set(text)) < MIN_DISTINCT or gap < MIN_ROUTER_GAP:
            return make(name, seed + 1000)
        more = {"greedy": torch.tensor(text, dtype=torch.int32)}
    static = {}
    if form == "tensor":
        static = input_scales(reference, names, tokens)
        tensors |= {f"{n}.input_scale": s.reshape(1) for n, s in static.items()}

    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    whole = load_file(folder / "model.safetensors")
    if "fused" in name:
        whole = {n: t for n, t in whole.items() if ".mlp.experts." not in n}
    save_file(dict(sorted((whole | tensors).items())), folder / "model.safetensors",
              metadata={"format": "pt"})
    if "quant_algo" in quant:
        text = json.dumps({"producer": {"name": "modelopt"}, "quantization": quant}, indent=2)
        (folder / "hf_quant_config.json").write_text(text + "\n")
    else:
        read = json.loads((folder / "config.json").read_text())
        read["quantization_config"] = quant
        (folder / "config.json").write_text(json.dumps(read, indent=2, sort_keys=True) + "\n")
    if all(s % BLOCK == 0 for n in names for s in model.get_submodule(n).weight.shape):
        own = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager",
            quantization_config=FineGrainedFP8Config(dequantize=True)).eval()
        other = own(input_ids=torch.tensor([tokens])).logits[0]
        print(f"{name}: transformers' dequantised file differs by "
              f"{(other - logits).abs().max().item():.1e}")

    for n in (n for n in names if not n.endswith("kv_b_proj")): # plain in cinch, see the README
        reference.get_submodule(n).register_forward_pre_hook(
            lambda m, a, n=n: (round_input(a[0], form, static.get(n)),))
    for n, m in experts(reference).items():
        if not n.endswith(tuple(plain)):
            round_experts(m, form)
    rounded = reference(input_ids=torch.tensor([tokens])).logits[0]
    if "moe" in name and router_gap(reference, tokens) < MIN_ROUTER_GAP:
        return make(name, seed + 1000)
    save_file({"tokens": torch.tensor(tokens, dtype=torch.int32), "logits": logits.contiguous(),
               "logits_rounded": rounded.contiguous(), **more}, folder / "golden.safetensors")
    print(f"{name}: seed {seed}, logits std {logits.std().item():.2f}, rounded inputs change them by "
          f"{(rounded - logits).pow(2).mean().sqrt().item():.2e} (rms)")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(2)
    for i, name in enumerate(MODELS):
        if name in (sys.argv[1:] or MODELS):
            make(name, i + 1)


if __name__ == "__main__":
    main()
