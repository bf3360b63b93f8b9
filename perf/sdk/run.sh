#!/bin/sh
# Runs the SDK suites against the real binaries: `cgn-ctl up` (router, agents and
# simulated engines), and two cgn-router before an engine that demands a key: a
# strict one, and one with API keys that have rights and limits of their own.
# Packages go to .cache/sdk; logs of a failed run stay there.
#
#   perf/sdk/run.sh                  all suites
#   perf/sdk/run.sh python node go   some of them
set -eu
cd "$(dirname "$0")/../.."
sdk=$PWD/perf/sdk cache=$PWD/.cache/sdk
: "${GO:=go}"
[ $# -gt 0 ] || set -- python node go

need() { # program, package
	command -v "$1" >/dev/null 2>&1 || { echo "missing: $1 ($2)" >&2; exit 1; }
}
need python3 'apt-get install python3 python3-venv' # also reads what the daemons print
for suite in "$@"; do
	case $suite in
	python)
		python3 -c 'import venv, ensurepip' 2>/dev/null || { echo 'missing: python3 venv (apt-get install python3-venv)' >&2; exit 1; }
		;;
	node) need node 'apt-get install nodejs, 20 or later'; need npm 'apt-get install npm' ;;
	go) need "$GO" 'Go 1.26 or later' ;;
	*) echo "no such suite: $suite" >&2; exit 2 ;;
	esac
done

for b in cgn-ctl cgn-router; do
	[ -x "bin/$b" ] || CGO_ENABLED=0 $GO build -o "bin/$b" "./cmd/$b"
done

mkdir -p "$cache"
work=$(mktemp -d "$cache/run-XXXXXX")
pids='' status=0
stop() {
	for pid in $pids; do kill -TERM "$pid" 2>/dev/null || :; done
	for pid in $pids; do wait "$pid" 2>/dev/null || echo "process $pid ended with status $?" >&2; done
	pids=
}
trap 'stop' EXIT
trap 'exit 130' INT TERM

