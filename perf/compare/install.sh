#!/bin/sh
# Installs the programs that our router is compared with, if they are missing.
#
#   perf/compare/install.sh                       haproxy and nginx, from Debian's packages
#   perf/compare/install.sh smg vllm-router ...   peers from PyPI, each in a venv under .cache/peers
#   perf/compare/install.sh dynamo                NVIDIA Dynamo's frontend and mocker (700 MB)
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

# The package ai-dynamo depends on aisimulate, which PyPI has as a placeholder only. Neither the
# frontend nor the mocker needs it, so the wheels come without dependencies and those that both need
# come by name.
dynamo() {
	venv=.cache/peers/dynamo version=1.6.1
	if "$venv/bin/python" -c "import importlib.metadata as m, dynamo._core, transformers
assert m.version('ai-dynamo') == m.version('ai-dynamo-runtime') == '$version'" 2>/dev/null; then return 0; fi
	rm -rf "$venv"
	echo "== installing dynamo $version into $venv" >&2
	python3 -m venv "$venv"
	"$venv/bin/pip" install -q --no-deps "ai-dynamo==$version" "ai-dynamo-runtime==$version" >&2
	"$venv/bin/pip" install -q 'aiohttp>=3.14.3,<4' certifi 'kubernetes>=32.0.1,<33' 'msgspec>=0.19' numpy \
		'prometheus-client>=0.23.1,<1' 'pydantic>=2.10.6,<=2.13.5' 'pyzmq>=26' 'redis>=6.2,<9' tokenizers tqdm \
		'transformers>=4.56' 'typing-extensions>=4.10' 'uvloop>=0.21' 'zstandard>=0.23,<1' >&2
}

peer() {
	case $1 in
	smg | vllm-router | sglang-router) ;;
	dynamo)
		dynamo
		return
		;;
	*)
		echo "perf/compare/install.sh: \"$1\" is no peer that is compared with; there are smg, vllm-router, sglang-router and dynamo" >&2
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
