#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# `slidedp graph`: what it prints is a graph file that it, and a job, take again; wrong input
# is told with its place. SLIDEDP is the program.
set -u
program=${SLIDEDP:?set SLIDEDP to the program}
source=${SDP_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d "${TMPDIR:-/tmp}/sdp-test-verb-graph-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

fail() {
    failures=$((failures + 1))
    printf '%s\n' "$1" >&2
    cat err >&2
}

# Prints the graph of $1 into $2.
graph() {
    "$program" graph "$1" >"$2" 2>err || fail "slidedp graph $1 exits with $?"
    [ ! -s err ] || fail "slidedp graph $1 says something on stderr"
}

# expect_error PATTERN ARGUMENT...: exit code 2, nothing on stdout, the line on stderr.
expect_error() {
    local pattern=$1 code
    shift
    "$program" graph "$@" >out 2>err
    code=$?
    if [ $code -ne 2 ] || [ -s out ] || ! grep -qxE -- "$pattern" err; then
        fail "slidedp graph $*: exit code $code (wanted 2), wanted \"$pattern\"; got"
    fi
}

for name in llama llama-tied-biases qwen2-window qwen3 mistral rope-yarn rope-parameters \
    smollm2-135m qwen3-8b; do
    graph "$source/tests/model/families/$name/config.json" graph.json
    graph graph.json again.json
    cmp graph.json again.json || fail "$name: the printed graph prints another one"
done

printf '{"model": {"graph": "graph.json"}, "data": {"format": "synthetic", "sequence_length": 64},
 "train": {"steps": 1}}\n' >job.json
graph job.json of-job.json
cmp graph.json of-job.json || fail "a job's graph is not its graph file"

"$program" graph --ops >out 2>err || fail "slidedp graph --ops exits with $?"
for op in embedding rmsnorm linear rope attention swiglu cross_entropy; do
    grep -q "^$op: " out || fail "slidedp graph --ops does not list $op"
done

echo '{"slidedp_graph": 1,
 "nmae": "x"}' >wrong.json
expect_error 'slidedp: wrong.json:2:2: /nmae: unknown key; did you mean "name"\?' wrong.json
echo '{"model_type": "llama", "vocab_size": 8,
 "hidden_size": 0}' >config.json
expect_error 'slidedp: config.json:2:2: /hidden_size: is 0; must be an integer from 1 .*' config.json
echo '{}' >empty.json
expect_error 'slidedp: empty.json: is neither a job .*, nor a config.json .*, nor a graph .*' empty.json
expect_error 'slidedp: none.json: cannot open: no such file or folder' none.json
expect_error 'slidedp: graph: an argument is missing; usage: .*'
exit $((failures > 0))
