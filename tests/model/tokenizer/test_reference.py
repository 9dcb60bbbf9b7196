# SPDX-License-Identifier: LGPL-2.1-or-later
# labels: python slow    timeout: 900
"""slidedp tokenize against the Python package `tokenizers`: the ids of 12,000 lines in many
scripts, and the text that they give back, must be the same for tokenizers set up as those of
well-known models (reference_tokenizers.py). Prints how many differ, and MB/s."""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

try:
    import gguf  # noqa: F401
    import reference_tokenizers
    from tokenizers import Tokenizer
except ImportError as error:
    print(f"skipped: {error}; cmake/setup.sh --tests installs what is missing", file=sys.stderr)
    sys.exit(77)

SCRIPTS = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x590, 0x600),
           (0x600, 0x700), (0x900, 0x980), (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2000),
           (0x2000, 0x2070), (0x2070, 0x2200), (0x2460, 0x2500), (0x3000, 0x3100), (0x3400, 0x3500),
           (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0xFB50), (0xFE00, 0xFF00), (0xFF00, 0xFFF0),
           (0x1D400, 0x1D800), (0x1F000, 0x1FB00), (0x20000, 0x20100), (0x10D40, 0x10D60), (0x2EBF0, 0x2EC00)]
SPACES = [" ", "  ", "   ", "\t", "\r", "\r\n", "\v", "\f", "\x85", "\xa0", "\u1680", "\u180e", "\u2003",
          "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\x1c", "      "]
PIECES = ["'s", "'S", "'\u017f", "'re", "'Ll", "'VE", "''d", "<|begin|>", "<|im_start|>user", "<|im_end|>",
          "<tool>", " <tool> ", "<s>", "</s>", "<unk>", "<left>", "  <left>", "<right>  ", "word", "words",
          " word ", "Day", "day", "▁", "▁▁", "x▁", "<0x41>", "<0xE2>", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "e\u0301",
          "\u0323\u0301q", "\u1100\u1161\u11a8", "ﬁ", "ǅ", "İ", "ẞ", "Å", "½", "٣٤٥", "१२३", "Ⅷ", "²", "x²",
          "...", "?!", "--", "://", "\\n", "{}", "]]", "#", "##", "''", "\"", "“q”", "a\u0300\u0316\u0300",
          "<|endoftext|>", "def f(x):", "return", "http://a.b/c?d=e&f", "1,234.56", "1234567890123"]


# What the translation of expressions must get right, each as the pattern of a Split.
PATTERNS = [r"\w+", r"\W+", r"\d{2}", r"\D+", r"[^\S\n]+", r"\h+", r"\H", r"\p{^L}+", r"\P{N}+", r"(?i:trabe|k|ω)",
            r"(?i)word|é", r"[\p{Han}\p{Hiragana}]+", r"\p{Cyrillic}+", r"^.", r".$", r"(?<=a)b|(?<!\d)\d+", r"a{,2}b",
            r"a{2}b?", r"[\]\-a\[]+", r"\u3042|\x{e9}|\x41", r"(?>a+)b?", r"\s*\z", r"(o|ou)n*?", r"\p{Lu}\p{Ll}*|[\p{Lt}\p{Lm}]",
            r"[\w\s]+", r"[\d.,]+", r"[^\w\s]+", r"\p{M}+", r"[\P{L}]", r"[\D]", r"\p{Alphabetic}+", r"\p{Emoji}", r"a*",
            r"\p{Letter}+|\p{Punctuation}", r"\\|\/|\'|\{|}|]", r"x++|y?+|z*+", r"\t|\v|\f|\e|\a"]


def word(rng):
    low, high = rng.choice(SCRIPTS)
    return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 9)))


def line(rng, sources):
    kind = rng.randrange(10)
    if kind < 3:
        return rng.choice(sources)
    if kind == 3:
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 200)))
    if kind == 4:
        return "".join(rng.choice(SPACES) for _ in range(rng.randint(0, 12)))
    if kind == 5:
        return "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 12)))
    if kind == 6:
        return "".join(chr(rng.choice([c for c in (rng.randrange(1, 0x110000),) if not 0xD800 <= c < 0xE000]
                                      or [65])) for _ in range(rng.randint(1, 20)))
    parts = []
    for _ in range(rng.randint(1, 20)):
        parts.append(rng.choice((word, lambda r: r.choice(PIECES), lambda r: r.choice(SPACES),
                                 lambda r: r.choice(reference_tokenizers.WORDS)))(rng))
    return rng.choice(("", " ")).join(parts)


