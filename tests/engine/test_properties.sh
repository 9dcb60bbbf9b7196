#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# What a run promises: one rank equals many, bit-identity whatever the policy,
# window, chunk size and number of cores, resume and signals, exact clipping, the
# output folder. SLIDEDP is the program.
# timeout: 280
set -u
program=${SLIDEDP:?set SLIDEDP to the program}
source=${SDP_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d "${TMPDIR:-/tmp}/sdp-test-properties-XXXXXX") || exit 1
child=
trap '[ -z "$child" ] || kill -9 "$child" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

cp "$source/examples/quickstart/corpus.txt" . || exit 1
cat >job.json <<'JOB'
{"model": {"graph": "llama", "init_seed": 1, "config": {
   "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
   "num_key_value_heads": 2, "vocab_size": 1024, "max_position_embeddings": 128,
   "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}},
 "data": {"train": ["corpus.txt"], "format": "text", "sequence_length": 64, "seed": 1},
 "train": {"steps": 6, "tokens_per_step": 512, "optimizer": {"name": "adamw", "lr": 2e-3},
           "schedule": {"name": "constant", "warmup_steps": 2}},
 "runtime": {"gpus": 0, "ranks": 2, "micro_batch": 2},
 "output": {"dir": "out", "export": "hf", "export_dtype": "fp32"}}
JOB

fail() {
    failures=$((failures + 1))
    printf '%s\n' "$*" >&2
}

# run CODE DIR ARGUMENT...: `slidedp run` into DIR; its exit code must be CODE.
run() {
    local code=$1 dir=$2 got
    shift 2
    "$program" run job.json --quiet --set "output.dir=$dir" "$@" >"$dir.log" 2>&1
    got=$?
    [ $got -eq "$code" ] && return 0
    fail "$dir ($*): exit code $got, wanted $code"
    cat "$dir.log" >&2
    return 1
}

# says DIR PATTERN: the last run into DIR wrote such a line.
says() {
    grep -qE -- "$2" "$1.log" || { fail "$1: nothing like \"$2\" was said"; cat "$1.log" >&2; }
}

same_weights() {
    cmp -s "$1/model/model.safetensors" "$2/model/model.safetensors" || fail "$1 and $2: other weights"
}

other_weights() {
    ! cmp -s "$1/model/model.safetensors" "$2/model/model.safetensors" || fail "$1 and $2: the same weights"
}

# metrics A B RELATIVE KEY...: the same steps, and values of the keys that agree (RELATIVE 0: exactly).
metrics() {
    python3 - "$@" <<'PYTHON' || failures=$((failures + 1))
import json, sys
a, b, tolerance, keys = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]
rows = [[json.loads(line) for line in open(d + "/metrics.jsonl")] for d in (a, b)]
if not rows[0] or [r["step"] for r in rows[0]] != [r["step"] for r in rows[1]]:
    sys.exit(f"{a} and {b}: other steps")
for x, y in zip(*rows):
    for key in keys:
        if not (x[key] == y[key] or abs(x[key] - y[key]) <= tolerance * abs(x[key])):
            sys.exit(f"{a} and {b}: step {x['step']}: {key} {x[key]} and {y[key]}")
PYTHON
}

# lines DIR COUNT: steps in DIR's metrics.
lines() {
    local got
    got=$(wc -l <"$1/metrics.jsonl")
    [ "$got" -eq "$2" ] || fail "$1: $got steps in metrics.jsonl, wanted $2"
}

# wait_lines DIR COUNT: until the running child has written so many steps; fails when it ended before.
wait_lines() {
    local i
    for ((i = 0; i < 600; i++)); do
        [ "$(cat "$1/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$2" ] && return 0
        kill -0 "$child" 2>/dev/null || break
        sleep 0.05
    done
    fail "$1: step $2 was not reached"
    return 1
}

# start DIR ARGUMENT...: as run, in the background; $child is the program itself.
start() {
    local dir=$1
    shift
    "$program" run job.json --quiet --set "output.dir=$dir" "$@" >"$dir.log" 2>&1 &
    child=$!
}

# -- ranks ---------------------------------------------------------------------
check_ranks() {
    local r
    for r in 1 2 4; do
        run 0 "ranks$r" --set "runtime.ranks=$r"
        lines "ranks$r" 6
    done
    metrics ranks1 ranks2 1e-4 loss
    metrics ranks1 ranks4 1e-4 loss
    metrics ranks1 ranks4 1e-3 grad_norm
    run 0 tied1 --set runtime.ranks=1 --set model.config.tie_word_embeddings=true
    run 0 tied2 --set runtime.ranks=2 --set model.config.tie_word_embeddings=true
    metrics tied1 tied2 1e-4 loss
    other_weights tied1 ranks1
}

# -- bit-identity ----------------------------------------------------------------
# same NAME ARGUMENT...: another way to run; the weights are those of ranks2.
same() {
    local name=$1
    shift
    run 0 "$name" "$@" || return
    same_weights ranks2 "$name"
    metrics ranks2 "$name" 0 loss lr target_tokens
    metrics ranks2 "$name" 1e-9 grad_norm
    rm -rf "$name"
}

check_bits() {
    local x
    for x in again again again; do
        same $x
    done
    for x in 1 2 4; do
        same "window$x" --set "runtime.window=$x"
    done
    for x in 64KiB 256KiB 32MiB; do
        same "chunk$x" --set "runtime.chunk=$x"
    done
    # every policy of ours, at both ends of the window, and some of StarPU's
    for x in $("$program" policies | sed -n '/^slidedp/,/^StarPU/s/^  \([a-z-]*\) .*/\1/p'); do
        same "policy-$x" --policy "$x"
        same "policy-$x-1" --policy "$x" --set runtime.window=1 --set runtime.group=1 --set runtime.chunk=256KiB
    done
    for x in eager lws dmda prio; do
        same "policy-$x" --policy "$x"
    done
    same policy-key --set runtime.policy=eager --set runtime.chunk=64KiB --set runtime.window=1
    for x in 1 2; do
        same "group$x" --set "runtime.group=$x"
    done
    same group-recompute --set runtime.group=1 --set runtime.activations=recompute --set runtime.window=1
    for x in keep selective recompute; do
        same "activations-$x" --set "runtime.activations=$x"
    done
    STARPU_NCPU=1 same one-core
    STARPU_NCPU=1 same one-core-small --set runtime.chunk=64KiB --set runtime.window=1
    # tables of several blocks of 2^20 elements, so that chunks end inside a tensor
    set -- --set model.config.vocab_size=40960 --set train.steps=3
    run 0 wide "$@" --set runtime.chunk=32MiB
    run 0 wide-small "$@" --set runtime.chunk=64KiB
    grep -q '"deliver": 6,' wide/plan.json || fail "wide: the plan has chunks where one was asked for"
    ! grep -q '"deliver": 6,' wide-small/plan.json || fail "wide-small: the plan has no chunks"
    same_weights wide wide-small
    metrics wide wide-small 0 loss grad_norm
    STARPU_NCPU=1 run 0 wide-one "$@" --set runtime.chunk=2MiB --policy eager
    same_weights wide wide-one
    rm -rf wide wide-small wide-one
}

# -- resume ------------------------------------------------------------------------
check_resume() {
    run 0 resumed --set output.checkpoint_every=3 --set train.steps=3
    lines resumed 3
    cp -r resumed resumed4
    run 0 resumed --set output.checkpoint_every=3 --resume
    says resumed 'resuming from .*step-00000003, step 3'
    lines resumed 6
    same_weights ranks2 resumed
    metrics ranks2 resumed 0 loss grad_norm lr
    run 0 resumed4 --resume --set runtime.ranks=4
    metrics ranks2 resumed4 1e-4 loss
    # other data are not gone on with
    run 2 resumed4 --resume --set data.seed=2
    says resumed4 'was made with other data'
    # without a checkpoint a run starts from the first step, and cuts metrics.jsonl
    mkdir fresh && cp ranks2/metrics.jsonl fresh/
    run 0 fresh --resume
    lines fresh 6
    same_weights ranks2 fresh
}

# -- signals -----------------------------------------------------------------------
check_signals() {
    local code
    set -- --set train.steps=300 --set output.checkpoint_every=100
    run 0 straight "$@"

    start killed "$@"
    wait_lines killed 130 && kill -9 $child
    wait $child 2>/dev/null
    code=$?
    child=
    [ $code -eq 137 ] || fail "killed: exit code $code, wanted 137"
    [ ! -e killed/model ] || fail "killed: a model was exported"
    run 0 killed "$@" --resume
    says killed 'resuming from .*step-00000[12]00, step [12]00'
    lines killed 300
    same_weights straight killed
    metrics straight killed 0 loss grad_norm

    start stopped "$@"
    wait_lines stopped 20 && kill -TERM $child
    wait $child
    code=$?
    child=
    [ $code -eq 3 ] || fail "stopped: exit code $code, wanted 3"
    says stopped 'stopped by signal 15 after step [0-9]+; the state is saved: go on with --resume'
    [ -n "$(ls stopped/checkpoints 2>/dev/null)" ] || fail "stopped: no checkpoint"
    [ ! -e stopped/model ] || fail "stopped: a model was exported"
    run 0 stopped "$@" --resume
    lines stopped 300
    same_weights straight stopped
    metrics straight stopped 0 loss grad_norm
}

# -- clipping ----------------------------------------------------------------------
check_clipping() {
    run 0 unclipped --set runtime.ranks=1
    run 0 clip-huge --set runtime.ranks=1 --set train.clip_norm=1e9
    same_weights unclipped clip-huge
    metrics unclipped clip-huge 0 loss
    metrics unclipped clip-huge 1e-9 grad_norm
    run 0 clip-huge2 --set train.clip_norm=1e9
    same_weights ranks2 clip-huge2
    # Adam hides a constant scale, so the norm is compared at the first step and the weights at the end
    run 0 clip-small --set train.clip_norm=0.01
    other_weights ranks2 clip-small
    head -n 1 clip-small/metrics.jsonl >first && mkdir first1 first2 && mv first first1/metrics.jsonl
    head -n 1 ranks2/metrics.jsonl >first2/metrics.jsonl
    metrics first2 first1 1e-9 loss grad_norm
    run 0 clip-chunks --set train.clip_norm=0.01 --set runtime.chunk=64KiB --set runtime.window=1 --policy eager
    same_weights clip-small clip-chunks
    STARPU_NCPU=1 run 0 clip-one --set train.clip_norm=0.01
    same_weights clip-small clip-one
    metrics clip-small clip-one 0 loss grad_norm
}

# -- what is refused ---------------------------------------------------------------
check_refusals() {
    mkdir mine && echo mine >mine/notes.txt
    run 2 mine
    says mine '^slidedp: .*/output/dir: folder "mine" is not empty; use --resume'
    run 0 mine --overwrite
    [ "$(cat mine/notes.txt)" = mine ] || fail "mine: --overwrite removed a file that no run wrote"
    same_weights ranks2 mine
    run 2 mine
    run 2 policy --policy nonesuch
    says policy '^slidedp: .*there is no scheduling policy "nonesuch"'
    run 1 absurd --set train.optimizer.lr=1e38 --set train.schedule.warmup_steps=0
    says absurd '^slidedp: step [0-9]+: loss .*; nothing was exported'
    [ ! -e absurd/model ] || fail "absurd: a model was exported"
    run 0 warned --set train.optimizer.lr=1e38 --set train.schedule.warmup_steps=0 --set train.on_nonfinite=warn
    says warned '^slidedp: .*step [0-9]+: loss .*, gradient norm'
    lines warned 6
    grep -q '"loss": null' warned/metrics.jsonl || fail "warned: no loss is null"
    metrics warned warned 0 loss
}

# The weights are those of a run without; one loss whatever the ranks, micro-batches and activations.
check_evaluation() {
    head -c 3000 corpus.txt >held-out.txt
    local held=(--set 'data.validation=["held-out.txt"]' --set train.evaluate_every=2)
    run 0 evaluated "${held[@]}" && same_weights ranks2 evaluated
    run 0 evaluated1 "${held[@]}" --set runtime.ranks=1 --set runtime.micro_batch=1 --set runtime.window=1 \
        --set runtime.activations=recompute
    "$program" eval job.json "${held[@]}" --weights evaluated/model --logits logits.npy >eval.out 2>eval.log ||
        { fail "eval failed"; cat eval.log >&2; }
    python3 - evaluated evaluated1 <<'PYTHON' || failures=$((failures + 1))
import json, sys
rows = [[r for r in map(json.loads, open(d + "/metrics.jsonl")) if "validation_loss" in r] for d in sys.argv[1:]]
if [[r["step"] for r in x] for x in rows] != [[0, 2, 4, 6]] * 2:
    sys.exit(f"evaluations at other steps: {rows}")
for x, y in zip(*rows):
    if abs(x["validation_loss"] - y["validation_loss"]) > 1e-5 or x["validation_tokens"] != 46 * 64:
        sys.exit(f"{x} and {y}")
words = open("eval.out").read().split()
if abs(float(words[words.index("loss") + 1]) - rows[0][-1]["validation_loss"]) > 1e-5:
    sys.exit(f"slidedp eval says {words}, the run {rows[0][-1]}")
PYTHON
    [ "$(stat -c %s logits.npy)" -eq $((128 + 46 * 64 * 1024 * 4)) ] || fail "logits.npy: $(stat -c %s logits.npy) bytes"
}

for topic in ranks bits resume signals clipping evaluation refusals; do
    [ $# -gt 0 ] && [[ " $* " != *" $topic "* && $topic != ranks ]] && continue
    started=$SECONDS
    "check_$topic"
    printf '%s: %s s\n' "$topic" $((SECONDS - started)) >&2
done
[ $failures -eq 0 ] || { printf '%s failures\n' $failures >&2; exit 1; }
