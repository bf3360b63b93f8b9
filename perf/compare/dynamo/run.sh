#!/bin/sh
# Replays the trace of perf/trace.sh through router/residency and through the indexes of the crate
# dynamo-kv-router, in interleaved runs, and prints their times and memory. The first run builds the
# crate, in minutes.
set -eu
cd "$(dirname "$0")/../../.."
command -v cargo >/dev/null || { echo 'cargo is missing (https://rustup.rs)' >&2; exit 1; }
trace=$(perf/trace.sh)
work=$PWD/.cache/perf-index
mkdir -p "$work"
target=${CARGO_TARGET_DIR:-$work}
CARGO_TARGET_DIR=$target cargo build --quiet --release --locked --manifest-path perf/compare/dynamo/Cargo.toml
CGO_ENABLED=0 go test -c -o "$work/residency.test" ./router/residency
for capacity in 0 146000; do
	go run ./perf/compare/dynamo "$trace" $capacity "$work/replay-$capacity"
done
for _ in $(seq "${REPETITIONS:-3}"); do
	for capacity in 0 146000; do
		echo "== capacity $capacity"
		CGN_TRACE=$trace "$work/residency.test" -test.run '^$' -test.bench "Replay/capacity=$capacity,lead=0,names=false" -test.benchtime 1x | grep ^Bench
		"$target/release/dynamo-index" "$work/replay-$capacity" tree
		"$target/release/dynamo-index" "$work/replay-$capacity" pool 4
	done
	CGN_TRACE=$trace "$work/residency.test" -test.run '^$' -test.bench 'Lookup/capacity=0' -test.benchtime 20000x | grep ^BenchmarkLookup/
	"$target/release/dynamo-index" "$work/replay-0" tree lookup
	"$target/release/dynamo-index" "$work/replay-0" pool 4 lookup
done
