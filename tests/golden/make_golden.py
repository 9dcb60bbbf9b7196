#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Golden values: tiny models trained by PyTorch and transformers on the CPU.

    make_golden.py [NAME ...]           write the folders NAME/ beside this file
    make_golden.py --check [NAME ...]   recompute, and compare with what is stored

README.md says what the files hold. A second implementation below (float64, no
transformers code) checks that transformers computes what each config says;
golden.json records how far PyTorch's fp32 is from it.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import zlib

import numpy as np
import safetensors
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

SEED = 20240229
BATCHES, ROWS, LENGTH = 4, 2, 48  # S, B, L
MICRO_BATCHES = 2                 # a step
STEPS, STEPS_WEIGHTS = 30, 5
OPTIMIZER = {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
MATRIX_STD, BIAS_STD, NORM_STD = 0.08, 0.1, 0.1

COMMON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 256, "pad_token_id": None}

# config: as AutoConfig takes it. dtype: of the stored weights. shard: max_shard_size.
MODELS = {
    "llama": {"type": "llama", "dtype": "float32", "config": {
        "vocab_size": 211, "intermediate_size": 176, "head_dim": 16, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 320, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 40}}},
    "llama-tied": {"type": "llama", "dtype": "float32", "config": {
        "vocab_size": 199, "intermediate_size": 128, "num_key_value_heads": 4, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}},
    "qwen2": {"type": "qwen2", "dtype": "bfloat16", "config": {
        "vocab_size": 251, "intermediate_size": 128, "num_hidden_layers": 3, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}},
    "qwen3": {"type": "qwen3", "dtype": "float32", "config": {
        "vocab_size": 241, "intermediate_size": 128, "head_dim": 32, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}},
    "mistral": {"type": "mistral", "dtype": "float32", "shard": "150KB", "config": {
        "vocab_size": 203, "intermediate_size": 128, "num_key_value_heads": 1, "head_dim": 32, "rms_norm_eps": 1e-5,
        "sliding_window": 11, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}},
}


def random_state(*key):
    return np.random.RandomState(zlib.crc32("/".join(map(str, (SEED, *key))).encode()))


# ---- inputs ----------------------------------------------------------------------------------------------------

def make_batches(name, vocab):
    """Token ids from a noisy rule, so that there is something to learn, and targets with -1 in several places."""
    rng = random_state(name, "batches")
    ids = rng.randint(0, vocab, size=(BATCHES, ROWS, LENGTH + 1))
    follow = rng.random_sample(ids.shape) < 0.7
    for t in range(1, LENGTH + 1):
        ids[:, :, t] = np.where(follow[:, :, t], (3 * ids[:, :, t - 1] + 7) % vocab, ids[:, :, t])
    tokens, targets = ids[:, :, :-1].copy(), ids[:, :, 1:].copy()
    targets[0, 0, :5] = -1            # the start of a row
    targets[0, 1, -3:] = -1           # the end of a row
    targets[0, 1, 20] = -1            # one in the middle
    targets[1, :, :29] = -1           # most of a batch: the mean of means would be wrong
    targets[2, 0, 10:40:3] = -1       # scattered
    targets[3, 1, :] = -1             # a whole row
    return torch.from_numpy(tokens.astype(np.int32)), torch.from_numpy(targets.astype(np.int32))


def make_model(name, folder):
    """Writes folder as save_pretrained does (without generation_config.json)."""
    spec = MODELS[name]
    config = AutoConfig.for_model(spec["type"], **{**COMMON, **spec["config"]})
    dtype = getattr(torch, spec["dtype"])
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for key, p in model.named_parameters():
            x = random_state(name, key).standard_normal(tuple(p.shape))
            if p.ndim >= 2:
                x = MATRIX_STD * x
            elif key.endswith(".bias"):
                x = BIAS_STD * x
            else:
                x = 1.0 + NORM_STD * x
            p.copy_(torch.from_numpy(x).to(torch.float32).to(dtype))
    model.save_pretrained(folder, max_shard_size=spec.get("shard", "1GB"))
    generation = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)


def config_v4(config):
    """The same config in the form of transformers before version 5, which most published checkpoints have."""
    config = dict(config)
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.57.6"
    if config.get("use_sliding_window") is False:
        config["sliding_window"] = 8  # published Qwen configs have a number here, which does not apply
    config.pop("layer_types", None)
    config.pop("pad_token_id", None)
    return dict(sorted(config.items()))


# ---- the second implementation ------------------------------------------------------------------------------------

