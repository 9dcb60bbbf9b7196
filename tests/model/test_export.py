# SPDX-License-Identifier: LGPL-2.1-or-later
# labels: python slow    timeout: 1200
"""A real model there and back: SmolLM2-135M-Instruct from its GGUF file, two steps of training, export. transformers loads
both folders, and its logits are those of `slidedp eval`; the tokenizer that came along gives the same ids."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import gguf  # noqa: F401
    import torch  # noqa: F401
    from transformers import AutoTokenizer
except ImportError as error:
    print(f"skipped: {error}; cmake/setup.sh --tests installs what is missing", file=sys.stderr)
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "smollm2"
TURNS = [("What is 2 + 2?", "It is 4."), ("Name a colour.", "Blue, or 青 in Chinese."), ("Say hi", "Hi! 👋"),
         ("Where is Debian from?", "It began in 1993, with Ian Murdock.")]


def run(*command):
    subprocess.run([str(c) for c in command], check=True)


def write_job(folder):
    lines = [json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}) for q, a in TURNS]
    (folder / "chat.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    job = {"model": {"checkpoint": "base"},
           "data": {"format": "messages", "train": ["chat.jsonl"], "validation": ["chat.jsonl"], "packing": "pack",
                    "sequence_length": 128},
           "train": {"steps": 2, "tokens_per_step": 128, "optimizer": {"name": "adamw", "lr": 1e-4}},
           "runtime": {"gpus": 0}, "output": {"dir": str(folder / "out"), "export_dtype": "fp32"}}
    (folder / "job.json").write_text(json.dumps(job))


def validation_losses(folder):
    metrics = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return [m["validation_loss"] for m in metrics if "validation_loss" in m]


def main():
    slidedp = os.environ.get("SLIDEDP", ROOT / "build" / "slidedp")
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp)
        run(sys.executable, EXAMPLE / "make_model.py", folder / "base")
        run(sys.executable, EXAMPLE / "check.py", slidedp, folder / "base")
        write_job(folder)
        run(slidedp, "run", folder / "job.json", "--quiet")
        run(sys.executable, EXAMPLE / "check.py", slidedp, folder / "out" / "model")
        losses = validation_losses(folder)
        assert len(losses) == 2 and losses[1] < losses[0], losses
        texts = [f"<|im_start|>user\n{q}<|im_end|> {a} 123456" for q, a in TURNS]
        before, after = (AutoTokenizer.from_pretrained(folder / f) for f in ("base", "out/model"))
        assert before(texts)["input_ids"] == after(texts)["input_ids"]
        assert before.chat_template == after.chat_template
        print(f"loss on the four conversations: {losses[0]:.4f}, after two steps {losses[1]:.4f}")


main()
