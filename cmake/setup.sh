#!/usr/bin/env bash
# Gets this machine ready to build slidedp: installs what is missing (Debian and Ubuntu, as root
# or with sudo; elsewhere it says what to install), builds StarPU if there is none, and gets
# cuDNN's header-only front end for a build with CUDA. See usage below.
#
# Messages go to stderr. On stdout it prints the options for cmake that fit what it found, one
# a line:
#
#     mapfile -t options < <(cmake/setup.sh)
#     cmake -B build "${options[@]}"
#
# A second run finds everything in place and uses no network.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
here=$root/cmake
deps=$root/.deps
starpu_floor=1.4.10
cmake_floor=3.24

usage() {
    cat <<USAGE
usage: cmake/setup.sh [--cuda auto|on|off] [--no-cuda] [--starpu DIR]
                      [--starpu-source TARBALL] [--simgrid] [--tests]

  --cuda auto              with CUDA if nvcc and a GPU driver are here (the default)
  --cuda on                with CUDA in any case, to build here what another machine runs
  --cuda off, --no-cuda    without CUDA
  --starpu DIR             use the StarPU 1.4 installed in DIR (environment: SLIDEDP_STARPU)
  --starpu-source TARBALL  build StarPU from this release tarball
  --simgrid                also build the simulated StarPU, for \`slidedp simulate\`
  --tests                  also get the Python packages that tests compare with, into .deps/python
USAGE
}

say() {
    printf 'setup: %s\n' "$1" >&2
}

fail() {
    say "$1"
    exit 1
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# version_at_least A B: whether version A is B or later.
version_at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

cuda=auto starpu=${SLIDEDP_STARPU:-} starpu_source='' simgrid=no tests=no
while [ $# -gt 0 ]; do
    case $1 in
    --cuda | --starpu | --starpu-source)
        [ $# -ge 2 ] || fail "$1 needs a value; see --help"
        case $1 in
        --cuda) cuda=$2 ;;
        --starpu) starpu=$2 ;;
        --starpu-source) starpu_source=$2 ;;
        esac
        shift
        ;;
    --no-cuda) cuda=off ;;
    --simgrid) simgrid=yes ;;
    --tests) tests=yes ;;
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

# --- With or without CUDA --------------------------------------------------------------------

case $cuda in
auto)
    case $("$here/cuda_usable.sh") in
    yes) cuda=on ;;
    build)
        cuda=off
        say "nvcc is here but no GPU driver (libcuda.so.1): without CUDA (--cuda on forces it)"
        ;;
    *) cuda=off ;;
    esac
    ;;
on)
    [ "$("$here/cuda_usable.sh")" != no ] ||
        fail "--cuda on, but there is no nvcc; put it in PATH or set CUDA_HOME"
    ;;
off) ;;
*) fail "--cuda takes auto, on or off, not $cuda" ;;
esac

# --- Packages --------------------------------------------------------------------------------

header_found() {
    printf '#include <%s>\n' "$1" | "${CC:-cc}" -E -x c - >/dev/null 2>&1
}

module_found() {
    have pkg-config && pkg-config --exists "$1"
}

# starpu_fits: whether pkg-config's StarPU serves, with CUDA where that is wanted.
starpu_fits() {
    have pkg-config && pkg-config --exists "starpu-1.4 >= $starpu_floor" || return 1
    [ "$cuda" = off ] || grep -qs 'define STARPU_USE_CUDA 1' \
        "$(pkg-config --variable=starpu_includedir starpu-1.4)/starpu_config.h"
}

# starpu_is_ours: whether StarPU is built here: none is given, and none is installed or one was
# built before (which CMake then prefers).
starpu_is_ours() {
    local built=$deps/starpu-cpu
    [ "$cuda" = off ] || built=$deps/starpu
    [ -z "$starpu" ] || return 1
    [ -n "$starpu_source" ] || [ -d "$built" ] || ! starpu_fits
}

# Fills `missing` with the Debian packages for what is not here.
find_missing() {
    missing=()
    if ! have "${CC:-cc}" || ! header_found stdio.h || ! have "${CXX:-c++}" || ! have make; then
        missing+=(build-essential)
    fi
    have cmake || missing+=(cmake)
    have pkg-config || missing+=(pkg-config)
    module_found hwloc || missing+=(libhwloc-dev)
    module_found jansson || missing+=(libjansson-dev)
    # Any OpenBLAS will do, but where there is none take the one that runs pthreads.
    module_found openblas || missing+=(libopenblas-pthread-dev libopenblas-dev)
    module_found 'libpcre2-8 >= 10.40' || missing+=(libpcre2-dev)
    module_found libutf8proc || missing+=(libutf8proc-dev)
    if starpu_is_ours; then
        module_found fxt || missing+=(libfxt-dev)
        have dpkg-source || ! have apt-get || missing+=(dpkg-dev)
    fi
    if [ "$tests" = yes ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        missing+=(python3 python3-venv)
    fi
    if [ "$simgrid" = yes ]; then
        module_found simgrid || missing+=(libsimgrid-dev)
    fi
}

install_packages() {
    local run=() log=$deps/build/packages.log
    if ! have apt-get; then
        fail "missing, by their Debian names: ${missing[*]}
setup: there is no apt here: install their like with this system's package manager and run
setup: this again (FxT, for traces, is often not packaged: build it, or give a StarPU that
setup: has what it needs with --starpu DIR)"
    fi
    if [ "$(id -u)" != 0 ]; then
        if have sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
            run=(sudo)
        else
            fail "missing: ${missing[*]}
setup: as root, run:  apt-get install ${missing[*]}"
        fi
    fi
    say "installing ${missing[*]}"
    mkdir -p "$deps/build"
    run+=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3
        -o DPkg::Lock::Timeout=300)
    # The package lists may be absent or old: then fetch them and try once more.
    if ! "${run[@]}" install --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
        if ! { "${run[@]}" update &&
            "${run[@]}" install --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
            tail -n 15 "$log" | sed 's/^/    /' >&2
            fail "apt could not install ${missing[*]}; the log is $log"
        fi
    fi
}

missing=()
find_missing
if [ ${#missing[@]} -gt 0 ]; then
    install_packages
    find_missing
    [ ${#missing[@]} -eq 0 ] ||
        fail "apt installed without an error, yet these are not found: ${missing[*]}"
fi
version=$(cmake --version | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')
version_at_least "$version" "$cmake_floor" ||
    fail "cmake is $version; $cmake_floor or later is needed (pip install cmake has it)"

# --- StarPU ----------------------------------------------------------------------------------

# check_given_starpu: fails unless the prefix $starpu holds a StarPU that serves.
check_given_starpu() {
    local folder path=''
    [ -d "$starpu" ] || fail "$starpu: no such folder (--starpu or SLIDEDP_STARPU)"
    starpu=$(cd "$starpu" && pwd)
    for folder in "$starpu"/lib/pkgconfig "$starpu"/lib64/pkgconfig "$starpu"/lib/*/pkgconfig; do
        path=$path${path:+:}$folder
    done
    version=$(PKG_CONFIG_PATH=$path pkg-config --modversion starpu-1.4 2>/dev/null || true)
    if [ ! -f "$starpu/include/starpu/1.4/starpu_config.h" ] || [ -z "$version" ]; then
        fail "$starpu holds no StarPU 1.4 (no include/starpu/1.4 or no starpu-1.4.pc)"
    fi
    version_at_least "$version" "$starpu_floor" ||
        fail "$starpu holds StarPU $version; $starpu_floor or a later 1.4 is needed"
    if [ "$cuda" = on ] &&
        ! grep -qs 'define STARPU_USE_CUDA 1' "$starpu/include/starpu/1.4/starpu_config.h"; then
        fail "the StarPU in $starpu was built without CUDA; use --no-cuda or another StarPU"
    fi
    grep -qs 'define STARPU_USE_FXT 1' "$starpu/include/starpu/1.4/starpu_config.h" ||
        say "the StarPU in $starpu was built without FxT: it cannot write traces"
}

from=()
[ -z "$starpu_source" ] || from=(--source "$starpu_source")
if [ -n "$starpu" ]; then
    check_given_starpu
    say "using StarPU $version in $starpu"
elif starpu_is_ours; then
    "$here/build_starpu.sh" --cuda "$cuda" ${from[@]+"${from[@]}"}
else
    say "using StarPU $(pkg-config --modversion starpu-1.4), which pkg-config finds"
fi
if [ "$simgrid" = yes ]; then
    "$here/build_starpu.sh" --simgrid ${from[@]+"${from[@]}"}
fi

# --- cuDNN's front end -----------------------------------------------------------------------

if [ "$cuda" = on ] && [ ! -f "$deps/cudnn-frontend/include/cudnn_frontend.h" ]; then
    if "$here/wheel_headers.sh" 'nvidia-cudnn-frontend>=1.10,<2' include \
        "$deps/cudnn-frontend/include"; then
        say "got cuDNN's front end"
    else
        say "going on without cuDNN's front end: attention uses slidedp's own kernel"
    fi
fi

# --- Python packages for tests ---------------------------------------------------------------

# The list of packages is kept with them: another list is another set of packages.
if [ "$tests" = yes ] && ! cmp -s "$root/tests/requirements.txt" "$deps/python/requirements.txt"; then
    say "getting the Python packages of tests/requirements.txt"
    mkdir -p "$deps/build"
    log=$deps/build/python.log
    rm -rf "$deps/python"
    if ! { python3 -m venv "$deps/python" &&
        "$deps/python/bin/pip" install --no-input -r "$root/tests/requirements.txt" &&
        "$deps/python/bin/pip" install --no-input --no-deps -r "$root/tests/requirements-files.txt"; } \
        >"$log" 2>&1 </dev/null; then
        tail -n 15 "$log" | sed 's/^/    /' >&2
        fail "pip could not install the packages of tests/requirements.txt; the log is $log"
    fi
    cp "$root/tests/requirements.txt" "$deps/python/requirements.txt"
fi

if [ "$cuda" = on ]; then
    echo "-DSDP_CUDA=ON"
    if ! have nvcc && [ -z "${CUDACXX:-}" ]; then
        echo "-DCMAKE_CUDA_COMPILER=$("$here/cuda_usable.sh" --dir)/bin/nvcc"
    fi
else
    echo "-DSDP_CUDA=OFF"
fi
# Given or not, so that a build folder forgets a prefix that is no longer given.
echo "-DSLIDEDP_STARPU=$starpu"
