#!/bin/bash
# Runs a Go test binary on Debian's own kernel in qemu, without KVM and without an installation. It
# is for tests that depend on the kernel's version.
#
#   vm.sh fetch                  downloads Debian's kernel, qemu and busybox into $VM (.cache/vm)
#   vm.sh cgo COMMAND...         runs COMMAND, a go build, with the libibverbs of VM_RDMA=1
#   vm.sh run TESTBIN [ARG...]   boots, and runs TESTBIN -test.v -test.short ARG... as root
#   vm.sh pair TESTBIN [ARG...]  runs the same in two machines with a cable between them
#
# A run succeeds if every test that TESTBIN lists has passed without a skipped part. In addition the
# guest must report success by a number that this run has drawn. A crash does not know that number.
#
#   VM_LIMIT    seconds for a run (540)
#   VM_MEM      MiB of memory (768)
#   VM_CPUS     CPUs of the guest (2)
#   VM_CPU      qemu's name of the CPU (max); qemu64 copies twice as fast, but lacks AVX
#   VM_THREAD   multi: a thread of the host for each CPU; single: one thread for all (multi)
#   VM_LOG      file for the guest's output; a failed run also leaves it in $VM/failed.log, behind
#               the kernel's messages
#   VM_FILES    programs for the guest's /bin
#   VM_ENV      NAME=VALUE... for the test binary
#   VM_MODULES  further modules that the guest loads
#   VM_QEMU     further arguments of qemu, for devices
#   VM_RDMA     1: the guest has an RDMA card and RDMA_REQUIRED=1, and fetch gets libibverbs too
#
# The guest has the libraries that TESTBIN and VM_FILES are linked to. With VM_RDMA=1 it has
# libibverbs, the programs ip, tc and rdma, perftest's programs, and the kernel's rdma_rxe. Its card
# rxe0 does RoCE v2 in software over the interface rdma0, 192.0.2.1, MTU 9000.
#
# In a pair, VM_HOST (1 or 2) tells a test its machine, and VM_SELF and VM_PEER the addresses of
# both machines on eth0, MTU 9000. There rxe0 uses eth0. A test pulls the cable out of its machine
# with a line "@@ cable off", and puts it back with "@@ cable on". A pair succeeds if both machines
# do. When one fails, the other has 10 s to end. "host 1: " and "host 2: " precede their output. The
# variables above apply to each machine; VM_LOG gets .1 and .2.
#
# The kernel writes the stacks of all CPUs to its messages if a CPU makes no progress for 2 minutes.
#
# Each machine could have a second CPU, even with VM_CPUS=1. Otherwise qemu 7.2 makes code without
# memory barriers, although devices run beside it. Then a queue of virtio sometimes stops for ever.
#
# With VM_THREAD=multi, qemu 7.2 sometimes goes on running code that another CPU has replaced. Tests
# that patch the running kernel need single, for example tests that attach and detach tracepoints.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
VM=${VM:-$PWD/.cache/vm}
root=$VM/root
arch=x86_64-linux-gnu
# The guest loads these modules in this order, each after the modules that it depends on.
modules="inet_diag tcp_diag tun veth sch_netem ${VM_MODULES:-}"
[ "${1:-}" != pair ] || modules="$modules virtio_pci virtio_net"
# rdma_rxe needs crc32_generic, but depends= does not list it: rxe asks for an algorithm by name.
[ -z "${VM_RDMA:-}" ] || modules="$modules crc32_generic rdma_rxe ib_uverbs dummy sch_ingress cls_u32 act_gact"

fail() { echo "vm.sh: $*" >&2; exit 1; }

libraries() { LD_LIBRARY_PATH=$root/usr/lib/$arch:$root/lib/$arch "$@"; }

fetch() {
	[ ! -e "$VM/complete" ] || return 0
	[ "$(uname -m)" = x86_64 ] || fail "the kernel is fetched for x86_64 only"
	rm -rf "$VM"
	mkdir -p "$VM/debs" "$VM/kernel" "$root"
	local kernel
	kernel=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ {print $2; exit}')
	[ -n "$kernel" ] || fail "apt knows no linux-image-amd64: apt-get update"
	unpack "$kernel" qemu-system-x86 qemu-system-common qemu-system-data seabios busybox-static cpio
	unpack_kernel
	touch "$VM/complete"
}

