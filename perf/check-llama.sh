#!/bin/sh
# Two real llama.cpp servers behind the router: its APIs, its use of their caches, and what
# happens when one is killed; then the same servers started by `cgn-ctl up --model`.
# llama.cpp comes as a 34 MB Python wheel; the model is made here. Takes about a minute.
#
#   perf/check-llama.sh [PATTERN]     PATTERN: tests to run, as for go test
set -eu
cd "$(dirname "$0")/.."
cache=$PWD/.cache/llama
. perf/realengine/harness.sh

perf/tools.sh python
need "$GO" 'Go 1.26, https://go.dev/dl'
need cmp 'apt-get install diffutils'
binaries
environment "$cache/venv" "$here/llama/requirements.txt"
[ "$cache/tiny.gguf" -nt "$here/llama/make_tiny_gguf.py" ] ||
	"$cache/venv/bin/python" "$here/llama/make_tiny_gguf.py" "$cache/tiny.gguf"
prove llama "$cache/venv" "$here/llama/llama-server" "$cache/tiny.gguf" "${1:-TestLlama}"
