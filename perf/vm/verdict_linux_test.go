// Package vm_test checks that vm.sh succeeds only if the tests in the machine have passed.
package vm_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestVerdict boots a machine for each way to end without passing, and one machine that passes.
func TestVerdict(t *testing.T) {
	if os.Getenv("VM_VERDICT") == "" {
		t.Skip("boots virtual machines: make check-vm runs this")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ form, guest, says string }{
		{"run", "TestGuestPasses", "vm.sh: 1 tests passed"},
		{"pair", "TestGuestPasses", "vm.sh: both passed"},
		{"run", "TestGuestFails", "tests failed in the guest"},
		{"pair", "TestGuestFailsInOne", "host 2: vm.sh: tests failed in the guest"},
		{"run", "TestGuestSkips", "TestGuestSkips has not passed"},
		{"run", "TestGuestSkipsAPart", "a test was skipped"},
		{"run", "TestGuestPanics", "tests failed in the guest"},
		{"run", "TestGuestIsKilled", "tests failed in the guest"},
		{"run", "TestGuestExits", "did not end by itself"},
		{"run", "TestGuestPowersOff", "went down without a verdict"},
		{"run", "TestGuestKernelPanics", "went down without a verdict"},
		{"run", "TestGuestHangs", "vm.sh: "}, // the guest ends it, or vm.sh ends qemu if the guest is late
		{"run", "TestNobody", "has no tests"},
	} {
		t.Run(c.form+c.guest, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "./vm.sh", c.form, self, "-test.run=^"+c.guest+"$")
			limit := "VM_LIMIT=300"
			if c.guest == "TestGuestHangs" {
				limit = "VM_LIMIT=40"
			}
			cmd.Env = append(os.Environ(), limit, "VM_MEM=384", "VM_CPUS=1", "VM_ENV=VM_GUEST=1")
			out, err := cmd.CombinedOutput()
			if passed := err == nil; passed != (c.guest == "TestGuestPasses") ||
				!strings.Contains(string(out), c.says) {
				t.Errorf("%v, and not %q:\n%s", err, c.says, out)
			}
		})
	}
}

func inGuest(t *testing.T) {
	if os.Getenv("VM_GUEST") == "" {
		t.Skip("runs in a virtual machine: make check-vm boots it")
	}
}

func TestGuestPasses(t *testing.T) { inGuest(t) }

func TestGuestFails(t *testing.T) {
	inGuest(t)
	t.Fail()
}

func TestGuestFailsInOne(t *testing.T) {
	inGuest(t)
	if os.Getenv("VM_HOST") == "2" {
		t.Fail()
	}
}

func TestGuestSkips(t *testing.T) {
	inGuest(t)
	t.Skip("as asked: vm.sh is to refuse it")
}

func TestGuestSkipsAPart(t *testing.T) {
	inGuest(t)
	t.Run("part", func(t *testing.T) { t.Skip("as asked: vm.sh is to refuse it") })
}

func TestGuestPanics(t *testing.T) {
	inGuest(t)
	panic("as asked")
}

func TestGuestIsKilled(t *testing.T) {
	inGuest(t)
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// TestGuestExits ends the process with status 0 without package testing noticing.
func TestGuestExits(t *testing.T) {
	inGuest(t)
	syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
}

func TestGuestPowersOff(t *testing.T) {
	inGuest(t)
	syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}

func TestGuestKernelPanics(t *testing.T) {
	inGuest(t)
	os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
}

func TestGuestHangs(t *testing.T) {
	inGuest(t)
	for { // here Go does not notice a deadlock
		syscall.Pause()
	}
}
