#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# The program's command line: help, version, wrong verbs and options, exit codes,
# and `slidedp check` on jobs right and wrong. SLIDEDP is the program.
set -u
program=${SLIDEDP:?set SLIDEDP to the program}
source=${SDP_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d "${TMPDIR:-/tmp}/sdp-test-program-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

# expect CODE STREAM PATTERN ARGUMENT...: exit code, and a line of the stream
# (out or err) that matches the whole pattern; the other stream must be empty.
expect() {
    local code=$1 stream=$2 pattern=$3 got other
    shift 3
    (cd "$work" && "$program" "$@") >"$work/.out" 2>"$work/.err"
    got=$?
    [ "$stream" = out ] && other=err || other=out
    if [ $got -ne "$code" ] || ! grep -qxE -- "$pattern" "$work/.$stream" || [ -s "$work/.$other" ]; then
        failures=$((failures + 1))
        printf 'slidedp %s: exit code %s (wanted %s), wanted "%s" on std%s; got\n' "$*" $got \
            "$code" "$pattern" "$stream" >&2
        cat "$work/.out" "$work/.err" >&2
    fi
}

config='{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
  "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": false}'
printf '{"model": {"graph": "llama", "config": %s},
 "data": {"format": "synthetic", "sequence_length": 64}, "train": {"steps": 5}}\n' "$config" \
    >"$work/good.json"
printf '{"model": {"graph": "llama", "config": {}},\n "data": {"format": "synthetic" "x"}}\n' \
    >"$work/syntax.json"

expect 2 err 'usage: slidedp VERB \[arguments\]'
expect 0 out '  check  .*' --help
expect 0 out '  check  .*' help
expect 0 out 'slidedp [0-9]+\.[0-9]+\.[0-9]+' --version
expect 2 err 'slidedp: unknown verb "chek"; did you mean "check"\?' chek
expect 2 err 'slidedp: unknown verb "frobnicate"; see `slidedp --help`' frobnicate
expect 0 out 'usage: slidedp check JOB .*' check --help
expect 0 out 'usage: slidedp check JOB .*' help check
expect 2 err 'slidedp: unknown verb "chek"; did you mean "check"\?' help chek
expect 2 err 'slidedp: check: an argument is missing; usage: slidedp check JOB .*' check
expect 2 err 'slidedp: check: unknown option --sett; did you mean --set\?' check good.json --sett=a
expect 2 err 'slidedp: none.json: cannot open: no such file or folder' check none.json
expect 2 err 'slidedp: \.: is a folder; a file is needed' check .
expect 2 err 'slidedp: syntax.json:2:[0-9]+: is not valid JSON: .*' check syntax.json
expect 2 err 'slidedp: --set train.stps=3: /train/stps: unknown key; did you mean "steps"\?' \
    check good.json --set train.stps=3
expect 2 err 'slidedp: --set data.sequence_length=256: /data/sequence_length: is 256; must be at most 128, .*' \
    check good.json --set data.sequence_length=256
expect 0 out 'good.json: ok: llama, 106.82 K parameters in [0-9]+ layers, 5 steps of 65536 tokens' \
    check good.json
expect 0 out 'good.json: ok: .*, 7 steps of 128 tokens' \
    check --set train.steps=7 good.json --set train.tokens_per_step=128

# Every verb has a help that starts with its usage.
for verb in $("$program" --help | sed -n '/^Verbs:/,/^$/s/^  \([a-z_]*\) .*/\1/p'); do
    expect 0 out "usage: slidedp $verb.*" "$verb" --help
done

# Writing to a full disk is a failure, not a silent success.
if [ -w /dev/full ]; then
    (cd "$work" && "$program" --help) >/dev/full 2>"$work/.err"
    [ $? -eq 1 ] || { echo "writing to a full disk was not noticed" >&2; failures=$((failures + 1)); }
fi

# The checked-in cases give the same lines through the program.
for case in key-train train-tokens-not-multiple duplicate-key; do
    folder=$source/tests/graph/jobs/invalid/$case
    (cd "$folder" && "$program" check job.json) >"$work/.out" 2>"$work/.err"
    if [ $? -ne 2 ] || ! cmp "$work/.err" "$folder/error"; then
        echo "invalid/$case differs" >&2
        failures=$((failures + 1))
    fi
done
exit $((failures > 0))