fetch_rdma() {
	[ ! -e "$VM/complete-rdma" ] || return 0
	unpack libibverbs1 ibverbs-providers libibverbs-dev libnl-3-200 libnl-route-3-200 librdmacm1 libibumad3 libpci3 perftest iproute2
	touch "$VM/complete-rdma"
}

# unpack PACKAGE... downloads packages, with the dependencies that this machine lacks, and unpacks
# them. The dependencies of a kernel package are left out.
unpack() {
	local deb more programs=()
	for deb in "$@"; do
		case $deb in linux-image-*) ;; *) programs+=("$deb") ;; esac
	done
	more=$(apt-get install -s --no-install-recommends "${programs[@]}" 2>/dev/null | awk '/^Inst/ {print $2}')
	mkdir -p "$VM/debs"
	# shellcheck disable=SC2086 # a list
	(cd "$VM/debs" && apt-get -q download "$@" $more >/dev/null)
	for deb in "$VM"/debs/*.deb; do
		case $deb in
		*/linux-image-*) dpkg -x "$deb" "$VM/kernel" ;;
		*) dpkg -x "$deb" "$root" ;;
		esac
	done
	rm -r "$VM/debs"
}

# unpack_kernel leaves an ELF kernel, which qemu starts without decompressing it in the guest.
unpack_kernel() {
	local packed at
	packed=$(echo "$VM"/kernel/boot/vmlinuz-*)
	at=$(grep -aboP '\xFD7zXZ\x00' "$packed" | head -1 | cut -d: -f1 || true)
	if [ -n "$at" ]; then
		# xz fails at the bytes behind the archive, after it has written the whole kernel.
		tail -c "+$((at + 1))" "$packed" | xz -dc 2>/dev/null >"$VM/vmlinux" || true
	fi
	[ "$(head -c 4 "$VM/vmlinux" 2>/dev/null | tail -c 3)" = ELF ] || cp "$packed" "$VM/vmlinux"
}

# put FOLDER PROGRAM NAME copies a program to FOLDER/NAME, and its libraries into FOLDER.
put() {
	install -D -m 755 "$2" "$1/$3"
	local library
	for library in $(libraries ldd "$2" 2>/dev/null | awk '/=> \// {print $3} $1 ~ /^\/lib64\// {print $1}'); do
		case $library in
		/lib64/*) install -D -m 755 "$library" "$1$library" ;;
		*) install -D -m 755 "$library" "$1/lib/$arch/${library##*/}" ;;
		esac
	done
}

# module FOLDER NAME copies a module, after the modules that it depends on.
module() {
	local file name
	[ ! -e "$1/lib/$2.ko" ] || return 0
	file=$(find "$VM/kernel/lib/modules" -name "${2//_/[-_]}.ko" | head -1)
	[ -n "$file" ] || fail "the kernel has no module $2"
	for name in $(grep -az '^depends=' "$file" | tr -d '\0' | sed 's/^depends=//; s/,/ /g'); do
		module "$1" "$name"
	done
	cp "$file" "$1/lib/$2.ko"
	echo "$2" >>"$1/lib/modules"
}

# cards FOLDER copies the files for RDMA. No program is linked to the first two libraries:
# libibverbs opens a card's driver by name, and glibc opens libgcc_s when a thread ends.
cards() {
	local program
	put "$1" "$root/usr/lib/$arch/libibverbs/librxe-rdmav34.so" "lib/$arch/libibverbs/librxe-rdmav34.so"
	put "$1" "/lib/$arch/libgcc_s.so.1" "lib/$arch/libgcc_s.so.1"
	install -D "$root/etc/libibverbs.d/rxe.driver" "$1/etc/libibverbs.d/rxe.driver"
	mkdir "$1/usr" && ln -s ../lib "$1/usr/lib"
	for program in bin/ip sbin/tc usr/bin/rdma usr/bin/ib_read_bw usr/bin/ib_read_lat; do
		put "$1" "$root/$program" "bin/${program##*/}"
	done
}

