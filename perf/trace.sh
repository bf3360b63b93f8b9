#!/bin/sh
# Prints which trace to measure with, a file in Mooncake's format: TRACE, or else the public one in ../shared/traces where a checkout
# has that beside it. Prints nothing where the project's generator is to make one. Says on stderr which it is.
#
#   trace=$(perf/trace.sh)
set -eu
trace=${TRACE:-}
if [ -z "$trace" ]; then
	trace=$(dirname "$0")/../../shared/traces/conversation_trace.jsonl
	[ -e "$trace" ] || trace=
fi
echo "trace: ${trace:-made by the generator of this project (TRACE=FILE names another)}" >&2
echo "$trace"
