#!/bin/sh
# Measures the KV cache beside redis, bare sockets, bare quic-go, crypto/tls, grpc-go and fio, each
# pair in one run, and prints figures for perf/RESULTS.md. It takes about 10 minutes on a quiet
# machine, and needs redis-server and fio.
#
#   perf/kv.sh [PART...]    lease resp resp-unix transport rpc ssd restart memory evict (all)
#
# TRACE names a trace for evict. Without it, perf/trace.sh chooses one.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}"
export CGO_ENABLED=0 CGN_BENCH=1
[ $# -gt 0 ] || set -- lease resp resp-unix transport rpc ssd restart memory evict

measure() { # package, test
	$GO test -count=1 -timeout 20m -run "^$2\$" -v "./kvcached/$1" | grep -v '^=== '
}

for part in "$@"; do
	printf '\n== %s (commit %s, load %s)\n' "$part" "$(git describe --always --dirty)" "$(cut -d' ' -f1 /proc/loadavg)"
	case $part in
	lease) measure lease TestAgainstRedis ;;
	resp) measure resp TestAgainstRedis ;;
	resp-unix) CGN_BENCH_NET=unix measure resp TestAgainstRedis ;;
	transport) measure transport TestAgainstBare ;;
	rpc) measure rpc TestAgainstEcho ;;
	ssd) CGN_SOAK=1 $GO test -count=1 -run '^$' -bench Fio -benchtime 1x -v ./kvcached/ssd ;;
	restart) $GO test -timeout 30m -run '^$' -bench Restart -benchtime 3x ./kvcached/ssd ;;
	memory)
		measure ram TestBookkeeping
		measure . 'TestMemoryPerBlock.*'
		;;
	evict)
		trace=$(perf/trace.sh)
		bin/cgn-ctl kv trace ${trace:+"$trace"}
		;;
	*)
		echo "perf/kv.sh: no part is called $part" >&2
		exit 2
		;;
	esac
done
