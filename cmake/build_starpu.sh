#!/usr/bin/env bash
# Gets and builds StarPU 1.4 (1.4.10 or later) for slidedp. See usage below.
#
# The source is Debian's source package `starpu` from suite forky or sid. It comes through apt,
# with an apt state folder of its own (the machine's package lists and sources stay as they
# are), from the mirror that this machine's apt already uses, checked with Debian's archive
# keyring. Elsewhere, give a release tarball with --source.
#
# The work is done in .deps/build/ and moved to the prefix when complete, with a stamp that says
# what was built. A second call with the same options finds the stamp and returns at once; a
# call after an interrupt goes on where the last one stopped.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=$root/.deps
here=$root/cmake

# Raise this number when the recipe below changes: prefixes built by an older one are rebuilt.
recipe=1
floor=1.4.10
ceiling=1.5

# Limits of the built StarPU: CPU workers, GPUs, buffers of a task without dyn_handles, NUMA
# nodes (which configure would else count on the machine that builds).
limits=(--enable-maxcpus=256 --enable-maxcudadev=16 --enable-maxbuffers=32
    --enable-maxnumanodes=8)

# Programs that are kept; the rest needs R or serves other uses of StarPU.
tools="starpu_fxt_tool starpu_machine_display starpu_perfmodel_display starpu_sched_display"

