#!/bin/sh
# Says which programs `make test` and `make check` need and lack.
#
#   perf/tools.sh           after `make test`: what was not run, and what it needs
#   perf/tools.sh cc ...    fails, naming the package, unless each tool is there
set -u

has() {
	case $1 in
	cc) command -v "${CC:-cc}" >/dev/null 2>&1 ;;
	python3 | curl) command -v "$1" >/dev/null 2>&1 ;;
	python) python3 -c 'import venv, ensurepip' >/dev/null 2>&1 ;;
	node) command -v npm >/dev/null 2>&1 && [ "$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -ge 20 ] ;;
	esac
}

package() {
	case $1 in
	cc) echo 'a C compiler (apt-get install gcc libc6-dev)' ;;
	python3 | curl) echo "$1 (apt-get install $1)" ;;
	python) echo 'python3 with venv (apt-get install python3-venv)' ;;
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
		printf '  %-13s MISSING: %s\n' "$name" "$missing"
	else
		printf '  %-13s ready\n' "$name"
	fi
}

skipped() { # test, tool
	has "$2" || printf '  %-13s SKIPPED, for it needs %s\n' "$1" "$(package "$2")"
}

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
	skipped 'cmd/cgn-ctl TestUp, the curl line' curl
)
if [ -n "$skips" ]; then
	echo '== skipped by make test'
	printf '%s\n\n' "$skips"
fi
echo '== not run by make test; make check runs these'
row check-race cc
row check-fuzz
row check-sdk python node
row check-llama python
