"""Writes a LoRA adapter with random weights from a seed for the model of make_tiny_model.py, in the
form of PEFT. It needs no network."""
import argparse
import json
import os

import numpy as np
from safetensors.numpy import save_file

from make_tiny_model import HEADS, KV_HEADS, LAYERS, WIDTH

RANK = 8
KV = WIDTH // HEADS * KV_HEADS


def tensors(seed):
    rng = np.random.default_rng(seed)

    def weights(rows, columns):
        return (rng.standard_normal((rows, columns)) * 0.5).astype(np.float32)

    t = {}
    for layer in range(LAYERS):
        for name, rows in [("q_proj", WIDTH), ("v_proj", KV)]:
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}."
            t[at + "lora_A.weight"] = weights(RANK, WIDTH)
            t[at + "lora_B.weight"] = weights(rows, RANK)
    return t


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("out")
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0,
        "bias": "none", "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "tiny", "inference_mode": True,
    }
    with open(os.path.join(a.out, "adapter_config.json"), "w") as f:
        json.dump(config, f, indent=1)
    save_file(tensors(a.seed), os.path.join(a.out, "adapter_model.safetensors"), metadata={"format": "pt"})


main()