# initrd FILE TESTBIN writes the whole system of the guest.
initrd() {
	local dir=$1.d name
	mkdir -p "$dir"/{bin,proc,sys,dev,tmp,lib}
	cp "$root/bin/busybox" "$dir/bin/"
	ln -s busybox "$dir/bin/sh"
	put "$dir" "$2" test.bin
	for name in ${VM_FILES:-}; do
		put "$dir" "$name" "bin/${name##*/}"
	done
	for name in $modules; do
		module "$dir" "$name"
	done
	[ -z "${VM_RDMA:-}" ] || cards "$dir"
	install -m 755 perf/vm/init "$dir/init"
	(cd "$dir" && find . | libraries "$(command -v cpio || echo "$root/bin/cpio")" -o -H newc --quiet) >"$1"
	rm -r "$dir"
}

# verdict LOG TESTBIN STATUS NUMBER fails unless the tests have passed. The good status is above
# 192, and so above every status of timeout, signals and init.
verdict() {
	case $3 in
	$(($4 * 2 + 1))) ;;
	124 | 137) fail "the guest did not end within $limit s" ;;
	0) fail "the guest went down without a verdict: it crashed, or its init did" ;;
	*) fail "tests failed in the guest (qemu's status $3)" ;;
	esac
	grep -qx PASS "$1" || fail "$2 did not end by itself"
	local name passed=0
	for name in $(libraries "$2" -test.list "$pattern" | grep '^Test' | grep -vE "$skip"); do
		grep -q "^--- PASS: $name " "$1" || fail "$name has not passed"
		passed=$((passed + 1))
	done
	[ $passed -gt 0 ] || fail "$2 has no tests"
	! grep -E '^ *--- SKIP: ' "$1" || fail "a test was skipped"
	grep '^@@ kernel' "$1"
	echo "vm.sh: $passed tests passed on it"
}

# ended STATUS LOG FOLDER removes the run's folder. After a failure it first saves the messages of
# the kernel and of the test.
ended() {
	if [ "$1" != 0 ] && [ -e "$2" ]; then
		cat "$3/kernel" "$2" >"$VM/failed${VM_HOST:+.$VM_HOST}.log" 2>/dev/null || true
		tail -n 60 "$3/kernel" >&2 2>/dev/null || true
		echo "vm.sh: the kernel's messages and the test's output are in $VM/failed${VM_HOST:+.$VM_HOST}.log" >&2
	fi
	rm -rf "$3"
	exit "$1"
}

run() {
	local bin=$1 number=$((RANDOM % 31 + 97)) cpus=${VM_CPUS:-2} status=0 work log
	shift
	limit=${VM_LIMIT:-540} pattern=. skip='^$'
	local arg
	for arg in "$@"; do
		case $arg in
		-test.run=*) pattern=${arg#-test.run=} ;;
		-test.skip=*) skip=${arg#-test.skip=} ;;
		esac
	done
	work=$(mktemp -d -p "$VM" run.XXXXXX)
	log=${VM_LOG:-$work/log}
	# shellcheck disable=SC2064 # now, not then
	trap "ended \$? '$log' '$work'" EXIT
	[ -n "${VM_INITRD:-}" ] || initrd "$work/initrd" "$bin"
	# shellcheck disable=SC2086 # VM_QEMU is a list
	libraries timeout --kill-after=5 "$limit" "$root/usr/bin/qemu-system-x86_64" -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" \
		-accel "tcg,thread=${VM_THREAD:-multi}" -cpu "${VM_CPU:-max}" -m "${VM_MEM:-768}" -smp "$cpus,maxcpus=$((cpus > 1 ? cpus : 2))" -nodefaults -no-user-config -display none -no-reboot \
		-serial "file:$work/kernel" -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=0x04 ${VM_QEMU:-} -kernel "$VM/vmlinux" -initrd "${VM_INITRD:-$work/initrd}" \
		-append "console=ttyS0 loglevel=5 panic=-1 watchdog_thresh=60 softlockup_all_cpu_backtrace=1 vm.number=$number vm.limit=$((limit - 20)) ${VM_RDMA:+RDMA_REQUIRED=1 RDMA_DEVICE=rxe0} ${VM_ENV:-} -- $*" </dev/null 2>&1 | stdbuf -oL tr -d '\r' | tee "$log" >(cable) || status=${PIPESTATUS[0]}
	verdict "$log" "$bin" "$status" "$number"
}

