# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes an instruction file from the package descriptions of this Debian or Ubuntu machine:

    python make_data.py OUT-FOLDER [TRAINING-RECORDS]

Each record asks about a package and answers with the maintainers' own description. A package goes to train.jsonl or
held-out.jsonl by a hash of its name, so that machines with the same package lists make the same files."""
import hashlib
import json
import pathlib
import re
import subprocess
import sys

HELD_OUT = 60  # records
QUESTIONS = ("What is the Debian package {}?", "Describe the Debian package {}.", "What does the package {} in Debian do?")


def descriptions(folder):
    """The translation files of the package lists, got anew into a folder of our own: images for containers lack them."""
    lists, cache = folder / "apt" / "lists", folder / "apt" / "cache"
    for sub in (lists / "partial", cache / "archives" / "partial"):
        sub.mkdir(parents=True, exist_ok=True)
    options = ["-o", "Acquire::Languages=en", "-o", f"Dir::State::lists={lists.resolve()}",
               "-o", f"Dir::Cache={cache.resolve()}", "-o", "APT::Sandbox::User=root"]
    subprocess.run(["apt-get", "update", "-qq", *options], check=True, stdout=subprocess.DEVNULL)
    for file in sorted(lists.glob("*_i18n_Translation-en*")):
        yield subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", file], check=True, capture_output=True, text=True).stdout


def records(folder):
    for text in descriptions(folder):
        for entry in text.split("\n\n"):
            name = re.search(r"^Package: (\S+)$", entry, re.M)
            about = re.search(r"^Description-en: (.*(?:\n .*)*)", entry, re.M)
            if not name or not about:
                continue
            synopsis, *lines = about.group(1).split("\n")
            body = re.sub(r"\s+", " ", " ".join("" if line.strip() == "." else line for line in lines)).strip()
            if 80 <= len(body) <= 700:
                yield name.group(1), synopsis.strip(), body


def conversation(name, synopsis, body, digest):
    question = QUESTIONS[digest % len(QUESTIONS)].format(name)
    return {"messages": [{"role": "user", "content": question},
                         {"role": "assistant", "content": f"{name}: {synopsis}. {body}"}]}


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: make_data.py OUT-FOLDER [TRAINING-RECORDS]")
    out, wanted = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    ranked = sorted((int(hashlib.sha256(r[0].encode()).hexdigest()[:12], 16), r) for r in set(records(out)))
    if len(ranked) < 4 * HELD_OUT:
        sys.exit("make_data.py: apt found too few package descriptions; bring a JSONL file of your own")
    out.mkdir(parents=True, exist_ok=True)
    for file, part in (("held-out.jsonl", ranked[:HELD_OUT]), ("train.jsonl", ranked[HELD_OUT:HELD_OUT + wanted])):
        lines = [json.dumps(conversation(*r, digest), ensure_ascii=False) + "\n" for digest, r in part]
        (out / file).write_text("".join(lines), encoding="utf-8")
        print(f"{out / file}: {len(lines)} conversations")


main()
