#!/bin/sh
# Runs every fuzz target of the module for FUZZTIME (60s) each, one after the
# other. Inputs that fail are written to the package's testdata/fuzz; commit them.
set -eu
cd "$(dirname "$0")/.."
: "${FUZZTIME:=60s}" "${GO:=go}"
export CGO_ENABLED=0

status=0 count=0
for dir in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
	listed=$($GO test -list '^Fuzz' "$dir") || { echo "$listed" >&2; exit 1; }
	for target in $(echo "$listed" | grep '^Fuzz'); do
		count=$((count + 1))
		echo "== $dir $target for $FUZZTIME"
		$GO test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$dir" || status=1
	done
done
[ "$count" -gt 0 ] || { echo 'no fuzz target was found' >&2; exit 1; }
echo "== $count fuzz targets, status $status"
exit $status
