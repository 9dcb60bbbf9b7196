#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# The example policy, built against the installed package, trains the same bits as our own.
# timeout: 120
set -u
program=${SLIDEDP:?set SLIDEDP to the program}
source=${SDP_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d "${TMPDIR:-/tmp}/sdp-test-plugin-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT

fail() {
    printf '%s\n' "$1" >&2
    [ ! -e "$work/log" ] || tail -n 20 "$work/log" >&2
    exit 1
}

build=$(dirname "$program")
starpu=$(sed -n 's/^StarPU_PREFIX:[A-Z]*=//p' "$build/CMakeCache.txt")
[ -n "$starpu" ] || starpu=$(ldd "$program" | sed -n 's|.*=> \(.*\)/lib/libstarpu.*|\1|p')
cmake --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || fail "the package could not be installed"
cmake -S "$source/examples/policy" -B "$work/policy" -DCMAKE_PREFIX_PATH="$work/prefix;$starpu" >"$work/log" 2>&1 &&
    cmake --build "$work/policy" >"$work/log" 2>&1 || fail "the example policy could not be built"
run() { # DIR ARGUMENT...
    local dir=$1
    shift
    "$work/prefix/bin/slidedp" run "$source/examples/quickstart/job.json" --quiet --set train.steps=3 --set runtime.gpus=0 \
        --set runtime.ranks=2 --set "output.dir=$work/$dir" "$@" >"$work/log" 2>&1 || fail "run $dir failed"
}
run ours
STARPU_SCHED_LIB=$work/policy/libsoonest-first.so run outside --policy soonest-first
cmp "$work/ours/model/model.safetensors" "$work/outside/model/model.safetensors" || fail "other weights under the plug-in"
STARPU_SCHED_LIB=$work/policy/libsoonest-first.so "$work/prefix/bin/slidedp" run "$source/examples/quickstart/job.json" \
    --set "output.dir=$work/none" --policy nonesuch >"$work/log" 2>&1
[ $? -eq 2 ] || fail "a policy that the plug-in does not have: wanted exit code 2"
