#!/usr/bin/env bash
# From a fresh checkout to a trained model: set-up, build, and a short training run.
set -euo pipefail

usage() {
    cat <<USAGE
usage: examples/quickstart.sh [--no-cuda] [--starpu DIR] [--starpu-source TARBALL]

Sets this machine up, builds slidedp into build/ and runs the job in
examples/quickstart/job.json; its results go to out/quickstart. The first call takes some
minutes (it may build StarPU), a later one only as long as the training.

  --no-cuda                build and run without GPUs
  --starpu DIR             use the StarPU 1.4 installed in DIR
  --starpu-source TARBALL  build StarPU from this release tarball
USAGE
}

fail() {
    printf 'quickstart: %s\n' "$1" >&2
    exit 1
}

setup_options=()
while [ $# -gt 0 ]; do
    case $1 in
    --no-cuda) setup_options+=("$1") ;;
    --starpu | --starpu-source)
        [ $# -ge 2 ] || fail "$1 needs a value; see --help"
        # The work is done in the repository's folder, so make a path absolute.
        case $2 in
        /*) setup_options+=("$1" "$2") ;;
        *) setup_options+=("$1" "$PWD/$2") ;;
        esac
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        fail "unknown option $1"
        ;;
    esac
    shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
job=examples/quickstart/job.json

echo "== 1/3 set-up"
options=$(cmake/setup.sh ${setup_options[@]+"${setup_options[@]}"} </dev/null) ||
    fail "set-up did not succeed; what is missing is said above"
mapfile -t cmake_options <<<"$options"

echo "== 2/3 build, into build/"
mkdir -p build
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release "${cmake_options[@]}" >build/configure.log 2>&1 || {
    tail -n 30 build/configure.log >&2
    fail "cmake could not configure the build; the whole log is build/configure.log"
}
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
cmake --build build --target slidedp --parallel "$jobs" </dev/null ||
    fail "the build did not succeed; the first error is above"

echo "== 3/3 training: build/slidedp run $job --overwrite"
status=0
build/slidedp run "$job" --overwrite </dev/null || status=$?
[ "$status" -eq 0 ] || fail "the run ended with status $status; its messages are above"
