#!/bin/sh
# Installs the programs that our router is compared with, if they are missing.
#
#   perf/compare/install.sh                       haproxy and nginx, from Debian's packages
#   perf/compare/install.sh smg vllm-router ...   peers from PyPI, each in a venv under .cache/peers
#
# A policy-rc.d keeps the packages from starting services.
set -eu
cd "$(dirname "$0")/../.."

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

debian() {
	missing=
	for p in haproxy nginx; do
		PATH=$PATH:/usr/sbin command -v "$p" >/dev/null || missing="$missing $p"
	done
	[ -n "$missing" ] || return 0
	if ! command -v apt-get >/dev/null; then
		echo "not installed:$missing; there is no apt-get to install them with" >&2
		return 0
	fi
	echo "== installing$missing" >&2
	policy=/usr/sbin/policy-rc.d
	if [ ! -e $policy ]; then
		printf '#!/bin/sh\nexit 101\n' | as_root sh -c "cat >$policy && chmod 755 $policy"
		trap 'as_root rm -f $policy' EXIT
	fi
	as_root apt-get update -q >&2
	# shellcheck disable=SC2086
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing >&2
}

peer() {
	case $1 in
	smg | vllm-router | sglang-router) ;;
	*)
		echo "perf/compare/install.sh: \"$1\" is no peer that is compared with; there are smg, vllm-router and sglang-router" >&2
		exit 1
		;;
	esac
	venv=.cache/peers/$1
	if "$venv/bin/$1" --help >/dev/null 2>&1; then return 0; fi # a venv that was moved does not run
	rm -rf "$venv"
	echo "== installing $1 into $venv" >&2
	python3 -m venv "$venv"
	"$venv/bin/pip" install -q "$1" >&2
}

if [ $# -eq 0 ]; then
	debian
else
	for p in "$@"; do peer "$p"; done
fi
