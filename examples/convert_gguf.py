"""convert_gguf.py GGUF OUT: converts a GGUF file to a directory that cinch reads: config.json, safetensors
in F32, the tokenizer and the chat template.

Needs the packages transformers, torch, gguf and accelerate. transformers reads the weights, so the
architecture must be one that both transformers and cinch support."""
import os
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(gguf, out):
    folder, name = os.path.split(os.path.abspath(gguf))
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name)
    # The weights are F32 now; transformers refuses to save what it believes to be quantized.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(*sys.argv[1:])
