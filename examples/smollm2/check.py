# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holds slidedp's logits against transformers':

    python check.py SLIDEDP FOLDER [--gguf FILE]

`slidedp eval` writes the logits of FOLDER's weights on random ids; transformers computes those of the same
ids from FOLDER (or straight from the GGUF file that it was made from) in fp32. Ends with status 1 where they differ by more than TOLERANCE."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from transformers import AutoModelForCausalLM

TOLERANCE = 2e-3
SEQUENCES, LENGTH = 2, 128


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("slidedp")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--gguf", type=pathlib.Path)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        ids = np.random.default_rng(7).integers(0, 49152, SEQUENCES * LENGTH + 1).astype(np.uint32)
        ids.tofile(f"{temp}/ids.bin")
        job = {"model": {"checkpoint": str(a.folder.resolve())},
               "data": {"format": "tokens", "token_dtype": "uint32", "train": ["ids.bin"], "validation": ["ids.bin"],
                        "sequence_length": LENGTH, "shuffle": False},
               "train": {"steps": 1, "tokens_per_step": LENGTH, "optimizer": {"name": "adamw", "lr": 1e-5}},
               "runtime": {"gpus": 0}, "output": {"dir": f"{temp}/out"}}
        pathlib.Path(temp, "job.json").write_text(json.dumps(job))
        subprocess.run([a.slidedp, "eval", f"{temp}/job.json", "--logits", f"{temp}/logits.npy"], check=True)
        ours = np.load(f"{temp}/logits.npy")
    source = {"pretrained_model_name_or_path": a.folder}
    if a.gguf:
        source = {"pretrained_model_name_or_path": a.gguf.parent, "gguf_file": a.gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    if a.gguf:  # the folder holds its weights rounded
        for p in model.parameters():
            p.data = p.data.to(torch.bfloat16).float()
    with torch.no_grad():
        x = torch.from_numpy(ids[:-1].astype(np.int64).reshape(SEQUENCES, LENGTH))
        theirs = model(x).logits.numpy()
    worst = float(np.abs(ours - theirs).max())
    print(f"logits of {SEQUENCES} x {LENGTH} tokens: largest difference {worst:.2e}, largest logit {np.abs(theirs).max():.2f}")
    sys.exit(worst > TOLERANCE)


main()
