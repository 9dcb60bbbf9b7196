#!/usr/bin/env bash
# Builds slidedp with its tests into build-tests/ and runs them. Arguments go to ctest, e.g.
#
#     tests/run.sh                  everything
#     tests/run.sh -R codelets      tests whose name matches
#     tests/run.sh -L slow -VV      tests with a label, with all they print
#
# The last lines are ctest's summary and the exit status is ctest's; set-up or build errors end
# it earlier with status 1. SDP_SETUP_OPTIONS holds options for cmake/setup.sh (--no-cuda ...).
set -euo pipefail

fail() {
    printf 'tests/run.sh: %s\n' "$1" >&2
    exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."

read -ra setup_options <<<"${SDP_SETUP_OPTIONS:-}"
options=$(cmake/setup.sh --tests ${setup_options[@]+"${setup_options[@]}"} </dev/null) ||
    fail "set-up did not succeed"
mapfile -t cmake_options <<<"$options"

cmake -S . -B build-tests -DCMAKE_BUILD_TYPE=Release -DSDP_TESTS=ON -DSDP_WERROR=ON \
    "${cmake_options[@]}" </dev/null || fail "cmake could not configure the build"
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
cmake --build build-tests --parallel "$jobs" </dev/null || fail "the build did not succeed"

exec ctest --test-dir build-tests --output-on-failure -j2 "$@" </dev/null
