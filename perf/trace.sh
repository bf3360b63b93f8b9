#!/bin/sh
# Prints the file of the trace to measure with, in Mooncake's format: TRACE, or else the public
# trace in ../shared/traces beside the checkout. Prints nothing if there is neither; the caller then
# uses the project's generator. Names its choice on stderr.
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
