#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# Bit-identity on a GPU: whatever is kept, recomputed or offloaded, wherever the state lies, whatever the group, window,
# chunk size and policy, the exported fp32 weights and the norms are the same; and resume is exact. SLIDEDP is the program.
# timeout: 900
set -u
program=${SLIDEDP:?set SLIDEDP to the program}
source=${SDP_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d "${TMPDIR:-/tmp}/sdp-test-properties-cuda-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

cp "$source/examples/quickstart/corpus.txt" . || exit 1
cat >job.json <<'JOB'
{"model": {"graph": "qwen3", "init_seed": 1, "config": {
   "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
   "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1056, "max_position_embeddings": 256,
   "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}},
 "data": {"train": ["corpus.txt"], "format": "text", "sequence_length": 128, "seed": 1},
 "train": {"steps": 8, "tokens_per_step": 1024, "optimizer": {"name": "adamw", "lr": 2e-3},
           "schedule": {"name": "constant", "warmup_steps": 2}},
 "runtime": {"gpus": 1, "ranks": 1, "micro_batch": 2},
 "output": {"dir": "out", "export": "hf", "export_dtype": "fp32"}}
JOB

fail() {
    failures=$((failures + 1))
    printf '%s\n' "$*" >&2
}

# run DIR ARGUMENT...
run() {
    local dir=$1
    shift
    "$program" run job.json --quiet --set "output.dir=$dir" "$@" >"$dir.log" 2>&1 && return 0
    fail "$dir ($*): exit code $?"
    cat "$dir.log" >&2
    return 1
}

# same BASE NAME ARGUMENT...: another way to run; weights, losses and norms are BASE's.
same() {
    local base=$1 name=$2
    shift 2
    run "$name" "$@" || return
    cmp -s "$base/model/model.safetensors" "$name/model/model.safetensors" || fail "$base and $name: other weights"
    python3 - "$base" "$name" <<'PYTHON' || failures=$((failures + 1))
import json, sys
a, b = [[json.loads(line) for line in open(d + "/metrics.jsonl")] for d in sys.argv[1:3]]
for x, y in zip(a, b, strict=True):
    if x["loss"] != y["loss"] or abs(x["grad_norm"] - y["grad_norm"]) > 1e-9 * x["grad_norm"]:
        sys.exit(f"{sys.argv[1]} and {sys.argv[2]}: step {x['step']}: {x['loss']} {x['grad_norm']}, {y['loss']} {y['grad_norm']}")
PYTHON
    rm -rf "$name"
}

# plan NAME PATTERN ARGUMENT...: the plan has it (so that a case does test what it is called).
plan() {
    local pattern=$1
    shift
    "$program" plan job.json "$@" | grep -qE -- "$pattern" || fail "plan $*: nothing like \"$pattern\""
}

stream="--set runtime.gpu_state=0"
run base || exit 1
plan 'state +of 7 of 7'
plan 'state +of 0 of 7' $stream
same base again
same base streamed $stream
plan 'state +of [1-5] of 7' --set runtime.gpu_state=3MiB
same base partly --set runtime.gpu_state=3MiB
for x in keep selective recompute offload; do
    same base "activations-$x" $stream --set "runtime.activations=$x"
    same base "resident-$x" --set "runtime.activations=$x"
    same base "group-$x" $stream --set runtime.group=2 --set "runtime.activations=$x"
done
for x in 1 2 4; do
    same base "group$x" $stream --set "runtime.group=$x"
    same base "resident-group$x" --set "runtime.group=$x"
    same base "window$x" $stream --set "runtime.window=$x" --set runtime.group=2
done
for x in 64KiB 256KiB; do
    same base "chunk$x" $stream --set "runtime.chunk=$x"
    same base "resident-chunk$x" --set "runtime.chunk=$x"
done
for x in slide eager lws prio dmda; do
    same base "policy-$x" $stream --policy "$x" --set runtime.activations=offload --set runtime.group=2
    same base "resident-policy-$x" --policy "$x" --set runtime.gpu_state=3MiB
done
# a bound that never clips changes nothing; one that does is the same wherever the state lies
same base clip-high --set train.clip_norm=1e9
same base clip-high-streamed $stream --set train.clip_norm=1e9
run clipped --set train.clip_norm=0.5 && ! cmp -s base/model/model.safetensors clipped/model/model.safetensors ||
    fail "clipped: the same weights as without clipping"
same clipped clipped-streamed $stream --set train.clip_norm=0.5 --set runtime.group=1
same clipped clipped-partly --set runtime.gpu_state=3MiB --set train.clip_norm=0.5
# tied tables, fp32 gradients, fp32 compute
run tied --set model.config.tie_word_embeddings=true
same tied tied-streamed $stream --set model.config.tie_word_embeddings=true --set runtime.activations=offload
run wide --set runtime.gradients=fp32
same wide wide-group --set runtime.gradients=fp32 --set runtime.group=1
run exact --set runtime.compute=fp32
same exact exact-group --set runtime.compute=fp32 --set runtime.group=2 --set runtime.activations=offload
# ranks that share the GPU
run ranks2 --set runtime.ranks=2
same ranks2 ranks2-offload --set runtime.ranks=2 --set runtime.group=1 --set runtime.activations=offload
# resume is exact although the state was on the GPU
run resumed --set train.steps=4 --set output.checkpoint_every=4 &&
    run resumed --resume --set output.checkpoint_every=4 &&
    { cmp -s base/model/model.safetensors resumed/model/model.safetensors || fail "resumed: other weights"; }

[ $failures -eq 0 ] || { printf '%d failures\n' $failures >&2; exit 1; }
