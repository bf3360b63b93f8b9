package netpath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Side is one of the two namespaces. A Side has loopback and a device to the other side. The hub of
// a Star has one device to each host.
type Side struct {
	Addr netip.Addr // address of its end of the path, in a network of 4; of a hub, loopback's address

	jobs chan func() // functions to run on the thread in the namespace
	end  chan struct{}
}

func newSide(addr netip.Addr) (*Side, error) {
	s := &Side{Addr: addr, jobs: make(chan func()), end: make(chan struct{})}
	made := make(chan error)
	go s.thread(made)
	if err := <-made; err != nil {
		<-s.end
		return nil, fmt.Errorf("netpath: %w", err)
	}
	return s, nil
}

// thread runs a thread of its own in a new namespace. The thread is not unlocked, so it ends with
// the goroutine, and nothing else runs in the namespace.
func (s *Side) thread(made chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // /proc/net shows the first thread's namespace to the whole process
		another := make(chan struct{})
		go func() {
			defer close(another)
			s.thread(made)
		}()
		<-another
		runtime.UnlockOSThread()
		return
	}
	defer close(s.end)
	err := os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET))
	made <- err
	if err != nil {
		return
	}
	for job := range s.jobs {
		job()
	}
}

// configure gives the device its address, and starts the device and loopback. The side's thread
// must call configure.
func (s *Side) configure(queue int) error { return configure(device, s.Addr, queue) }

// configure starts loopback, gives a device its address in a network of 4, and starts it. The
// calling thread must be in the device's namespace.
func configure(device string, addr netip.Addr, queue int) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	d, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("%s: %w", device, err)
	}
	network := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(30, 32)}
	return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetMTU(d, mtu), netlink.LinkSetTxQLen(d, queue),
		netlink.AddrAdd(d, &netlink.Addr{IPNet: network}), netlink.LinkSetARPOff(d), netlink.LinkSetUp(d))
}

// Do runs f on the side's thread and waits for it. Sockets that f makes on this thread, and not on
// another goroutine, belong to the namespace and stay there. f must neither call Do nor end its
// goroutine, as T.Fatal does.
func (s *Side) Do(f func()) {
	done := make(chan struct{})
	s.jobs <- func() {
		defer close(done)
		f()
	}
	<-done
}

// Start starts a program in the namespace. The program is killed when this process ends or the path
// is closed.
func (s *Side) Start(cmd *exec.Cmd) (err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	s.Do(func() { err = cmd.Start() })
	return err
}

// shut ends the thread.
func (s *Side) shut() {
	close(s.jobs)
	<-s.end
}
