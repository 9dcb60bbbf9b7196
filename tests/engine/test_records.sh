#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# Conversations from a JSONL file to steps: packed equals unpacked, ranks do not matter, a resumed run is
# the same, and records that are wrong are told with file and line. SLIDEDP is the program.
# timeout: 280
set -u
program=${SLIDEDP:?set SLIDEDP to the program}
source=${SDP_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d "${TMPDIR:-/tmp}/sdp-test-records-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

cp "$source/tests/model/template/cases/chatml/template.jinja" . || exit 1
python3 - <<'PYTHON' || exit 1
import json, random
random.seed(3)
words = "a few small words that a model of bytes can learn to say again".split()
with open("chats.jsonl", "w") as file:
    for i in range(40):
        turns = []
        for _ in range(random.randint(1, 2)):
            say = lambda: " ".join(random.choice(words) for _ in range(random.randint(1, 5)))
            turns += [{"role": "user", "content": say()}, {"role": "assistant", "content": say()}]
        file.write(json.dumps({"messages": turns}) + "\n")
PYTHON
cat >job.json <<'JOB'
{"model": {"graph": "llama", "init_seed": 1, "config": {
   "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
   "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512,
   "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}},
 "data": {"train": ["chats.jsonl"], "format": "messages", "tokenizer": "bytes", "chat_template": "template.jinja",
          "sequence_length": 320, "too_long": "error", "seed": 1},
 "train": {"steps": 3, "optimizer": {"name": "adamw", "lr": 2e-3}, "clip_norm": 1.0,
           "schedule": {"name": "constant", "warmup_steps": 2}},
 "runtime": {"gpus": 0, "ranks": 1, "micro_batch": 1},
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
}

says() {
    grep -qE -- "$2" "$1.log" || { fail "$1: nothing like \"$2\" was said"; cat "$1.log" >&2; }
}

# Tokens of a whole epoch, with the arguments.
epoch() {
    local sequences
    sequences=$("$program" check job.json "$@" 2>/dev/null | sed -n 's/.* \([0-9]*\) sequences of .*/\1/p')
    echo $((${sequences:-0} * 320))
}

# metrics A B RELATIVE: the same steps, with losses and gradient norms that agree.
metrics() {
    python3 - "$@" <<'PYTHON' || failures=$((failures + 1))
import json, sys
a, b, tolerance = sys.argv[1], sys.argv[2], float(sys.argv[3])
rows = [[json.loads(line) for line in open(d + "/metrics.jsonl")] for d in (a, b)]
if not rows[0] or [r["step"] for r in rows[0]] != [r["step"] for r in rows[1]]:
    sys.exit(f"{a} and {b}: other steps")
for x, y in zip(*rows):
    for key in ("loss", "grad_norm"):
        if abs(x[key] - y[key]) > tolerance * abs(x[key]):
            sys.exit(f"{a} and {b}: step {x['step']}: {key} {x[key]} and {y[key]}")
PYTHON
}

# Each step takes the whole data: the same documents, in other sequences.
pack='data.packing=pack'
loose=$(epoch) packed=$(epoch --set "$pack")
[ "$packed" -gt 0 ] && [ "$packed" -lt $((loose * 3 / 4)) ] || fail "packing: $loose tokens became $packed"
run 0 loose --set "train.tokens_per_step=$loose"
run 0 packed --set "train.tokens_per_step=$packed" --set "$pack"
says packed 'training data: 40 samples in 1 file make [0-9]+ sequences of 320'
metrics loose packed 2e-5

run 0 ranks --set "train.tokens_per_step=2560" --set "$pack" --set runtime.ranks=2 --set train.steps=4
run 0 one --set "train.tokens_per_step=2560" --set "$pack" --set train.steps=4 --set output.checkpoint_every=2
metrics ranks one 2e-5

cp -r one again
rm -rf again/checkpoints/step-00000004 again/model
run 0 again --set "train.tokens_per_step=2560" --set "$pack" --set train.steps=4 --set output.checkpoint_every=2 --resume
cmp -s one/model/model.safetensors again/model/model.safetensors || fail "the resumed run has other weights"
run 2 again --set "train.tokens_per_step=2560" --set train.steps=4 --resume
says again 'was made with other data'

printf '{"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}\n' >>chats.jsonl
run 2 wrong
says wrong 'chats.jsonl:41: /messages/1/role: is "robot"; must be one of'

exit $((failures > 0))
