# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes corpus/tokenizer/: a small tokenizer.json of each kind with a text behind it."""
import json
import pathlib

META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
SPACES = r"\s+(?!\S)|\p{L}+|[^\s\p{N}]{1,3}|(?i:'s)|[^\r\n\d]?\w+|^\S|\x{3b1}$|\p{Han}|."
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def byte_model(**more):
    vocab = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "Ã": 5, "Ċ": 6, "<unk>": 7, "c": 8, "abc": 9}
    return {"type": "BPE", "vocab": vocab, "merges": ["a b", ["Ġ", "ab"], ["ab", "c"]], **more}


def meta_model(**more):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x41>": 3, "<0xE2>": 4, "<0x82>": 5, "<0xAC>": 6, "▁": 7, "a": 8,
             "b": 9, "▁a": 10, "▁ab": 11, "é": 12}
    return {"type": "BPE", "vocab": vocab, "merges": [["▁", "a"], ["▁a", "b"]], "unk_token": "<unk>",
            "byte_fallback": True, "fuse_unk": True, "ignore_merges": False, "dropout": None, **more}


def token(number, content, **more):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True, **more}


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


CASES = {
    "bytes": {"version": "1.0", "added_tokens": [token(10, "<|end|>"), token(11, "  ", special=False)],
              "normalizer": {"type": "NFC"}, "pre_tokenizer": BYTES, "decoder": {"type": "ByteLevel"},
              "post_processor": {"type": "RobertaProcessing", "sep": ["c", 8], "cls": ["a", 0]},
              "model": byte_model(unk_token="<unk>")},
    "splits": {"added_tokens": [token(10, "q", normalized=True, lstrip=True), token(11, "xy", rstrip=True)],
               "normalizer": sequence("normalizers", {"type": "NFKD"}, {"type": "StripAccents"},
                                      {"type": "Strip", "strip_left": True, "strip_right": True}),
               "pre_tokenizer": sequence("pretokenizers", split({"Regex": SPACES}, "Isolated"),
                                         split({"String": "a"}, "MergedWithNext"),
                                         split({"Regex": "b+"}, "Contiguous", True),
                                         {"type": "Digits", "individual_digits": True},
                                         {**BYTES, "use_regex": False}),
               "decoder": None, "model": byte_model(ignore_merges=True)},
    "llama2": {"added_tokens": [token(0, "<unk>"), token(1, "<s>"), token(2, "</s>")],
               "normalizer": sequence("normalizers", {"type": "Prepend", "prepend": "▁"},
                                      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
               "post_processor": {"type": "TemplateProcessing",
                                  "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                             {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
                                  "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
               "decoder": sequence("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                   {"type": "ByteFallback"}, {"type": "Fuse"},
                                   {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
               "model": meta_model()},
    "meta": {"added_tokens": [token(13, "day", normalized=True, single_word=True, special=False)],
             "normalizer": sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"},
                                    {"type": "Replace", "pattern": {"Regex": r"\s{2,}|b*"}, "content": ""}),
             "pre_tokenizer": sequence("pretokenizers", {"type": "WhitespaceSplit"},
                                       {"type": "Punctuation", "behavior": "MergedWithPrevious"},
                                       {"type": "CharDelimiterSplit", "delimiter": "x"},
                                       {**META, "split": True, "prepend_scheme": "always"}),
             "decoder": META, "model": meta_model(byte_fallback=False, fuse_unk=False)},
}
TEXT = "a  ab\n\tÁe\u0301\u0316 €1234 <s>q xy day Day, don'T 你好 ▁▁ab <0x41> x ﬁ\r\n".encode() + b"\xff\xe2\x82 \xf0\x9f\x98"

folder = pathlib.Path(__file__).parent / "corpus" / "tokenizer"
folder.mkdir(parents=True, exist_ok=True)
for name, case in CASES.items():
    document = json.dumps(case, ensure_ascii=False, separators=(",", ":")).encode()
    (folder / name).write_bytes(document + b"\n---\n" + TEXT)
