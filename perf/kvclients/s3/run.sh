#!/bin/sh
# Runs S3 clients against an endpoint: boto3, awscrt (LMCache's client), aws-sdk-go-v2 and minio-go.
#
#   perf/kvclients/s3/run.sh ENDPOINT [python] [go]     such as http://127.0.0.1:9000; without suites: all
#
# S3_ACCESS_KEY and S3_SECRET_KEY are the credentials. Their default "test" works with a server
# without keys. An https endpoint needs its certificate in S3_CA_FILE, and awscrt is left out.
# Packages go to .cache/kvclients.
set -eu
cd "$(dirname "$0")/../../.."
here=$PWD/perf/kvclients/s3 cache=$PWD/.cache/kvclients
: "${GO:=go}"
[ $# -gt 0 ] || { echo "usage: $0 ENDPOINT [python] [go]" >&2; exit 2; }
export S3_ENDPOINT="$1"
shift
[ $# -gt 0 ] || set -- python go

run_python() {
	python3 -c 'import venv, ensurepip' 2>/dev/null || { echo 'missing: python3 with venv (apt-get install python3-venv)' >&2; return 1; }
	venv=$cache/s3-python-$(cksum <"$here/python/requirements.txt" | cut -d' ' -f1)
	if [ ! -e "$venv/complete" ]; then
		rm -rf "$venv"
		python3 -m venv "$venv" &&
			"$venv/bin/pip" install --quiet -r "$here/python/requirements.txt" &&
			touch "$venv/complete" || return 1
	fi
	PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m unittest discover -v -s "$here/python"
}
run_go() {
	(cd "$here/go" && CGO_ENABLED=0 $GO test -count=1 -v ./...)
}

status=0
for suite in "$@"; do
	case $suite in
	python | go) echo "== S3 clients: $suite" && "run_$suite" 2>&1 || status=1 ;;
	*) echo "no such suite: $suite" >&2; exit 2 ;;
	esac
done
exit $status