# cable reads the guest's output, and tells qemu to pull or plug the cable when a line asks for it.
cable() { sed -un 's/^@@ cable \(on\|off\)$/set_link cable \1/p' >"${VM_MONITOR:-/dev/null}"; }

# host NUMBER FOLDER [server=on,] TESTBIN... runs one machine of a pair.
host() {
	local number=$1 other=$((3 - $1)) dir=$2 qemu
	qemu="-netdev stream,id=cable,$3addr.type=unix,addr.path=$dir/cable -device virtio-net-pci,netdev=cable,romfile=,mac=52:54:00:00:00:0$1 -chardev pipe,id=monitor,path=$dir/monitor$1 -mon monitor"
	shift 3
	VM_HOST=$number VM_LOG=${VM_LOG:+$VM_LOG.$number} VM_QEMU="${VM_QEMU:-} $qemu" VM_INITRD=$dir/initrd VM_MONITOR=$dir/monitor$number.in \
		VM_ENV="${VM_ENV:-} VM_HOST=$number VM_SELF=192.0.2.$number VM_PEER=192.0.2.$other" perf/vm/vm.sh run "$@" 2>&1 | sed -u "s/^/host $number: /" && return
	[ ! -e "$dir/failed" ] || return 1
	touch "$dir/failed"
	echo "vm.sh: host $number failed: host $other has 10 s to end"
	sleep 10
	echo quit >"$dir/monitor$other.in"
	return 1
}

# pair TESTBIN... runs both machines. The second machine's qemu connects to the first machine's, as
# soon as that listens.
pair() {
	local dir first second tries=0 status=0
	dir=$(mktemp -d) # short enough for a socket's path
	initrd "$dir/initrd" "$1"
	mkfifo "$dir"/monitor{1,2}.{in,out}
	exec 7<>"$dir/monitor1.in" 8<>"$dir/monitor2.in" # so that writers there never wait for a reader
	# shellcheck disable=SC2064 # now, not then
	trap "echo quit >&7; echo quit >&8; wait; rm -r '$dir'" EXIT
	host 1 "$dir" server=on, "$@" &
	first=$!
	until [ -S "$dir/cable" ]; do
		tries=$((tries + 1))
		if [ $tries -gt 300 ] || ! kill -0 $first 2>/dev/null; then
			fail "the first machine does not start"
		fi
		sleep 0.1
	done
	host 2 "$dir" "" "$@" &
	second=$!
	wait $first || status=1
	wait $second || status=1
	[ $status = 0 ] || fail "one of the two failed"
	echo "vm.sh: both passed"
}

# cgo COMMAND... runs a command with libibverbs for the C compiler.
cgo() {
	CGO_ENABLED=1 CGO_CFLAGS="${CGO_CFLAGS:--O2 -g} -I$root/usr/include" CGO_LDFLAGS="${CGO_LDFLAGS:-} -L$root/usr/lib/$arch -Wl,-rpath-link,$root/usr/lib/$arch:$root/lib/$arch" "$@"
}

case ${1:-} in
fetch)
	fetch
	[ -z "${VM_RDMA:-}" ] || fetch_rdma
	;;
cgo)
	shift
	fetch
	fetch_rdma
	cgo "$@"
	;;
run | pair)
	[ $# -ge 2 ] || fail "$1 what? vm.sh $1 TESTBIN"
	fetch
	[ -z "${VM_RDMA:-}" ] || fetch_rdma
	"$@"
	;;
*)
	sed -n '2,42s/^# \{0,1\}//p' "$0"
	exit 2
	;;
esac
