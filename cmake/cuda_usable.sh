#!/usr/bin/env bash
# Says whether a program that uses CUDA can be built and would find a GPU driver here.
# Prints one word; with -v also the reason, on stderr:
#   yes     nvcc is here, and so is the driver library
#   build   nvcc is here, the driver library is not: fit only to build for another machine
#   no      there is no nvcc
# With --dir it prints the folder of the CUDA toolkit instead (nothing where there is none).
# The StarPU build, set-up and CMake all ask here, so that they cannot disagree.
set -euo pipefail

find_toolkit() {
    local dir nvcc
    for dir in "${CUDA_HOME:-}" "${CUDA_PATH:-}" "${CUDAToolkit_ROOT:-}"; do
        if [ -n "$dir" ] && [ -x "$dir/bin/nvcc" ]; then
            printf '%s\n' "$dir"
            return
        fi
    done
    if nvcc=$(command -v nvcc); then
        nvcc=$(readlink -f "$nvcc")
        dirname "$(dirname "$nvcc")"
    elif [ -x /usr/local/cuda/bin/nvcc ]; then
        echo /usr/local/cuda
    fi
}

find_driver() {
    local dir dirs found
    found=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null || true)
    case $found in
    *libcuda.so.1*) return 0 ;;
    esac
    IFS=: read -ra dirs <<<"${LD_LIBRARY_PATH:-}"
    for dir in ${dirs[@]+"${dirs[@]}"} /usr/lib/wsl/lib; do
        if [ -n "$dir" ] && [ -e "$dir/libcuda.so.1" ]; then
            return 0
        fi
    done
    return 1
}

say() {
    [ "$verbose" = no ] || printf 'CUDA: %s\n' "$1" >&2
}

verbose=no
case ${1:-} in
-v) verbose=yes ;;
--dir)
    find_toolkit
    exit 0
    ;;
esac

if [ -z "$(find_toolkit)" ]; then
    say "no nvcc in CUDA_HOME, PATH or /usr/local/cuda"
    echo no
elif ! find_driver; then
    say "nvcc is here, but no driver library libcuda.so.1: no usable GPU"
    echo build
else
    say "nvcc and the driver library are here"
    echo yes
fi
