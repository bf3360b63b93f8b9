#!/bin/bash
# Runs a static Go test binary on Debian's own kernel, in qemu, without KVM and without installing anything: for what depends on the kernel's version.
#
#   vm.sh fetch                  downloads kernel, qemu and busybox of Debian into $VM (.cache/vm)
#   vm.sh run TESTBIN [ARG...]   boots, and runs TESTBIN -test.v -test.short ARG... as root
#
# It succeeds only if the guest says so by a number that this run drew, which a crash cannot, and every test that TESTBIN lists has passed.
# VM_LIMIT (seconds, 540), VM_MEM (MiB, 768), VM_CPUS (2), VM_THREAD (multi: a thread of the host for each CPU; single: one for all),
# VM_LOG (a file that the guest's output is written to; a run that fails leaves it in $VM/failed.log too, after the kernel's messages), VM_FILES (programs
# that go into the guest's /bin), VM_ENV (NAME=VALUE..., for the test binary), VM_MODULES (further modules that the guest loads), VM_QEMU (further arguments
# of qemu, for devices). A CPU that makes no progress for 2 minutes has all CPUs' stacks written to the kernel's messages.
#
# With VM_THREAD=multi, qemu 7.2 now and then runs code on one CPU that another has replaced since, for good: what patches the running kernel, as
# tracepoints do that are attached and detached, wants single.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
VM=${VM:-$PWD/.cache/vm}
root=$VM/root
arch=x86_64-linux-gnu
modules="inet_diag tcp_diag tun veth sch_netem ${VM_MODULES:-}" # in the order in which the guest loads them

fail() { echo "vm.sh: $*" >&2; exit 1; }

libraries() { LD_LIBRARY_PATH=$root/usr/lib/$arch:$root/lib/$arch "$@"; }

fetch() {
	[ ! -e "$VM/complete" ] || return 0
	[ "$(uname -m)" = x86_64 ] || fail "the kernel is fetched for x86_64 only"
	rm -rf "$VM"
	mkdir -p "$VM/debs" "$VM/kernel" "$root"
	local kernel more
	kernel=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ {print $2; exit}')
	[ -n "$kernel" ] || fail "apt knows no linux-image-amd64: apt-get update"
	more=$(apt-get install -s --no-install-recommends qemu-system-x86 2>/dev/null | awk '/^Inst/ {print $2}')
	# shellcheck disable=SC2086 # a list
	(cd "$VM/debs" && apt-get -q download "$kernel" $more qemu-system-x86 qemu-system-common qemu-system-data seabios busybox-static cpio >/dev/null)
	local deb
	for deb in "$VM"/debs/*.deb; do
		case $deb in
		*/linux-image-*) dpkg -x "$deb" "$VM/kernel" ;;
		*) dpkg -x "$deb" "$root" ;;
		esac
	done
	rm -r "$VM/debs"
	unpack_kernel
	touch "$VM/complete"
}

# unpack_kernel leaves an ELF kernel, which qemu starts without decompressing it in the guest.
unpack_kernel() {
	local packed at
	packed=$(echo "$VM"/kernel/boot/vmlinuz-*)
	at=$(grep -aboP '\xFD7zXZ\x00' "$packed" | head -1 | cut -d: -f1 || true)
	if [ -n "$at" ]; then
		tail -c "+$((at + 1))" "$packed" | xz -dc 2>/dev/null >"$VM/vmlinux" || true # what follows the archive is no archive
	fi
	[ "$(head -c 4 "$VM/vmlinux" 2>/dev/null | tail -c 3)" = ELF ] || cp "$packed" "$VM/vmlinux"
}

# initrd FILE TESTBIN: the whole system of the guest.
initrd() {
	local dir=$1.d name file
	mkdir -p "$dir"/{bin,proc,sys,dev,tmp,lib}
	cp "$root/bin/busybox" "$dir/bin/"
	ln -s busybox "$dir/bin/sh"
	install -m 755 "$2" "$dir/test.bin"
	# shellcheck disable=SC2086 # a list
	[ -z "${VM_FILES:-}" ] || install -m 755 ${VM_FILES} "$dir/bin/"
	for name in $modules; do
		file=$(find "$VM/kernel/lib/modules" -name "${name//_/[-_]}.ko" | head -1)
		[ -n "$file" ] || fail "the kernel has no module $name"
		cp "$file" "$dir/lib/$name.ko"
	done
	echo "$modules" >"$dir/lib/modules"
	install -m 755 perf/vm/init "$dir/init"
	(cd "$dir" && find . | libraries "$(command -v cpio || echo "$root/bin/cpio")" -o -H newc --quiet) >"$1"
	rm -r "$dir"
}

# verdict LOG TESTBIN STATUS NUMBER
verdict() {
	case $3 in
	$(($4 * 2 + 1))) ;;
	124 | 137) fail "the guest did not end within $limit s" ;;
	0) fail "the guest went down without a verdict: it crashed, or its init did" ;;
	*) fail "tests failed in the guest (qemu's status $3)" ;;
	esac
	local name passed=0
	for name in $("$2" -test.list "$pattern" | grep '^Test' | grep -vE "$skip"); do
		grep -q "^--- PASS: $name " "$1" || fail "$name has not passed"
		passed=$((passed + 1))
	done
	[ $passed -gt 0 ] || fail "$2 has no tests"
	grep '^@@ kernel' "$1"
	echo "vm.sh: $passed tests passed on it"
}

# ended STATUS LOG FOLDER: a run that fails leaves what the kernel and the test have said.
ended() {
	if [ "$1" != 0 ] && [ -e "$2" ]; then
		cat "$3/kernel" "$2" >"$VM/failed.log" 2>/dev/null || true
		tail -n 60 "$3/kernel" >&2 2>/dev/null || true
		echo "vm.sh: the kernel's messages and the test's output are in $VM/failed.log" >&2
	fi
	rm -rf "$3"
	exit "$1"
}

run() {
	local bin=$1 number=$((RANDOM % 100 + 20)) status=0 work log
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
	initrd "$work/initrd" "$bin"
	# shellcheck disable=SC2086 # VM_QEMU is a list
	libraries timeout --kill-after=5 "$limit" "$root/usr/bin/qemu-system-x86_64" -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" \
		-accel "tcg,thread=${VM_THREAD:-multi}" -cpu max -m "${VM_MEM:-768}" -smp "${VM_CPUS:-2}" -nodefaults -no-user-config -display none -no-reboot \
		-serial "file:$work/kernel" -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=0x04 ${VM_QEMU:-} -kernel "$VM/vmlinux" -initrd "$work/initrd" \
		-append "console=ttyS0 loglevel=5 panic=-1 watchdog_thresh=60 softlockup_all_cpu_backtrace=1 vm.number=$number vm.limit=$((limit - 20)) ${VM_ENV:-} -- $*" </dev/null 2>&1 | stdbuf -oL tr -d '\r' | tee "$log" || status=${PIPESTATUS[0]}
	verdict "$log" "$bin" "$status" "$number"
}

case ${1:-} in
fetch) fetch ;;
run)
	[ $# -ge 2 ] || fail "run what? vm.sh run TESTBIN"
	shift
	fetch
	run "$@"
	;;
*)
	sed -n '2,15s/^# \{0,1\}//p' "$0"
	exit 2
	;;
esac
