#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# `slidedp tokenize`: formats, token files, messages and exit codes. SLIDEDP is the program.
set -u
program=${SLIDEDP:?set SLIDEDP to the program}
work=$(mktemp -d "${TMPDIR:-/tmp}/sdp-test-tokenize-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

# expect CODE WANTED ARGUMENT...: exit code, and all of stdout, or a part of stderr where it fails.
expect() {
    local code=$1 wanted=$2 got
    shift 2
    "$program" tokenize "$@" >.out 2>.err
    got=$?
    if [ $got -ne "$code" ] || { [ "$code" = 0 ] && [ "$(cat .out)" != "$wanted" ]; } ||
        { [ "$code" != 0 ] && ! grep -qF -- "$wanted" .err; }; then
        failures=$((failures + 1))
        printf 'slidedp tokenize %s: exit code %s (wanted %s), wanted "%s"; got\n' "$*" $got "$code" "$wanted" >&2
        cat .out .err >&2
    fi
}

# bytes FILE WANTED
bytes() {
    local got
    got=$(od -An -v -tx1 "$1" | tr -d ' \n')
    if [ "$got" != "$2" ]; then
        failures=$((failures + 1))
        printf '%s holds %s, wanted %s\n' "$1" "$got" "$2" >&2
    fi
}

mkdir folder
cat >folder/tokenizer.json <<'JSON'
{"version": "1.0", "added_tokens": [{"id": 5, "content": "<end>", "special": true, "normalized": false}],
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a", "type_id": 0}},
  {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"a": {"id": "a", "ids": [0], "tokens": ["a"]}}},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ċ": 4}, "merges": ["a b"]}}
JSON
printf 'ab a\nb' >text.txt
printf '{"text": "ab"}\n\n{"text": "b<end>", "other": 1}\n' >good.jsonl
printf '{"text": "ab"}\n{"txt": "ab"}\n' >key.jsonl
printf '{"text": "ab"}\n{"text": 5}\n' >kind.jsonl
printf '{"text": "ab"}\n{"text": "ab}\n' >syntax.jsonl
printf '0 3 5\n4\n' >ids.txt
printf '0 x\n' >bad-ids.txt
sed 's/BPE/Unigram/' folder/tokenizer.json >unigram.json

expect 0 '0 3 2 0 4 1' text.txt --tokenizer folder --print
expect 0 '3 2 0 4 1' text.txt --tokenizer folder/tokenizer.json --print --no-special
expect 0 $'0 3 2 0\n0 1' text.txt --tokenizer folder --print --format lines
expect 0 $'0 3\n0 1 5' good.jsonl --tokenizer folder --print
expect 0 $'3 5\n1 5 5' good.jsonl --tokenizer folder --print --no-special --separator '<end>'
expect 0 $'"aab<end>"\n"\\n"' ids.txt --tokenizer folder --format ids
expect 0 $'"aab"\n"\\n"' ids.txt --tokenizer folder --format ids --skip-special
expect 0 '' good.jsonl --tokenizer folder --output tokens.bin
bytes tokens.bin 00000300000001000500
expect 0 '' good.jsonl --tokenizer folder --output tokens.bin --dtype uint32 --no-special
bytes tokens.bin 030000000100000005000000
expect 0 '' good.jsonl --tokenizer folder --output tokens.npy
[ "$(head -c 6 tokens.npy | tail -c 5)" = NUMPY ] && [ "$(wc -c <tokens.npy)" = 138 ] ||
    { failures=$((failures + 1)) && echo "tokens.npy is no .npy file of 5 ids" >&2; }
grep -aqF "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }" tokens.npy ||
    { failures=$((failures + 1)) && echo "tokens.npy has another header" >&2; }

expect 2 '--tokenizer is missing' text.txt --print
expect 2 '--output or --print is missing' text.txt --tokenizer folder
expect 2 '--output and --print exclude each other' text.txt --tokenizer folder --print --output x
expect 2 'there is no --output for it' ids.txt --tokenizer folder --format ids --output x
expect 2 'the tokenizer has no token "<x>"' text.txt --tokenizer folder --print --separator '<x>'
expect 2 'did you mean' text.txt --tokenizer folder --prnt
expect 2 'unigram.json:5:12: /model/type: the model "Unigram" is not supported' text.txt --tokenizer unigram.json --print
expect 2 'key.jsonl:2: /text: is missing' key.jsonl --tokenizer folder --print
expect 2 'kind.jsonl:2: /text: is 5; must be a string' kind.jsonl --tokenizer folder --print
expect 2 'syntax.jsonl:2:' syntax.jsonl --tokenizer folder --output syntax.bin
[ ! -e syntax.bin ] && [ ! -e syntax.bin.part ] || { failures=$((failures + 1)) && echo "a file was left" >&2; }
expect 2 'bad-ids.txt:1:3: is no list of ids' bad-ids.txt --tokenizer folder --format ids
expect 1 'absent/x.bin' text.txt --tokenizer folder --output absent/x.bin
"$program" tokenize absent.txt --tokenizer folder --print 2>/dev/null && failures=$((failures + 1))
"$program" tokenize text.txt --tokenizer absent --print 2>/dev/null && failures=$((failures + 1))

[ $failures -eq 0 ] || echo "$failures failures" >&2
[ $failures -eq 0 ]
