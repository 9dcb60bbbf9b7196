#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# What the compiler does not check about the source: rooms include only rooms below them, and
# calls that cannot be used safely are not used. Tests themselves are not looked at.
set -u
cd "${SDP_SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
failures=0

# Source files below the given folders; cases.c are inputs for tests.
sources() {
    find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) \
        ! -name cases.c
}

# report WHAT: fails with the lines on stdin, if there are any.
report() {
    local lines
    lines=$(cat)
    if [ -n "$lines" ]; then
        failures=$((failures + 1))
        printf '%s:\n%s\n' "$1" "$lines" >&2
    fi
}

# includes FOLDER...: "FILE: INCLUDED" for each #include "..." there.
includes() {
    sources "$@" | xargs grep -HE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' |
        sed -E 's/:[^"]*"([^"]*)".*/: \1/'
}

[ "$(sources graph codelets model policies | wc -l)" -gt 50 ] || {
    echo "no source here: $PWD" >&2
    exit 1
}

includes graph/base | grep -vE ': graph/base/' |
    report 'graph/base includes nothing but graph/base'
includes codelets | grep -E ': (model|policies|traces|tests|examples)/' |
    grep -vE '^codelets/(deliver|reduce|update|task)[^:]*: model/state/host_state\.h$' |
    report 'codelets include neither models (but for the host state), policies, traces nor tests'
includes codelets/ops codelets/common |
    grep -vE ': (codelets/(ops|common)/|graph/op\.h|graph/base/)' |
    report 'operations include nothing but graph/op.h, graph/base and each other'
# A verb is part of the program, wherever it lies.
includes policies | grep -vE '^policies/verb_' | grep -vE ': (graph/task_info\.h|policies/)' |
    report 'policies include nothing but graph/task_info.h and each other'
includes model | grep -vE '^model/verb_' | grep -E ': (policies|traces|tests|examples)/|: graph/(engine|run|plan|step)' |
    report 'models include neither the engine, policies, traces nor tests'
includes graph | grep -E ': (traces|tests|examples)/' |
    report 'the graph includes neither traces nor tests'

banned='atoi|atol|atoll|atof|gets|strcpy|strcat|sprintf|vsprintf|strtok'
sources graph codelets model policies $(ls -d traces examples 2>/dev/null) |
    xargs grep -nE "(^|[^A-Za-z0-9_])($banned)[[:space:]]*\(" |
    report 'calls that cannot be used safely'

exit $((failures > 0))
