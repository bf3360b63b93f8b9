#!/bin/sh
# Says which programs `make test` and `make check` need and lack.
#
#   perf/tools.sh           after `make test`: what was not run, and what it needs
#   perf/tools.sh cc ...    fails, naming the package, unless each tool is there
#   perf/tools.sh left-out  what make check-bpf and check-seen leave out without root
set -u

has() {
	case $1 in
	cc) command -v "${CC:-cc}" >/dev/null 2>&1 ;;
	python3 | curl | cargo | protoc | redis-server | redis-cli | fio | llvm-strip | bpftool | promtool | xz) command -v "$1" >/dev/null 2>&1 ;;
	clang) command -v clang >/dev/null 2>&1 && [ -e /usr/include/bpf/bpf_helpers.h ] ;;
	ibverbs) [ -e /usr/include/infiniband/verbs.h ] ;;
	root) [ "$(id -u 2>/dev/null)" = 0 ] ;;
	tun) [ -w /dev/net/tun ] ;;
	python) python3 -c 'import venv, ensurepip' >/dev/null 2>&1 ;;
	node) command -v npm >/dev/null 2>&1 && [ "$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -ge 20 ] ;;
	esac
}

package() {
	case $1 in
	cc) echo 'a C compiler (apt-get install gcc libc6-dev)' ;;
	cargo) echo 'cargo (https://rustup.rs)' ;;
	protoc) echo 'protoc (apt-get install protobuf-compiler)' ;;
	clang) echo 'clang and libbpf (apt-get install clang libbpf-dev)' ;;
	ibverbs) echo 'libibverbs (apt-get install libibverbs-dev)' ;;
	llvm-strip) echo 'llvm (apt-get install llvm)' ;;
	python3 | curl | redis-server | fio | bpftool) echo "$1 (apt-get install $1)" ;;
	promtool) echo 'prometheus with promtool (apt-get install prometheus)' ;;
	xz) echo 'xz (apt-get install xz-utils)' ;;
	redis-cli) echo 'redis-cli (apt-get install redis-tools)' ;;
	python) echo 'python3 with venv (apt-get install python3-venv)' ;;
	root) echo root ;;
	tun) echo 'root and /dev/net/tun' ;;
	node) echo 'node 20 or later with npm (apt-get install nodejs npm)' ;;
	esac
}

row() { # name, tools...
	name=$1
	shift
	missing=
	for tool in "$@"; do
		has "$tool" || missing="$missing${missing:+, }$(package "$tool")"
	done
	if [ -n "$missing" ]; then
		printf '  %-14s MISSING: %s\n' "$name" "$missing"
	else
		printf '  %-14s ready\n' "$name"
	fi
}

skipped() { # test, tool
	has "$2" || printf '  %-14s SKIPPED, for it needs %s\n' "$1" "$(package "$2")"
}

if [ "${1:-}" = left-out ]; then
	echo '== left out, for it needs root; make check-bpf-vm runs those of bpf in another kernel'
	for part in 'bpf, all tests of programs in the kernel' 'cmd/cgn-ctl TestBPF' 'cmd/cgn-agent TestCountsOutliveTheAgent and TestProgramsRemovedUnderAnAgent' 'agent/telemetry TestLookAllocates' 'router TestKernelSignals, TestKernelChange, TestKernelEvents and TestAgentMemory' 'deploy TestBoardShows, the panels of what the programs tell (make check-seen)'; do
		echo "  $part"
	done
	exit
fi

if [ $# -gt 0 ]; then
	status=0
	for tool in "$@"; do
		has "$tool" || { echo "missing: $(package "$tool")" >&2; status=1; }
	done
	exit $status
fi

echo
skips=$(
	skipped 'router/prefix TestDigestsInAnotherLanguage' python3
	skipped 'kv/block TestGoldenInAnotherLanguage' python3
	skipped 'kvcached/wire TestOtherImplementation' python3
	skipped 'ctl/up TestUp, the curl line' curl
	skipped 'proto/cognitora/v1 TestGenerated' protoc
	skipped 'perf/netpath, all tests' tun
	skipped 'router, tests of nodes that are cut off' tun
	skipped 'kvcached/resp TestAsRedis, beside redis' redis-server
	skipped 'router/limits/shared, and router TestSharedLimits' redis-server
	skipped 'perf/trust TestReadCounts' redis-server
	skipped 'agent/engine TestEngineGetsNoRights' root
	skipped 'cmd/cgn-agent TestWithoutRights' root
	skipped 'internal/replace TestOwner' root
	skipped 'internal/takeover TestAnotherUser' root
	skipped 'kvcached TestASmallFilesystemIsTold' root
	skipped 'kvcached/lease TestStrangers' root
	skipped 'kvcached/rpc TestStrangers' root
	skipped 'kvcached/ssd, tests on a full filesystem' root
	skipped 'internal/pki TestReadableLater' root
	skipped 'router/keys TestOwner' root
)
if [ -n "$skips" ]; then
	echo '== skipped by make test'
	printf '%s\n\n' "$skips"
fi
echo '== not run by make test; make check runs these'
row check-generate protoc clang llvm-strip
row check-race cc
row check-gpu cc
row check-fuzz
row check-sdk python node
row check-oidc node
row check-kv python node redis-cli
row check-tokens python
row check-net tun
row check-layout
row check-takeover
row check-outage
row check-kill
row check-abuse
row check-seen promtool
row check-bpf bpftool root
row check-vm xz
row check-bpf-vm xz
row check-ipmi-vm xz
row check-rdma cc xz
row check-llama python
echo 'not in make check either: make check-modes, make check-trust, make check-vllm'