usage() {
    cat <<USAGE
usage: cmake/build_starpu.sh [--prefix DIR] [--source TARBALL] [--cuda auto|on|off]
                             [--simgrid] [--force]

  --prefix DIR      where to install (default .deps/starpu with CUDA, .deps/starpu-cpu
                    without, .deps/starpu-simgrid with --simgrid)
  --source TARBALL  a StarPU 1.4 release tarball (default: Debian's source package, by apt)
  --cuda auto       with CUDA if nvcc and a GPU driver are here (the default)
  --cuda on         with CUDA in any case: to build here what another machine runs
  --cuda off        without CUDA
  --simgrid         the simulated StarPU, for \`slidedp simulate\` (needs libsimgrid-dev)
  --force           build even if the prefix is up to date
USAGE
}

say() {
    printf 'build_starpu: %s\n' "$1" >&2
}

fail() {
    say "$1"
    exit 1
}

# version_at_least A B: whether version A is B or later.
version_at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# version_fits V: whether V is a version that slidedp works with.
version_fits() {
    version_at_least "$1" "$floor" && ! version_at_least "$1" "$ceiling"
}

# --- Options ---------------------------------------------------------------------------------

prefix='' source='' cuda=auto simgrid=no force=no
while [ $# -gt 0 ]; do
    case $1 in
    --prefix | --source | --cuda)
        [ $# -ge 2 ] || fail "$1 needs a value; see --help"
        case $1 in
        --prefix) prefix=$2 ;;
        --source) source=$2 ;;
        --cuda) cuda=$2 ;;
        esac
        shift
        ;;
    --simgrid) simgrid=yes ;;
    --force) force=yes ;;
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

toolkit=$("$here/cuda_usable.sh" --dir)
case $simgrid,$cuda in
yes,*) cuda=off ;;
no,auto)
    cuda=off
    [ "$("$here/cuda_usable.sh")" != yes ] || cuda=on
    ;;
no,on)
    [ -n "$toolkit" ] || fail "--cuda on, but there is no nvcc; put it in PATH or set CUDA_HOME"
    ;;
no,off) ;;
*) fail "--cuda takes auto, on or off, not $cuda" ;;
esac

if [ "$simgrid" = yes ]; then
    variant=starpu-simgrid
elif [ "$cuda" = on ]; then
    variant=starpu
else
    variant=starpu-cpu
fi
[ -n "$prefix" ] || prefix=$deps/$variant
case $prefix in
/*) ;;
*) prefix=$PWD/$prefix ;;
esac
prefix=${prefix%/}
case $prefix$deps in
*[[:space:]]*) fail "StarPU cannot be built in a path with blanks: $root, $prefix" ;;
esac
if [ -n "$source" ]; then
    [ -f "$source" ] || fail "$source: no such file"
    source=$(cd "$(dirname "$source")" && pwd)/$(basename "$source")
fi

# --- What is there already -------------------------------------------------------------------

# NVIDIA's nvml.h is not in every toolkit. With it StarPU knows which GPUs NVLink joins; the
# library itself comes with the driver and is opened at run time.
get_nvml() {
    if [ ! -f "$toolkit/include/nvml.h" ] && [ ! -f "$deps/nvml/include/nvml.h" ]; then
        "$here/wheel_headers.sh" nvidia-nvml-dev nvidia/cu13/include "$deps/nvml/include" ||
            say "going on without nvml.h: StarPU will not know which GPUs NVLink joins"
    fi
}

nvcc_version() {
    "$toolkit/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'
}

# key: everything but StarPU's version that decides what the build yields.
key() {
    local text
    text="recipe=$recipe variant=$variant machine=$(uname -m) ${limits[*]}"
    [ "$cuda" = off ] || text="$text toolkit=$(nvcc_version)"
    [ -z "$source" ] || text="$text source=$(cksum <"$source")"
    printf '%s\n' "$text"
}

key=$(key)
stamp=$prefix/.slidedp-stamp

up_to_date() {
    [ "$force" = no ] && [ -f "$stamp" ] && [ "$(sed -n 1p "$stamp")" = "$key" ]
}

report_ready() {
    say "StarPU $(sed -n 2p "$stamp") is ready in $prefix"
}

if up_to_date; then
    report_ready
    exit 0
fi
if [ -e "$prefix" ] && [ ! -f "$stamp" ] && [ -n "$(ls -A "$prefix")" ]; then
    fail "$prefix exists and was not made by this script; choose another --prefix"
fi

mkdir -p "$deps/build" "$(dirname "$prefix")"
if command -v flock >/dev/null 2>&1; then
    exec 9>"$deps/build/$variant.lock"
    if ! flock -n 9; then
        say "waiting for another build of $variant to end"
        flock 9
    fi
    if up_to_date; then
        report_ready
        exit 0
    fi
fi

need=''
for tool in "${CC:-cc}" make tar pkg-config strip; do
    command -v "$tool" >/dev/null 2>&1 || need="$need $tool"
done
[ -z "$need" ] || fail "missing:$need; cmake/setup.sh installs what is needed or says what it is"
for module in hwloc fxt; do
    # The simulated StarPU needs both as well: same traces, same topology calls.
    pkg-config --exists "$module" ||
        fail "pkg-config does not find $module (Debian: lib$module-dev); run cmake/setup.sh"
done

# --- Run a step with its output in the log ---------------------------------------------------

log=$deps/build/$variant.log
: >"$log"

# step WHAT COMMAND...: runs the command; on failure shows the end of the log and exits.
step() {
    local what=$1
    shift
    printf '\n== %s: %s\n' "$what" "$*" >>"$log"
    if ! "$@" >>"$log" 2>&1 </dev/null; then
        say "$what failed; the last lines of $log:"
        tail -n 25 "$log" | sed 's/^/    /' >&2
        exit 1
    fi
}

# --- The source ------------------------------------------------------------------------------

# The mirrors in this machine's apt configuration, those for security updates last.
debian_mirrors() {
    # shellcheck disable=SC2016  # the dollar is apt's
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        awk '!seen[$0]++ { if (/security/) late = late $0 "\n"; else print }
            END { printf "%s", late }'
}

# apt with a state of its own below the folder $apt. Lists that are past their date are taken,
# since mirrors may be frozen: their signature still counts.
private_apt() {
    local program=$1
    shift
    "$program" \
        -o Dir::State="$apt/state" -o Dir::State::Lists="$apt/state/lists" \
        -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
        -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o APT::Sandbox::User="$(id -un)" -o Acquire::Check-Valid-Until=false \
        -o Acquire::Languages=none -o Acquire::Retries=3 -o Acquire::http::Timeout=60 \
        "$@"
}

# Downloads the newest fitting source package to $download and sets $source to it.
fetch_debian_source() {
    local apt=$deps/build/apt mirror keyring signed='' version best=''
    if ! command -v apt-get >/dev/null 2>&1 || ! grep -qs '^ID=debian' /etc/os-release; then
        fail "this is no Debian system, so StarPU's source cannot be had through apt; give a \
StarPU 1.4 release tarball with --source (set-up: --starpu-source), or an installed \
StarPU with --starpu DIR"
    fi
    for keyring in /usr/share/keyrings/debian-archive-keyring.gpg \
        /usr/share/keyrings/debian-archive-keyring.pgp; do
        if [ -f "$keyring" ]; then
            signed="[signed-by=$keyring] "
            break
        fi
    done
    rm -rf "$apt"
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$download"
    : >"$apt/status"
    while read -r mirror; do
        printf "deb-src ${signed}%s %s main\n" "$mirror" forky "$mirror" sid >"$apt/sources.list"
        printf '\n== package lists from %s\n' "$mirror" >>"$log"
        # One of the two suites may fail: what counts is whether a version is found.
        private_apt apt-get update >>"$log" 2>&1 </dev/null || true
        while read -r version; do
            # A Debian version reads 1.4.10+dfsg-2.
            if version_fits "${version%%[+-]*}"; then
                best=$version
                break
            fi
        done < <(private_apt apt-cache showsrc starpu 2>>"$log" |
            sed -n 's/^Version: //p' | sort -rV)
        [ -z "$best" ] || break
    done < <(debian_mirrors)
    if [ -z "$best" ]; then
        tail -n 15 "$log" | sed 's/^/    /' >&2
        fail "found no StarPU $floor or later 1.4 in Debian forky or sid; is the network up? \
Else give a release tarball with --source"
    fi
    say "downloading the source of StarPU $best"
    cd "$download"
    step "download of StarPU's source" private_apt apt-get -qq source --download-only "starpu=$best"
    cd "$root"
    rm -rf "$apt"
    source=$download/starpu_${best#*:}.dsc
    [ -f "$source" ] || fail "apt downloaded no starpu_$best.dsc to $download"
}

# Sets $source to a downloaded source package, if there is a fitting one.
find_downloaded() {
    local dsc version
    for dsc in "$download"/starpu_*.dsc; do
        version=${dsc##*/starpu_}
        if [ -f "$dsc" ] && version_fits "${version%%[+-]*}"; then
            source=$dsc
        fi
    done
}

# Unpacks $source to $tree.
unpack() {
    local orig
    rm -rf "$tree"
    mkdir -p "$work"
    case $source in
    *.dsc)
        if command -v dpkg-source >/dev/null 2>&1; then
            step "unpacking" dpkg-source --no-check -x "$source" "$tree"
        else
            # Debian's own patches touch only documentation and examples.
            orig=$(echo "${source%-*}".orig.tar.*)
            mkdir -p "$tree"
            step "unpacking" tar -xf "$orig" -C "$tree" --strip-components=1
        fi
        ;;
    *)
        mkdir -p "$tree"
        step "unpacking" tar -xf "$source" -C "$tree" --strip-components=1
        ;;
    esac
    if [ ! -x "$tree/configure" ]; then
        [ -f "$tree/autogen.sh" ] || fail "$source is no StarPU source: it has no configure"
        command -v autoreconf >/dev/null 2>&1 ||
            fail "$source is no release tarball (it has no configure) and autoconf is missing"
        cd "$tree"
        step "autogen.sh" ./autogen.sh
        cd "$root"
    fi
}

# --- Patches: each looks first whether the code needs it -------------------------------------

patch_source() {
    local file wanted='props\[devid\]\.computeMode'

    # CUDA 13 removed cudaDeviceProp.computeMode (fixed on StarPU's branch after 1.4.12).
    local ask='\1int compute_mode = 0;\n'
    ask+='\1cures = cudaDeviceGetAttribute(\&compute_mode, cudaDevAttrComputeMode, devid);\n'
    ask+='\1if (STARPU_UNLIKELY(cures))\n'
    ask+='\1\tSTARPU_CUDA_REPORT_ERROR(cures);\n'
    for file in "$tree"/src/drivers/cuda/driver_cuda.c "$tree"/src/drivers/cuda/driver_cuda1.c; do
        if [ -f "$file" ] && grep -q "$wanted" "$file"; then
            sed -i "s/^\([[:space:]]*\)if ($wanted == /${ask}\1if (compute_mode == /" "$file"
            ! grep -q "$wanted" "$file" ||
                fail "${file##*/}: computeMode is used in a way that the patch does not know"
            say "patched ${file##*/}: cudaDeviceProp.computeMode"
        fi
    done

    # _starpu_malloc_on_node clears STARPU_MALLOC_COUNT before it tests the flag to give back
    # the count of a failed allocation, so each failed one leaks accounted bytes. The call in
    # between masks the flag itself, so the early clearing can go.
    local function='^static uintptr_t _starpu_malloc_on_node('
    local clear='flags &= ~STARPU_MALLOC_COUNT;'
    local call='malloc_on_node(dst_node, size, flags & ~STARPU_MALLOC_COUNT)'
    file=$tree/src/datawizard/malloc.c
    if sed -n "/$function/,/^}/p" "$file" | tr -d '\n' | grep -q "$clear.*$call"; then
        sed -i -e "/$function/,/^}/{" -e '/prevent double-count/d' \
            -e "/^[[:space:]]*$clear\$/d" -e '}' "$file"
        say "patched malloc.c: accounting of failed allocations"
    fi

    # StarPU warns at each start when its folder of sample performance models is gone, which
    # are of no use to slidedp and are not installed here.
    sed -i '/_perf_model_add_dir(STARPU_SAMPLING_DIR, 1, /d' \
        "$tree/src/core/perfmodel/perfmodel.c"
}

# --- Build -----------------------------------------------------------------------------------

configure_source() {
    local options config cppflags=${CPPFLAGS:-} rpath
    # What was built can be moved as a whole: libraries are looked for beside the one that
    # needs them. \$$ORIGIN passes make, the shell and libtool as $ORIGIN.
    # shellcheck disable=SC2016
    rpath='-Wl,-rpath,\$$ORIGIN -Wl,-rpath,\$$ORIGIN/../lib'
    options=(
        --prefix="$prefix" --libdir="$prefix/lib" "${limits[@]}" --with-fxt
        --disable-static --disable-dependency-tracking --enable-silent-rules
        --disable-fstack-protector-all --disable-full-gdb-information --disable-gdb
        --disable-build-doc --disable-build-examples --disable-build-tests
        --disable-starpufft --disable-openmp --disable-mpi --disable-fortran
        --disable-opencl --disable-max-fpga --disable-socl --disable-starpupy --disable-julia
        --disable-eclipse-plugin --disable-glpk --disable-papi --disable-valgrind
        --disable-starpurm --without-x
    )
    if [ "$simgrid" = yes ]; then
        options+=(--enable-simgrid)
    elif [ "$cuda" = on ]; then
        options+=(--enable-cuda --with-cuda-dir="$toolkit")
        # configure runs a program that is linked with cudart.
        export LD_LIBRARY_PATH="$toolkit/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        export NVCC="$toolkit/bin/nvcc"
        rpath="$rpath -Wl,-rpath,$toolkit/lib64"
        [ ! -f "$deps/nvml/include/nvml.h" ] || cppflags="$cppflags -isystem $deps/nvml/include"
    else
        options+=(--disable-cuda)
    fi
    mkdir -p "$build"
    cd "$build"
    # The source is complete: its time stamps must not make it run the autotools.
    step "configure" "$tree/configure" "${options[@]}" CPPFLAGS="$cppflags" \
        CFLAGS="${CFLAGS:-} -w" LDFLAGS="${LDFLAGS:-} $rpath" \
        ACLOCAL=: AUTOCONF=: AUTOHEADER=: AUTOMAKE=: MAKEINFO=:
    cd "$root"
    config=$build/include/starpu_config.h
    [ "$cuda" = off ] || grep -q 'define STARPU_USE_CUDA 1' "$config" ||
        fail "configure did not accept the CUDA toolkit in $toolkit; see $log"
    grep -q 'define STARPU_USE_FXT 1' "$config" ||
        fail "configure did not accept FxT (libfxt-dev); see $log"
}

# Leaves in $1 what slidedp and a reader of its traces use, and makes it relocatable.
trim() {
    local dir=$1 file name
    rm -rf "$dir"/share "$dir"/lib/starpu "$dir"/lib/modules
    # StarPU's headers include nvml.h if it was there for the build.
    if grep -qs 'define STARPU_HAVE_NVML_H 1' "$dir"/include/starpu/1.4/starpu_config.h &&
        [ -f "$deps/nvml/include/nvml.h" ]; then
        cp "$deps/nvml/include/nvml.h" "$dir/include/starpu/1.4/"
    fi
    find "$dir" \( -name '*.la' -o -name '*.a' -o -name '*.f90' \) -delete
    for file in "$dir"/bin/*; do
        name=${file##*/}
        case " $tools starpu_replay starpu_calibrate_bus " in
        *" $name "*) strip "$file" ;;
        *) rm -f "$file" ;;
        esac
    done
    find "$dir/lib" -type f -name '*.so*' -exec strip --strip-unneeded {} +
    for file in "$dir"/lib/pkgconfig/*.pc; do
        case ${file##*/} in
        starpu-1.4.pc | libstarpu.pc)
            # shellcheck disable=SC2016  # the dollars are pkg-config's
            sed -i -e 's|^prefix=.*|prefix=${pcfiledir}/../..|' \
                -e 's|^libdir=.*|libdir=${prefix}/lib|' -e 's| -Wl,-rpath,[^ ]*||g' "$file"
            ;;
        *) rm -f "$file" ;;
        esac
    done
    find "$dir" -type d -empty -delete
}

work=$deps/build/$variant tree=$work/source build=$work/build stage=$work/stage
download=$deps/build/download

[ "$cuda" = off ] || get_nvml
if [ -z "$source" ]; then
    find_downloaded
    [ -n "$source" ] || fetch_debian_source
fi

# What the folder holds is used again only if it is for the same build.
job="$key prefix=$prefix source=$source"
if [ ! -f "$work/configured" ] || [ "$(cat "$work/configured")" != "$job" ]; then
    rm -rf "$work"
    unpack
    patch_source
fi
version=$(sed -n "s/^PACKAGE_VERSION='\(.*\)'/\1/p" "$tree/configure")
version_fits "$version" ||
    fail "$source is StarPU ${version:-of no known version}; slidedp needs $floor or a later 1.4"

jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
case $variant in
starpu) with="with CUDA $(nvcc_version)" ;;
starpu-simgrid) with="with SimGrid" ;;
*) with="without CUDA" ;;
esac
say "building StarPU $version $with (1 to 3 minutes; log: $log)"
started=$SECONDS
if [ ! -f "$work/configured" ]; then
    configure_source
    printf '%s' "$job" >"$work/configured"
fi
step "make" make -C "$build" -j "$jobs"
rm -rf "$stage"
step "make install" make -C "$build" install DESTDIR="$stage"
trim "$stage$prefix"
printf '%s\n%s\n' "$key" "$version" >"$stage$prefix/.slidedp-stamp"
# The stage may lie on another file system: copy first, so that the last move is one rename.
rm -rf "$prefix.new"
mv "$stage$prefix" "$prefix.new"
rm -rf "$prefix"
mv "$prefix.new" "$prefix"
rm -rf "$work"
say "built in $((SECONDS - started)) s, $(du -sh "$prefix" | cut -f 1)"
report_ready
