#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Times a PyTorch eager fp32 training step on the CPU: forward, backward, AdamW.

    pytorch_step.py MODEL --batch 8 --sequence 256 --threads 8

MODEL is a model folder, its config.json, or a slidedp job file that gives the
config in model.config. The weights are random (the time does not depend on
them), and so are the tokens: new ones each step. The last line says the median:

    RESULT pytorch-eager MODEL ... step=0.1234s tokens/s=16600 loss=5.5421
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
import transformers
from transformers import AutoConfig, AutoModelForCausalLM


def read_config(path):
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        with open(path) as f:
            config = json.load(f)
    except (OSError, ValueError) as e:
        sys.exit(f"pytorch_step.py: {path}: {getattr(e, 'strerror', None) or e}")
    if isinstance(config.get("model"), dict):  # a job file
        model = config["model"]
        if "checkpoint" in model:
            return read_config(os.path.join(os.path.dirname(path), model["checkpoint"]))
        config = {"model_type": model["graph"], **model["config"]}
    if config.get("model_type") not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        sys.exit(f"pytorch_step.py: {path}: model_type {config.get('model_type')!r} is none that transformers has")
    return AutoConfig.for_model(**config)


def make_optimizer(model, lr):
    groups = [{"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    try:
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True), "fused"
    except RuntimeError:
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, foreach=True), "foreach"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--batch", type=int, default=8, help="sequences a step (default 8)")
    parser.add_argument("--sequence", type=int, default=256, help="tokens a sequence (default 256)")
    parser.add_argument("--threads", type=int, help="threads of PyTorch (default: its own choice)")
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default 10)")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them (default 3)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.batch < 1 or args.sequence < 1 or args.steps < 1 or args.warmup < 0:
        parser.error("--batch, --sequence and --steps must be at least 1, --warmup at least 0")
    if args.threads is not None:
        if args.threads < 1:
            parser.error("--threads must be at least 1")
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    config = read_config(args.model)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").train()
    optimizer, kind = make_optimizer(model, args.lr)
    parameters = sum(p.numel() for p in model.parameters())

    times, loss = [], None
    for step in range(args.warmup + args.steps):
        ids = torch.randint(0, config.vocab_size, (args.batch, args.sequence + 1))
        start = time.perf_counter()
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item()
        seconds = time.perf_counter() - start
        if step >= args.warmup:
            times.append(seconds)
        print(f"step {step + 1}{' (warm-up)' if step < args.warmup else ''}: {seconds:.4f} s, loss {loss:.4f}")

    median = statistics.median(times)
    print(f"RESULT pytorch-eager {config.model_type} parameters={parameters} dtype=fp32 batch={args.batch} "
          f"sequence={args.sequence} threads={torch.get_num_threads()} adamw={kind} torch={torch.__version__} "
          f"steps={args.steps} min={min(times):.4f}s max={max(times):.4f}s step={median:.4f}s "
          f"tokens/s={args.batch * args.sequence / median:.0f} loss={loss:.4f}")


if __name__ == "__main__":
    main()
