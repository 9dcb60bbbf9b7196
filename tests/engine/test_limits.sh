#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# Limits that only the plan can know are refused with exit code 2 before anything
# is trained. SLIDEDP is the program, SDP_SOURCE_DIR the source tree.
# timeout: 60
set -u
program=${SLIDEDP:?set SLIDEDP to the program}
job=${SDP_SOURCE_DIR:?set SDP_SOURCE_DIR to the source tree}/examples/quickstart/job.json
work=$(mktemp -d "${TMPDIR:-/tmp}/sdp-test-limits-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

# refused WORDS ARGUMENTS...: exit code 2 and WORDS in the message
refused() {
    local words=$1 code
    shift
    "$program" "$@" >log 2>&1
    code=$?
    if [ $code -ne 2 ] || ! grep -qF -- "$words" log; then
        failures=$((failures + 1))
        echo "exit code $code, wanted 2 and \"$words\":" >&2
        cat log >&2
    fi
}

refused '480 micro-batches a step over all ranks; at most 220' plan "$job" --set runtime.gpus=0 \
    --set runtime.ranks=1 --set runtime.micro_batch=1 --set train.tokens_per_step=122880
refused '--trace 5:6: the run has 2 steps' run "$job" --quiet --set runtime.gpus=0 \
    --set train.steps=2 --trace 5:6
exit $((failures > 0))
