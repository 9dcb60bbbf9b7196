#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
# Writes what transformers makes of conversations: ids, and which of them are of an answer, found by
# the offsets that its tokenizers give. Two small tokenizers are trained here (byte-level and Metaspace
# BPE) and written next to the cases. Needs transformers and tokenizers.
import json
import pathlib
import random

import tokenizers
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
TEMPLATES = ROOT / "tests/model/template/cases"
FAMILIES = ["llama2", "llama3", "llama3.1", "qwen2.5", "qwen3", "mistral-v1", "mistral-v3", "smollm2", "phi3",
            "chatml", "gemma"]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
           "<|end|>", "<|user|>", "<|assistant|>", "<start_of_turn>", "<end_of_turn>"]
TEXT = (ROOT / "examples/quickstart/corpus.txt").read_text(encoding="utf-8", errors="ignore")[:100000]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXT.split("\n") + ["\n\n", "\n\n\n"] * 500, trainers.BpeTrainer(
        vocab_size=520, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False))
    return tokenizer


def metaspace():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    fallback = ["<0x%02X>" % i for i in range(256)]
    tokenizer.train_from_iterator(TEXT.split("\n"), trainers.BpeTrainer(
        vocab_size=560, special_tokens=["<unk>", "<s>", "</s>"] + fallback, show_progress=False))
    text = json.loads(tokenizer.to_str())  # the bytes are plain tokens
    text["added_tokens"] = [a for a in text["added_tokens"] if a["content"] not in fallback]
    return Tokenizer.from_str(json.dumps(text))


def conversation(rng):
    words = TEXT.split()

    def say():
        text = " ".join(rng.choices(words, k=rng.randint(1, 6)))
        return rng.choice(["", "\n", "\n\n", " ", "  ", "é "]) + text + rng.choice(["", "\n", "!", "\n\n", " "])

    return [{"role": role, "content": say()} for _ in range(rng.randint(1, 3)) for role in ("user", "assistant")]


def answers(tokenizer, template, messages, whole):
    """Where answers lie in the whole text: behind their prompt, up to where the next turn begins."""
    def render(count, prompt=False):
        return tokenizer.apply_chat_template(messages[:count], chat_template=template, tokenize=False,
                                             add_generation_prompt=prompt)

    for k, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        start, upto = len(render(k, True)), render(k + 1)
        assert whole.startswith(render(k, True))
        if k + 1 == len(messages) or whole.startswith(upto):
            end = len(upto)
        elif upto.endswith("</s>") and whole.startswith(upto[:-4]):
            end = len(upto) - 4
        else:  # Qwen3 leaves the thinking of earlier answers out
            end = whole.index("<|im_end|>\n", start) + len("<|im_end|>\n")
        yield start, end


def make_case(tokenizer, family, messages):
    template = (TEMPLATES / family / "template.jinja").read_text(encoding="utf-8")
    whole = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    spans = list(answers(tokenizer, template, messages, whole))
    mask = [int(any(a < end and b > start for start, end in spans)) for a, b in encoded["offset_mapping"]]
    return {"template": family, "messages": messages, "ids": encoded["input_ids"], "mask": mask}


def main():
    rng = random.Random(7)
    for name, tokenizer in (("byte-level", byte_level()), ("metaspace", metaspace())):
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        config = {"bos_token": "<s>", "eos_token": "</s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **config)
        cases = [make_case(fast, family, conversation(rng)) for family in FAMILIES for _ in range(4)]
        versions = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
        lines = ",\n  ".join(json.dumps(case, ensure_ascii=False) for case in cases)
        (folder / "cases.json").write_text('{"made with": %s,\n "cases": [\n  %s\n ]}\n' % (json.dumps(versions), lines),
                                           encoding="utf-8")


if __name__ == "__main__":
    main()
