# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes unicode_table.h: what the tokenizers must know of each code point, as ranges, and
unicode_new.h: the categories of what Unicode 15 and 16 added, for an older PCRE2.

Needs Python 3.11 (whose unicodedata is Unicode 14), the module unicodedata2 (whose version is
that of Unicode; now 16.0.0) and the package tokenizers, which is asked for what its normal
forms, of an older Unicode, leave alone."""
import pathlib
import unicodedata

import unicodedata2 as ucd
from tokenizers import normalizers, pre_tokenizers

LETTER, NUMBER, SPACE, PUNCTUATION, MARK, WORD, RESTLESS, UNFORMED = (1 << i for i in range(8))
SPLIT = pre_tokenizers.Punctuation("removed")
NFD, NFKD, STRIP = normalizers.NFD(), normalizers.NFKD(), normalizers.StripAccents()
SPACES = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
          0x205F, 0x3000}
CIRCLED = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A),
           *range(0x1F170, 0x1F18A)}  # alphabetic without being letters
JOINERS = {0x200C, 0x200D}


def points():
    return (c for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def is_unformed(c):
    """Whether the reference does not know the code point's decomposition or class."""
    text = chr(c)
    if ucd.decomposition(text):
        return NFKD.normalize_str(text) != ucd.normalize("NFKD", text)
    marks = "a\u0345" + text
    return 0 < ucd.combining(text) < 240 and NFD.normalize_str(marks) != ucd.normalize("NFD", marks)


def second_of_pairs():
    """Code points that may compose with the one before them."""
    found = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
    for c in points():
        if is_unformed(c):
            continue
        parts = ucd.decomposition(chr(c)).split()
        if len(parts) == 2 and parts[0][0] != "<" and ucd.normalize("NFC", chr(c)) == chr(c):
            found.add(int(parts[1], 16))
    return found


def flags_of(c, seconds):
    text, category = chr(c), ucd.category(chr(c))
    flags = LETTER * (category[0] == "L") | NUMBER * (category[0] == "N") | SPACE * (c in SPACES)
    flags |= PUNCTUATION * (len(SPLIT.pre_tokenize_str(f"a{chr(c)}b")) > 1) | MARK * (STRIP.normalize_str(chr(c)) == "")
    word = category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in CIRCLED or c in JOINERS
    flags |= WORD * word
    restless = ucd.combining(text) or c in seconds or ucd.normalize("NFC", text) != text
    return flags | (UNFORMED if is_unformed(c) else RESTLESS * bool(restless))


def join(values):
    """Ranges [first, last, value] of the points that have a value."""
    ranges = []
    for c, value in values:
        if value and ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == value:
            ranges[-1][1] = c
        elif value:
            ranges.append([c, c, value])
    return ranges


def write(name, title, ranges):
    lines = ["/* SPDX-License-Identifier: LGPL-2.1-or-later */", f"/* {title} Made by make_unicode_table.py. */"]
    line = ""
    for first, last, value in ranges:
        piece = f"{{0x{first:x}, 0x{last:x}, {value}}},"
        if len(line) + len(piece) > 95:
            lines.append(line.rstrip())
            line = ""
        line += piece + " "
    lines.append(line.rstrip())
    pathlib.Path(__file__).with_name(name).write_text("\n".join(lines) + "\n", encoding="ascii")


def new_category(c):
    category = ucd.category(chr(c))
    return f'"{category}"' if category != "Cn" and unicodedata.category(chr(c)) == "Cn" else ""


def main():
    assert unicodedata.unidata_version == "14.0.0", "another Python: see above"
    seconds = second_of_pairs()
    write("unicode_table.h", f"Unicode {ucd.unidata_version}: first, last, flags (unicode.h).",
          join((c, flags_of(c, seconds)) for c in points()))
    write("unicode_new.h", f"New from Unicode 15 to {ucd.unidata_version}: first, last, category.",
          join((c, new_category(c)) for c in points()))


main()