def reference_logits(weights, c, tokens):
    """Logits in float64 from weights by HF name and a config.json, for all four families."""
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    dim = c.get("head_dim") or c["hidden_size"] // heads
    rope, eps = c["rope_parameters"], c["rms_norm_eps"]
    window = c.get("sliding_window") if c.get("use_sliding_window", True) else None
    b, n = tokens.shape

    frequencies = []
    for i in range(dim // 2):
        f = rope["rope_theta"] ** (-2.0 * i / dim)
        if rope["rope_type"] == "llama3":
            original, low, high = (rope[k] for k in
                                   ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
            turns = original * f / (2 * math.pi)  # full turns over the original context
            if turns < low:
                f = f / rope["factor"]
            elif turns <= high:
                s = (turns - low) / (high - low)
                f = (1 - s) * f / rope["factor"] + s * f
        frequencies.append(f)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    rotation = torch.polar(torch.ones_like(angle), angle)[:, None, :]

    def norm(x, key):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weights[key]

    def linear(x, key):
        y = x @ weights[key + ".weight"].T
        return y + weights[key + ".bias"] if key + ".bias" in weights else y

    def rotate(x):  # element i pairs with element i + dim / 2
        z = torch.complex(x[..., : dim // 2], x[..., dim // 2:]) * rotation
        return torch.cat([z.real, z.imag], -1)

    query, key_ = torch.arange(n)[:, None], torch.arange(n)[None, :]
    visible = key_ <= query
    if window:
        visible = visible & (query - key_ < window)  # window keys, the query's own included

    x = weights["model.embed_tokens.weight"][tokens.long()]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q = linear(h, p + "self_attn.q_proj").view(b, n, heads, dim)
        k = linear(h, p + "self_attn.k_proj").view(b, n, kv, dim)
        v = linear(h, p + "self_attn.v_proj").view(b, n, kv, dim)
        if p + "self_attn.q_norm.weight" in weights:
            q, k = norm(q, p + "self_attn.q_norm.weight"), norm(k, p + "self_attn.k_norm.weight")
        q = rotate(q).view(b, n, kv, heads // kv, dim)
        k = rotate(k)
        scores = torch.einsum("bigrd,bjgd->bgrij", q, k) / math.sqrt(dim)
        scores = scores.masked_fill(~visible, -math.inf)
        out = torch.einsum("bgrij,bjgd->bigrd", torch.softmax(scores, -1), v)
        x = x + linear(out.reshape(b, n, heads * dim), p + "self_attn.o_proj")
        h = norm(x, p + "post_attention_layernorm.weight")
        gate = linear(h, p + "mlp.gate_proj")
        x = x + linear(gate * torch.sigmoid(gate) * linear(h, p + "mlp.up_proj"), p + "mlp.down_proj")
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return norm(x, "model.norm.weight") @ head.T


# ---- training ----------------------------------------------------------------------------------------------------

def summed_loss(logits, targets):
    """Summed cross-entropy over the valid targets, in fp32 at least (what is differentiated)."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), ignore_index=-1, reduction="sum")


def exact_sum(logits, targets):
    return summed_loss(logits.detach().double(), targets).item()


def valid(targets):
    return int((targets >= 0).sum())


def step_batches(step):  # from 0
    return [(step * MICRO_BATCHES + i) % BATCHES for i in range(MICRO_BATCHES)]


def optimizer(params):
    groups = [{"params": [p for p in params if p.ndim >= 2], "weight_decay": OPTIMIZER["weight_decay"]},
              {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]), eps=OPTIMIZER["eps"],
                             foreach=False)


class Run:
    """One way to compute: logits(tokens) from compute weights, AdamW on masters (the same tensors unless bf16)."""

    def __init__(self, masters, compute, logits):
        self.masters, self.compute, self.logits = masters, compute, logits

    def gradients(self, tokens, targets, denominator):
        """Adds to the masters' gradients; returns the logits."""
        for p in self.compute.values():
            p.grad = None
        logits = self.logits(tokens)
        (summed_loss(logits, targets) / denominator).backward()
        for key, p in self.compute.items():
            m, g = self.masters[key], p.grad.to(self.masters[key].dtype)
            m.sum_ = g if m.sum_ is None else m.sum_ + g
        return logits.detach()

    def clear(self):
        for m in self.masters.values():
            m.sum_ = None

    def train(self, tokens, targets, after=None):
        """All steps; returns the losses. after(step) is called after each step, counted from 1."""
        adam = optimizer(list(self.masters.values()))
        losses = []
        for step in range(STEPS):
            batches = step_batches(step)
            denominator = sum(valid(targets[i]) for i in batches)
            self.clear()
            total = sum(exact_sum(self.gradients(tokens[i], targets[i], denominator), targets[i]) for i in batches)
            losses.append(total / denominator)
            for m in self.masters.values():
                m.grad = m.sum_
            adam.step()
            with torch.no_grad():
                for key, p in self.compute.items():
                    if p is not self.masters[key]:
                        p.copy_(self.masters[key])
            if after:
                after(step + 1)
        return losses


def transformers_run(folder, dtype, attention):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention).eval()
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    compute = dict(model.named_parameters())
    masters = compute
    if dtype != torch.float32:  # the stored weights, not their bf16 rounding
        exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        masters = dict(exact.named_parameters())
    run = Run(masters, compute, lambda tokens: model(input_ids=tokens.long(), use_cache=False).logits)
    run.model = model
    return run


def reference_run(folder, config):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = {k: p.detach().double().requires_grad_() for k, p in model.named_parameters()}
    return Run(weights, weights, lambda tokens: reference_logits(weights, config, tokens))


def relative(a, b, scale=None):
    """||a - b|| / ||scale or b||"""
    return float((a.double() - b.double()).norm() / (b if scale is None else scale).double().norm())


def measure(run, tokens, targets):
    """Logits, loss and gradients of batch 0, then the weights after 5 steps and the losses of all steps."""
    initial = {k: m.detach().clone() for k, m in run.masters.items()}
    run.clear()
    logits = run.gradients(tokens[0], targets[0], valid(targets[0]))
    r = {"initial": initial, "logits": logits, "loss": exact_sum(logits, targets[0]) / valid(targets[0]),
         "grad": {k: m.sum_.clone() for k, m in run.masters.items()}}

    def after(step):
        if step == STEPS_WEIGHTS:
            r["after"] = {k: m.detach().clone() for k, m in run.masters.items()}

    r["losses"] = run.train(tokens, targets, after)
    return r


def make_golden(name, folder):
    os.makedirs(folder)
    model_folder = os.path.join(folder, "model")
    make_model(name, model_folder)
    with open(os.path.join(model_folder, "config.json")) as f:
        config = json.load(f)
    old = config_v4(config)
    with open(os.path.join(folder, "config-v4.json"), "w") as f:
        json.dump(old, f, indent=2)
        f.write("\n")
    again = AutoConfig.for_model(**old).to_dict()
    for key in ("rope_parameters", "dtype", "sliding_window", *COMMON, *MODELS[name]["config"]):
        assert again.get(key) == config.get(key), (key, again.get(key), config.get(key))

    tokens, targets = make_batches(name, config["vocab_size"])
    fp32 = measure(transformers_run(model_folder, torch.float32, "eager"), tokens, targets)
    fp64 = measure(reference_run(model_folder, config), tokens, targets)
    bf16 = measure(transformers_run(model_folder, torch.bfloat16, "sdpa"), tokens, targets)

    change = {k: fp64["after"][k] - fp64["initial"][k] for k in fp64["after"]}
    error = {"logits": relative(fp32["logits"], fp64["logits"]), "loss": abs(fp32["loss"] - fp64["loss"]),
             "losses30": max(abs(a - b) for a, b in zip(fp32["losses"], fp64["losses"])),
             "grad": {k: relative(g, fp64["grad"][k]) for k, g in fp32["grad"].items()},
             "after5": {k: relative(w, fp64["after"][k], change[k]) for k, w in fp32["after"].items()}}

    out = {"batch.tokens": tokens, "batch.targets": targets, "logits": fp32["logits"],
           "loss": torch.tensor([fp32["loss"]], dtype=torch.float64),
           "losses30": torch.tensor(fp32["losses"], dtype=torch.float64),
           "bf16.losses30": torch.tensor(bf16["losses"], dtype=torch.float64),
           "bf16.logits_error": torch.tensor([relative(bf16["logits"], fp32["logits"])])}
    for k, g in fp32["grad"].items():
        out["grad." + k] = g
        out["after5." + k] = fp32["after"][k]
        out["bf16.grad_error." + k] = torch.tensor([relative(bf16["grad"][k], g)])
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(folder, "golden.safetensors"))

    facts = {
        "model": name, "family": MODELS[name]["type"], "weights_dtype": MODELS[name]["dtype"], "seed": SEED,
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__,
                     "transformers": transformers.__version__, "safetensors": safetensors.__version__,
                     "numpy": np.__version__},
        "batches": BATCHES, "rows": ROWS, "length": LENGTH, "valid_targets": [valid(t) for t in targets],
        "steps": STEPS, "after_steps": STEPS_WEIGHTS, "micro_batches_per_step": MICRO_BATCHES,
        "step_batches": [step_batches(s) for s in range(BATCHES // MICRO_BATCHES)],
        "optimizer": {**OPTIMIZER, "schedule": "constant", "clip_norm": None,
                      "weight_decay_on": "tensors of two dimensions"},
        "attention": {"fp32": "eager", "bf16": "sdpa"},
        "parameters": {k: list(p.shape) for k, p in fp32["initial"].items()},
        "loss": fp32["loss"], "loss_first_step": fp32["losses"][0], "loss_last_step": fp32["losses"][-1],
        "bf16_loss_last_step": bf16["losses"][-1],
        "fp32_error": error,
    }
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(facts, f, indent=1)
        f.write("\n")

    # What a golden value must satisfy before anyone compares with it.
    assert all(torch.isfinite(v).all() for v in out.values() if v.is_floating_point())
    assert all(g.norm() > 1e-4 for g in fp32["grad"].values())
    assert fp32["losses"][-1] < 0.8 * fp32["losses"][0]
    assert error["logits"] < 1e-5 and error["loss"] < 1e-6 and error["losses30"] < 1e-4, error
    assert max(error["grad"].values()) < 1e-4 and max(error["after5"].values()) < 1e-2, error
    return facts


# ---- check -------------------------------------------------------------------------------------------------------

def folder_weights(folder):
    weights = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".safetensors"):
            weights.update(load_file(os.path.join(folder, f)))
    return weights


def check(name, stored, made):
    """Prints the largest difference of each kind of value; returns the number of kinds over their limit."""
    bad = 0
    a, b = folder_weights(os.path.join(stored, "model")), folder_weights(os.path.join(made, "model"))
    same = a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)
    for f in ("model/config.json", "config-v4.json"):
        x, y = (json.load(open(os.path.join(d, f))) for d in (stored, made))
        x["transformers_version"] = y["transformers_version"]
        same = same and x == y
    print(f"{name}: model {'equal' if same else 'DIFFERENT'}")
    bad += not same

    x, y = (load_file(os.path.join(d, "golden.safetensors")) for d in (stored, made))
    if x.keys() != y.keys() or any(x[k].shape != y[k].shape or x[k].dtype != y[k].dtype for k in x):
        print(f"{name}: tensor names, shapes or dtypes DIFFERENT")
        return bad + 1
    # kind: limit on the relative norm of the difference; after5 relative to the change of the weights.
    limits = {"batch": 0.0, "logits": 1e-5, "loss": 1e-6, "losses30": 1e-5, "grad": 1e-4, "after5": 1e-2,
              "bf16.losses30": 1e-2, "bf16.logits_error": 0.5, "bf16.grad_error": 0.5}
    for kind, limit in limits.items():
        worst, largest, where = 0.0, 0.0, "-"
        for k in x:
            if k != kind and not k.startswith(kind + "."):
                continue
            scale = x[k] - a[k[7:]].float() if kind == "after5" else x[k]
            d, m = relative(y[k], x[k], scale), float((y[k].double() - x[k].double()).abs().max())
            if not d <= worst:
                worst, where = d, k
            largest = max(largest, m)
        ok = worst <= limit
        print(f"{name}: {kind:18} max diff {largest:.2e}, relative {worst:.2e} (limit {limit:.0e}) at {where}"
              f"{'' if ok else '  OVER'}")
        bad += not ok
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the stored values, write nothing")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of " + " ".join(MODELS) + "; default: all")
    args = parser.parse_args()
    for name in args.names:
        if name not in MODELS:
            parser.error(f"no model {name}; there are {' '.join(MODELS)}")

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    here = os.path.dirname(os.path.abspath(__file__))
    bad = 0
    for name in args.names or MODELS:
        stored = os.path.join(here, name)
        with tempfile.TemporaryDirectory() as scratch:
            made = os.path.join(scratch, name)
            facts = make_golden(name, made)
            if args.check:
                bad += check(name, stored, made)
                continue
            shutil.rmtree(stored, ignore_errors=True)
            shutil.copytree(made, stored)
            for folder, _, files in os.walk(stored):
                for f in files:
                    os.chmod(os.path.join(folder, f), 0o644)  # save_file leaves 0600
            e = facts["fp32_error"]
            print(f"{name}: loss {facts['loss_first_step']:.4f} -> {facts['loss_last_step']:.4f} "
                  f"(bf16 {facts['bf16_loss_last_step']:.4f}); fp32 error: logits {e['logits']:.1e}, "
                  f"grad {max(e['grad'].values()):.1e}, after5 {max(e['after5'].values()):.1e}, "
                  f"losses30 {e['losses30']:.1e}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
