# What check-llama.sh and check-vllm.sh share; they source it in the repository's root.
: "${GO:=go}"
here=$PWD/perf/realengine

fail() {
	echo "$*" >&2
	exit 1
}

need() { # program, how to get it
	command -v "$1" >/dev/null 2>&1 || fail "missing: $1 ($2)"
}

# environment VENV REQUIREMENTS: a virtual environment with exactly these packages
environment() {
	if cmp -s "$2" "$1/installed.txt" && "$1/bin/python" -c '' 2>/dev/null; then
		return
	fi
	echo "installing $(grep -c '^[A-Za-z]' "$2") Python packages into $1"
	rm -rf "$1"
	python3 -m venv "$1"
	"$1/bin/pip" install -q --disable-pip-version-check --no-deps -r "$2"
	cp "$2" "$1/installed.txt"
}

# binaries: the programs under test, where make has not built them
binaries() {
	for b in cgn-router cgn-ctl; do
		[ -x "bin/$b" ] || CGO_ENABLED=0 $GO build -o "bin/$b" "./cmd/$b"
	done
}

# remains: the recorded processes that are still there
remains() {
	for f in "$REALENGINE_RUN"/pids/*; do
		if [ -e "$f" ] && kill -0 "${f##*/}" 2>/dev/null; then echo "${f##*/}"; fi
	done
}

# cleanup: ends by id the tests and what they have left; shows the logs of a failed run
cleanup() {
	status=$?
	trap - EXIT INT TERM
	kill -TERM "$tests" 2>/dev/null && wait "$tests" || :
	left=$(remains)
	if [ -n "$left" ]; then
		echo 'stopping what the tests have left:' $left >&2
		kill -TERM $left 2>/dev/null || :
		tries=50
		while [ -n "$(remains)" ] && [ $tries -gt 0 ]; do sleep 0.2; tries=$((tries - 1)); done
		left=$(remains)
		[ -z "$left" ] || kill -KILL $left
	fi
	if [ "$status" -eq 0 ]; then
		rm -rf "$REALENGINE_RUN"
	else
		rm -f "$REALENGINE_RUN/tests"
		tail -n 40 "$REALENGINE_RUN"/*.log >&2 2>/dev/null || :
		echo "FAILED; the logs are in $REALENGINE_RUN" >&2
	fi
	exit "$status"
}

# prove ENGINE VENV SERVE MODEL TESTS: runs the tests with what has been prepared
prove() {
	mkdir -p "$cache/runs"
	REALENGINE_RUN=$(mktemp -d "$cache/runs/XXXXXX")
	mkdir "$REALENGINE_RUN/pids"
	export REALENGINE="$1" REALENGINE_PYTHON="$2/bin/python" REALENGINE_SERVE="$3" REALENGINE_MODEL="$4"
	export REALENGINE_RUN REALENGINE_BIN="$PWD/bin"
	CGO_ENABLED=0 $GO test -c -o "$REALENGINE_RUN/tests" ./perf/realengine
	# In the background, so that a signal is acted upon at once.
	"$REALENGINE_RUN/tests" -test.v -test.timeout 30m -test.run "$5" &
	tests=$!
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	wait "$tests"
}
