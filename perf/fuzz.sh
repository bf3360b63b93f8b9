#!/bin/sh
# Runs every fuzz target of the module for FUZZTIME (60s) each, one after the other. Go writes
# inputs that fail to the package's testdata/fuzz; commit them. Go's default makes an interesting
# input shorter for up to 60s, and tries no other input meanwhile. Here 100 tries must do.
set -eu
cd "$(dirname "$0")/.."
: "${FUZZTIME:=60s}" "${GO:=go}"
export CGO_ENABLED=0

out=$(mktemp)
trap 'rm -f "$out"' EXIT

# fuzz PACKAGE TARGET runs one target. Go also fails, with "context deadline exceeded" and without a
# failing input, if a worker is busy with an input when the time is over. Then fuzz runs it again.
fuzz() {
	for again in yes no; do
		if $GO test -run '^$' -fuzz "^$2\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 100x "$1" >"$out" 2>&1; then
			cat "$out"
			return 0
		fi
		cat "$out"
		if grep -q 'Failing input written' "$out" || ! grep -q 'context deadline exceeded' "$out"; then
			return 1
		fi
		[ $again = no ] || echo "== $1 $2 again: its time was over, no input has failed"
	done
	return 1
}

status=0 count=0
for dir in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
	listed=$($GO test -list '^Fuzz' "$dir") || { echo "$listed" >&2; exit 1; }
	for target in $(echo "$listed" | grep '^Fuzz'); do
		count=$((count + 1))
		echo "== $dir $target for $FUZZTIME"
		fuzz "$dir" "$target" || status=1
	done
done
[ "$count" -gt 0 ] || { echo 'no fuzz target was found' >&2; exit 1; }
echo "== $count fuzz targets, status $status"
exit $status
