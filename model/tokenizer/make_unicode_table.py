# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes unicode_table.h: what the tokenizers must know of each code point, as ranges.
Needs the module unicodedata2, whose version is that of Unicode (now 16.0.0)."""
import pathlib

import unicodedata2 as ucd

LETTER, NUMBER, SPACE, PUNCTUATION, NONSPACING, WORD, RESTLESS = (1 << i for i in range(7))
SPACES = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
          0x205F, 0x3000}
CIRCLED = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A),
           *range(0x1F170, 0x1F18A)}  # alphabetic without being letters
JOINERS = {0x200C, 0x200D}


def points():
    return (c for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def second_of_pairs():
    """Code points that may compose with the one before them."""
    found = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
    for c in points():
        parts = ucd.decomposition(chr(c)).split()
        if len(parts) == 2 and parts[0][0] != "<" and ucd.normalize("NFC", chr(c)) == chr(c):
            found.add(int(parts[1], 16))
    return found


def flags_of(c, seconds):
    text, category = chr(c), ucd.category(chr(c))
    flags = LETTER * (category[0] == "L") | NUMBER * (category[0] == "N") | SPACE * (c in SPACES)
    flags |= PUNCTUATION * (category[0] == "P") | NONSPACING * (category == "Mn")
    word = category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in CIRCLED or c in JOINERS
    flags |= WORD * word
    restless = ucd.combining(text) or c in seconds or ucd.normalize("NFC", text) != text
    return flags | RESTLESS * bool(restless)


def main():
    seconds, ranges = second_of_pairs(), []
    for c in points():
        flags = flags_of(c, seconds)
        if not flags:
            continue
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == flags:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, flags])
    lines = ["/* SPDX-License-Identifier: LGPL-2.1-or-later */",
             f"/* Unicode {ucd.unidata_version}: first, last, flags (unicode.h). "
             "Made by make_unicode_table.py. */"]
    line = ""
    for first, last, flags in ranges:
        piece = f"{{0x{first:x}, 0x{last:x}, {flags}}},"
        if len(line) + len(piece) > 95:
            lines.append(line.rstrip())
            line = ""
        line += piece + " "
    lines.append(line.rstrip())
    path = pathlib.Path(__file__).with_name("unicode_table.h")
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


main()
