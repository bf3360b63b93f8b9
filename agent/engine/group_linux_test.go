package engine

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEngineGetsNoRights: the engine does not inherit the capabilities that the agent has for its
// telemetry.
func TestEngineGetsNoRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to have rights that can be given away")
	}
	done := make(chan error)
	is := 0
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		done <- func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&header, &data[0]); err != nil {
				return err
			}
			data[0].Inheritable |= 1 << unix.CAP_NET_ADMIN
			if err := unix.Capset(&header, &data[0]); err != nil {
				return err
			}
			if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_ADMIN, 0, 0); err != nil {
				return err
			}
			if err := dropRights(); err != nil {
				return err
			}
			set, err := unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, unix.CAP_NET_ADMIN, 0, 0)
			is = set
			return err
		}()
	}()
	if err := <-done; err != nil || is != 0 {
		t.Errorf("CAP_NET_ADMIN is %d, %v", is, err)
	}
}
