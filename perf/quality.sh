#!/bin/sh
# Routing quality: plays one trace through the real router over 8 simulated engines, once for
# each routing mode, and prints one table.
#
#   perf/quality.sh [TRACE.jsonl]     without a file the trace is the one that perf/trace.sh chooses
#
# TURNS (2000), SPEED (20), MODES and PORT (23000, up to 20 ports from there) can be set.
#
# Every engine caches 20 % of the trace's distinct blocks. At their prefill rate the fleet would be
# busy 1.05 times over without any cache hit. Round robin then has a utilisation of about 0.9. Every
# time in the engines and the lifetimes in the router are divided by SPEED, as the spacing of the
# arrivals is.
set -eu
cd "$(dirname "$0")/.."
trace=$(TRACE=${1:-${TRACE:-}} perf/trace.sh)
: "${TURNS:=2000}" "${SPEED:=20}" "${MODES:=score round_robin least_loaded random}" "${PORT:=23000}"
engines=8
dir=$(mktemp -d)
pids=
finish() {
	for p in $pids; do kill "$p" 2>/dev/null || true; done
	for p in $pids; do wait "$p" 2>/dev/null || true; done
	rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

spread= name="of the project's generator"
if [ -n "$trace" ]; then
	spread=--spread name=${trace##*/}
	head -n "$TURNS" "$trace" >"$dir/trace"
else
	bin/cgn-ctl bench trace --requests "$TURNS" >"$dir/trace"
fi

# Distinct blocks of 512 tokens, tokens and seconds of the trace.
shape=$(awk '{
	match($0, /"timestamp": *[0-9]+/); t = substr($0, RSTART, RLENGTH); sub(/.*: */, "", t); if (t + 0 > last) last = t + 0
	match($0, /"input_length": *[0-9]+/); n = substr($0, RSTART, RLENGTH); sub(/.*: */, "", n); tokens += n
	match($0, /"hash_ids": *\[[^]]*/); ids = substr($0, RSTART, RLENGTH); sub(/.*\[/, "", ids)
	k = split(ids, a, / *, */); for (i = 1; i <= k; i++) if (!(a[i] in seen)) { seen[a[i]] = 1; blocks++ }
} END { print blocks, tokens, last / 1000 }' "$dir/trace")
set -- $shape
cache=$(awk -v b="$1" 'BEGIN { printf "%d", b * 32 * 0.20 }')
rate=$(awk -v t="$2" -v s="$3" -v n="$engines" 'BEGIN { printf "%.0f", t / s / n / 1.05 }')
printf '%s\n\n' "Trace: $name, $TURNS turns, $1 distinct blocks of 512 tokens, $2 prompt tokens in $3 s; $engines engines of $cache blocks of 16 tokens, $rate prompt tokens/s each; speed x$SPEED." | fold -s -w 100 | sed 's/ *$//'

wait_ready() {
	i=0
	until curl -sf -o /dev/null "http://$1/readyz"; do
		i=$((i + 1))
		[ $i -lt 100 ] || { echo "the router did not get ready:" >&2; cat "$dir"/router.log >&2; exit 1; }
		sleep 0.1
	done
}

header=
for mode in $MODES; do
	echo "running $mode, about $(awk -v s="$3" -v x="$SPEED" 'BEGIN { printf "%d", s / x + 5 }') s" >&2
	own= backends=
	for i in $(seq 0 $((engines - 1))); do
		p=$((PORT + i))
		bin/cgn-ctl sim --listen "127.0.0.1:$p" --cache-blocks "$cache" --prefill-rate "$rate" --speed "$SPEED" \
			--decode-step 25ms --max-seqs 64 >"$dir/sim$i.log" 2>&1 &
		own="$own $!"
		backends="$backends --backend http://127.0.0.1:$p,id=sim-$i"
	done
	ttl=$(awk -v x="$SPEED" 'BEGIN { printf "%dms", 120000 / x }')
	CGN_PREFIX_TTL=$ttl bin/cgn-router --listen "127.0.0.1:$((PORT + 18))" --admin "127.0.0.1:$((PORT + 19))" \
		--mode "$mode" --drain-delay 0s $backends >"$dir/router.log" 2>&1 &
	own="$own $!"
	pids=$own
	wait_ready "127.0.0.1:$((PORT + 19))"
	bin/cgn-ctl bench replay --url "http://127.0.0.1:$((PORT + 18))" --trace "$dir/trace" $spread --turns "$TURNS" --speed "$SPEED" \
		>"$dir/out.$mode" 2>"$dir/err.$mode" || { cat "$dir/out.$mode" "$dir/err.$mode" "$dir/router.log" >&2; exit 1; }
	[ -n "$header" ] || { header=1; sed -n '1,2p' "$dir/out.$mode" | sed '1s/^| |/| mode |/'; }
	sed -n "3s#^| [^|]* |#| $mode |#p" "$dir/out.$mode"
	grep -h '^requests were sent at most' "$dir/out.$mode" >&2 || true
	for p in $own; do kill "$p"; done
	for p in $own; do wait "$p" 2>/dev/null || true; done
	pids=
done