def broken(rng, text):
    """Bytes that are mostly no UTF-8."""
    data = bytearray(text.encode())
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        data[at:at + rng.randint(0, 2)] = rng.choice(
            (b"\0", b"\xff", b"\xc0\xaf", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\x80", b"\xf4\x90\x80\x80",
             b"\xe2\x28\xa1", bytes([rng.randrange(128, 256)])))
    return bytes(data).replace(b"\n", b" ")


def make_lines(count):
    rng = random.Random(7)
    sources = [text for text in reference_tokenizers.corpus(400_000) if text.strip()]
    texts = [line(rng, sources) for _ in range(count)]
    texts += ["", " ", "\n", "a", "x" * 5000, " " * 3000, "\u0301" * 2000, "ab" * 3000, "\n\n \n  x"]
    raw = [broken(rng, line(rng, sources)) for _ in range(count // 6)]
    return texts, raw


def run(*arguments):
    result = subprocess.run([os.environ["SLIDEDP"], "tokenize", *map(str, arguments)],
                            capture_output=True, check=False)
    if result.returncode != 0:
        sys.exit(f"slidedp tokenize {arguments}: {result.returncode}: {result.stderr.decode()}")
    return result


def ids_of(path, tokenizer, *options):
    out = run(path, "--tokenizer", tokenizer, "--print", *options).stdout.decode()
    return [[int(i) for i in row.split()] for row in out.split("\n")[:-1]]


def count_differing(name, wanted, got, show):
    differing = 0
    if len(wanted) != len(got):
        print(f"{name}: {len(got)} results, wanted {len(wanted)}")
        return max(len(wanted), len(got))
    for i, (a, b) in enumerate(zip(wanted, got)):
        if a != b:
            differing += 1
            if differing <= 3:
                print(f"{name}: differs: {show(i)!r:.300}\n    wanted {a!r:.200}\n    got    {b!r:.200}")
    return differing


def check(name, path, texts, raw, folder):
    tokenizer = Tokenizer.from_file(str(path))
    inputs = texts + [data.decode("utf-8", "replace") for data in raw]
    wanted = [e.ids for e in tokenizer.encode_batch(inputs)]
    got = ids_of(folder / "texts.jsonl", path) + ids_of(folder / "raw.txt", path, "--format", "lines")
    bad = count_differing(name, wanted, got, lambda i: inputs[i])
    (folder / "ids.txt").write_text("".join(" ".join(map(str, ids)) + "\n" for ids in wanted))
    out = run(folder / "ids.txt", "--tokenizer", path, "--format", "ids").stdout.decode()
    decoded = [json.loads(row) for row in out.split("\n")[:-1]]
    bad_text = count_differing(name + " decoded", tokenizer.decode_batch(wanted, skip_special_tokens=False),
                               decoded, lambda i: inputs[i])
    print(f"{name}: {len(inputs)} lines, {bad} differing; decoded: {bad_text} differing; {speed(path, tokenizer, folder)}")
    return bad + bad_text


def check_patterns(path, texts, folder):
    """The pieces of a text show in its ids, which depend on what can be merged."""
    data = json.loads(path.read_text(encoding="utf-8"))
    texts = texts[-3000:]
    bad = 0
    (folder / "some.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    for pattern in PATTERNS:
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}]}
        (folder / "pattern.json").write_text(json.dumps(data), encoding="utf-8")
        tokenizer = Tokenizer.from_file(str(folder / "pattern.json"))
        wanted = [e.ids for e in tokenizer.encode_batch(texts)]
        bad += count_differing(pattern, wanted, ids_of(folder / "some.jsonl", folder / "pattern.json"),
                               lambda i: texts[i])
    print(f"{len(PATTERNS)} expressions, {len(texts)} lines each, {bad} differing")
    return bad


def speed(path, tokenizer, folder):
    message = run(folder / "speed.txt", "--tokenizer", path, "--output", folder / "speed.bin").stderr.decode()
    rate = re.search(r"([0-9.]+) MB/s", message).group(1)
    text = (folder / "speed.txt").read_text(encoding="utf-8")[:2_000_000]
    start = time.perf_counter()
    tokenizer.encode(text)
    return f"{rate} MB/s (reference {len(text.encode()) / 1e6 / (time.perf_counter() - start):.1f})"


def main():
    texts, raw = make_lines(12_000)
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        (folder / "raw.txt").write_bytes(b"".join(data + b"\n" for data in raw))
        (folder / "speed.txt").write_text("".join(reference_tokenizers.corpus(12_000_000)), encoding="utf-8")
        for kind, path in reference_tokenizers.build(folder, sys.argv[1:] or None).items():
            bad += check(kind, path, texts, raw, folder)
            if kind == "gpt2":
                bad += check_patterns(path, texts, folder)
    print(f"{bad} differing in all")
    return 1 if bad else 0


sys.exit(main())
