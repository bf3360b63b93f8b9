#!/bin/sh
# Writes the routing-quality section of perf/REPORTS.md: machine, commit, command, trace and table.
set -eu
cd "$(dirname "$0")/.."
out=$(mktemp)
trap 'rm -f "$out"' EXIT
{
	echo "Measured $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD), $(nproc) cores ($(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)), Linux $(uname -r), $(go version | cut -d' ' -f3)." |
		fold -s -w 100 | sed 's/ *$//'
	echo
	echo "    TURNS=${TURNS:-2000} SPEED=${SPEED:-20} perf/quality.sh"
	echo
	perf/quality.sh
} >"$out"
awk -v table="$out" '
	/<!-- quality: begin -->/ { print; print ""; while ((getline line < table) > 0) print line; print ""; skip = 1 }
	/<!-- quality: end -->/ { skip = 0 }
	!skip { if ($0 !~ /quality: begin/) print }
' perf/REPORTS.md >"$out.new"
mv "$out.new" perf/REPORTS.md
cat "$out"
