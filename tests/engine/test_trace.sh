#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# `slidedp run --trace`: StarPU's trace files for the steps asked for and no others,
# with names by which a reader knows each task. SLIDEDP is the program. Skipped
# where StarPU records no FxT traces.
# timeout: 120
set -u
program=${SLIDEDP:?set SLIDEDP to the program}
work=$(mktemp -d "${TMPDIR:-/tmp}/sdp-test-trace-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

cat >job.json <<'JOB'
{"model": {"graph": "llama", "config": {
   "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
   "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 128,
   "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}},
 "data": {"format": "synthetic", "sequence_length": 64},
 "train": {"steps": 4, "tokens_per_step": 512, "clip_norm": 1.0},
 "runtime": {"gpus": 0, "ranks": 2},
 "output": {"dir": "out", "export": null}}
JOB

fail() {
    failures=$((failures + 1))
    printf '%s\n' "$*" >&2
}

"$program" run job.json --quiet --trace 2:3 >log 2>&1
code=$?
if grep -q 'trace.fxt was not written; is StarPU built with FxT' log && [ -z "$(ls out/trace)" ]; then
    echo "StarPU has no FxT: skipped" >&2
    exit 77
fi
[ $code -eq 0 ] || { cat log >&2; echo "exit code $code, wanted 0" >&2; exit 1; }
grep -q '^slidedp: trace of steps 2 to 3 in out/trace$' log || fail "the trace's folder is not told"
for file in paje.trace tasks.rec data.rec dag.dot; do
    [ -s "out/trace/$file" ] || fail "out/trace/$file is missing or empty"
done

# has PATTERN: a task of that name was recorded.
has() {
    grep -qE "^Name: $1\$" out/trace/tasks.rec || fail "tasks.rec: no task \"$1\""
}
for step in 2 3; do
    has "deliver s$step l1 c0"
    for rank in 0 1; do
        has "forward s$step l0 r$rank m0"
        has "forward s$step l1 r$rank m0"
        has "backward s$step l3 r$rank m0"
        has "backward s$step l0 r$rank m0"
    done
    has "reduce s$step l2 c0"
    has "clip s$step"
    has "update s$step l1 c0"
    has "metrics s$step"
done
! grep -qE '^Name: [a-z]+ s[14]( |$)' out/trace/tasks.rec || fail "tasks.rec has tasks of steps that were not asked for"
[ $failures -eq 0 ] || { grep '^Name:' out/trace/tasks.rec | sort | uniq -c | head -60 >&2; exit 1; }
