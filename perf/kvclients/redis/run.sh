#!/bin/sh
# Runs redis clients against a server, and empties it: redis-cli and redis-benchmark, redis-py 5 and
# 8, ioredis, go-redis.
#
#   perf/kvclients/redis/run.sh HOST:PORT [cli] [python] [node] [go]     without suites: all
#
# Packages go to .cache/kvclients.
set -eu
cd "$(dirname "$0")/../../.."
here=$PWD/perf/kvclients/redis cache=$PWD/.cache/kvclients
: "${GO:=go}"
[ $# -gt 0 ] || { echo "usage: $0 HOST:PORT [cli] [python] [node] [go]" >&2; exit 2; }
export REDIS_HOST="${1%:*}" REDIS_PORT="${1##*:}"
shift
[ $# -gt 0 ] || set -- cli python node go

# redis-cli and redis-benchmark are run if they are installed.
run_cli() {
	command -v redis-cli >/dev/null || { echo 'skipped: redis-cli (apt-get install redis-tools)'; return 0; }
	for protocol in -2 -3; do
		cli="redis-cli -h $REDIS_HOST -p $REDIS_PORT $protocol"
		head -c 300000 /dev/urandom | base64 -w 0 >"$cache/value"
		[ "$($cli -x SET k <"$cache/value")" = OK ] &&
			$cli --raw GET k | head -c -1 | cmp - "$cache/value" &&
			[ "$($cli GET nothing)" = "" ] &&
			[ "$($cli --scan --pattern 'k*' | sort -u)" = k ] &&
			[ "$($cli FLUSHALL)" = OK ] || return 1
		echo "redis-cli $protocol: ok"
	done
	for size in 100 100000; do
		redis-benchmark -h "$REDIS_HOST" -p "$REDIS_PORT" -t set,get -d $size -n 5000 -q -P 4 >"$cache/benchmark" 2>&1 || { cat "$cache/benchmark"; return 1; }
		tr '\r' '\n' <"$cache/benchmark" | grep 'requests per second'
		[ "$(tr '\r' '\n' <"$cache/benchmark" | grep -c 'requests per second')" = 2 ] || return 1
	done
}
run_python() {
	python3 -c 'import venv, ensurepip' 2>/dev/null || { echo 'missing: python3 with venv (apt-get install python3-venv)' >&2; return 1; }
	for version in 5 8; do
		wanted=$here/python/requirements-$version.txt
		venv=$cache/redis-python-$(cksum <"$wanted" | cut -d' ' -f1)
		if [ ! -e "$venv/complete" ]; then
			rm -rf "$venv"
			python3 -m venv "$venv" && "$venv/bin/pip" install --quiet -r "$wanted" && touch "$venv/complete" || return 1
		fi
		PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m unittest discover -v -s "$here/python" || return 1
	done
}
run_node() {
	command -v npm >/dev/null || { echo 'missing: node with npm (apt-get install nodejs npm)' >&2; return 1; }
	modules=$cache/redis-node-$(cksum <"$here/node/package-lock.json" | cut -d' ' -f1)
	if [ ! -e "$modules/complete" ]; then
		rm -rf "$modules"
		mkdir -p "$modules" &&
			cp "$here/node/package.json" "$here/node/package-lock.json" "$modules" &&
			(cd "$modules" && npm ci --no-audit --no-fund --loglevel=error) &&
			touch "$modules/complete" || return 1
	fi
	NODE_PATH=$modules/node_modules node --test --test-concurrency=1 --test-reporter=spec "$here"/node/*.test.js
}
run_go() {
	(cd "$here/go" && CGO_ENABLED=0 $GO test -count=1 -v ./...)
}

mkdir -p "$cache"
status=0
for suite in "$@"; do
	case $suite in
	cli | python | node | go) echo "== redis clients: $suite" && "run_$suite" 2>&1 || { status=1; echo "FAILED: $suite" >&2; } ;;
	*) echo "no such suite: $suite" >&2; exit 2 ;;
	esac
done
exit $status
