#!/bin/sh
# Runs redis and S3 clients against one cgn-kvcached without credentials, and S3 clients with keys
# and with TLS against servers of the tests. Logs of a failed run stay in .cache/kvclients.
set -eu
cd "$(dirname "$0")/../.."
: "${GO:=go}"
cache=$PWD/.cache/kvclients
mkdir -p "$cache"
work=$(mktemp -d "$cache/run-XXXXXX")
server=
stop() {
	[ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" || :; }
	server=
}
trap stop EXIT
trap 'exit 130' INT TERM
port() { python3 perf/sdk/ask.py port; }

status=0
[ -x bin/cgn-kvcached ] || CGO_ENABLED=0 $GO build -o bin/cgn-kvcached ./cmd/cgn-kvcached
redis=127.0.0.1:$(port) s3=127.0.0.1:$(port) admin=127.0.0.1:$(port)
bin/cgn-kvcached --data "$work/data" --ram 512MiB --ssd 1GiB --sock "$work/kv.sock" \
	--resp "$redis" --s3 "$s3" --admin "$admin" >"$work/daemon.log" 2>&1 &
server=$!
python3 perf/sdk/ask.py ready "http://$admin/readyz"
perf/kvclients/s3/run.sh "http://$s3" >"$work/s3.txt" 2>&1 || status=1
grep -E '^(==|Ran|ok|--- |FAILED)' "$work/s3.txt" || :
perf/kvclients/redis/run.sh "$redis" >"$work/redis.txt" 2>&1 || status=1
grep -E '^(==|Ran|ℹ (tests|fail)|ok|--- |FAILED|skipped|redis-cli)' "$work/redis.txt" || :
stop
CGN_KV_CLIENTS=1 CGO_ENABLED=0 $GO test -count=1 -run '^TestClients$' ./kvcached/s3 >"$work/tests.txt" 2>&1 || status=1
tail -n 1 "$work/tests.txt"
if [ $status = 0 ]; then
	rm -rf "$work"
	echo '== redis and S3 clients: ok'
else
	echo "== redis and S3 clients: FAILED, logs are in $work" >&2
fi
exit $status