serve() { # name, command...: starts it with its output in files
	name=$1
	shift
	"$@" >"$work/$name.out" 2>"$work/$name.log" &
	pids="$! $pids"
}
ask() { # prints one thing: see ask.py
	python3 "$sdk/ask.py" "$@" || { tail -n 20 "$work"/*.log >&2; exit 1; }
}

# The fleet, and an engine that demands a key.
printf 'sesame' >"$work/key"
serve up bin/cgn-ctl up --listen 127.0.0.1:0 --admin 127.0.0.1:0 --engines 3 -o json
serve engine bin/cgn-ctl sim --listen 127.0.0.1:0 --model locked,open --api-key sesame -o json
fleet=$(ask field "$work/up.out" routers.0.listen)
admin=$(ask field "$work/up.out" routers.0.admin)
engines=$(ask engines "$work/up.out")
locked=$(ask field "$work/engine.out" url)

# The strict router: one engine under several names, each with its own rule.
strict=127.0.0.1:$(ask port) strict_admin=127.0.0.1:$(ask port)
cat >"$work/strict.toml" <<EOF
router = {listen = "$strict", admin = "$strict_admin", forward_auth = true, drain_delay = "0s"}
limits = {max_body = "64KiB", max_streams = 2}
backend = [
  {url = "$locked", id = "keyed", model = "keyed", api_key_file = "$work/key"},
  {url = "$locked", id = "narrow", model = "narrow", api_key_file = "$work/key"},
  {url = "$locked", id = "open", model = "open"},
]
model = [{name = "narrow", max_queue = 1}]
EOF
serve strict bin/cgn-router --config "$work/strict.toml"

# The guarded router: each key has a reason to refuse its requests. retries.json has the requests.
key() { # name, flags of `cgn-ctl key create`...
	name=$1
	shift
	bin/cgn-ctl key create --keys-file "$work/keys.json" "$@" -o json >"$work/$name.key"
	printf '"%s": "%s"' "$name" "$(ask field "$work/$name.key" key)"
}
guarded=127.0.0.1:$(ask port) guarded_admin=127.0.0.1:$(ask port)
keys="{$(key free), $(key lists --scope models), $(key other --model other), $(key reader --scope admin.read)"
keys="$keys, $(key paced --limit requests_per_minute=60), $(key metered --limit tokens_per_minute=60000)"
keys="$keys, $(key tight --limit tokens_per_minute=50), $(key spent --limit budget=500)"
keys="$keys, $(key unknown --keys-file "$work/elsewhere.json")}"
cat >"$work/guarded.toml" <<EOF
router = {listen = "$guarded", admin = "$guarded_admin", drain_delay = "0s"}
auth = {keys_file = "$work/keys.json"}
limits = {max_body = "64KiB"}
backend = [
  {url = "$locked", id = "keyed", model = "keyed", api_key_file = "$work/key"},
  {url = "$locked", id = "narrow", model = "narrow", api_key_file = "$work/key"},
]
model = [{name = "narrow", max_queue = 1}]
EOF
serve guarded bin/cgn-router --config "$work/guarded.toml"
for at in "$admin" "$strict_admin" "$guarded_admin"; do ask ready "http://$at/readyz"; done

export CGN_SDK_FLEET="http://$fleet" CGN_SDK_ENGINES="$engines" CGN_SDK_STRICT="http://$strict" CGN_SDK_LOCKED="$locked"
export CGN_SDK_GUARDED="http://$guarded" CGN_SDK_METRICS="http://$guarded_admin/metrics" CGN_SDK_KEYS="$keys"
export CGN_SDK_CASES="$sdk/cases.json" CGN_SDK_RETRIES="$sdk/retries.json"

run_python() {
	venv=$cache/python-$(cksum <"$sdk/python/requirements.txt" | cut -d' ' -f1)
	if [ ! -e "$venv/complete" ]; then
		rm -rf "$venv"
		python3 -m venv "$venv" &&
			"$venv/bin/pip" install --quiet -r "$sdk/python/requirements.txt" &&
			touch "$venv/complete" || return 1
	fi
	PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m unittest discover -v -s "$sdk/python"
}
run_node() {
	modules=$cache/node-$(cksum <"$sdk/node/package-lock.json" | cut -d' ' -f1)
	if [ ! -e "$modules/complete" ]; then
		rm -rf "$modules"
		mkdir -p "$modules" &&
			cp "$sdk/node/package.json" "$sdk/node/package-lock.json" "$modules" &&
			(cd "$modules" && npm ci --no-audit --no-fund --loglevel=error) &&
			touch "$modules/complete" || return 1
	fi
	NODE_PATH=$modules/node_modules node --test --test-concurrency=1 --test-reporter=spec "$sdk"/node/*.test.js
}
run_go() {
	(cd "$sdk/go" && CGO_ENABLED=0 $GO test -count=1 -v ./...)
}
count() { # suite: the tests that its log counts
	case $1 in
	python) sed -n 's/^Ran \([0-9]*\) tests.*/\1/p' "$work/python.txt" ;;
	node) sed -n 's/^ℹ tests \([0-9]*\)/\1/p' "$work/node.txt" ;;
	go) grep -c '^ *--- ' "$work/go.txt" ;;
	esac
}

summary=
for suite in "$@"; do
	echo "== SDK suite: $suite"
	begun=$(date +%s) result=ok
	("run_$suite") >"$work/$suite.txt" 2>&1 || { result=FAILED status=1; cat "$work/$suite.txt"; }
	n=$(count "$suite") || :
	[ "${n:-0}" -gt 0 ] || { result='FAILED: no test ran' status=1; }
	summary="$summary$(printf '  %-7s %4s tests %4s s  %s' "$suite" "${n:-0}" $(($(date +%s) - begun)) "$result")
"
done
stop
printf '== SDK suites\n%s' "$summary"
if [ $status = 0 ]; then
	rm -rf "$work"
else
	echo "logs are in $work" >&2
fi
exit $status
